//! Scrub and resilver of a pool under load: when they run, and how fast.
//!
//! weir-pool plans, verifies and copies; the server finds disks.
//!
//! Invariants:
//! - a resilver starts automatically as soon as a leg in use is stale, and precedes any scrub;
//! - a scan begins after a commit: its segments then include all writes that were in flight when a
//!   leg reconnected, and a replay needs none of the older log batches;
//! - a leg counts as up to date only after the resilver found, copied, read back and flushed
//!   everything that the leg missed, and a commit followed; after an earlier failure the resilver
//!   restarts;
//! - a scrub that resumes after an import checks only a part, so it clears no permanent errors.

use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use futures_util::future::{Either, LocalBoxFuture, select};
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::Mutex;
use weir_base::Guid;
use weir_base::limits::{
    OWN_TREES_INTERVAL, SCAN_ATTEMPTS_MAX, SCAN_BLOCKS_BUSY, SCAN_BUSY_PAUSES,
    SCAN_BYTES_IN_FLIGHT, SCAN_RUNS_IN_FLIGHT, SCAN_SEGMENTS_AT_ONCE,
};
use weir_cache::CacheClass;
use weir_pool::{
    LegState, PoolError, ScanKind, ScanPace, ScanPlace, ScanState, ScanStatus, SegmentScan,
};

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::outcome::Outcome;
use crate::state::scan_requests::{Places, Wanted};
use crate::state::timer::{Timer, boxed_timer};

/// Poll interval of a scan that cannot continue.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Traversal of the segments by a scan, several segments concurrently.
struct Walk {
    kind: ScanKind,
    /// Value of the counter of stopped scrubs when this scan started. If the counter is higher now,
    /// an administrator has stopped this scrub.
    stops: u64,
    /// Locked during each step while clients use the pool, so that one step runs at a time.
    busy_turn: Mutex<()>,
    /// Reason why the scan ended before it had read everything.
    ended: OnceLock<Walked>,
}

/// Reason why a scan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walked {
    All,
    /// The pool is closing, or the scan was stopped.
    Stopped,
    /// The scrub must wait, because a resilver has priority.
    Preempted,
}

impl Engine {
    fn scan_error(&self, why: &'static str) -> DatasetError {
        PoolError::Scan { pool: self.pool().name().to_owned(), why }.into()
    }

    /// Starts a scrub, or resumes a paused one.
    ///
    /// # Errors
    /// `Busy` while a resilver runs.
    pub fn scrub_start(&self) -> Result<Outcome, DatasetError> {
        self.pool().check_alive()?;
        let mut wanted = self.scans.wanted.lock();
        if *wanted == Wanted::Running {
            return Ok(Outcome::Unchanged);
        }
        if self.resilver_runs() {
            return Err(self.scan_error("a resilver is running; scrub when it is done"));
        }
        let is_paused = |s: ScanStatus| s.kind == ScanKind::Scrub && s.state == ScanState::Paused;
        if self.pool().scan_status().is_some_and(is_paused) {
            self.pool().set_scan_state(ScanState::Running);
        } else {
            // Set the status to running now, so that the next status query reports the scrub.
            self.pool().begin_scan(ScanKind::Scrub);
        }
        *wanted = Wanted::Running;
        drop(wanted);
        self.scans.wake.notify_one();
        Ok(Outcome::Changed)
    }

    /// Restores the newest scan of an earlier import epoch of the pool, which the server stored. A
    /// running scrub resumes at `place`; a paused scrub stays paused at `place`.
    pub fn restore_scan(&self, status: ScanStatus, place: ScanPlace) {
        let mut wanted = self.scans.wanted.lock();
        if *wanted != Wanted::Nothing {
            return;
        }
        let mut status = status;
        match (status.kind, status.state) {
            (ScanKind::Scrub, ScanState::Running) => *wanted = Wanted::Running,
            (ScanKind::Scrub, ScanState::Paused) => *wanted = Wanted::Paused,
            // Report a resilver as stopped: if a leg is still stale, a new resilver begins
            // automatically.
            (_, ScanState::Running) => status.state = ScanState::Stopped,
            _ => {}
        }
        if *wanted != Wanted::Nothing {
            *self.scans.resume.lock() = Some((status, place));
            *self.scans.places.lock() = Places { last: place, ..Places::default() };
        }
        self.pool().restore_scan(status);
        drop(wanted);
        self.scans.wake.notify_one();
    }

    /// Position at which the scrub resumes after a restart.
    pub fn scan_place(&self) -> ScanPlace {
        self.scans.places.lock().place()
    }

    fn resilver_runs(&self) -> bool {
        self.pool()
            .scan_status()
            .is_some_and(|s| s.kind == ScanKind::Resilver && s.state == ScanState::Running)
    }

    /// Pauses the running scrub.
    ///
    /// # Errors
    /// `Busy` if there is no scrub.
    pub fn scrub_pause(&self) -> Result<Outcome, DatasetError> {
        let mut wanted = self.scans.wanted.lock();
        match *wanted {
            Wanted::Nothing => Err(self.scan_error("there is no scrub to pause")),
            Wanted::Paused => Ok(Outcome::Unchanged),
            Wanted::Running => {
                *wanted = Wanted::Paused;
                if !self.resilver_runs() {
                    self.pool().set_scan_state(ScanState::Paused);
                }
                Ok(Outcome::Changed)
            }
        }
    }

    /// Stops the scrub before it has read everything.
    ///
    /// # Errors
    /// `Busy` if there is no scrub.
    pub fn scrub_stop(&self) -> Result<Outcome, DatasetError> {
        let mut wanted = self.scans.wanted.lock();
        if *wanted == Wanted::Nothing {
            return Err(self.scan_error("there is no scrub to stop"));
        }
        *wanted = Wanted::Nothing;
        *self.scans.resume.lock() = None;
        self.scans.stops.fetch_add(1, Ordering::AcqRel);
        if !self.resilver_runs() {
            self.pool().set_scan_state(ScanState::Stopped);
        }
        drop(wanted);
        self.scans.wake.notify_one();
        Ok(Outcome::Changed)
    }

    /// Notifies the scans that a leg reconnected.
    pub fn leg_came_back(&self) {
        *self.scans.failures.lock() = 0;
        self.scans.wake.notify_one();
    }

    /// Scrubs and resilvers until [`Engine::stop`] is called or the pool is suspended. `sleep` is
    /// the driver's timer. [`Engine::run`] or this task itself makes the commits.
    pub fn run_scans<'a, S: Future<Output = ()> + 'a>(
        &'a self,
        sleep: impl Fn(Duration) -> S + 'a,
    ) -> LocalBoxFuture<'a, Result<(), DatasetError>> {
        self.run_scans_with(boxed_timer(sleep))
    }

    fn run_scans_with<'a>(
        &'a self,
        sleep: Box<Timer<'a>>,
    ) -> LocalBoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move { self.scan_until_ended(&*sleep).await })
    }

    async fn scan_until_ended(&self, sleep: &Timer<'_>) -> Result<(), DatasetError> {
        let ended = self.scan_until_stopped(sleep).await;
        if ended.is_err()
            && self.pool().scan_status().is_some_and(|s| s.state == ScanState::Running)
        {
            self.pool().set_scan_state(ScanState::Stopped);
        }
        ended
    }

    async fn scan_until_stopped(&self, sleep: &Timer<'_>) -> Result<(), DatasetError> {
        while !self.is_stopping() {
            let gave_up = *self.scans.failures.lock() >= SCAN_ATTEMPTS_MAX;
            let scrub = *self.scans.wanted.lock() == Wanted::Running;
            self.find_shared_damage().await?;
            self.settle_damage().await;
            if self.pool().wants_resilver() && !gave_up {
                if !self.resilver(sleep).await? {
                    *self.scans.failures.lock() += 1;
                    self.nap(sleep).await;
                }
            } else if self.evacuate(sleep).await? {
                // The loop repeats until no segment is left to move.
            } else if self.pool().take_recount() {
                self.recount(sleep).await?;
            } else if scrub {
                self.scrub(sleep).await?;
            } else if self.own_trees_are_due() {
                self.verify_own_trees().await?;
            } else {
                self.nap(sleep).await;
            }
        }
        Ok(())
    }

    /// True if [`OWN_TREES_INTERVAL`] has passed since the last verification of the metadata trees,
    /// or since the import.
    fn own_trees_are_due(&self) -> bool {
        let now = self.pool().clock().monotonic();
        let mut last = self.scans.own_trees_at.lock();
        let is_due = last.is_some_and(|last| now.saturating_sub(last) >= OWN_TREES_INTERVAL);
        if is_due || last.is_none() {
            *last = Some(now);
        }
        is_due
    }

    /// Verifies the metadata trees on disk, and rewrites them from memory if copies are bad.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn verify_own_trees(&self) -> Result<(), DatasetError> {
        match self.pool().verify_own_trees().await {
            Ok(true) => self.commit_now().await,
            Ok(false) => Ok(()),
            Err(error) => {
                self.pool().check_alive()?;
                // A commit replaced the metadata trees during the verification, or a disk is
                // missing.
                tracing::debug!(%error, "metadata trees are verified later");
                Ok(())
            }
        }
    }

    /// Waits for [`RETRY_INTERVAL`], or until a caller requests a scan.
    async fn nap(&self, sleep: &Timer<'_>) {
        let timer = std::pin::pin!(sleep(RETRY_INTERVAL));
        let woken = std::pin::pin!(self.scans.wake.notified());
        match select(woken, timer).await {
            Either::Left(_) | Either::Right(_) => {}
        }
    }

    /// Counter that changes with each client read (a lookup in the data class of the cache, which
    /// scans do not use) or write.
    pub(crate) fn activity(&self) -> u64 {
        let data = self.pool().cache().stats(CacheClass::Data);
        let acked =
            |volume: &std::sync::Arc<crate::Volume>| volume.state.lock().object.log.acked().0;
        self.all_volumes().iter().map(acked).sum::<u64>() + data.hits + data.misses
    }

    /// Runs one resilver. Returns true if all legs that it covered are up to date afterwards.
    async fn resilver(&self, sleep: &Timer<'_>) -> Result<bool, DatasetError> {
        let pool = self.pool();
        let legs = pool.begin_resilver();
        pool.begin_scan(ScanKind::Resilver);
        tracing::info!(pool = pool.name(), disks = legs.len(), "resilver begins");
        let done = self.resilver_legs(&legs, sleep).await;
        let whole = matches!(done, Ok(true));
        pool.set_scan_state(if whole { ScanState::Finished } else { ScanState::Stopped });
        if whole {
            *self.scans.failures.lock() = 0;
            tracing::info!(pool = pool.name(), "resilver done");
            // A replaced disk may still have the unreadable data, so the administrator decides when
            // to remove it.
            if pool.scan_status().is_some_and(|scan| scan.damaged == 0) {
                self.settle_successions().await;
            }
        } else {
            tracing::warn!(pool = pool.name(), "resilver not complete: the disk stays stale");
        }
        done
    }

    async fn resilver_legs(
        &self,
        legs: &[(Guid, u64)],
        sleep: &Timer<'_>,
    ) -> Result<bool, DatasetError> {
        self.commit_now().await?;
        let walked = self.walk(ScanKind::Resilver, 0, ScanPlace::default(), sleep).await?;
        self.complete_partial().await?;
        self.conclude_damage(false).await?;
        if walked != Walked::All {
            return Ok(false);
        }
        self.pool().scan_labels().await?;
        let damage_stays = self.damage_may_stay();
        let complete = |s: ScanStatus| s.unrepaired == 0 && (s.damaged == 0 || damage_stays);
        if !self.pool().scan_status().is_some_and(complete) {
            return Ok(false);
        }
        self.pool().finish_resilver(legs).await?;
        self.commit_now().await?;
        Ok(!self.pool().wants_resilver())
    }

    /// True if a resilver that found damage may complete. The resilvered legs then have all data
    /// that any leg has, and the list of permanent errors names the other data. False while a leg
    /// that may have the unreadable data is missing. False also before the last attempt, because a
    /// disk may fail to read temporarily.
    fn damage_may_stay(&self) -> bool {
        let is_last = self.scans.failures.lock().saturating_add(1) >= SCAN_ATTEMPTS_MAX;
        let in_use = |state| matches!(state, LegState::Online | LegState::Stale);
        let mut legs = self.pool().status().vdevs.into_iter().flat_map(|vdev| vdev.legs);
        is_last && legs.all(|leg| in_use(leg.state))
    }

    async fn scrub(&self, sleep: &Timer<'_>) -> Result<(), DatasetError> {
        let pool = self.pool();
        let stops = self.scans.stops.load(Ordering::Acquire);
        let resumed = self.scans.resume.lock().take();
        let from = resumed.map_or(ScanPlace::default(), |(_, place)| place);
        match resumed {
            Some((status, _)) => pool.resume_scrub(status),
            None => pool.begin_scan(ScanKind::Scrub),
        }
        tracing::info!(pool = pool.name(), resumed = resumed.is_some(), "scrub begins");
        self.commit_now().await?;
        pool.scan_labels().await?;
        *self.scans.places.lock() = Places { last: from, ..Places::default() };
        let walked = self.walk(ScanKind::Scrub, stops, from, sleep).await?;
        self.complete_partial().await?;
        self.conclude_damage(walked == Walked::All && resumed.is_none()).await?;
        if walked == Walked::All {
            // Make the repairs durable before the scrub is reported as finished.
            self.commit_now().await?;
            let mut wanted = self.scans.wanted.lock();
            if stops == self.scans.stops.load(Ordering::Acquire) {
                *wanted = Wanted::Nothing;
                pool.set_scan_state(ScanState::Finished);
                self.scans.recounts.store(0, Ordering::Release);
                pool.want_recount();
                tracing::info!(pool = pool.name(), "scrub done");
            }
        }
        Ok(())
    }

    /// Verifies every copy of everything in one call, without a commit, for pools that no client
    /// uses. `look` receives the progress.
    ///
    /// # Errors
    /// The pool is suspended. The returned status counts damage.
    pub async fn verify(&self, look: impl Fn(&ScanStatus)) -> Result<ScanStatus, DatasetError> {
        let (pool, kind) = (self.pool(), ScanKind::Scrub);
        pool.begin_scan(kind);
        let roots = || self.roots_with(&[]);
        let plan = pool.plan_scan(kind, ScanPlace::default()).await?;
        let verifies = plan.map(|planned| async {
            let mut segment = pool.find_segment(planned, &roots).await?;
            while !segment.is_done() {
                pool.scan_step(kind, &mut segment, &idle_pace(&|| true)).await?;
                pool.scan_status().iter().for_each(&look);
            }
            if segment.wants_second_look() {
                pool.count_unrepaired(&segment);
            }
            Ok::<_, PoolError>(())
        });
        let mut verifies = pin!(stream::iter(verifies).buffer_unordered(SCAN_SEGMENTS_AT_ONCE));
        while let Some(verified) = verifies.next().await {
            verified?;
        }
        self.conclude_damage(true).await?;
        pool.set_scan_state(ScanState::Finished);
        Ok(pool.scan_status().expect("it was begun"))
    }

    /// Commits, even if nothing changed.
    pub(crate) async fn commit_now(&self) -> Result<(), DatasetError> {
        self.core.want(self.core.open_txg());
        self.commit().await
    }

    async fn walk(
        &self,
        kind: ScanKind,
        stops: u64,
        from: ScanPlace,
        sleep: &Timer<'_>,
    ) -> Result<Walked, DatasetError> {
        let pool = self.pool();
        let roots = || self.roots_with(&[]);
        let plan = pool.plan_scan(kind, from).await?;
        let walk = &Walk { kind, stops, busy_turn: Mutex::default(), ended: OnceLock::new() };
        let plan = plan.take_while(|_| walk.ended.get().is_none());
        let scans = plan.map(|planned| {
            let place = planned.place();
            if kind == ScanKind::Scrub {
                self.scans.places.lock().under_way.insert(place);
            }
            let find = pool.find_segment(planned, &roots);
            async move {
                self.scan_segment(walk, find.await?, sleep).await?;
                if kind == ScanKind::Scrub && walk.ended.get().is_none() {
                    self.scans.places.lock().end(place);
                }
                Ok::<_, DatasetError>(())
            }
        });
        let mut scans = pin!(stream::iter(scans).buffer_unordered(SCAN_SEGMENTS_AT_ONCE));
        while let Some(scanned) = scans.next().await {
            scanned?;
        }
        Ok(walk.ended.get().copied().unwrap_or(Walked::All))
    }

    /// Scans a segment, unless the scan ends before.
    async fn scan_segment(
        &self,
        walk: &Walk,
        mut segment: SegmentScan,
        sleep: &Timer<'_>,
    ) -> Result<(), DatasetError> {
        while !segment.is_done() && walk.ended.get().is_none() {
            let busy = || self.scans.saw_load.load(Ordering::Acquire);
            // While clients use the pool, one step of one segment runs at a time.
            let turn = if busy() { Some(walk.busy_turn.lock().await) } else { None };
            if let Some(ended) = self.may_go_on(walk.kind, walk.stops, sleep).await {
                walk.ended.get_or_init(|| ended);
                return Ok(());
            }
            self.paced_step(walk.kind, &mut segment, busy(), sleep).await?;
            drop(turn);
            if segment.wants_second_look() {
                self.commit_now().await?;
                segment.begin_second_pass();
            }
        }
        Ok(())
    }

    /// Waits while the scan is paused. Returns `Some` if the scan must end.
    async fn may_go_on(&self, kind: ScanKind, stops: u64, sleep: &Timer<'_>) -> Option<Walked> {
        loop {
            if self.is_stopping() {
                return Some(Walked::Stopped);
            }
            if kind == ScanKind::Resilver {
                return None;
            }
            let gave_up = *self.scans.failures.lock() >= SCAN_ATTEMPTS_MAX;
            if self.pool().wants_resilver() && !gave_up {
                return Some(Walked::Preempted);
            }
            let wanted = *self.scans.wanted.lock();
            match wanted {
                _ if stops != self.scans.stops.load(Ordering::Acquire) => {
                    return Some(Walked::Stopped);
                }
                Wanted::Nothing => return Some(Walked::Stopped),
                Wanted::Running => return None,
                Wanted::Paused => self.nap(sleep).await,
            }
        }
    }

    /// Runs one step of a scan, and pauses afterwards if clients use the pool. In an idle pool the
    /// step ends when a client request arrives.
    async fn paced_step(
        &self,
        kind: ScanKind,
        segment: &mut SegmentScan,
        busy: bool,
        sleep: &Timer<'_>,
    ) -> Result<(), DatasetError> {
        let before = self.activity();
        let go_on = || busy || (self.activity() == before && !self.is_stopping());
        let pace = if busy {
            ScanPace {
                blocks: SCAN_BLOCKS_BUSY,
                runs_in_flight: 1,
                legs_in_flight: 1,
                ..idle_pace(&go_on)
            }
        } else {
            idle_pace(&go_on)
        };
        let began = self.pool().clock().monotonic();
        self.pool().scan_step(kind, segment, &pace).await?;
        let took = self.pool().clock().monotonic().saturating_sub(began);
        if busy {
            sleep(took * SCAN_BUSY_PAUSES).await;
        } else {
            // Yield to other tasks also in an idle pool.
            sleep(Duration::ZERO).await;
        }
        self.scans.saw_load.store(self.activity() != before, Ordering::Release);
        Ok(())
    }
}

/// Pace in an idle pool: a whole segment at a time.
fn idle_pace(go_on: &(dyn Fn() -> bool + Sync)) -> ScanPace<'_> {
    ScanPace {
        blocks: usize::MAX,
        runs_in_flight: SCAN_RUNS_IN_FLIGHT,
        bytes_in_flight: SCAN_BYTES_IN_FLIGHT / SCAN_SEGMENTS_AT_ONCE,
        legs_in_flight: usize::MAX,
        go_on,
    }
}
