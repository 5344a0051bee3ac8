//! Memory: what a connection holds, and commands that wait for more of it.
//!
//! Not here: how connections share it (`weir_net::Budget`), limits of one connection
//! (`limits`).
//!
//! Invariants:
//! - what is asked for by R2T, and what a command may answer, is set aside before;
//! - commands wait in the order in which they came, and other requests go past them: data that
//!   others wait for is not held up behind them;
//! - what comes unasked is counted when it is there; a connection that piles up unfinished data
//!   while there is no memory left is ended.

use std::rc::Rc;

use weir_iscsi_wire::pdu::Command;
use weir_net::AwaitsClient;

use super::state::Connection;
use crate::connection::pending::Task;
use crate::error::IscsiError;
use crate::limits::{GATHER_BYTES_MAX, TRANSFER_BYTES_MAX};

/// Bytes that the answer to a command may carry.
pub(super) fn answer_bytes(command: &Command) -> usize {
    if command.read { (command.expected_bytes as usize).min(TRANSFER_BYTES_MAX) } else { 0 }
}

impl Connection {
    /// Bytes held, the receive buffer not counted.
    fn memory_bytes(&self) -> usize {
        self.gathering_bytes.get()
            + self.unasked_bytes.get()
            + self.held_bytes.get()
            + self.running_bytes.get()
            + self.outbox.memory_bytes()
    }

    /// Tells the budget what is held.
    pub(super) fn account(&self) {
        self.share.hold(self.memory_bytes());
    }

    /// Something was given back: others may go on, here and elsewhere.
    pub(super) fn made_room(&self) {
        self.account();
        self.progress.notify();
        if !self.to_grant.borrow().is_empty() || !self.dormant.borrow().is_empty() {
            self.share.nudge();
        }
    }

    /// Whether a command may take so much more now. It is set aside until [`Self::account`].
    pub(super) fn may_hold(&self, more_bytes: usize) -> bool {
        let held = self.memory_bytes();
        held + more_bytes <= self.share.own_bytes()
            || self.to_grant.borrow().is_empty() && self.share.ask(held, more_bytes)
    }

    /// Whether commands under way must end before others are taken: data came unasked, and all
    /// memory is in use.
    pub(super) fn must_end_some(&self) -> bool {
        self.is_running() && self.has_too_much()
    }

    fn has_too_much(&self) -> bool {
        let unasked = self.unasked_bytes.get() + self.held_bytes.get();
        unasked > self.share.own_bytes() && self.share.is_exhausted()
    }

    /// Counts what came with a request.
    ///
    /// # Errors
    /// There is no memory for it, and waiting would give none back.
    pub(crate) fn check_memory(&self) -> Result<(), IscsiError> {
        self.account();
        if self.has_too_much() && !self.is_running() {
            let len = self.unasked_bytes.get() + self.held_bytes.get();
            return Err(IscsiError::Unasked { len });
        }
        Ok(())
    }

    /// Returns when commands that wait for memory should be looked at. While some do, clients that
    /// hold it and move nothing are ended.
    pub(crate) async fn turn(&self) {
        if self.to_grant.borrow().is_empty() {
            self.share.turn().await;
        } else {
            self.share.wait().await;
        }
    }

    /// Marks the time until the result is dropped: the initiator is to send or to take something.
    pub(crate) fn awaits_client(&self) -> AwaitsClient {
        self.share.awaits_client()
    }

    /// Bytes went over the socket.
    pub(crate) fn moved(&self, bytes: usize) {
        self.share.moved(bytes);
    }

    /// Returns once the initiator holds memory that others wait for, and does not move.
    pub(crate) async fn evicted(&self) {
        self.share.evicted().await;
    }

    /// Lets a command wait for memory.
    pub(super) fn wait_for_memory(&self, task: &Task) {
        let mut to_grant = self.to_grant.borrow_mut();
        if !to_grant.iter().any(|(_, serial)| *serial == task.serial) {
            to_grant.push_back((task.command.itt, task.serial));
            // From now on it is looked for those that hold the memory.
            self.share.nudge();
        }
    }

    /// Lets commands that wait for memory go on, as far as there is some.
    pub(crate) fn grant(self: &Rc<Self>) {
        if !self.dormant.borrow().is_empty() {
            self.wake_dormant();
        }
        while let Some(task) = self.next_to_grant() {
            let gathers = task.gathers();
            let bytes = task.needs_bytes.get();
            let gathering = self.gathering_bytes.get();
            let has_room = if gathers {
                gathering == 0 || gathering + bytes <= GATHER_BYTES_MAX
            } else {
                self.has_room()
            };
            if !has_room || !self.set_aside(bytes) {
                break;
            }
            self.to_grant.borrow_mut().pop_front();
            task.granted.set(true);
            if gathers {
                self.gathering_bytes.set(gathering + bytes);
                self.data_moves();
                task.reserve();
                self.send_r2ts(&task);
            } else {
                self.run_gathered(&task);
            }
            self.account();
        }
        self.flush();
    }

    /// Sets `bytes` aside. If the budget has too little, frees the spare buffers of this connection
    /// first: no other connection can free them.
    fn set_aside(&self, bytes: usize) -> bool {
        if self.share.ask(self.memory_bytes(), bytes) {
            return true;
        }
        if !self.outbox.give_up_spare() {
            return false;
        }
        self.account();
        self.share.ask(self.memory_bytes(), bytes)
    }

    /// The first command that waits for memory; those that were aborted meanwhile are left out.
    fn next_to_grant(&self) -> Option<Rc<Task>> {
        let mut to_grant = self.to_grant.borrow_mut();
        loop {
            let (itt, serial) = to_grant.front().copied()?;
            let task = self.tasks.borrow().get(&itt).map(Rc::clone);
            match task.filter(|task| task.serial == serial && !task.is_running()) {
                Some(task) => return Some(task),
                None => to_grant.pop_front(),
            };
        }
    }
}
