//! Names of both ends of an I_T nexus.
//!
//! Its I_T_L nexuses are in `nexus_state`.
//!
//! Invariant: the names do not change during the life of the nexus.

use std::sync::Arc;

use crate::codec::port::{InitiatorPort, Port};
use crate::unit::reservation::Path;

/// Names of both ends of an I_T nexus.
pub(crate) struct NexusName {
    pub(crate) initiator: InitiatorPort,
    /// All ports of the target.
    pub(crate) ports: Arc<[Port]>,
    /// Initiator port and target port, in the form in which reservations are stored.
    pub(crate) path: Path,
}
