//! Task attributes: which commands wait for others to end.
//!
//! Not here: the order in which commands are taken (`sequence`), waiting for memory (`room`).
//!
//! Spec: SAM-5 8.6. A session has a task set of its own at each logical unit (TST of the control
//! mode page is 001b), so that what came before what is known here, the commands among it whose
//! data still comes.
//!
//! Invariants:
//! - an ORDERED command runs when all that came before it have ended, and before all that come
//!   after it but those at the HEAD OF QUEUE, which wait for nobody;
//! - where nothing is ORDERED, that costs a look at a number.

use std::rc::Rc;

use weir_scsi::{Attribute, Lun};

use super::state::Connection;
use crate::connection::pending::Task;

impl Connection {
    /// Whether a command waits for others that came before it; `serial` is its number.
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

    /// Lets a command wait for others.
    pub(super) fn wait_for_others(&self, task: &Task) {
        let mut dormant = self.dormant.borrow_mut();
        if !dormant.iter().any(|(_, serial)| *serial == task.serial) {
            dormant.push((task.command.itt, task.serial));
        }
    }

    /// Runs what no longer has to wait, the oldest first.
    pub(super) fn wake_dormant(self: &Rc<Self>) {
        let mut dormant = self.dormant.take();
        dormant.sort_unstable_by_key(|(_, serial)| *serial);
        for (itt, serial) in dormant {
            let task = self.tasks.borrow().get(&itt).map(Rc::clone);
            // Others were aborted meanwhile.
            if let Some(task) = task.filter(|task| task.serial == serial && !task.is_running()) {
                self.run_gathered(&task);
            }
        }
    }
}
