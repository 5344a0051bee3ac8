//! Memory limits for responses that the server has not completely sent.
//!
//! `types::page` limits the length of a response, `watched` the time to send it.
//!
//! A response of more than [`SMALL_ANSWER_BYTES`] is charged to its caller until the kernel has
//! taken it. Above a limit the response to a read-only call waits; after [`CALL_WAIT`] the server
//! sends a 503 instead. The response to a change is short and is sent even above the limits.
//!
//! Invariants:
//! - unsent responses hold at most [`ANSWERS_OF_ONE_BYTES`] (or one response) for each caller,
//!   [`ROOT_ANSWERS_BYTES`] for root and [`ANSWERS_BYTES`] for all others;
//! - a response to root never waits for memory of responses to other callers.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::caller::Caller;
#[cfg(doc)]
use crate::limits::SMALL_ANSWER_BYTES;
use crate::limits::{ANSWERS_BYTES, ANSWERS_OF_ONE_BYTES, CALL_WAIT, ROOT_ANSWERS_BYTES};

/// Memory of all responses that a server is sending.
#[derive(Default)]
pub(crate) struct Answers {
    held: Mutex<Held>,
    freed: Notify,
}

#[derive(Default)]
struct Held {
    root_bytes: usize,
    others_bytes: usize,
    of: HashMap<String, usize>,
}

/// Memory of one response; dropping the `Charge` releases the memory.
pub(crate) struct Charge {
    answers: Arc<Answers>,
    /// Account to which the memory is charged; absent for root.
    account: Option<String>,
    bytes: usize,
}

impl Held {
    /// True if a response to `account` fits within the limits. A response that is larger than the
    /// limit fits if the account holds no other response.
    fn fits(&self, account: Option<&str>, bytes: usize) -> bool {
        let fits = |held: usize, most: usize| held == 0 || held + bytes <= most;
        let Some(account) = account else { return fits(self.root_bytes, ROOT_ANSWERS_BYTES) };
        let own = self.of.get(account).copied().unwrap_or_default();
        fits(own, ANSWERS_OF_ONE_BYTES) && fits(self.others_bytes, ANSWERS_BYTES)
    }
}

impl Answers {
    /// Charges the memory of a response, even if it exceeds the limits.
    pub(crate) fn charge(self: &Arc<Self>, caller: &Caller, bytes: usize) -> Charge {
        self.take(&mut self.held.lock(), account(caller), bytes)
    }

    fn take(self: &Arc<Self>, held: &mut Held, account: Option<&str>, bytes: usize) -> Charge {
        match account {
            None => held.root_bytes += bytes,
            Some(account) => {
                held.others_bytes += bytes;
                *held.of.entry(account.to_owned()).or_default() += bytes;
            }
        }
        let account = account.map(str::to_owned);
        Charge { answers: Arc::clone(self), account, bytes }
    }

    /// Charges the memory of a response as soon as it fits; returns `None` after [`CALL_WAIT`].
    pub(crate) async fn wait(self: &Arc<Self>, caller: &Caller, bytes: usize) -> Option<Charge> {
        let charged = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                freed.as_mut().enable();
                {
                    let mut held = self.held.lock();
                    let account = account(caller);
                    if held.fits(account, bytes) {
                        return self.take(&mut held, account, bytes);
                    }
                }
                freed.await;
            }
        };
        tokio::time::timeout(CALL_WAIT, charged).await.ok()
    }
}

fn account(caller: &Caller) -> Option<&str> {
    (!caller.names_any_file()).then(|| caller.account())
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut held = self.answers.held.lock();
        match &self.account {
            None => held.root_bytes -= self.bytes,
            Some(account) => {
                held.others_bytes -= self.bytes;
                if let Some(own) = held.of.get_mut(account) {
                    *own -= self.bytes;
                    if *own == 0 {
                        held.of.remove(account);
                    }
                }
            }
        }
        drop(held);
        self.answers.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Files, Rights};

    fn token(name: &str) -> Caller {
        let rights = Rights { files: Files::Named, ..Rights::everything() };
        Caller::new(name, rights)
    }

    // Regression: 60 connections of one token each requested a history and read nothing. Their
    // responses held 819 MiB.
    #[tokio::test(start_paused = true)]
    async fn response_memory_is_limited_by_token_in_total_and_for_root() {
        let answers = Arc::<Answers>::default();
        let mut held = Vec::new();
        let part = ANSWERS_OF_ONE_BYTES / 2;
        for name in ["a", "b", "c", "d"] {
            for _ in 0..2 {
                held.push(answers.wait(&token(name), part).await.expect("it fits"));
            }
            assert!(answers.wait(&token(name), 1).await.is_none(), "{name} has its part");
        }
        assert!(answers.wait(&token("e"), part).await.is_none(), "all is in use");
        let root = Caller::new("root (uid 0)", Rights::everything());
        let large = answers.wait(&root, 2 * ROOT_ANSWERS_BYTES).await.expect("it goes alone");
        assert!(answers.wait(&root, 1).await.is_none());
        drop(large);
        let change = answers.charge(&token("e"), part);
        drop(held.pop());
        assert!(answers.wait(&token("d"), 1).await.is_none(), "the change is above the limit");
        drop(change);
        assert!(answers.wait(&token("d"), part).await.is_some());
        drop(held);
        let held = answers.held.lock();
        assert_eq!((held.root_bytes, held.others_bytes, held.of.len()), (0, 0, 0));
    }
}
