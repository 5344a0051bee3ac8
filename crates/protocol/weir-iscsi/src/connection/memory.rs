//! Memory of a connection: accounting, and the queue of commands that wait for memory.
//!
//! `weir_net::Budget` shares memory between connections; `limits` has the limits of one connection.
//!
//! Invariants:
//! - memory for solicited data and for the response of a command is reserved in advance;
//! - commands wait for memory in FIFO order. Other requests overtake them, so that Data-Out PDUs
//!   for which these commands wait still arrive;
//! - unsolicited data is counted only after its arrival. If incomplete unsolicited data accumulates
//!   while no memory is left, the target ends the connection.

use std::rc::Rc;

use weir_iscsi_wire::pdu::Command;
use weir_net::AwaitsClient;

use super::state::Connection;
use crate::connection::pending::Task;
use crate::error::IscsiError;
use crate::limits::{GATHER_BYTES_MAX, TRANSFER_BYTES_MAX};

/// Returns the number of data bytes that the response to a command may contain.
pub(super) fn answer_bytes(command: &Command) -> usize {
    if command.read { (command.expected_bytes as usize).min(TRANSFER_BYTES_MAX) } else { 0 }
}

impl Connection {
    /// Bytes of memory that the connection holds, not counting the receive buffer.
    fn memory_bytes(&self) -> usize {
        self.gathering_bytes.get()
            + self.unasked_bytes.get()
            + self.held_bytes.get()
            + self.running_bytes.get()
            + self.outbox.memory_bytes()
    }

    /// Reports to the shared budget how much memory the connection holds.
    pub(super) fn account(&self) {
        self.grant.hold(self.memory_bytes());
    }

    /// Reports released memory to the budget, and wakes commands of this connection that wait for
    /// it.
    pub(super) fn made_room(&self) {
        self.account();
        self.progress.notify();
        if !self.to_grant.borrow().is_empty() || !self.dormant.borrow().is_empty() {
            self.grant.nudge();
        }
    }

    /// Reserves `more_bytes` for a command if memory is available. The reservation lasts until the
    /// next [`Self::account`]. Returns false if too little memory is available.
    pub(super) fn may_hold(&self, more_bytes: usize) -> bool {
        let held = self.memory_bytes();
        held + more_bytes <= self.grant.own_bytes()
            || self.to_grant.borrow().is_empty() && self.grant.ask(held, more_bytes)
    }

    /// Returns true if the reader must wait until running commands have ended: unsolicited data has
    /// arrived although all memory is in use.
    pub(super) fn must_end_some(&self) -> bool {
        self.is_running() && self.has_too_much()
    }

    fn has_too_much(&self) -> bool {
        let unasked = self.unasked_bytes.get() + self.held_bytes.get();
        unasked > self.grant.own_bytes() && self.grant.is_exhausted()
    }

    /// Reports the data of the last request to the shared budget.
    ///
    /// # Errors
    /// No memory is left for the data. The nexus runs no command whose end could release memory, so
    /// waiting would not help.
    pub(crate) fn check_memory(&self) -> Result<(), IscsiError> {
        self.account();
        if self.has_too_much() && !self.is_running() {
            let len = self.unasked_bytes.get() + self.held_bytes.get();
            return Err(IscsiError::UnsolicitedData { len });
        }
        Ok(())
    }

    /// Waits until commands that wait for memory should ask for it again. Meanwhile, if there are
    /// such commands, the budget evicts clients that hold memory and transfer too little.
    pub(crate) async fn turn(&self) {
        if self.to_grant.borrow().is_empty() {
            self.grant.turn().await;
        } else {
            self.grant.wait().await;
        }
    }

    /// Records that the target waits for the initiator, until the returned value is dropped.
    pub(crate) fn awaits_client(&self) -> AwaitsClient {
        self.grant.awaits_client()
    }

    /// Counts bytes that the connection sent or received.
    pub(crate) fn moved(&self, bytes: usize) {
        self.grant.moved(bytes);
    }

    /// Waits until the budget evicts this connection: its initiator holds memory that other
    /// connections wait for, and transfers too little.
    pub(crate) async fn evicted(&self) {
        self.grant.evicted().await;
    }

    /// Appends a command to the queue of commands that wait for memory.
    pub(super) fn wait_for_memory(&self, task: &Task) {
        let mut to_grant = self.to_grant.borrow_mut();
        if !to_grant.iter().any(|(_, serial)| *serial == task.serial) {
            to_grant.push_back((task.command.itt, task.serial));
            // Wake the task that waits in `turn`, so that it waits again. Its new wait takes this
            // command into account and makes the budget evict stalled clients.
            self.grant.nudge();
        }
    }

    /// Resumes commands that wait for memory, in order, as long as memory is available.
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

    /// Reserves `bytes` for a command. If the budget has too little memory, first frees the spare
    /// buffers of this connection, because other connections cannot free them.
    fn set_aside(&self, bytes: usize) -> bool {
        if self.grant.ask(self.memory_bytes(), bytes) {
            return true;
        }
        if !self.outbox.give_up_spare() {
            return false;
        }
        self.account();
        self.grant.ask(self.memory_bytes(), bytes)
    }

    /// Returns the first command in the queue. Removes entries of aborted commands from the queue.
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
