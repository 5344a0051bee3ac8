//! Copies of a nexus on a logical unit, under way or ended.
//!
//! Not here: the commands (`command`).
//!
//! Invariant: results are bounded in number.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use futures_util::lock::Mutex;

use crate::codec::refusal::Outcome;
use crate::unit::rod_tokens::Token;

/// Copies of a nexus on a logical unit.
#[derive(Default)]
pub(crate) struct Copies {
    pub(crate) running: u8,
    pub(crate) results: VecDeque<CopyResult>,
}

/// What a copy and who asks for it share.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) is_aborted: AtomicBool,
    pub(crate) segments: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Held by the copy until its end.
    pub(crate) turn: Arc<Mutex<()>>,
}

#[derive(Clone)]
pub(crate) struct CopyResult {
    pub(crate) list: u32,
    /// Service action of the command.
    pub(crate) action: u8,
    /// Answered before it is done, as far as the initiator cares.
    pub(crate) is_immediate: bool,
    pub(crate) progress: Arc<Progress>,
    pub(crate) ended: Option<Outcome>,
    pub(crate) token: Option<Arc<Token>>,
}

/// What a copy is called, and by which command.
#[derive(Clone, Copy)]
pub(crate) struct CopyName {
    /// `None` where its outcome is not to be kept.
    pub(crate) list: Option<u32>,
    /// Whether the initiator reads the outcome of it as that of a background operation.
    pub(crate) is_immediate: bool,
}
