//! Names of the initiator port and the target port of an I_T nexus.
//!
//! The I_T_L nexuses of the I_T nexus are in `nexus_state`.
//!
//! Invariant: the names do not change during the life of the nexus.

use std::sync::Arc;

use crate::codec::port::{InitiatorPort, Port};
use crate::unit::reservation::Path;

/// Names of the initiator port and the target port of an I_T nexus.
pub(crate) struct NexusName {
    pub(crate) initiator: InitiatorPort,
    /// All ports of the target.
    pub(crate) ports: Arc<[Port]>,
    /// Initiator port and target port, in the form in which the reservation state stores them.
    pub(crate) path: Path,
}
