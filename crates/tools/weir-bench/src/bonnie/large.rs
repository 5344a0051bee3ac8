//! Phases of the large file: output, rewrite, input and seeks.
//!
//! `small` runs the phases of the small files; `drive` repeats the runs.
//!
//! Invariants: I/O goes through the page cache, as in most programs; every block that is read is
//! verified. The generation of a block is 1 after output, 2 after rewrite, and 2 or later during
//! seeks.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::fs::{Advice, fadvise};

use super::drive::Progress;
use super::timing::Timing;
use super::{BLOCK_BYTES, BonnieError, Figure, Phase};
use crate::content::Content;

/// Number of bytes that a per-byte phase transfers, with one system call for each byte.
pub(super) const BYTES_MAX: u64 = 4 << 20;
/// Number of seek workers and number of seeks, as in bonnie++.
const SEEKERS: u64 = 5;
const SEEKS: u64 = 8192;
/// A seek whose number is a multiple of this constant writes its block back.
const UPDATE_ONE_IN: u64 = 10;

/// The large file and its expected content.
pub(super) struct Large<'a> {
    path: PathBuf,
    bytes: u64,
    content: &'a Content,
    seed: u64,
    progress: &'a Progress,
    bad_blocks: AtomicU64,
}

impl<'a> Large<'a> {
    pub(super) fn new(
        directory: &Path,
        bytes: u64,
        content: &'a Content,
        seed: u64,
        progress: &'a Progress,
    ) -> Self {
        let (path, bad_blocks) = (directory.join("large"), AtomicU64::new(0));
        Self { path, bytes, content, seed, progress, bad_blocks }
    }

    /// Runs all six phases of the large file. Returns their figures and the number of blocks that
    /// failed the verification.
    pub(super) fn phases(&self) -> Result<(Vec<Figure>, u64), BonnieError> {
        let figures = vec![
            self.write_bytes()?,
            self.write_blocks()?,
            self.rewrite()?,
            self.read_bytes()?,
            self.read_blocks()?,
            self.seeks()?,
        ];
        std::fs::remove_file(&self.path).map_err(self.error("delete"))?;
        Ok((figures, self.bad_blocks.load(Ordering::Acquire)))
    }

    fn error(&self, what: &'static str) -> impl Fn(std::io::Error) -> BonnieError {
        let path = self.path.display().to_string();
        move |source| BonnieError::Io { path: path.clone(), what, source }
    }

    fn create(&self) -> Result<File, BonnieError> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        options.open(&self.path).map_err(self.error("create"))
    }

    /// Opens the large file and drops it from the page cache.
    fn reopen(&self) -> Result<File, BonnieError> {
        let opened = OpenOptions::new().read(true).write(true).open(&self.path);
        let file = opened.map_err(self.error("open"))?;
        // Ignore the error: a file system without a page cache has nothing to drop.
        fadvise(&file, 0, None, Advice::DontNeed).ok();
        Ok(file)
    }

    fn sync(&self, file: &File) -> Result<(), BonnieError> {
        file.sync_all().map_err(self.error("flush"))
    }

    fn offsets(bytes: u64) -> impl Iterator<Item = u64> {
        (0..bytes).step_by(BLOCK_BYTES)
    }

    fn bytes_at_a_time(&self) -> u64 {
        self.bytes.min(BYTES_MAX)
    }

    fn write_bytes(&self) -> Result<Figure, BonnieError> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut file = self.create()?;
        let mut timing = Timing::begin(Phase::OutChar);
        for offset in Self::offsets(self.bytes_at_a_time()) {
            self.content.fill(&mut block, offset, 1);
            let written = timing.operation(|| {
                block.iter().try_for_each(|byte| file.write_all(std::slice::from_ref(byte)))
            });
            written.map_err(self.error("write a byte"))?;
            self.progress.add(1)?;
        }
        self.sync(&file)?;
        Ok(timing.end(self.bytes_at_a_time() as f64 / 1024.0))
    }

    fn write_blocks(&self) -> Result<Figure, BonnieError> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut file = self.create()?;
        let mut timing = Timing::begin(Phase::OutBlock);
        for offset in Self::offsets(self.bytes) {
            self.content.fill(&mut block, offset, 1);
            timing.operation(|| file.write_all(&block)).map_err(self.error("write"))?;
            self.progress.add(1)?;
        }
        self.sync(&file)?;
        Ok(timing.end(self.bytes as f64 / 1024.0))
    }

    fn rewrite(&self) -> Result<Figure, BonnieError> {
        let mut block = vec![0; BLOCK_BYTES];
        let file = self.reopen()?;
        let mut timing = Timing::begin(Phase::Rewrite);
        for offset in Self::offsets(self.bytes) {
            let done = timing.operation(|| {
                file.read_exact_at(&mut block, offset)?;
                self.check(&block, offset, Some(1));
                self.content.fill(&mut block, offset, 2);
                file.write_all_at(&block, offset)
            });
            done.map_err(self.error("rewrite"))?;
            self.progress.add(1)?;
        }
        self.sync(&file)?;
        Ok(timing.end(self.bytes as f64 / 1024.0))
    }

    fn read_bytes(&self) -> Result<Figure, BonnieError> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut file = self.reopen()?;
        let mut timing = Timing::begin(Phase::InChar);
        for offset in Self::offsets(self.bytes_at_a_time()) {
            let read = timing.operation(|| {
                block.iter_mut().try_for_each(|byte| file.read_exact(std::slice::from_mut(byte)))
            });
            read.map_err(self.error("read a byte"))?;
            self.check(&block, offset, Some(2));
            self.progress.add(1)?;
        }
        Ok(timing.end(self.bytes_at_a_time() as f64 / 1024.0))
    }

    fn read_blocks(&self) -> Result<Figure, BonnieError> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut file = self.reopen()?;
        let mut timing = Timing::begin(Phase::InBlock);
        for offset in Self::offsets(self.bytes) {
            timing.operation(|| file.read_exact(&mut block)).map_err(self.error("read"))?;
            self.check(&block, offset, Some(2));
            self.progress.add(1)?;
        }
        Ok(timing.end(self.bytes as f64 / 1024.0))
    }

    fn seeks(&self) -> Result<Figure, BonnieError> {
        let (file, next) = (self.reopen()?, AtomicU64::new(0));
        let mut timing = Timing::begin(Phase::Seeks);
        let done: Vec<Result<Duration, BonnieError>> = std::thread::scope(|scope| {
            let seeker = |number| {
                let (file, next) = (&file, &next);
                scope.spawn(move || self.seek(file, next, number))
            };
            let threads: Vec<_> = (0..SEEKERS).map(seeker).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        });
        for longest in done {
            timing.longest(longest?);
        }
        self.sync(&file)?;
        Ok(timing.end(SEEKS as f64))
    }

    /// Runs one seek worker and returns the duration of its longest operation. Each block belongs
    /// to one worker, so that no worker reads a block that another one is writing.
    fn seek(&self, file: &File, next: &AtomicU64, number: u64) -> Result<Duration, BonnieError> {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ (number << 32));
        let (mut block, mut longest) = (vec![0; BLOCK_BYTES], Duration::ZERO);
        let blocks = self.bytes / BLOCK_BYTES as u64;
        let own = (blocks.saturating_sub(number)).div_ceil(SEEKERS).max(1);
        loop {
            let ticket = next.fetch_add(1, Ordering::AcqRel);
            if ticket >= SEEKS {
                return Ok(longest);
            }
            let at = rng.random_range(0..own) * SEEKERS + number;
            let offset = at % blocks * BLOCK_BYTES as u64;
            let began = Instant::now();
            file.read_exact_at(&mut block, offset).map_err(self.error("seek"))?;
            self.check(&block, offset, None);
            if ticket.is_multiple_of(UPDATE_ONE_IN) {
                self.content.fill(&mut block, offset, 3);
                file.write_all_at(&block, offset).map_err(self.error("update"))?;
            }
            longest = longest.max(began.elapsed());
            self.progress.add(1)?;
        }
    }

    /// Verifies a block. `generation` is the expected generation; `None` accepts any generation.
    fn check(&self, block: &[u8], offset: u64, generation: Option<u32>) {
        let size = self.content.block_bytes();
        let bad = block.chunks_exact(size).zip((offset..).step_by(size)).filter(|(part, at)| {
            let wanted = generation.map(|generation| generation..=generation);
            self.content.check_stamp(part, *at, wanted).is_err()
        });
        self.bad_blocks.fetch_add(bad.count() as u64, Ordering::AcqRel);
    }
}

/// Number of progress steps in all phases of the large file together.
pub(super) fn steps(bytes: u64) -> u64 {
    let blocks = |bytes: u64| bytes.div_ceil(BLOCK_BYTES as u64);
    2 * blocks(bytes.min(BYTES_MAX)) + 3 * blocks(bytes) + SEEKS
}
