//! Connection of a lane, with the buffers of its slots.
//!
//! `lane` decides which calls to send.
//!
//! Invariant: data of reads and writes moves directly between the socket and the slot's buffer.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_nfs_client::limits::CALLS_MAX;
use weir_nfs_client::{Connection, Done as Ended, Request};
use weir_nfs_wire::nfs3::Args;

use super::mount::{Mount, failed};
use super::transfer::{Direction, PIECES_MAX, Transfer};
use crate::target::buffers::Buffers;
use crate::target::error::TargetError;

struct Memory(Buffers);

impl weir_nfs_client::Buffers for Memory {
    fn data(&self, slot: usize) -> &[u8] {
        self.0.at(slot)
    }

    fn data_mut(&mut self, slot: usize) -> &mut [u8] {
        self.0.of(slot)
    }
}

/// Connection with the buffers of the slots of a lane.
pub(super) struct Channel {
    connection: Connection,
    memory: Memory,
    address: String,
}

/// Tag of a call: its slot, and the start of its piece or the index of its file.
fn tag(slot: usize, part: u32) -> u64 {
    (slot as u64) << 32 | u64::from(part)
}

/// Slot of a completed call, and the start of its piece or the index of its file.
pub(super) const fn origin(ended: &Ended) -> (usize, u32) {
    ((ended.tag >> 32) as usize, ended.tag as u32)
}

impl Channel {
    /// Connects to the server, for `slots` operations of up to [`PIECES_MAX`] calls.
    pub(super) fn open(
        mount: &Mount,
        slots: usize,
        buffer_bytes: usize,
    ) -> Result<Self, TargetError> {
        let calls_max = slots.saturating_mul(PIECES_MAX as usize);
        let address = mount.address.clone();
        if calls_max > CALLS_MAX {
            let why = format!("a lane has at most {} slots", CALLS_MAX / PIECES_MAX as usize);
            return Err(TargetError::Protocol { address, why });
        }
        let identity = mount.identity.clone();
        let url = &mount.url;
        let source = url.source(mount.lanes.fetch_add(1, Ordering::Relaxed));
        let connection = Connection::open(&url.host, url.port, source, identity, calls_max);
        let connection = connection.map_err(failed(&address))?;
        Ok(Self { connection, memory: Memory(Buffers::new(slots, buffer_bytes)), address })
    }

    /// Buffer of a slot.
    pub(super) fn buffer(&mut self, slot: usize) -> &mut [u8] {
        self.memory.0.of(slot)
    }

    /// Submits a call without data in the buffer of the slot.
    pub(super) fn call(&mut self, slot: usize, part: u32, args: &Args<'_>) {
        self.connection.submit(tag(slot, part), &Request::Nfs(args), &self.memory);
    }

    /// Submits the READ or WRITE for one piece of a transfer.
    pub(super) fn piece(&mut self, slot: usize, transfer: &Transfer, range: Range<u32>) {
        let tag = tag(slot, range.start);
        let (file, offset) = (&transfer.handle, transfer.offset + u64::from(range.start));
        let range = range.start as usize..range.end as usize;
        let request = match transfer.direction {
            Direction::Read => Request::Read { file, offset, slot, range },
            Direction::Write(stable) => Request::Write { file, offset, stable, slot, range },
        };
        self.connection.submit(tag, &request, &self.memory);
    }

    /// Sends as many queued bytes as the socket accepts.
    pub(super) fn send(&mut self) -> Result<(), TargetError> {
        self.connection.send(&self.memory).map_err(failed(&self.address))
    }

    /// Receives the available bytes once; returns false if no bytes are available. Appends the
    /// calls that completed to `ended`.
    pub(super) fn receive(&mut self, ended: &mut Vec<Ended>) -> Result<bool, TargetError> {
        self.connection.receive(&mut self.memory, ended).map_err(failed(&self.address))
    }

    /// Waits for at most `limit` until the socket is ready.
    pub(super) fn wait(&self, limit: Duration) -> Result<(), TargetError> {
        self.connection.wait(limit).map_err(failed(&self.address))
    }
}
