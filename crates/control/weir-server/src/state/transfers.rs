//! Sessions of sent and received streams.
//!
//! The calls are in `transfers`, the streams are in weir-dataset.
//!
//! Invariant: a session holds at most a few parts of a stream. A session that is idle or makes no
//! progress ends by itself; the received part of its stream is kept.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use weir_api::limits::{STALL_BYTES, STREAM_STALL_LIMIT};
use weir_api::stream::Bytes;
use weir_api::types::{Outcome, Removed, StreamCancel, StreamDirection, StreamList};
use weir_api::{ApiError, caller};
use weir_base::ErrorKind;
use weir_dataset::{Received, Receiver};

use crate::answer::errors::{api_error, not_found};
use crate::answer::names::guid;
use crate::state::sends::Sends;
use crate::state::stream_session::{About, over};

/// Maximum number of sessions. Each session holds some MiB and reads or writes at full speed.
const SESSIONS_MAX: usize = 8;

/// Maximum number of sessions of one token or one user.
const SESSIONS_OF_ONE_MAX: usize = 4;

/// Maximum number of sessions in which all other servers together send to this server. The
/// remaining sessions are for users and for the replications of this server.
const PEERS_SESSIONS_MAX: usize = 6;

/// Maximum number of sessions in which one other server sends to this server.
const PEER_SESSIONS_MAX: usize = 3;

/// Time after which a sent stream ends if its caller requests no part: long enough for a program in
/// the caller's pipe that pauses. A caller that reads a few bytes at a time loses its connection
/// after the same time.
const SEND_IDLE: Duration = STREAM_STALL_LIMIT;

/// Time without a part after which a received stream ends. A caller without data sends empty parts.
const RECEIVE_IDLE: Duration = Duration::from_mins(1);

/// Time in which a received stream must get at least [`STALL_BYTES`], or it ends, even if empty
/// parts arrive. A source pauses for a shorter time, for example to change a tape. The stream can
/// be resumed.
pub(crate) const RECEIVE_STALL: Duration = Duration::from_mins(10);

/// Time without a part after which another caller may end the session of a received stream and
/// resume the stream.
pub(crate) const RECEIVE_STALE: Duration = Duration::from_secs(3);

/// Interval of the checks for idle sessions.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time to wait until an ended session releases its volume.
const LET_GO: Duration = Duration::from_secs(5);

/// Progress of a received stream, to detect a stall: `mark` contains the last time at which
/// [`STALL_BYTES`] more had arrived, and the value of `came_bytes` at that time.
pub(crate) struct Progress {
    pub(crate) came_bytes: u64,
    pub(crate) mark: (Instant, u64),
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { came_bytes: 0, mark: (Instant::now(), 0) }
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.came_bytes += bytes as u64;
        if self.came_bytes - self.mark.1 >= STALL_BYTES as u64 {
            self.mark = (Instant::now(), self.came_bytes);
        }
    }

    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        now.duration_since(self.mark.0) >= RECEIVE_STALL
    }
}

/// A stream that is being received.
pub(crate) struct Incoming {
    pub(crate) about: About,
    /// True if the server only checks the stream and stores nothing; such a session blocks no
    /// other.
    pub(crate) dry_run: bool,
    /// Address of the other server, if a server and not a user sends the stream.
    pub(crate) peer: Option<IpAddr>,
    pub(crate) progress: Mutex<Progress>,
    pub(crate) steps: mpsc::Sender<Step>,
    /// Receives the result of the previous part, which the engine processes while the next part
    /// arrives.
    pub(crate) in_work: tokio::sync::Mutex<Option<oneshot::Receiver<Result<u64, ApiError>>>>,
    pub(crate) ended: tokio::sync::Mutex<JoinHandle<Result<(), ApiError>>>,
}

pub(crate) enum Step {
    Part(Bytes, oneshot::Sender<Result<u64, ApiError>>),
    Finish(oneshot::Sender<Result<Finished, ApiError>>),
}

pub(crate) struct Finished {
    pub(crate) received: Received,
    pub(crate) bytes: u64,
}

/// All sessions that send or receive streams.
#[derive(Default)]
pub(crate) struct Transfers {
    pub(crate) sends: Mutex<Sends>,
    pub(crate) receives: Mutex<BTreeMap<String, Arc<Incoming>>>,
}

impl Transfers {
    /// Returns an error if a user, or the server at the address `peer`, may start no further
    /// session.
    pub(crate) fn refuse_more(&self, peer: Option<IpAddr>) -> Result<(), ApiError> {
        self.end_idle();
        let receives = self.receives.lock();
        let caller = caller::current();
        if !caller.names_any_file() {
            let account = caller.account();
            let is_own = |session: &&Arc<Incoming>| session.about.account == account;
            let own = receives.values().filter(is_own).count() + self.sends.lock().of(account);
            if own >= SESSIONS_OF_ONE_MAX {
                let message = format!("{account} already sends and receives {own} streams");
                let busy = ApiError::new(ErrorKind::Busy, message);
                return Err(
                    busy.with_action("end one of them: weir stream list, weir stream cancel")
                );
            }
        }
        if let Some(peer) = peer {
            let of_peers = receives.values().filter_map(|session| session.peer);
            let own = of_peers.clone().filter(|other| *other == peer).count();
            if own >= PEER_SESSIONS_MAX || of_peers.count() >= PEERS_SESSIONS_MAX {
                let message = format!(
                    "this server already receives {own} streams from {peer}; the limit is \
                     {PEER_SESSIONS_MAX} from one server and {PEERS_SESSIONS_MAX} from all"
                );
                let busy = ApiError::new(ErrorKind::Busy, message);
                return Err(busy.with_action("wait for one of them to end"));
            }
        }
        if self.sends.lock().len() + receives.len() < SESSIONS_MAX {
            return Ok(());
        }
        let message = format!("the server already sends and receives {SESSIONS_MAX} streams");
        Err(ApiError::new(ErrorKind::Busy, message)
            .with_action("wait for one to end, or end one: weir stream list, weir stream cancel"))
    }

    pub(crate) fn end_idle(&self) {
        self.end_idle_at(Instant::now());
    }

    pub(crate) fn end_idle_at(&self, now: Instant) {
        self.sends.lock().retain(|about| about.used.idle_at(now) < SEND_IDLE);
        self.receives.lock().retain(|_, session| {
            let is_idle = session.about.used.idle_at(now) >= RECEIVE_IDLE;
            !is_idle && !session.progress.lock().is_stalled(now)
        });
    }

    /// Ends all sessions of a pool.
    pub(crate) fn end_of_pool(&self, pool: &str) {
        self.retain(|about| about.pool != pool);
    }

    /// Ends all sessions for which `stays` is false.
    pub(crate) fn retain(&self, stays: impl Fn(&About) -> bool) {
        self.sends.lock().retain(&stays);
        self.receives.lock().retain(|_, session| stays(&session.about));
    }

    /// Ends the sessions of a revoked token.
    pub(crate) fn end_of_account(&self, account: &str) {
        self.retain(|about| about.account != account);
    }

    /// Lists all sessions, the oldest first.
    pub(crate) fn list(&self) -> StreamList {
        let mut streams = self.sends.lock().show();
        streams.extend(self.receives.lock().values().map(|session| {
            let came_bytes = session.progress.lock().came_bytes;
            session.about.show(StreamDirection::Receive, came_bytes)
        }));
        streams.sort_by_key(|stream| stream.id);
        StreamList { streams }
    }

    /// Returns the snapshot or volume of the stream with this number; empty if there is no such
    /// stream.
    pub(crate) fn name_of(&self, id: u64) -> String {
        let all = self.list().streams;
        all.into_iter().find(|stream| stream.id == id).map_or_else(String::new, |found| found.name)
    }

    /// Ends the stream with this number.
    pub(crate) async fn cancel(&self, key: StreamCancel) -> Result<Removed, ApiError> {
        let name = self.name_of(key.id);
        if name.is_empty() {
            return Err(not_found("stream", &key.id.to_string()));
        }
        self.sends.lock().retain(|about| about.id != key.id);
        let received = {
            let mut receives = self.receives.lock();
            let mut found = receives.iter().filter(|(_, session)| session.about.id == key.id);
            let session = found.next().map(|(session, _)| session.clone());
            session.and_then(|session| receives.remove(&session))
        };
        if let Some(received) = received {
            end(received).await;
        }
        Ok(Removed { outcome: Outcome::Removed, name })
    }

    /// Ends all sending sessions, because a stopping server waits for no stream.
    pub(crate) fn end_sends(&self) {
        self.sends.lock().end_all();
    }

    /// Ends all sessions.
    pub(crate) fn end_all(&self) {
        self.end_sends();
        self.receives.lock().clear();
    }

    /// Passes the next part of a stream to the engine and waits for the result of the previous
    /// part. Returns the number of bytes that the engine received before this part.
    pub(crate) async fn take_part(&self, session: &str, part: Bytes) -> Result<u64, ApiError> {
        let receive = self.receive(session)?;
        let _using = receive.about.used.begin();
        receive.progress.lock().add(part.len());
        let mut in_work = receive.in_work.lock().await;
        let (answer, answered) = oneshot::channel();
        let given = receive.steps.send(Step::Part(part, answer)).await;
        let before = in_work.replace(answered);
        let done = before_done(before, session).await;
        if done.is_err() {
            self.receives.lock().remove(session);
        }
        // After a failed part the engine accepts no further part, so report the error of that part
        // first.
        let received_bytes = done?;
        given.map_err(|_| over(session))?;
        Ok(received_bytes)
    }

    pub(crate) fn receive(&self, session: &str) -> Result<Arc<Incoming>, ApiError> {
        self.receives.lock().get(session).cloned().ok_or_else(|| over(session))
    }

    /// True if a session only checks its stream and stores nothing.
    pub(crate) fn is_dry_run(&self, session: &str) -> bool {
        self.receive(session).is_ok_and(|found| found.dry_run)
    }

    /// Returns the volume that a session receives into; empty if there is no such session.
    pub(crate) fn volume_of(&self, session: &str) -> String {
        self.receive(session).map_or_else(|_| String::new(), |found| found.about.name.clone())
    }
}

pub(crate) fn session_name() -> String {
    format!("{}{}", guid(), guid())
}

pub(crate) async fn receive(mut receiver: Receiver, mut steps: mpsc::Receiver<Step>) {
    while let Some(step) = steps.recv().await {
        match step {
            Step::Part(part, answer) => {
                let done = receiver.push(&part).await;
                let failed = done.is_err();
                let done = done.map(|()| receiver.received_bytes());
                drop(answer.send(done.map_err(|error| api_error(&error))));
                if failed {
                    return;
                }
            }
            Step::Finish(answer) => {
                let bytes = receiver.received_bytes();
                let done = receiver.finish().await.map(|received| Finished { received, bytes });
                drop(answer.send(done.map_err(|error| api_error(&error))));
                return;
            }
        }
    }
}

/// Waits for the result of the previous part: the number of bytes that the engine has received.
pub(crate) async fn before_done(
    before: Option<oneshot::Receiver<Result<u64, ApiError>>>,
    session: &str,
) -> Result<u64, ApiError> {
    match before {
        None => Ok(0),
        Some(before) => before.await.map_err(|_| over(session))?,
    }
}

/// Ends a session that is no longer in the table, and waits until its task has ended.
pub(crate) async fn end(session: Arc<Incoming>) {
    let Some(session) = Arc::into_inner(session) else { return };
    let Incoming { steps, ended, .. } = session;
    drop(steps);
    drop(tokio::time::timeout(LET_GO, ended.into_inner()).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts to receive a stream from a user or from the server `10.0.0.<peer>`; returns the
    /// session id.
    fn begin(transfers: &Transfers, peer: Option<u8>) -> Result<String, ApiError> {
        begin_with(transfers, peer, mpsc::channel(1).0)
    }

    fn begin_with(
        transfers: &Transfers,
        peer: Option<u8>,
        steps: mpsc::Sender<Step>,
    ) -> Result<String, ApiError> {
        let peer = peer.map(|last| IpAddr::from([10, 0, 0, last]));
        transfers.refuse_more(peer)?;
        let incoming = Incoming {
            about: About::new("tank", "tank/v"),
            dry_run: false,
            peer,
            progress: Mutex::new(Progress::new()),
            steps,
            in_work: tokio::sync::Mutex::new(None),
            ended: tokio::sync::Mutex::new(tokio::spawn(async { Ok(()) })),
        };
        let session = session_name();
        transfers.receives.lock().insert(session.clone(), Arc::new(incoming));
        Ok(session)
    }

    #[tokio::test]
    async fn streams_are_limited_in_total_by_peer_and_for_all_peers() {
        let transfers = Transfers::default();
        let is_full = |peer| begin(&transfers, peer).is_err_and(|e| e.kind == ErrorKind::Busy);
        for peer in [1, 2] {
            for _ in 0..3 {
                begin(&transfers, Some(peer)).unwrap();
            }
            assert!(is_full(Some(peer)), "one server has three");
        }
        assert!(is_full(Some(3)), "all servers have six");
        let sessions = [(); 2].map(|()| begin(&transfers, None).unwrap());
        assert!(is_full(None), "{} streams", transfers.list().streams.len());
        transfers.receives.lock().remove(&sessions[0]);
        assert!(is_full(Some(3)));
        begin(&transfers, None).unwrap();
    }

    #[tokio::test]
    async fn idle_received_stream_ends_after_one_minute() {
        let transfers = Transfers::default();
        let session = begin(&transfers, None).unwrap();
        let is_there = || transfers.receive(&session).is_ok();
        let receive = transfers.receive(&session).unwrap();
        let begun = Instant::now();
        let using = receive.about.used.begin();
        transfers.end_idle_at(begun + Duration::from_mins(1));
        assert!(is_there(), "a call is under way");
        drop(using);
        let used = *receive.about.used.at.lock();
        transfers.end_idle_at(used + Duration::from_secs(59));
        assert!(is_there());
        transfers.end_idle_at(used + Duration::from_mins(1));
        assert!(!is_there());
    }

    #[tokio::test]
    async fn received_stream_holds_at_most_two_parts() {
        let transfers = Transfers::default();
        let (steps, mut engine) = mpsc::channel(1);
        let session = begin_with(&transfers, None, steps).unwrap();
        let part = || transfers.take_part(&session, Bytes::from(vec![0; 4096]));
        assert_eq!(part().await.unwrap(), 0);
        let mut second = Box::pin(part());
        let pause = Duration::from_millis(50);
        assert!(tokio::time::timeout(pause, &mut second).await.is_err(), "the engine took no part");
        let Some(Step::Part(_, answer)) = engine.recv().await else { panic!("a part") };
        // The second part is in the channel; its caller still waits for the result of the first
        // part.
        assert!(tokio::time::timeout(pause, &mut second).await.is_err(), "the first is in work");
        answer.send(Ok(4096)).unwrap();
        assert_eq!(second.await.unwrap(), 4096);
        assert!(tokio::time::timeout(pause, part()).await.is_err(), "two parts are held");
    }

    #[test]
    fn stream_of_empty_parts_makes_no_progress() {
        let mut progress = Progress::new();
        let start = progress.mark.0;
        progress.add(0);
        progress.add(STALL_BYTES - 1);
        assert!(!progress.is_stalled(start + RECEIVE_STALL / 2));
        assert!(progress.is_stalled(start + RECEIVE_STALL));
        progress.add(1);
        assert!(!progress.is_stalled(start + RECEIVE_STALL / 2) && progress.mark.0 >= start);
        assert_eq!(progress.came_bytes, STALL_BYTES as u64);
    }
}
