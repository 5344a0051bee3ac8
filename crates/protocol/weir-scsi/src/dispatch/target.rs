//! SCSI target device: its ports, its map of logical unit numbers, and the nexuses to it.
//!
//! The transport handles logins; `run` and `command` handle commands.
//!
//! Spec: SAM-5 4.6 and 4.7.
//!
//! Invariants:
//! - every I_T nexus has an I_T_L nexus for each mapped logical unit, and no other I_T_L nexus;
//! - the loss of a nexus releases its SPC-2 reservations, but no registration of the nexus for
//!   persistent reservations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use weir_block::{Block, OutBuf};

use crate::codec::command::{Command, Lun, Management, TaskManagementResponse};
use crate::codec::port::{InitiatorPort, Port};
use crate::codec::transport::{Completion, Nexus};
use crate::command::task::Task;
use crate::dispatch::run;
use crate::limits::LUN_MAX;
use crate::unit::itl_nexus::ItlNexus;
use crate::unit::logical_unit::Unit;
use crate::unit::nexus_name::NexusName;
use crate::unit::nexus_state::{Directory, NexusState};
use crate::unit::reservation::Path;

/// SCSI target device.
pub struct Target {
    name: String,
    ports: Arc<[Port]>,
    directory: Option<Arc<dyn Directory>>,
    state: Mutex<TargetState>,
}

#[derive(Default)]
struct TargetState {
    luns: BTreeMap<u16, Arc<Unit>>,
    /// LUNs of logical units that the server has announced but not yet added.
    awaited: BTreeSet<u16>,
    nexuses: Vec<Weak<NexusState>>,
}

impl Target {
    /// Creates a target without logical units. `name` is the SCSI device name, an iSCSI name.
    pub fn new(
        name: impl Into<String>,
        ports: Vec<Port>,
        directory: Option<Arc<dyn Directory>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            ports: ports.into(),
            directory,
            state: Mutex::default(),
        })
    }

    /// SCSI device name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Target ports.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Mapped logical units with their numbers.
    pub fn luns(&self) -> Vec<(u16, Arc<Unit>)> {
        self.state.lock().luns.iter().map(|(&number, unit)| (number, Arc::clone(unit))).collect()
    }

    /// Returns the logical unit with this number.
    pub fn lun(&self, number: u16) -> Option<Arc<Unit>> {
        self.state.lock().luns.get(&number).cloned()
    }

    /// Maps a logical unit; returns false if the number is in use or above [`LUN_MAX`].
    pub fn add_lun(&self, number: u16, unit: Arc<Unit>) -> bool {
        let mut state = self.state.lock();
        if number > LUN_MAX || state.luns.contains_key(&number) {
            return false;
        }
        for nexus in state.alive() {
            let itl_nexus = ItlNexus::new(Arc::clone(&unit), Arc::clone(&nexus.name));
            nexus.itl_nexuses.write().insert(number, itl_nexus);
            nexus.raise_luns_changed();
        }
        state.awaited.remove(&number);
        state.luns.insert(number, unit);
        true
    }

    /// Announces a logical unit that the server will add later, for example after the import of its
    /// pool. Until then commands to it end with NOT READY, so that initiators retry them. After
    /// LOGICAL UNIT NOT SUPPORTED, initiators would report an I/O error.
    pub fn await_lun(&self, number: u16) {
        let mut state = self.state.lock();
        if !state.luns.contains_key(&number) {
            state.awaited.insert(number);
        }
    }

    pub(crate) fn awaits(&self, lun: Lun) -> bool {
        lun.number().is_some_and(|number| self.state.lock().awaited.contains(&number))
    }

    /// Removes a logical unit from the map, or withdraws its announcement. Running commands
    /// complete. Revokes the unit's ROD tokens at all targets, because clients of other protocols
    /// may change the volume after the removal, and the unit would not see these changes.
    pub fn remove_lun(&self, number: u16) -> Option<Arc<Unit>> {
        let mut state = self.state.lock();
        state.awaited.remove(&number);
        let unit = state.luns.remove(&number)?;
        for nexus in state.alive() {
            let gone = nexus.itl_nexuses.write().remove(&number);
            nexus.raise_luns_changed();
            drop(gone);
        }
        // Revoke the tokens after the removal: a new command no longer finds the unit, so it cannot
        // create a token that this revocation would miss.
        unit.revoke_tokens();
        Some(unit)
    }

    /// Creates the nexus of an initiator port and one of the target ports.
    pub fn nexus(self: &Arc<Self>, initiator: InitiatorPort, relative_port: u16) -> TargetNexus {
        let path = Path {
            initiator_port: initiator.to_string(),
            target: self.name.clone(),
            relative_port,
        };
        let name = Arc::new(NexusName { initiator, ports: Arc::clone(&self.ports), path });
        let mut state = self.state.lock();
        let itl_nexuses = state
            .luns
            .iter()
            .map(|(&number, unit)| (number, ItlNexus::new(Arc::clone(unit), Arc::clone(&name))))
            .collect();
        let nexus = NexusState::new(name, itl_nexuses, self.directory.clone());
        state.nexuses.retain(|nexus| nexus.strong_count() > 0);
        state.nexuses.push(Arc::downgrade(&nexus));
        TargetNexus { target: Arc::clone(self), state: nexus }
    }
}

impl TargetState {
    fn alive(&self) -> Vec<Arc<NexusState>> {
        self.nexuses.iter().filter_map(Weak::upgrade).collect()
    }
}

/// I_T nexus, owned by a session of the transport. Dropping this value is the loss of the nexus.
pub struct TargetNexus {
    target: Arc<Target>,
    state: Arc<NexusState>,
}

impl TargetNexus {
    fn without_unit(&self, command: &Command<'_>, out: &mut OutBuf) -> Completion {
        run::without_unit(&self.state, self.target.awaits(command.lun), command, out)
    }
}

impl Nexus for TargetNexus {
    fn try_execute(&self, command: &Command<'_>, data_in: &mut OutBuf) -> Option<Completion> {
        match self.state.itl_nexus(command.lun) {
            Some(itl_nexus) => Task::new(&self.state, &itl_nexus, *command).try_run(data_in),
            None => Some(self.without_unit(command, data_in)),
        }
    }

    fn try_share(
        &self,
        command: &Command<'_>,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Option<Completion> {
        let itl_nexus = self.state.itl_nexus(command.lun)?;
        Task::new(&self.state, &itl_nexus, *command).try_share(len_bytes, blocks)
    }

    fn execute<'a>(
        &'a self,
        command: Command<'a>,
        data_in: &'a mut OutBuf,
    ) -> LocalBoxFuture<'a, Completion> {
        async move {
            match self.state.itl_nexus(command.lun) {
                Some(itl_nexus) => Task::new(&self.state, &itl_nexus, command).run(data_in).await,
                None => self.without_unit(&command, data_in),
            }
        }
        .boxed_local()
    }

    fn answer_bytes(&self, command: &Command<'_>) -> usize {
        self.state
            .itl_nexus(command.lun)
            .map_or(0, |itl_nexus| run::answer_bytes(&itl_nexus.unit, command.cdb))
    }

    fn manage(&self, lun: Lun, function: Management) -> TaskManagementResponse {
        if function == Management::TargetReset {
            for itl_nexus in self.state.itl_nexuses() {
                itl_nexus.unit.reset(itl_nexus.id);
            }
            return TaskManagementResponse::Complete;
        }
        let Some(itl_nexus) = self.state.itl_nexus(lun) else {
            return TaskManagementResponse::NoLun;
        };
        match function {
            // A task set contains only the tasks of this nexus (TST 001b), and the transport aborts
            // them. TARGET RESET was handled above.
            Management::AbortTaskSet | Management::ClearTaskSet | Management::TargetReset => {}
            Management::LunReset => itl_nexus.unit.reset(itl_nexus.id),
        }
        TaskManagementResponse::Complete
    }

    fn aborts(&self, lun: Lun) -> u64 {
        self.state.itl_nexus(lun).map_or(0, |itl_nexus| itl_nexus.aborts())
    }

    fn tells_aborted(&self, lun: Lun) -> bool {
        self.state.itl_nexus(lun).is_some_and(|itl_nexus| itl_nexus.unit.mode.tells_aborted())
    }
}
