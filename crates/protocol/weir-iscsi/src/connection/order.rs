//! Order by task attribute: commands that must wait until other commands have ended.
//!
//! CmdSN order is in `sequence`; waiting for memory is in `memory`.
//!
//! Spec: SAM-5 8.6. Each session has its own task set at each logical unit (TST of the control mode
//! page is 001b). This module therefore knows all earlier commands, including commands that still
//! wait for data.
//!
//! Invariants:
//! - an ORDERED command runs after all earlier commands have ended and before all later commands,
//!   except for HEAD OF QUEUE commands, which wait for no other command;
//! - without ORDERED commands, the check costs one comparison for each command.

use std::rc::Rc;

use weir_scsi::{Attribute, Lun};

use super::state::Connection;
use crate::connection::pending::Task;

impl Connection {
    /// Returns true if a command must wait for earlier commands; `serial` is its serial number.
    pub(super) fn is_dormant(&self, lun: Lun, attribute: Attribute, serial: u64) -> bool {
        let is_ordered = attribute == Attribute::Ordered;
        if attribute == Attribute::HeadOfQueue || self.ordered.get() == 0 && !is_ordered {
            return false;
        }
        let waits_for = |task: &Rc<Task>| {
            let before = task.serial < serial && task.lun() == lun;
            before && (is_ordered || task.command.attribute == Attribute::Ordered)
        };
        self.tasks.borrow().values().any(waits_for)
    }

    /// Appends a command to the list of dormant commands, which wait for earlier commands.
    pub(super) fn wait_for_others(&self, task: &Task) {
        let mut dormant = self.dormant.borrow_mut();
        if !dormant.iter().any(|(_, serial)| *serial == task.serial) {
            dormant.push((task.command.itt, task.serial));
        }
    }

    /// Runs dormant commands that no longer have to wait, the oldest first.
    pub(super) fn wake_dormant(self: &Rc<Self>) {
        let mut dormant = self.dormant.take();
        dormant.sort_unstable_by_key(|(_, serial)| *serial);
        for (itt, serial) in dormant {
            let task = self.tasks.borrow().get(&itt).map(Rc::clone);
            // An aborted command is no longer in the task table, so it is skipped here.
            if let Some(task) = task.filter(|task| task.serial == serial && !task.is_running()) {
                self.run_gathered(&task);
            }
        }
    }
}
