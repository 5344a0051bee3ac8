//! Brings a session to rest: a session without requests in progress can move to another thread.
//!
//! weir-net decides when a session moves, and moves the session.
//!
//! Invariants:
//! - at rest, [`Parts`] is the whole state of the session: every accepted request has its response,
//!   and every response has been sent;
//! - the initiator does not notice the move: sequence numbers and tags continue, and the session
//!   keeps its nexus.

use std::rc::Rc;

use weir_net::limits::{DRAIN_LIMIT, REST_LIMIT};
use weir_net::yield_now;

use super::state::{Connection, Parts};
use crate::error::IscsiError;

impl Connection {
    /// Waits until no request is in progress, for at most [`REST_LIMIT`]. The reader accepts no
    /// request meanwhile. Returns false if a request is still in progress, or the connection broke.
    pub(crate) async fn comes_to_rest(&self) -> bool {
        // A command that waits for data of the initiator cannot end while the reader is paused.
        if self.tasks.borrow().values().any(|task| task.is_owed_data()) {
            return false;
        }
        self.takes_nothing.set(true);
        self.flush();
        let rest = async {
            while !self.is_at_rest() && !self.is_broken() {
                self.progress.wait().await;
            }
        };
        let is_in_time = compio::time::timeout(REST_LIMIT, rest).await.is_ok();
        self.takes_nothing.set(false);
        is_in_time && !self.is_broken()
    }

    fn is_at_rest(&self) -> bool {
        self.tasks.borrow().is_empty()
            && !self.is_running()
            && self.held.borrow().is_empty()
            && self.waiting.borrow().is_empty()
            && self.outbox.held_bytes() == 0
            && self.exchange.borrow().is_none()
            && self.logout.get().is_none()
    }

    /// Disassembles a connection at rest, once its tasks have dropped their references to it.
    ///
    /// # Errors
    /// The connection's tasks did not end within [`DRAIN_LIMIT`]; the session cannot continue.
    pub(crate) async fn into_parts(self: Rc<Self>) -> Result<Parts, IscsiError> {
        assert!(self.is_at_rest(), "a session is parked at rest");
        let mut shared = self;
        let alone = async {
            loop {
                match Rc::try_unwrap(shared) {
                    Ok(alone) => return alone,
                    Err(back) => shared = back,
                }
                yield_now().await;
            }
        };
        let why = "its tasks do not end";
        let this = compio::time::timeout(DRAIN_LIMIT, alone)
            .await
            .map_err(|_| IscsiError::Ended { why })?;
        Ok(Parts {
            nexus: this.nexus,
            place: this.place,
            targets: this.targets,
            grant: this.grant,
            applicant: this.applicant,
            proven: this.proven,
            target: this.target,
            negotiated: this.negotiated.get(),
            cid: this.cid,
            cmd_sn: this.sequence.get().expected(),
            stat_sn: this.stat_sn.get(),
            ttt: this.last_ttt.get(),
        })
    }
}
