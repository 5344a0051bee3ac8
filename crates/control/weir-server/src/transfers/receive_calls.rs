//! Calls that receive streams in parts. A session passes the parts from the calls to the engine.
//!
//! Sessions that send are in `state::sends`, the streams are in weir-dataset.
//!
//! Invariants:
//! - a session holds at most a few parts in memory, whatever its caller does;
//! - one caller has at most [`SESSIONS_OF_ONE_MAX`] sessions; for root and the user of the server
//!   only the limit for all sessions applies;
//! - a session that is idle or makes no progress ends by itself; the received part of a stream is
//!   kept;
//! - a session ends when the token that started it is revoked or expires;
//! - at most one session at a time receives into a volume.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use weir_api::access::Role;
use weir_api::stream::Bytes;
use weir_api::types::{
    Outcome, RECEIVED_FROM, ReceiveAbort, ReceiveDone, ReceiveFinish, ReceiveProgress,
    ReceiveStart, ReceiveStarted, ReceiveStop, ReceiveToken, Removed, ShowReceive,
};
use weir_api::{ApiError, Handle, caller};
use weir_base::ErrorKind;
use weir_dataset::{Mark, ReceiveSpec, Receiver};

use crate::answer::names::{Of, split};
use crate::state::server::Manager;
use crate::state::stream_session::{About, over};
use crate::state::transfers::{
    Finished, Incoming, POLL_INTERVAL, Progress, RECEIVE_STALE, Step, before_done, end, receive,
    session_name,
};

/// Ends idle sessions and sessions of expired tokens, until the task is dropped.
pub(crate) async fn look_after(manager: Arc<Manager>) {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        manager.transfers.end_idle();
        manager.transfers.retain(|about| manager.tokens.may_call(&about.account));
    }
}

impl Handle<ReceiveStart> for Manager {
    /// Starts to receive a stream into a volume, or to check the stream in a dry run.
    ///
    /// # Errors
    /// `Busy` while the volume is exported, and while the server has too many streams.
    async fn handle(&self, request: ReceiveStart) -> Result<ReceiveStarted, ApiError> {
        let ReceiveStart { volume, roll_back, dry_run } = request;
        let peer = caller::current().peer();
        let (pool, own) = split(&volume)?;
        let open = self.pool(pool)?;
        self.refuse_in_use(Of::Dataset(&volume))?;
        if !dry_run {
            self.take_over(&volume).await?;
        }
        self.transfers.refuse_more(peer)?;
        let mark = peer.map(|address| Mark { property: RECEIVED_FROM.to_owned(), address });
        let spec = ReceiveSpec { volume: own.to_owned(), roll_back, dry_run, mark };
        // A snapshot that an operator receives belongs to no schedule. Otherwise the schedule would
        // count this snapshot and, in its place, destroy older snapshots of other users.
        let may_destroy = caller::current().has(Role::Admin);
        let (steps, steps_taken) = mpsc::channel(1);
        let ended = tokio::spawn(async move {
            open.call(move |engine| async move {
                let receiver = if may_destroy { Receiver::new } else { Receiver::for_user };
                receive(receiver(engine, spec).with_objects(), steps_taken).await;
                Ok(())
            })
            .await
        });
        let session = session_name();
        let receive = Incoming {
            about: About::new(pool, &volume),
            dry_run,
            peer,
            progress: Mutex::new(Progress::new()),
            steps,
            in_work: tokio::sync::Mutex::new(None),
            ended: tokio::sync::Mutex::new(ended),
        };
        self.transfers.receives.lock().insert(session.clone(), Arc::new(receive));
        Ok(ReceiveStarted { session })
    }
}

impl Manager {
    /// Ends the session that receives into this volume, if no part has arrived for
    /// [`RECEIVE_STALE`]. Returns an error if the session is still active. A peer can end only its
    /// own sessions.
    async fn take_over(&self, volume: &str) -> Result<(), ApiError> {
        let stale = {
            let mut receives = self.transfers.receives.lock();
            let found = receives.iter().find(|(_, s)| s.about.name == volume && !s.dry_run);
            let Some(name) = found.map(|(name, _)| name.clone()) else { return Ok(()) };
            let peer = caller::current().peer();
            let may_end = peer.is_none() || receives[&name].peer == peer;
            if !may_end || receives[&name].about.used.idle() < RECEIVE_STALE {
                let message = format!("{volume} is receiving a stream now");
                return Err(ApiError::new(ErrorKind::Busy, message).with_action(
                    "wait for it to end; a stream whose caller disconnected can be resumed after 3 \
                     seconds",
                ));
            }
            receives.remove(&name)
        };
        if let Some(stale) = stale {
            end(stale).await;
        }
        Ok(())
    }

    pub(crate) async fn take_part(
        &self,
        session: String,
        part: Bytes,
    ) -> Result<ReceiveProgress, ApiError> {
        let received_bytes = self.transfers.take_part(&session, part).await?;
        Ok(ReceiveProgress { received_bytes })
    }
}

impl Handle<ReceiveFinish> for Manager {
    /// Finishes a received stream. Except after a dry run, the answer confirms that the snapshot
    /// exists.
    ///
    /// # Errors
    /// `Unavailable` for an incomplete stream; the error has the token to resume the stream.
    async fn handle(&self, call: ReceiveFinish) -> Result<ReceiveDone, ApiError> {
        let session = call.session;
        let receive = self.transfers.receive(&session)?;
        let _using = receive.about.used.begin();
        let done = async {
            let mut in_work = receive.in_work.lock().await;
            before_done(in_work.take(), &session).await?;
            let (answer, answered) = oneshot::channel();
            let given = receive.steps.send(Step::Finish(answer)).await;
            given.map_err(|_| over(&session))?;
            answered.await.map_err(|_| over(&session))?
        };
        let done = done.await;
        self.transfers.receives.lock().remove(&session);
        let Finished { received, bytes } = done?;
        Ok(ReceiveDone {
            snapshot: format!("{}@{}", receive.about.name, received.snapshot),
            guid: received.guid.to_string(),
            received_bytes: bytes,
            data_bytes: received.counts.records * received.record_size.bytes() as u64,
            hole_bytes: received
                .counts
                .hole_records
                .saturating_mul(received.record_size.bytes() as u64),
            dry_run: receive.dry_run,
            is_new: received.is_new,
            rolled_back: received.rolled_back,
        })
    }

    fn about(&self, call: &ReceiveFinish) -> String {
        self.transfers.volume_of(&call.session)
    }

    fn is_dry_run(&self, call: &ReceiveFinish) -> bool {
        self.transfers.is_dry_run(&call.session)
    }
}

impl Handle<ReceiveStop> for Manager {
    /// Stops a received stream. The server keeps the data received so far, so that the stream can
    /// be resumed.
    async fn handle(&self, call: ReceiveStop) -> Result<Removed, ApiError> {
        let session = call.session;
        let found = self.transfers.receives.lock().remove(&session);
        end(found.ok_or_else(|| over(&session))?).await;
        Ok(Removed { outcome: Outcome::Removed, name: session })
    }
}

impl Handle<ShowReceive> for Manager {
    /// Returns the token with which the interrupted stream into a volume can be resumed.
    async fn handle(&self, call: ShowReceive) -> Result<ReceiveToken, ApiError> {
        let volume = call.volume;
        let (pool, own) = split(&volume)?;
        let own = own.to_owned();
        let open = self.pool(pool)?;
        let found = open.call(move |engine| async move {
            let token = engine.receive_token(&own).await?;
            let snapshot = engine.volume(&own)?.receiving().unwrap_or_default();
            Ok((token, snapshot))
        });
        let (token, snapshot) = found.await?;
        Ok(ReceiveToken { volume, snapshot, token: token.to_string() })
    }
}

impl Handle<ReceiveAbort> for Manager {
    /// Aborts the interrupted stream into a volume. The volume returns to its previous content; a
    /// volume that the stream created is destroyed.
    async fn handle(&self, call: ReceiveAbort) -> Result<Removed, ApiError> {
        let volume = call.volume;
        let (pool, own) = split(&volume)?;
        self.take_over(&volume).await?;
        let _changes = self.changes.lock(pool).await;
        let own = own.to_owned();
        let open = self.pool(pool)?;
        open.call(move |engine| async move { engine.abort_receive(&own).await }).await?;
        self.follow_names(&open.engine)?;
        Ok(Removed { outcome: Outcome::Removed, name: volume })
    }
}
