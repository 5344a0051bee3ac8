//! Runs the loads of the calibration with Weir's generator.
//!
//! `load` generates the I/O.
//!
//! Invariants: every written block has a stamp; if a verified read returns wrong data, the
//! calibration ends.

use std::time::Duration;

use super::cells::Cell;
use super::{CalibrateError, DriverRun};
use crate::content::Content;
use crate::load::{Generations, Ground, Offer, ReadChecks, offer};
use crate::result::CellRun;
use crate::spec::{Access, BlockShare, ContentSpec, DatasetSpec, Durability, LoadSpec, StreamSpec};
use crate::summary::CellSummary;
use crate::target::{self, Address, Target};

/// Size in bytes of the writes that fill a target.
const FILL_BYTES: u32 = 1 << 20;
const SEED: u64 = 23;
/// Size in bytes of a stamped block.
const BLOCK_BYTES: u32 = 4096;

/// Target of the calibration, with its expected content.
pub(super) struct Ours {
    target: Box<dyn Target>,
    dataset: DatasetSpec,
    content: Content,
    generations: Option<Generations>,
}

impl Ours {
    pub(super) fn open(address: &Address, bytes: u64) -> Result<Self, CalibrateError> {
        let dataset = DatasetSpec { files: 1, file_bytes: bytes };
        let block_bytes = u64::from(FILL_BYTES);
        if bytes == 0 || !bytes.is_multiple_of(block_bytes) {
            let (cell, block_bytes) = ("fill".to_owned(), FILL_BYTES);
            let refused = crate::run::RunError::Block { cell, block_bytes, part_bytes: bytes };
            return Err(refused.into());
        }
        let content =
            ContentSpec { compress: 1.0, dedupe_pct: 0.0, unit_bytes: BLOCK_BYTES, seed: SEED };
        let content = Content::new(&content, BLOCK_BYTES, bytes);
        let generations = Generations::new(bytes, content.block_bytes());
        Ok(Self { target: target::open(address, &dataset)?, dataset, content, generations })
    }

    pub(super) fn target(&self) -> &dyn Target {
        &*self.target
    }

    pub(super) fn driver(&self) -> &str {
        &self.target.info().driver
    }

    /// Writes every block of the target once.
    pub(super) fn fill(&self) -> Result<(), CalibrateError> {
        let fill = Cell { is_read: false, is_random: false, block_bytes: FILL_BYTES, depth: 8 };
        self.offer(&fill, None, ReadChecks::Off)?;
        // Cached writes must reach the storage before a cell measures reads.
        self.target.drop_caches()?;
        Ok(())
    }

    /// Runs a cell once and returns the figures of the run.
    pub(super) fn run(
        &self,
        cell: &Cell,
        run_ms: u64,
        read_checks: ReadChecks,
    ) -> Result<DriverRun, CalibrateError> {
        let run = self.offer(cell, Some(Duration::from_millis(run_ms)), read_checks)?;
        let found = CellSummary::of_runs(std::slice::from_ref(&run));
        Ok(DriverRun {
            iops: found.iops.median,
            p50_us: found.latency.p50_us,
            p99_us: found.latency.p99_us,
            cpu_us: found.cpu_us_per_op,
        })
    }

    fn offer(
        &self,
        cell: &Cell,
        duration: Option<Duration>,
        read_checks: ReadChecks,
    ) -> Result<CellRun, CalibrateError> {
        let ground = Ground {
            target: self.target(),
            dataset: &self.dataset,
            content: &self.content,
            generations: self.generations.as_ref(),
            durability: Durability::None,
            seed: SEED,
            read_checks,
        };
        let stream = StreamSpec {
            name: String::new(),
            access: if cell.is_random { Access::Random } else { Access::Sequential },
            blocks: vec![BlockShare { bytes: cell.block_bytes, weight: 1 }],
            read_pct: if cell.is_read { 100.0 } else { 0.0 },
            op: None,
            metadata: None,
            share: 1,
        };
        let load = LoadSpec::Closed { workers: 1, depth: cell.depth };
        let what = Offer {
            streams: &[stream],
            load,
            warmup: Duration::ZERO,
            duration,
            worker_bytes: None,
        };
        let run = offer(&ground, &what, &mut |_| true)?;
        let blocks = run.corrupt + u64::from(run.zero_reads_pct > 0.0);
        if blocks > 0 {
            let address = self.target.info().address.clone();
            return Err(CalibrateError::Corrupt { address, blocks });
        }
        Ok(run)
    }
}
