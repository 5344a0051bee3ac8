//! Running and completed copies of one I_T_L nexus.
//!
//! The copy commands are in `command`.
//!
//! Invariant: the number of stored copy results is bounded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use futures_util::lock::Mutex;

use crate::codec::refusal::Outcome;
use crate::unit::rod_tokens::RodToken;

/// Copies of one I_T_L nexus.
#[derive(Default)]
pub(crate) struct Copies {
    pub(crate) running: u8,
    pub(crate) results: VecDeque<CopyResult>,
}

/// Progress of a copy. The copy updates it, and the query commands read it.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) is_aborted: AtomicBool,
    pub(crate) segments: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Lock that the copy holds until it ends.
    pub(crate) turn: Arc<Mutex<()>>,
}

#[derive(Clone)]
pub(crate) struct CopyResult {
    pub(crate) list: u32,
    /// Service action of the command that runs the copy.
    pub(crate) action: u8,
    /// True if the command set IMMED. Such a command ends with GOOD even if the copy fails.
    pub(crate) is_immediate: bool,
    pub(crate) progress: Arc<Progress>,
    pub(crate) ended: Option<Outcome>,
    pub(crate) token: Option<Arc<RodToken>>,
}

/// Identification of a copy.
#[derive(Clone, Copy)]
pub(crate) struct CopyName {
    /// List identifier; `None` if the initiator does not want the target to store a copy result.
    pub(crate) list: Option<u32>,
    /// True if the command set IMMED. The command then ends with GOOD after the copy, and the
    /// initiator queries the outcome of the copy.
    pub(crate) is_immediate: bool,
}
