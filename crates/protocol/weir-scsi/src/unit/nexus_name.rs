//! Both ends of a nexus.
//!
//! Not here: its seats on logical units (`nexus_state`).
//!
//! Invariant: a name does not change while the nexus lasts.

use std::sync::Arc;

use crate::codec::port::{InitiatorPort, Port};
use crate::unit::reservation::Path;

/// Both ends of a nexus.
pub(crate) struct NexusName {
    pub(crate) initiator: InitiatorPort,
    /// The ports of the target.
    pub(crate) ports: Arc<[Port]>,
    /// Both ends, as reservations keep them.
    pub(crate) path: Path,
}
