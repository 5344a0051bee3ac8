//! Replications: the calls that change them, and the task that runs them.
//!
//! `run` performs a run, `verify` a comparison, `delete` a deletion; `advice` adds the next command
//! to errors.
//!
//! Invariants:
//! - a replication has one run at a time; a failed run is retried with increasing delay;
//! - at most [`RUNS_TO_ONE_MAX`] runs send to one server at a time, because each server limits the
//!   streams that it receives;
//! - a replication identifies its pool and volume by number: it follows renames and pauses while
//!   the pool is closed;
//! - the saved state contains the paths of the files with secrets, never a secret.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_api::peer::{PeerAddress, Secret};
use weir_api::types::{
    EventLevel, ListReplications, Outcome, Replication, ReplicationAct, ReplicationAction,
    ReplicationChange, ReplicationCreate, ReplicationList, ReplicationState, ReplicationWait,
};
use weir_api::{ApiError, Client, Handle};
use weir_base::{Clock as _, ErrorKind, SystemClock};

use crate::access::aside::aside;
use crate::access::caller_files::Given;
use crate::answer::errors::{api_error, not_found};
use crate::answer::names::split;
use crate::record::events::{Events, NewEvent};
use crate::replication::advice::{Failed, place_of};
use crate::state::replication_activity::Activity;
use crate::state::saved_state::KnownReplication;
use crate::state::server::{Manager, refuse_above};

/// Interval of the checks for due replication runs.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Delay before the first retry of a failed replication run. The delay doubles at each further
/// failure, up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(5);

/// Maximum delay before a failed replication run is retried.
const RETRY_MAX: Duration = Duration::from_mins(15);

/// Timeout of a call to the other server. The other server may wait for a slow commit.
const CALL_TIMEOUT: Duration = Duration::from_mins(2);

/// Maximum concurrent replication runs to one other server; further runs wait. The other server
/// accepts as many streams from one server (`PEER_SESSIONS_MAX` in `transfers.rs`) and refuses
/// more.
const RUNS_TO_ONE_MAX: usize = 3;

/// Maximum number of replications of all pools. The server writes the complete list at each change.
const REPLICATIONS_MAX: usize = 4096;

pub(super) fn now_ms() -> u64 {
    SystemClock::default().unix_ms()
}

impl KnownReplication {
    pub(super) fn key(&self) -> (u64, u64) {
        (self.pool_guid, self.dataset)
    }

    /// Creates a client of the other server.
    pub(super) async fn client(&self) -> Result<(PeerAddress, Client), ApiError> {
        let to: PeerAddress = self.to.parse()?;
        let what = format!("{} and {}", self.ca_file, self.secret_file);
        let (ca_file, secret_file, at) =
            (self.ca_file.clone(), self.secret_file.clone(), to.clone());
        let read = move || {
            let secret = Secret::read(Path::new(&secret_file))?;
            Ok(Client::peer(&at, Path::new(&ca_file), secret)?)
        };
        let client = aside(&what, read).await?;
        Ok((to, client.with_timeout(CALL_TIMEOUT)))
    }
}

impl Manager {
    fn known_replications(&self) -> Vec<KnownReplication> {
        self.state.lock().state.replications.clone()
    }

    pub(super) fn known_replication(&self, volume: &str) -> Result<KnownReplication, ApiError> {
        let found = self.known_replications().into_iter().find(|known| known.volume == volume);
        found.ok_or_else(|| not_found("replication", volume))
    }

    /// Changes the saved state of a replication, if it still exists.
    pub(super) fn save_replication(
        &self,
        key: (u64, u64),
        change: impl FnOnce(&mut KnownReplication),
    ) -> Result<(), ApiError> {
        self.save(|state| {
            if let Some(known) = state.replications.iter_mut().find(|known| known.key() == key) {
                change(known);
            }
        })
    }

    pub(super) fn with_activity<T>(
        &self,
        key: (u64, u64),
        act: impl FnOnce(&mut Activity) -> T,
    ) -> T {
        act(self.activities.lock().entry(key).or_default())
    }

    /// Returns the number of running replication runs for each other server.
    fn runs_by_server(&self, all: &[KnownReplication]) -> BTreeMap<String, usize> {
        let activities = self.activities.lock();
        let mut running = BTreeMap::new();
        for known in all {
            if activities.get(&known.key()).is_some_and(Activity::is_running) {
                *running.entry(place_of(known).0.to_owned()).or_default() += 1;
            }
        }
        running
    }

    fn show_replication(&self, known: &KnownReplication) -> Replication {
        self.with_activity(known.key(), |activity| {
            let state = match activity.state.filter(|_| activity.is_running()) {
                Some(state) => state,
                None if known.paused => ReplicationState::Paused,
                None if activity.error.is_some() => ReplicationState::Failing,
                None if due(known, activity).is_some() => ReplicationState::Queued,
                None => ReplicationState::Waiting,
            };
            let waits_for = activity.waits_for.filter(|_| activity.is_running());
            Replication {
                volume: known.volume.clone(),
                to: known.to.clone(),
                every_seconds: known.every_seconds,
                bandwidth_bytes: known.bandwidth_bytes,
                state,
                snapshot: known.last.as_ref().map(|last| last.snapshot.clone()),
                // If the clock is behind the creation time of the snapshot, the lag is unknown.
                lag_ms: known.last.as_ref().and_then(|last| now_ms().checked_sub(last.unix_ms)),
                sent_bytes: activity.sent_bytes,
                estimate_bytes: activity.estimate_bytes,
                waits_for: waits_for.map(|(call, since_unix_ms)| ReplicationWait {
                    call: call.to_owned(),
                    since_unix_ms,
                    waited_ms: now_ms().saturating_sub(since_unix_ms),
                }),
                error: activity.error.as_ref().map(|error| error.message.clone()),
                action: activity.error.as_ref().map(|error| error.action.clone()),
                verified: known.verified.clone(),
                verify_failed: known.verify_failed.clone(),
            }
        })
    }
}

impl Handle<ReplicationCreate> for Manager {
    /// Creates a replication of a volume to another server. Answers `changed` if the volume already
    /// has a replication to the same destination with other settings.
    ///
    /// # Errors
    /// `Exists` for a volume that already has a replication to another destination.
    async fn handle(&self, request: ReplicationCreate) -> Result<ReplicationChange, ApiError> {
        let (pool, own) = split(&request.volume)?;
        let _changes = self.changes.lock(pool).await;
        let engine = Arc::clone(&self.pool(pool)?.engine);
        let dataset = engine.volume(own).map_err(|error| api_error(&error))?.dataset().0;
        let pool_guid = engine.pool().guid().0;
        let all = self.known_replications();
        let existing = all.len();
        let before = all.into_iter().find(|known| known.key() == (pool_guid, dataset));
        if before.is_none() {
            refuse_above(REPLICATIONS_MAX, existing, "replications", "weir replicate delete")?;
        }
        let (ca_file, secret_file) = self.replication_files(&request, before.as_ref()).await?;
        let mut new = KnownReplication {
            volume: request.volume,
            pool_guid,
            dataset,
            to: request.to.parse::<PeerAddress>()?.to_string(),
            every_seconds: request.every_seconds,
            bandwidth_bytes: request.bandwidth_bytes,
            ca_file,
            secret_file,
            paused: false,
            unfinished: false,
            last_run_unix_ms: 0,
            last: None,
            verified: None,
            verify_failed: None,
            clearing: Vec::new(),
        };
        // Read the files now, so that this call returns their errors. Otherwise only the first
        // replication run would report the errors.
        if let Err(error) = new.client().await {
            self.delete_files_of(&new, before.as_ref());
            return Err(error);
        }
        let mut outcome = Outcome::Created;
        let mut taken = None;
        self.save(|state| {
            let same = |known: &&mut KnownReplication| known.key() == new.key();
            let Some(known) = state.replications.iter_mut().find(same) else {
                state.replications.push(new.clone());
                state.replications.sort_by(|a, b| a.volume.cmp(&b.volume));
                return;
            };
            if known.to != new.to {
                taken = Some(known.to.clone());
                return;
            }
            (new.paused, new.last_run_unix_ms) = (known.paused, known.last_run_unix_ms);
            new.unfinished = known.unfinished;
            (new.last, new.verified) = (known.last.clone(), known.verified.clone());
            new.verify_failed.clone_from(&known.verify_failed);
            new.clearing.clone_from(&known.clearing);
            outcome = if *known == new { Outcome::Unchanged } else { Outcome::Changed };
            *known = new.clone();
        })?;
        if let Some(taken) = taken {
            self.delete_files_of(&new, before.as_ref());
            let message = format!("{} is replicated to {taken} already", new.volume);
            return Err(ApiError::new(ErrorKind::Exists, message)
                .with_action(format!("delete that first: weir replicate delete {}", new.volume)));
        }
        if let Some(before) = &before {
            self.delete_files_of(before, Some(&new));
        }
        Ok(ReplicationChange { outcome, replication: self.show_replication(&new) })
    }
}

impl Manager {
    /// Returns the paths of the files with the certificates and the secret that a caller sent or
    /// named.
    async fn replication_files(
        &self,
        request: &ReplicationCreate,
        before: Option<&KnownReplication>,
    ) -> Result<(String, String), ApiError> {
        let sent = request.ca.as_ref().map(|text| text.clone().into_bytes());
        let (named, before_ca) =
            (request.ca_file.clone(), before.map(|known| known.ca_file.clone()));
        let ca = self.files.public(Given { sent, named, before: before_ca }).await?;
        let sent = request.secret.as_ref().map(|secret| secret.expose().as_bytes().to_vec());
        let named = request.secret_file.clone();
        let before = before.map(|known| known.secret_file.clone());
        let secret = self.files.secret(Given { sent, named, before }).await;
        let secret = secret.inspect_err(|_| self.files.secrets.forget(&ca))?;
        Ok((ca, secret))
    }

    /// Removes the saved files of a replication, except files that the replication `other` also
    /// uses.
    pub(super) fn delete_files_of(
        &self,
        known: &KnownReplication,
        other: Option<&KnownReplication>,
    ) {
        for path in [&known.ca_file, &known.secret_file] {
            if other.is_none_or(|other| *path != other.ca_file && *path != other.secret_file) {
                self.files.secrets.forget(path);
            }
        }
    }
}

impl Handle<ListReplications> for Manager {
    /// Lists replications by volume.
    async fn handle(&self, _call: ListReplications) -> Result<ReplicationList, ApiError> {
        let known = self.known_replications();
        let replications = known.iter().map(|known| self.show_replication(known)).collect();
        Ok(ReplicationList { replications, next: None })
    }
}

impl Handle<ReplicationAct> for Manager {
    /// Starts a run or a comparison, which continues after the answer, or pauses or resumes a
    /// replication.
    ///
    /// # Errors
    /// `Busy` for a run of a paused replication.
    async fn handle(&self, call: ReplicationAct) -> Result<ReplicationChange, ApiError> {
        let request = &call;
        let known = self.known_replication(&request.volume)?;
        let key = known.key();
        let mut outcome = Outcome::Changed;
        match request.action {
            ReplicationAction::Run | ReplicationAction::Verify => {
                if known.paused {
                    let message = format!("the replication of {} is paused", known.volume);
                    return Err(ApiError::new(ErrorKind::Busy, message).with_action(format!(
                        "resume it first: weir replicate resume {}",
                        known.volume
                    )));
                }
                let run = request.action == ReplicationAction::Run;
                if !run && known.last.is_none() {
                    let message = format!("no snapshot of {} was replicated yet", known.volume);
                    return Err(ApiError::new(ErrorKind::NotFound, message)
                        .with_action("wait for the first run, or start it: weir replicate run"));
                }
                self.with_activity(key, |activity| {
                    activity.run_now |= run;
                    activity.verify_now |= !run;
                });
            }
            ReplicationAction::Pause | ReplicationAction::Resume => {
                let paused = request.action == ReplicationAction::Pause;
                if known.paused == paused {
                    outcome = Outcome::Unchanged;
                }
                self.save_replication(key, |known| known.paused = paused)?;
                self.with_activity(key, |activity| {
                    if paused && let Some(task) = activity.task.take() {
                        // The other server keeps the received part of the stream, and the next
                        // replication run resumes the stream.
                        task.abort();
                    }
                    (activity.retry_at, activity.failures) = (None, 0);
                    activity.error = None;
                });
            }
        }
        let known = self.known_replication(&request.volume)?;
        Ok(ReplicationChange { outcome, replication: self.show_replication(&known) })
    }
}

impl Manager {
    /// Aborts all replication runs. The next runs resume their streams.
    pub(crate) fn stop_replications(&self) {
        for activity in self.activities.lock().values_mut() {
            if let Some(task) = activity.task.take() {
                task.abort();
            }
        }
    }
}

/// The next action of a replication that is due: a run or a comparison.
enum Due {
    Run,
    Verify,
}

fn due(known: &KnownReplication, activity: &Activity) -> Option<Due> {
    if known.paused || activity.is_running() {
        return None;
    }
    if activity.verify_now {
        return Some(Due::Verify);
    }
    if activity.run_now {
        return Some(Due::Run);
    }
    if let Some(retry_at) = activity.retry_at {
        return (Instant::now() >= retry_at).then_some(Due::Run);
    }
    if known.unfinished {
        return Some(Due::Run);
    }
    let next = known.last_run_unix_ms.saturating_add(known.every_seconds.saturating_mul(1000));
    // If the clock was set back to a time before the last run, the next run starts at once.
    let is_due = now_ms() >= next || known.last_run_unix_ms > now_ms();
    is_due.then_some(Due::Run)
}

/// Runs replications when they are due, until the task is dropped.
pub(crate) async fn run(manager: Arc<Manager>, events: Arc<Events>) {
    let mut timer = tokio::time::interval(POLL_INTERVAL);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let mut all = manager.known_replications();
        // The replication whose last run is the oldest starts first, because only a few runs to one
        // server are allowed at a time.
        all.sort_by_key(|known| known.last_run_unix_ms);
        let mut running = manager.runs_by_server(&all);
        for known in all {
            let pool = known.volume.split('/').next().unwrap_or_default();
            let guid = manager.pool(pool).map(|pool| pool.engine.pool().guid().0);
            if guid.ok() != Some(known.pool_guid) {
                continue;
            }
            let key = known.key();
            let what = manager.with_activity(key, |activity| due(&known, activity));
            let Some(what) = what else { continue };
            let to_it = running.entry(place_of(&known).0.to_owned()).or_default();
            if *to_it >= RUNS_TO_ONE_MAX {
                continue;
            }
            *to_it += 1;
            let runner =
                Runner { manager: Arc::clone(&manager), events: Arc::clone(&events), known };
            let verify = matches!(what, Due::Verify);
            manager.with_activity(key, |activity| {
                if verify {
                    activity.verify_now = false;
                } else {
                    activity.run_now = false;
                }
                let state =
                    if verify { ReplicationState::Verifying } else { ReplicationState::Sending };
                activity.state = Some(state);
                (activity.sent_bytes, activity.estimate_bytes) = (0, 0);
                activity.waits_for = None;
                activity.task = Some(tokio::spawn(async move {
                    if verify {
                        runner.verify_and_note().await;
                    } else {
                        runner.run_and_note().await;
                    }
                }));
            });
        }
    }
}

/// Performs one run or comparison of a replication.
pub(super) struct Runner {
    pub(super) manager: Arc<Manager>,
    events: Arc<Events>,
    pub(super) known: KnownReplication,
}

impl Runner {
    /// Adds an event about one step of the replication (`about`). Warnings are counted, because
    /// callers can request runs at will and the other server chooses a part of the error texts.
    pub(super) fn report(&self, level: EventLevel, about: &str, message: String) {
        let KnownReplication { volume, .. } = &self.known;
        let pool = volume.split('/').next().map(str::to_owned);
        let kind = "replication".to_owned();
        let event = NewEvent { level, kind, pool, disk: None, message };
        if level == EventLevel::Info {
            self.events.add(event);
        } else {
            self.events.count_replications(&format!("{about} {volume}"), event);
        }
    }

    pub(super) fn save(&self, change: impl FnOnce(&mut KnownReplication)) {
        if let Err(error) = self.manager.save_replication(self.known.key(), change) {
            tracing::warn!(%error, "the state file could not be written");
        }
    }

    /// Waits for a response of the other server. Meanwhile, the status shows the request and the
    /// time at which the request was sent.
    pub(super) async fn ask<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, Failed> {
        let key = self.known.key();
        self.manager.with_activity(key, |activity| activity.waits_for = Some((call, now_ms())));
        let answer = answer.await;
        self.manager.with_activity(key, |activity| activity.waits_for = None);
        answer.map_err(Failed::There)
    }

    async fn run_and_note(&self) {
        let key = self.known.key();
        let started = now_ms();
        // If this server restarts before the end of the run, it runs the replication again.
        self.save(|known| known.unfinished = true);
        let done = self.replicate().await;
        self.save(|known| {
            (known.last_run_unix_ms, known.unfinished) = (started, done.is_err());
        });
        match done {
            Ok(()) => self.manager.with_activity(key, |activity| {
                (activity.failures, activity.retry_at, activity.error) = (0, None, None);
                activity.unreadable = None;
            }),
            Err(failed) => {
                let again = format!("weir replicate run {}", self.known.volume);
                self.note_failure(&failed.advised(&self.known, &again));
            }
        }
    }

    fn note_failure(&self, error: &ApiError) {
        let news = self.manager.with_activity(self.known.key(), |activity| {
            let wait = RETRY_MIN.saturating_mul(1 << activity.failures.min(16)).min(RETRY_MAX);
            activity.failures = activity.failures.saturating_add(1);
            activity.retry_at = Some(Instant::now() + wait);
            let before = activity.error.replace(error.clone());
            before.is_none_or(|before| before.message != error.message)
        });
        if news {
            let KnownReplication { volume, to, .. } = &self.known;
            let message = format!("{volume} not replicated to {to}: {error}; the server retries");
            self.report(EventLevel::Warning, "run", message);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt as _;
    use weir_api::types::ShowServer;

    use super::*;

    #[tokio::test]
    async fn call_to_an_unresponsive_server_times_out_after_two_minutes() {
        let folder = tempfile::tempdir().unwrap();
        let secret_file = folder.path().join("secret");
        std::fs::write(&secret_file, "known-to-both-servers-and-to-no-other").unwrap();
        std::fs::set_permissions(&secret_file, Permissions::from_mode(0o600)).unwrap();
        // The listener never accepts the connection, but the kernel completes the TCP handshake.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let known: KnownReplication = serde_json::from_value(serde_json::json!({
            "volume": "tank/v",
            "pool_guid": 1,
            "dataset": 2,
            "to": format!("https://{}/tank/v", silent.local_addr().unwrap()),
            "every_seconds": 60,
            "ca_file": concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../weir-api/tests/all/support/peer.pem"
            ),
            "secret_file": secret_file,
            "paused": false,
            "last_run_unix_ms": 0,
        }))
        .unwrap();
        let (_, client) = known.client().await.unwrap();
        tokio::time::pause();
        let begun = tokio::time::Instant::now();
        let error = client.call(ShowServer {}).await.unwrap_err();
        assert!(error.message.contains("no answer"), "{error}");
        assert_eq!(begun.elapsed().as_secs(), CALL_TIMEOUT.as_secs());
    }
}
