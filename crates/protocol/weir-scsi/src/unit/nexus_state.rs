//! State of an I_T nexus: its I_T_L nexuses.
//!
//! Commands are in `command`, the target is in `dispatch`.
//!
//! Invariant: an I_T nexus has exactly one I_T_L nexus for each logical unit of its target.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::codec::command::Lun;
use crate::codec::port::InitiatorPort;
use crate::unit::attention::Attention;
use crate::unit::itl_nexus::ItlNexus;
use crate::unit::logical_unit::Unit;
use crate::unit::nexus_name::NexusName;

/// Finds logical units of other targets, for copies between volumes.
pub trait Directory: Send + Sync + 'static {
    /// The logical unit with this NAA designator, if the initiator may use it.
    fn find(&self, initiator: &InitiatorPort, naa: [u8; 16]) -> Option<Arc<Unit>>;
}

/// State of an I_T nexus. The target updates it when its map of logical units changes.
pub(crate) struct NexusState {
    pub(crate) name: Arc<NexusName>,
    pub(crate) itl_nexuses: RwLock<BTreeMap<u16, Arc<ItlNexus>>>,
    /// Finds logical units of other targets.
    pub(crate) directory: Option<Arc<dyn Directory>>,
}

impl NexusState {
    /// The I_T_L nexus for a logical unit number.
    pub(crate) fn itl_nexus(&self, lun: Lun) -> Option<Arc<ItlNexus>> {
        self.itl_nexuses.read().get(&lun.number()?).cloned()
    }

    /// Mapped logical unit numbers, in ascending order.
    pub(crate) fn luns(&self) -> Vec<u16> {
        self.itl_nexuses.read().keys().copied().collect()
    }

    /// A logical unit of another target that this nexus may copy from and to.
    pub(crate) fn find(&self, naa: [u8; 16]) -> Option<Arc<Unit>> {
        self.directory.as_ref()?.find(&self.name.initiator, naa)
    }

    /// All I_T_L nexuses.
    pub(crate) fn itl_nexuses(&self) -> Vec<Arc<ItlNexus>> {
        self.itl_nexuses.read().values().cloned().collect()
    }
}

/// Clears REPORTED LUNS DATA HAS CHANGED: the response to REPORT LUNS contains the change (SPC-4
/// 6.33).
pub(crate) fn luns_were_told(nexus: &NexusState) {
    for itl_nexus in nexus.itl_nexuses() {
        itl_nexus.attentions.clear(Attention::LUNS_CHANGED);
    }
}
