//! Fields that all stream sessions have: caller, object, transferred bytes, time of the last use.
//!
//! `sends` and `transfers` have the tables of sessions.
//!
//! Invariant: a session never counts as idle while a call uses it, however long the call takes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir_api::types::{Stream, StreamDirection};
use weir_api::{ApiError, caller};
use weir_base::{Clock as _, SystemClock};

use crate::answer::errors::not_found;

/// Fields that sending and receiving sessions have in common.
pub(crate) struct About {
    /// Number of the stream, which lists show; the session id is a secret of the caller.
    pub(crate) id: u64,
    pub(crate) pool: String,
    /// Full name of the snapshot that is sent, or of the volume that receives.
    pub(crate) name: String,
    /// The token or user that started the session.
    pub(crate) account: String,
    begun_unix_ms: u64,
    pub(crate) used: Used,
}

impl About {
    /// Returns the fields of a session that the current call starts.
    pub(crate) fn new(pool: &str, name: &str) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            id: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            pool: pool.to_owned(),
            name: name.to_owned(),
            account: caller::current().account().to_owned(),
            begun_unix_ms: SystemClock::default().unix_ms(),
            used: Used::new(),
        }
    }

    pub(crate) fn show(&self, direction: StreamDirection, moved_bytes: u64) -> Stream {
        Stream {
            id: self.id,
            direction,
            name: self.name.clone(),
            caller: self.account.clone(),
            begun_unix_ms: self.begun_unix_ms,
            moved_bytes,
            idle_ms: self.used.idle().as_millis() as u64,
        }
    }
}

/// Time at which a session was last used, and whether a call uses it now.
pub(crate) struct Used {
    pub(crate) at: Mutex<Instant>,
    now: AtomicBool,
}

/// A call that uses a session now; dropping the value ends the use.
pub(crate) struct Using<'s>(&'s Used);

impl Used {
    fn new() -> Self {
        Self { at: Mutex::new(Instant::now()), now: AtomicBool::new(false) }
    }

    pub(crate) fn begin(&self) -> Using<'_> {
        self.now.store(true, Ordering::Release);
        Using(self)
    }

    pub(crate) fn idle(&self) -> Duration {
        self.idle_at(Instant::now())
    }

    pub(crate) fn idle_at(&self, now: Instant) -> Duration {
        let is_used = self.now.load(Ordering::Acquire);
        if is_used { Duration::ZERO } else { now.saturating_duration_since(*self.at.lock()) }
    }
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        *self.0.at.lock() = Instant::now();
        self.0.now.store(false, Ordering::Release);
    }
}

pub(crate) fn over(session: &str) -> ApiError {
    not_found("session", session)
        .with_action("the session ended; start another one, with a token to resume")
}
