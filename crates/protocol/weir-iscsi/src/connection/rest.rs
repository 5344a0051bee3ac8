//! Coming to rest: a session whose initiator has nothing under way can go on on another thread.
//!
//! Not here: when it is to, and how it gets there (weir-net).
//!
//! Invariants:
//! - at rest nothing of the session is but what [`Parts`] has: every request that was taken is
//!   answered, and every answer is sent;
//! - the initiator sees nothing of it: numbers and tags go on, the nexus is the same.

use std::rc::Rc;

use weir_net::give_way;
use weir_net::limits::{DRAIN_LIMIT, REST_LIMIT};

use super::state::{Connection, Parts};
use crate::error::IscsiError;

impl Connection {
    /// Waits a little until nothing is under way, with no further request taken; false where that
    /// does not come.
    pub(crate) async fn comes_to_rest(&self) -> bool {
        // They do not end unless more is taken.
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

    /// Takes a connection at rest apart, once its other tasks let go of it.
    ///
    /// # Errors
    /// They do not: the session cannot go on.
    pub(crate) async fn into_parts(self: Rc<Self>) -> Result<Parts, IscsiError> {
        assert!(self.is_at_rest(), "a session is parked at rest");
        let mut shared = self;
        let alone = async {
            loop {
                match Rc::try_unwrap(shared) {
                    Ok(alone) => return alone,
                    Err(back) => shared = back,
                }
                give_way().await;
            }
        };
        let why = "tasks of it do not end";
        let this = compio::time::timeout(DRAIN_LIMIT, alone)
            .await
            .map_err(|_| IscsiError::Ended { why })?;
        Ok(Parts {
            nexus: this.nexus,
            place: this.place,
            targets: this.targets,
            share: this.share,
            applicant: this.applicant,
            proven: this.proven,
            target: this.target,
            terms: this.terms.get(),
            cid: this.cid,
            cmd_sn: this.sequence.get().expected(),
            stat_sn: this.stat_sn.get(),
            ttt: this.last_ttt.get(),
        })
    }
}
