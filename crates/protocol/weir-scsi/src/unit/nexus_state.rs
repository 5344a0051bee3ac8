//! State of an I_T nexus: its I_T_L nexuses.
//!
//! Commands are in `command`, the target is in `dispatch`.
//!
//! Invariant: an I_T nexus has exactly one I_T_L nexus for each logical unit of its target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::codec::command::Lun;
use crate::codec::port::InitiatorPort;
use crate::unit::attention::Attention;
use crate::unit::itl_nexus::ItlNexus;
use crate::unit::logical_unit::Unit;
use crate::unit::nexus_name::NexusName;

/// Finds logical units of other targets, for copies between volumes.
pub trait Directory: Send + Sync + 'static {
    /// Returns the logical unit with this NAA designator, if the initiator may use it.
    fn find(&self, initiator: &InitiatorPort, naa: [u8; 16]) -> Option<Arc<Unit>>;
}

/// State of an I_T nexus. The target updates it when the target's map of logical units changes.
pub(crate) struct NexusState {
    pub(crate) name: Arc<NexusName>,
    pub(crate) itl_nexuses: RwLock<BTreeMap<u16, Arc<ItlNexus>>>,
    /// True if REPORTED LUNS DATA HAS CHANGED is pending. The flag exists once for each I_T nexus:
    /// after one unit has reported the condition, no other unit reports it (LUICLR, SPC-4 7.8.7).
    luns_changed: AtomicBool,
    /// Finds logical units of other targets.
    pub(crate) directory: Option<Arc<dyn Directory>>,
}

impl NexusState {
    pub(crate) fn new(
        name: Arc<NexusName>,
        itl_nexuses: BTreeMap<u16, Arc<ItlNexus>>,
        directory: Option<Arc<dyn Directory>>,
    ) -> Arc<Self> {
        let (itl_nexuses, luns_changed) = (RwLock::new(itl_nexuses), AtomicBool::new(false));
        Arc::new(Self { name, itl_nexuses, luns_changed, directory })
    }

    /// The I_T_L nexus for a LUN.
    pub(crate) fn itl_nexus(&self, lun: Lun) -> Option<Arc<ItlNexus>> {
        self.itl_nexuses.read().get(&lun.number()?).cloned()
    }

    /// The I_T_L nexus for the logical unit with this NAA designator.
    pub(crate) fn itl_nexus_of(&self, naa: [u8; 16]) -> Option<Arc<ItlNexus>> {
        let itl_nexuses = self.itl_nexuses.read();
        itl_nexuses.values().find(|itl_nexus| itl_nexus.unit.identity.naa == naa).cloned()
    }

    /// LUNs of the mapped logical units, in ascending order.
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

    /// Raises REPORTED LUNS DATA HAS CHANGED, after a change of the map of logical units.
    pub(crate) fn raise_luns_changed(&self) {
        self.luns_changed.store(true, Ordering::Release);
    }

    /// Clears REPORTED LUNS DATA HAS CHANGED. REPORT LUNS clears the condition before it reads the
    /// map (SPC-4 6.33), so that a later change of the map is reported again.
    pub(crate) fn clear_luns_changed(&self) {
        self.luns_changed.store(false, Ordering::Release);
    }

    /// True if a unit attention is pending for a command to the logical unit of `itl_nexus`.
    pub(crate) fn has_attention(&self, itl_nexus: &ItlNexus) -> bool {
        itl_nexus.attentions.is_any() || self.luns_changed.load(Ordering::Acquire)
    }

    /// Removes and returns the first unit attention for a command to the logical unit of
    /// `itl_nexus`. Attentions of that unit come before the attention of the I_T nexus.
    pub(crate) fn take_attention(&self, itl_nexus: &ItlNexus) -> Option<Attention> {
        itl_nexus.attentions.take().or_else(|| {
            let is_pending = self.luns_changed.load(Ordering::Acquire)
                && self.luns_changed.swap(false, Ordering::AcqRel);
            is_pending.then_some(Attention::LUNS_CHANGED)
        })
    }
}
