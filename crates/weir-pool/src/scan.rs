//! Scans: walking everything live to verify every copy (scrub), or to write to a leg what it missed
//! (resilver).
//!
//! Not here: the order of trees, pace and commits around a scan (weir-dataset); one run of blocks
//! (copies).
//!
//! Invariant: a leg is called up to date only if it was in use all through the resilver.
//!
//! A scan goes step by step over trees whose roots change meanwhile. That is right, because what
//! is written after its start goes to every leg in use; so each step may take the newest root, and
//! starts over from its cursor when that root was outlived by its segments.
//!
//! Crash safety: a scan is not stored. A leg that a resilver was copying to is still stale after a
//! crash, in the uberblock's own words, until [`Pool::finish_resilver`] and a commit after it.

use std::pin::Pin;
use std::time::Duration;

use parking_lot::Mutex;
use weir_base::{Clock, ErrorKind};
use weir_device::Block;
use weir_format::{BlockPtr, NODE_FANOUT, NODE_SHIFT, TreeRoot, node_pointer};

use crate::copies::Checked;
use crate::error::PoolError;
use crate::labels::repair_config;
use crate::pool::Pool;
use crate::vdev::Leg;

/// What a scan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanKind {
    /// Verify every copy on every leg that is up to date.
    Scrub,
    /// Write to stale legs what they missed.
    Resilver,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanState {
    /// Under way.
    Running,
    /// Waits to be continued.
    Paused,
    /// It saw everything.
    Finished,
    /// A person stopped it, or it could not go on.
    Stopped,
}

/// A scan as it is now.
#[derive(Clone, Copy, Debug)]
pub struct ScanStatus {
    /// What it is for.
    pub kind: ScanKind,
    /// How far it is.
    pub state: ScanState,
    /// When it began, ms since 1970.
    pub started_unix_ms: u64,
    /// When it ended.
    pub ended_unix_ms: Option<u64>,
    /// Time it ran, pauses left out.
    pub ran: Duration,
    /// Stored bytes it has to look at; an estimate, data changes meanwhile.
    pub total_bytes: u64,
    /// Stored bytes it looked at.
    pub examined_bytes: u64,
    /// Bytes written to legs whose copy was bad or missing.
    pub repaired_bytes: u64,
    /// Copies that could not be rewritten.
    pub unrepaired: u64,
    /// Blocks without any good copy.
    pub damaged: u64,
}

/// Where a step of a scan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanStep {
    /// Go on from this block.
    Next(u64),
    /// The tree is done.
    End,
    /// The root is out of date: the same again with a newer one.
    Outlived,
}

/// How much a step takes on.
#[derive(Clone, Copy, Debug)]
pub struct ScanPace {
    /// Blocks.
    pub blocks: usize,
    /// Runs of blocks at the same time.
    pub in_flight: usize,
}

/// The newest scan of a pool.
#[derive(Default)]
pub(crate) struct Scans(Mutex<Option<(ScanStatus, Duration)>>);

impl Scans {
    /// A scan that runs counts its time up to now.
    pub(crate) fn status(&self, clock: &dyn Clock) -> Option<ScanStatus> {
        let (mut status, since) = (*self.0.lock())?;
        if status.state == ScanState::Running {
            status.ran += clock.monotonic().saturating_sub(since);
        }
        Some(status)
    }
}

/// Blocks gathered for one step.
struct Gather {
    from: u64,
    room: usize,
    ptrs: Vec<BlockPtr>,
    next: Option<u64>,
    lost_nodes: u64,
}

const fn span(level: u8) -> u64 {
    TreeRoot::capacity(level)
}

impl Pool {
    /// The scan under way or the last one.
    pub fn scan_status(&self) -> Option<ScanStatus> {
        self.scans.status(self.clock())
    }

    /// Whether a leg in use waits for a resilver.
    pub fn wants_resilver(&self) -> bool {
        self.resilver_legs().next().is_some()
    }

    fn resilver_legs(&self) -> impl Iterator<Item = &Leg> {
        let legs = self.vdevs.iter().flat_map(|vdev| &vdev.legs);
        legs.filter(|leg| leg.usable().is_some() && leg.stale_after().is_some())
    }

    /// The legs a resilver that begins now is for; hand it to [`Self::finish_resilver`].
    pub fn begin_resilver(&self) -> Vec<(usize, u64)> {
        self.resilver_legs().map(|leg| (leg.index, leg.absences())).collect()
    }

    /// Flushes what a resilver wrote and lets the next uberblock call its legs up to date, those
    /// that were in use all the time.
    ///
    /// # Durability
    /// The legs count as up to date, also after a crash, once the next commit returns; until then
    /// they are stale.
    pub async fn finish_resilver(&self, legs: &[(usize, u64)]) -> Result<(), PoolError> {
        self.flush_all().await?;
        for leg in self.vdevs.iter().flat_map(|vdev| &vdev.legs) {
            if let Some((_, absences)) = legs.iter().find(|(index, _)| *index == leg.index) {
                leg.set_copied(*absences);
            }
        }
        Ok(())
    }

    /// Shows a new scan.
    pub fn begin_scan(&self, kind: ScanKind) {
        let total_bytes = match kind {
            ScanKind::Scrub => self.space().live_bytes,
            ScanKind::Resilver => self.bytes_missed(),
        };
        let status = ScanStatus {
            kind,
            state: ScanState::Running,
            started_unix_ms: self.clock.unix_ms(),
            ended_unix_ms: None,
            ran: Duration::ZERO,
            total_bytes,
            examined_bytes: 0,
            repaired_bytes: 0,
            unrepaired: 0,
            damaged: 0,
        };
        *self.scans.0.lock() = Some((status, self.clock.monotonic()));
    }

    fn bytes_missed(&self) -> u64 {
        let missed = |vdev: u16, last_txg| {
            let legs = &self.vdevs[usize::from(vdev)].legs;
            let behind = |leg: &Leg| leg.stale_after().is_some_and(|txg| last_txg > txg);
            legs.iter().any(|leg| leg.usable().is_some() && behind(leg))
        };
        self.segments.live_bytes_where(missed)
    }

    /// Shows another state of the scan.
    pub fn set_scan_state(&self, state: ScanState) {
        let now = self.clock.monotonic();
        if let Some((status, since)) = &mut *self.scans.0.lock() {
            if status.state == ScanState::Running {
                status.ran += now.saturating_sub(*since);
            }
            *since = now;
            status.state = state;
            let ended = matches!(state, ScanState::Finished | ScanState::Stopped);
            status.ended_unix_ms = ended.then(|| self.clock.unix_ms());
        }
    }

    /// Looks at the blocks of a tree from block `from` on, as many as `pace` says, with the nodes
    /// that lead to them.
    pub async fn scan_step(
        &self,
        kind: ScanKind,
        root: TreeRoot,
        from: u64,
        pace: ScanPace,
    ) -> Result<ScanStep, PoolError> {
        let (room, ptrs) = (pace.blocks, Vec::new());
        let mut gather = Gather { from, room, ptrs, next: None, lost_nodes: 0 };
        match self.gather(root.ptr, root.height, 0, &mut gather).await {
            Ok(_) => {}
            Err(PoolError::NoSegment { .. }) => return Ok(ScanStep::Outlived),
            Err(error) => return Err(error),
        }
        let mut checked = self.check_copies(gather.ptrs, kind, pace.in_flight).await;
        self.check_alive()?;
        if checked.outlived {
            return Ok(ScanStep::Outlived);
        }
        checked.damaged += gather.lost_nodes;
        self.count_scanned(checked);
        Ok(gather.next.map_or(ScanStep::End, ScanStep::Next))
    }

    fn count_scanned(&self, checked: Checked) {
        if let Some((status, _)) = &mut *self.scans.0.lock() {
            status.examined_bytes += checked.bytes;
            status.repaired_bytes += checked.repaired_bytes;
            status.unrepaired += checked.unrepaired;
            status.damaged += checked.damaged;
        }
    }

    /// Adds what lies under `ptr`; false when there is no more room.
    fn gather<'s>(
        &'s self,
        ptr: BlockPtr,
        level: u8,
        base: u64,
        to: &'s mut Gather,
    ) -> Pin<Box<dyn Future<Output = Result<bool, PoolError>> + 's>> {
        Box::pin(async move {
            if ptr.is_hole() || base + span(level) <= to.from {
                return Ok(true);
            }
            if base >= to.from {
                if to.ptrs.len() >= to.room {
                    to.next = Some(base);
                    return Ok(false);
                }
                to.ptrs.push(ptr);
            }
            if level == 0 {
                return Ok(true);
            }
            let node = match self.read_block(&ptr).await {
                Ok(node) => node,
                Err(error @ PoolError::NoSegment { .. }) => return Err(error),
                Err(error) if error.kind() == ErrorKind::Data => {
                    // Its own copies are counted; what is below cannot be found.
                    to.lost_nodes += u64::from(base < to.from);
                    return Ok(true);
                }
                Err(error) => return Err(error),
            };
            let child = |index| node_pointer(&node, index).map_err(|e| self.bad_node(e));
            if level == 2 {
                self.read_ahead(&node, base, to).await;
            }
            for index in 0..NODE_FANOUT {
                let child_base = base + ((index as u64) << (NODE_SHIFT * u32::from(level - 1)));
                if !self.gather(child(index)?, level - 1, child_base, to).await? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Brings the leaves that a step will look at into the cache, side by side.
    async fn read_ahead(&self, node: &Block, base: u64, to: &Gather) {
        let room = to.room.saturating_sub(to.ptrs.len()).div_ceil(NODE_FANOUT);
        let leaves: Vec<BlockPtr> = (0..NODE_FANOUT)
            .filter(|index| base + (*index as u64 + 1) * span(1) > to.from)
            .filter_map(|index| node_pointer(node, index).ok().filter(|ptr| !ptr.is_hole()))
            .take(room)
            .collect();
        // Errors come again when the leaf's turn has come.
        drop(self.read_blocks(&leaves).await);
    }

    fn bad_node(&self, source: weir_format::FormatError) -> PoolError {
        PoolError::Structure { pool: self.name().to_owned(), what: "tree node", source }
    }

    /// The committed trees that no dataset owns: segment table and dataset directory.
    pub fn system_trees(&self) -> [TreeRoot; 2] {
        let committed = self.committed.lock();
        [committed.segments, committed.datasets]
    }

    /// Rewrites damaged config copies of the labels of every leg in use.
    pub async fn scan_labels(&self) -> Result<(), PoolError> {
        for (vdev, config) in self.vdevs.iter().zip(&self.label.vdevs) {
            for leg in &vdev.legs {
                let Some(device) = leg.usable() else { continue };
                let label = weir_format::Label { disk: leg.guid, ..self.label.clone() };
                match repair_config(&*device, &label, config.disk_bytes).await {
                    Ok(0) => {}
                    Ok(bytes) => {
                        self.count_scanned(Checked { repaired_bytes: bytes, ..Checked::default() });
                        tracing::warn!(disk = %leg.path, "damaged label repaired");
                    }
                    Err(error) => leg.fault(&error),
                }
            }
        }
        self.check_alive()
    }
}
