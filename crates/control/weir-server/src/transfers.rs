//! Streams that are sent, and received a part at a time: sessions between calls and the engine.
//!
//! Not here: the sessions that send (sends), the streams (weir-dataset), who keeps their bytes.
//!
//! Invariants:
//! - a session holds a few parts at most, whatever its caller does;
//! - one caller has at most [`SESSIONS_OF_ONE_MAX`] sessions, and root and the user of the server
//!   as many as there may be;
//! - a session that is not used, or makes no progress, ends by itself; the received part of a
//!   stream is kept;
//! - a session ends when the token that began it is revoked or expires;
//! - a stream is received into a volume by one session at a time.

mod sends;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use weir_api::ApiError;
use weir_api::access::Role;
use weir_api::caller;
use weir_api::limits::{STALL_BYTES, STREAM_STALL_LIMIT};
use weir_api::stream::Bytes;
use weir_api::types::{
    Outcome, RECEIVED_FROM, ReceiveDone, ReceiveProgress, ReceiveStart, ReceiveStarted,
    ReceiveToken, Removed, Stream, StreamDirection, StreamKey, StreamList,
};
use weir_base::{Clock as _, ErrorKind, SystemClock};
use weir_dataset::{Mark, ReceiveSpec, Received, Receiver};

use super::control::{Manager, guid, not_found, split};
use super::offers::Of;
use super::pools::api_error;
use sends::Sends;

/// Sessions at the same time: each holds some MiB and reads or writes with all its might.
const SESSIONS_MAX: usize = 8;
/// ... of them, of one token or one user.
const SESSIONS_OF_ONE_MAX: usize = 4;
/// ... of them, received from all other servers: some are left to people and to what this server
/// replicates itself.
const PEERS_SESSIONS_MAX: usize = 6;
/// ... and from one other server.
const PEER_SESSIONS_MAX: usize = 3;
/// A sent stream ends if its caller asks for no part for this long: a full pipe on the caller's
/// side may take a while. A caller that takes a few bytes at a time loses its connection after the
/// same time.
const SEND_IDLE: Duration = STREAM_STALL_LIMIT;
/// A stream that nobody gives parts of for this long is cut off; callers without data send empty
/// parts.
const RECEIVE_IDLE: Duration = Duration::from_mins(1);
/// ... also with empty parts, if less than [`STALL_BYTES`] came in this time: longer than a source
/// pauses, such as a tape change. The stream can be resumed.
const RECEIVE_STALL: Duration = Duration::from_mins(10);
/// ... and after this long another caller may go on with it.
const RECEIVE_STALE: Duration = Duration::from_secs(3);
/// How often idle sessions are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// How long a session that is ended may take to let go of its volume.
const LET_GO: Duration = Duration::from_secs(5);

/// Common fields of all sessions.
struct About {
    /// Number by which people name it; the name of the session is a secret of its caller.
    id: u64,
    pool: String,
    /// Full name of the snapshot that is sent or the volume that is received into.
    name: String,
    /// The token or user that began it.
    account: String,
    begun_unix_ms: u64,
    used: Used,
}

impl About {
    /// Of a session that the running call begins.
    fn new(pool: &str, name: &str) -> Self {
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

    fn show(&self, direction: StreamDirection, moved_bytes: u64) -> Stream {
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

/// When a session was used last.
struct Used {
    at: Mutex<Instant>,
    now: AtomicBool,
}

/// A use under way.
struct Using<'s>(&'s Used);

impl Used {
    fn new() -> Self {
        Self { at: Mutex::new(Instant::now()), now: AtomicBool::new(false) }
    }

    fn begin(&self) -> Using<'_> {
        self.now.store(true, Ordering::Release);
        Using(self)
    }

    fn idle(&self) -> Duration {
        self.idle_at(Instant::now())
    }

    fn idle_at(&self, now: Instant) -> Duration {
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

/// Bytes that came of a stream, and by when how many had.
struct Progress {
    came_bytes: u64,
    mark: (Instant, u64),
}

impl Progress {
    fn new() -> Self {
        Self { came_bytes: 0, mark: (Instant::now(), 0) }
    }

    fn add(&mut self, bytes: usize) {
        self.came_bytes += bytes as u64;
        if self.came_bytes - self.mark.1 >= STALL_BYTES as u64 {
            self.mark = (Instant::now(), self.came_bytes);
        }
    }

    fn is_stalled(&self, now: Instant) -> bool {
        now.duration_since(self.mark.0) >= RECEIVE_STALL
    }
}

/// A stream that is given.
struct Incoming {
    about: About,
    /// Whether the stream is only checked: it is in nobody's way.
    dry_run: bool,
    /// The other server that gives it.
    peer: Option<IpAddr>,
    progress: Mutex<Progress>,
    steps: mpsc::Sender<Step>,
    /// Tells what became of the part before: the next one comes while that is in work.
    in_work: tokio::sync::Mutex<Option<oneshot::Receiver<Result<u64, ApiError>>>>,
    ended: tokio::sync::Mutex<JoinHandle<Result<(), ApiError>>>,
}

enum Step {
    Part(Bytes, oneshot::Sender<Result<u64, ApiError>>),
    Finish(oneshot::Sender<Result<Finished, ApiError>>),
}

struct Finished {
    received: Received,
    bytes: u64,
}

/// All sessions.
#[derive(Default)]
pub(super) struct Transfers {
    sends: Mutex<Sends>,
    receives: Mutex<BTreeMap<String, Arc<Incoming>>>,
}

impl Transfers {
    /// Refuses another session, of people or of `peer`, where there are as many as may be.
    fn refuse_more(&self, peer: Option<IpAddr>) -> Result<(), ApiError> {
        self.end_idle();
        let receives = self.receives.lock();
        let caller = caller::current();
        if !caller.names_any_file() {
            let account = caller.account();
            let is_own = |session: &&Arc<Incoming>| session.about.account == account;
            let own = receives.values().filter(is_own).count() + self.sends.lock().of(account);
            if own >= SESSIONS_OF_ONE_MAX {
                let message = format!("{account} sends and receives {own} streams already");
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
                    "{own} streams from {peer} are received already; a server may send \
                     {PEER_SESSIONS_MAX} at once, and all other servers {PEERS_SESSIONS_MAX}"
                );
                let busy = ApiError::new(ErrorKind::Busy, message);
                return Err(busy.with_action("wait for one of them to end"));
            }
        }
        if self.sends.lock().len() + receives.len() < SESSIONS_MAX {
            return Ok(());
        }
        let message = format!("{SESSIONS_MAX} streams are sent and received already");
        Err(ApiError::new(ErrorKind::Busy, message)
            .with_action("wait for one to end, or end one: weir stream list, weir stream cancel"))
    }

    fn end_idle(&self) {
        self.end_idle_at(Instant::now());
    }

    fn end_idle_at(&self, now: Instant) {
        self.sends.lock().retain(|about| about.used.idle_at(now) < SEND_IDLE);
        self.receives.lock().retain(|_, session| {
            let is_idle = session.about.used.idle_at(now) >= RECEIVE_IDLE;
            !is_idle && !session.progress.lock().is_stalled(now)
        });
    }

    /// Ends every session of a pool.
    pub(super) fn end_of_pool(&self, pool: &str) {
        self.retain(|about| about.pool != pool);
    }

    /// Ends every session that `stays` is false for.
    fn retain(&self, stays: impl Fn(&About) -> bool) {
        self.sends.lock().retain(&stays);
        self.receives.lock().retain(|_, session| stays(&session.about));
    }

    /// Ends the sessions of a token that was revoked.
    pub(super) fn end_of_account(&self, account: &str) {
        self.retain(|about| about.account != account);
    }

    /// Shows all sessions, the oldest first.
    pub(super) fn list(&self) -> StreamList {
        let mut streams = self.sends.lock().show();
        streams.extend(self.receives.lock().values().map(|session| {
            let came_bytes = session.progress.lock().came_bytes;
            session.about.show(StreamDirection::Receive, came_bytes)
        }));
        streams.sort_by_key(|stream| stream.id);
        StreamList { streams }
    }

    /// Snapshot or volume of the stream with this number; empty if there is no such stream.
    pub(super) fn name_of(&self, id: u64) -> String {
        let all = self.list().streams;
        all.into_iter().find(|stream| stream.id == id).map_or_else(String::new, |found| found.name)
    }

    /// Ends the stream of this number.
    pub(super) async fn cancel(&self, key: StreamKey) -> Result<Removed, ApiError> {
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

    /// Ends every session that sends: at a stop nobody waits for a stream.
    pub(super) fn end_sends(&self) {
        self.sends.lock().end_all();
    }

    /// Ends every session.
    pub(super) fn end_all(&self) {
        self.end_sends();
        self.receives.lock().clear();
    }

    /// Gives the next part of a stream to the engine, once the engine took the part before. Returns
    /// the bytes that the engine received before this part.
    async fn take_part(&self, session: &str, part: Bytes) -> Result<u64, ApiError> {
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
        // A part that the engine did not take came after a part that failed.
        let received_bytes = done?;
        given.map_err(|_| over(session))?;
        Ok(received_bytes)
    }

    fn receive(&self, session: &str) -> Result<Arc<Incoming>, ApiError> {
        self.receives.lock().get(session).cloned().ok_or_else(|| over(session))
    }

    /// Whether a session only checks its stream.
    pub(super) fn is_dry_run(&self, session: &str) -> bool {
        self.receive(session).is_ok_and(|found| found.dry_run)
    }

    /// The volume that a session receives into; empty for no session.
    pub(super) fn volume_of(&self, session: &str) -> String {
        self.receive(session).map_or_else(|_| String::new(), |found| found.about.name.clone())
    }
}

fn over(session: &str) -> ApiError {
    not_found("session", session).with_action("it ended; begin anew, with a token to go on")
}

/// Ends unused sessions and sessions of expired tokens, until the task is dropped.
pub(super) async fn look_after(manager: Arc<Manager>) {
    loop {
        tokio::time::sleep(LOOK).await;
        manager.transfers.end_idle();
        manager.transfers.retain(|about| manager.tokens.may_call(&about.account));
    }
}

fn session_name() -> String {
    format!("{}{}", guid(), guid())
}

async fn receive(mut receiver: Receiver, mut steps: mpsc::Receiver<Step>) {
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

impl Manager {
    pub(super) async fn start_receive(
        &self,
        request: ReceiveStart,
    ) -> Result<ReceiveStarted, ApiError> {
        let ReceiveStart { volume, roll_back, dry_run } = request;
        let peer = caller::current().peer();
        let (pool, own) = split(&volume)?;
        let open = self.pool(pool)?;
        self.refuse_exported(Of::Dataset(&volume))?;
        if !dry_run {
            self.take_over(&volume).await?;
        }
        self.transfers.refuse_more(peer)?;
        let mark = peer.map(|address| Mark { property: RECEIVED_FROM.to_owned(), address });
        let spec = ReceiveSpec { volume: own.to_owned(), roll_back, dry_run, mark };
        // A schedule counts the snapshots that it may destroy: with streams of an operator's own,
        // new snapshots would push the others out.
        let may_destroy = caller::current().has(Role::Admin);
        let (steps, steps_taken) = mpsc::channel(1);
        let ended = tokio::spawn(async move {
            open.call(move |engine| async move {
                let receiver = if may_destroy { Receiver::new } else { Receiver::for_user };
                receive(receiver(engine, spec), steps_taken).await;
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

    /// Ends a session into this volume whose caller is gone; refuses where one is at work. Another
    /// server ends its own sessions alone.
    async fn take_over(&self, volume: &str) -> Result<(), ApiError> {
        let stale = {
            let mut receives = self.transfers.receives.lock();
            let found = receives.iter().find(|(_, s)| s.about.name == volume && !s.dry_run);
            let Some(name) = found.map(|(name, _)| name.clone()) else { return Ok(()) };
            let peer = caller::current().peer();
            let may_end = peer.is_none() || receives[&name].peer == peer;
            if !may_end || receives[&name].about.used.idle() < RECEIVE_STALE {
                let message = format!("{volume} is being received into at this moment");
                return Err(ApiError::new(ErrorKind::Busy, message).with_action(
                    "let that end; one whose caller is gone can be gone on with after 3 seconds",
                ));
            }
            receives.remove(&name)
        };
        if let Some(stale) = stale {
            end(stale).await;
        }
        Ok(())
    }

    pub(super) async fn take_part(
        &self,
        session: String,
        part: Bytes,
    ) -> Result<ReceiveProgress, ApiError> {
        let received_bytes = self.transfers.take_part(&session, part).await?;
        Ok(ReceiveProgress { received_bytes })
    }

    pub(super) async fn finish_receive(&self, session: String) -> Result<ReceiveDone, ApiError> {
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

    pub(super) async fn stop_receive(&self, session: String) -> Result<Removed, ApiError> {
        let found = self.transfers.receives.lock().remove(&session);
        end(found.ok_or_else(|| over(&session))?).await;
        Ok(Removed { outcome: Outcome::Removed, name: session })
    }

    pub(super) async fn token_of(&self, volume: String) -> Result<ReceiveToken, ApiError> {
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

    pub(super) async fn abort_receive(&self, volume: String) -> Result<Removed, ApiError> {
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

/// How many bytes were taken in with the part before, once that was.
async fn before_done(
    before: Option<oneshot::Receiver<Result<u64, ApiError>>>,
    session: &str,
) -> Result<u64, ApiError> {
    match before {
        None => Ok(0),
        Some(before) => before.await.map_err(|_| over(session))?,
    }
}

/// Lets a session that is out of the table come to its end.
async fn end(session: Arc<Incoming>) {
    let Some(session) = Arc::into_inner(session) else { return };
    let Incoming { steps, ended, .. } = session;
    drop(steps);
    drop(tokio::time::timeout(LET_GO, ended.into_inner()).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins to receive a stream, of a person or of the server `10.0.0.<peer>`; its session.
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
    async fn streams_are_limited_in_all_by_server_and_for_all_servers() {
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
    async fn received_stream_without_a_call_for_a_minute_is_cut_off() {
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
    async fn received_stream_holds_two_parts() {
        let transfers = Transfers::default();
        let (steps, mut engine) = mpsc::channel(1);
        let session = begin_with(&transfers, None, steps).unwrap();
        let part = || transfers.take_part(&session, Bytes::from(vec![0; 4096]));
        assert_eq!(part().await.unwrap(), 0);
        let mut second = Box::pin(part());
        let pause = Duration::from_millis(50);
        assert!(tokio::time::timeout(pause, &mut second).await.is_err(), "the engine took no part");
        let Some(Step::Part(_, answer)) = engine.recv().await else { panic!("a part") };
        // The second part is in the channel; its caller waits for the first.
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
