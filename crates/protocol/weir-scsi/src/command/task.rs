//! Task: a running command with its nexus, its logical unit, the CDB and the Data-Out.
//!
//! `dispatch` decides which function executes the command.
//!
//! Invariant: a task does not outlive its I_T_L nexus.

use std::sync::Arc;

use weir_block::OutBuf;

use crate::unit::itl_nexus::ItlNexus;
use crate::unit::logical_unit::Unit;
use crate::unit::nexus_state::NexusState;

/// Running command.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) nexus: &'a NexusState,
    pub(crate) itl_nexus: &'a Arc<ItlNexus>,
    pub(crate) unit: &'a Unit,
    pub(crate) cdb: &'a [u8],
    pub(crate) data: &'a [u8],
}

/// Appends parameter data to the Data-In, truncated to the allocation length.
pub(crate) fn reply(out: &mut OutBuf, bytes: &[u8], allocation: usize) {
    out.put(bytes.get(..allocation).unwrap_or(bytes));
}
