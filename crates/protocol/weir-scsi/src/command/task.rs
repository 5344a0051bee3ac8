//! One command under way: the logical unit, the CDB and the data.
//!
//! Not here: which command runs (`dispatch`).
//!
//! Invariant: a task does not outlive its seat.

use std::sync::Arc;

use weir_block::OutBuf;

use crate::unit::itl_nexus::Seat;
use crate::unit::logical_unit::Unit;
use crate::unit::nexus_state::NexusState;

/// One command under way.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) nexus: &'a NexusState,
    pub(crate) seat: &'a Arc<Seat>,
    pub(crate) unit: &'a Unit,
    pub(crate) cdb: &'a [u8],
    pub(crate) data: &'a [u8],
}

/// Puts parameter data out, as much of it as the initiator has room for.
pub(crate) fn reply(out: &mut OutBuf, bytes: &[u8], allocation: usize) {
    out.put(bytes.get(..allocation).unwrap_or(bytes));
}
