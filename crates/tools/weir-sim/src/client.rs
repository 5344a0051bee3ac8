//! Clients of a scenario: they write, trim, read and flush volumes.
//!
//! `admin` creates and destroys volumes; `check` verifies recoveries.
//!
//! Invariant: each acknowledgement is recorded in its executor step, before another task runs.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use weir_base::limits::LOG_QUEUED_BYTES_MAX;
use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_block::Block;
use weir_dataset::{DatasetError, Engine, Volume};

use crate::coverage::{CoveragePoint, note};
use crate::error::Stop;
use crate::expected::{ExpectedState, VOLUMES};
use crate::history::{SECTOR_BYTES, SECTORS, Tag, at, contents_of, sectors, tags_of};
use crate::ranges::some_part;
use crate::rng::Rng;

/// Number of blocks that one client rewrites until the log queue of their volume overflows.
const STORM_BLOCKS: usize = 8;
/// Probability, as one divided by this number, that a partial write may extend to the end of its
/// volume.
const LONG_ONE_IN: u64 = 8;
/// Probability, as one divided by this number, that a step may use a volume of the administrator.
/// If such volumes were idle, their metadata would keep old segments of the metadata trees alive.
const OTHER_ONE_IN: u64 = 5;

pub(crate) struct Client {
    pub(crate) rng: Rng,
    pub(crate) engine: Arc<Engine>,
    pub(crate) expected: Rc<RefCell<ExpectedState>>,
    pub(crate) blocks_per_write_max: u64,
}

/// A volume that the client opened.
struct Opened {
    index: usize,
    incarnation: u64,
    volume: Arc<Volume>,
}

impl Client {
    pub(crate) async fn step(&mut self) -> Result<(), Stop> {
        let Some(opened) = self.open()? else { return Ok(()) };
        let blocks = opened.blocks();
        let start = self.rng.index(blocks);
        let room = (blocks - start) as u64;
        let count = 1 + self.rng.below(self.blocks_per_write_max.min(room)) as usize;
        if self.engine.pool().root_is_stale() {
            note(CoveragePoint::RootRewrite);
        }
        self.expected.borrow_mut().volumes[opened.index].busy += 1;
        // In the last case the client commits, so that commits come at arbitrary fill levels of the
        // log. A log that fills up requests commits as well.
        let done = match self.rng.below(100) {
            0..36 => self.write(&opened, start, count).await,
            36..46 => self.write_part(&opened, start, count).await,
            46..50 => self.write_same(&opened, start, count).await,
            50..58 => self.zero(&opened, sectors(&(start..start + count))).await,
            58..80 => self.flush(&opened).await,
            80..91 => self.read(&opened).await,
            _ => self.engine.commit().await.map_err(Stop::Failed),
        };
        self.expected.borrow_mut().volumes[opened.index].busy -= 1;
        done
    }

    fn open(&mut self) -> Result<Option<Opened>, Stop> {
        let expected = self.expected.borrow();
        let others = self.rng.below(OTHER_ONE_IN) == 0;
        let index = self.rng.index(if others { expected.volumes.len() } else { VOLUMES });
        let book = &expected.volumes[index];
        let incarnation = book.incarnation;
        if book.quiet {
            return Ok(None);
        }
        match self.engine.volume(&book.name) {
            Ok(volume) => Ok(Some(Opened { index, incarnation, volume })),
            Err(_) if book.may_be_gone(incarnation) => Ok(None),
            Err(error) => Err(Stop::Broken(format!("{}: {error}", book.name))),
        }
    }

    async fn write(&mut self, opened: &Opened, start: usize, count: usize) -> Result<(), Stop> {
        let tags: Vec<Tag> = {
            let mut expected = self.expected.borrow_mut();
            let mut write = |block| match self.rng.below(12) {
                // Write zeros to one of twelve blocks; the engine stores them as holes.
                0 => 0,
                // Repeat content that some block of the pool holds or held.
                1..4 => expected.known_tag(self.rng.next_u64(), block),
                odds => expected.new_tag(opened.index, block, odds % 2 == 0),
            };
            let writes: Vec<Tag> = (start..start + count).map(&mut write).collect();
            whole_blocks(&writes)
        };
        self.write_tags(opened, start * SECTORS, tags).await
    }

    /// Writes or zeroes a range between arbitrary sectors; some ranges are larger than a log batch.
    async fn write_part(
        &mut self,
        opened: &Opened,
        start: usize,
        count: usize,
    ) -> Result<(), Stop> {
        let is_long = self.rng.below(LONG_ONE_IN) == 0;
        let end = if is_long { opened.blocks() } else { start + count };
        let range = some_part(&mut self.rng, &sectors(&(start..end)));
        if self.rng.below(4) == 0 {
            return self.zero(opened, range).await;
        }
        let writes: Vec<Tag> = {
            let mut expected = self.expected.borrow_mut();
            let mut write = |block| expected.new_tag(opened.index, block, self.rng.coin());
            (start..end).map(&mut write).collect()
        };
        let write = |sector: usize| at(writes[sector / SECTORS - start], sector);
        let tags = range.clone().map(write).collect();
        self.write_tags(opened, range.start, tags).await
    }

    /// Writes the contents of these tags from sector `start` on.
    async fn write_tags(&self, opened: &Opened, start: usize, tags: Vec<Tag>) -> Result<(), Stop> {
        let offset = (start * SECTOR_BYTES) as u64;
        let bytes = contents_of(&tags);
        let is_whole = start.is_multiple_of(SECTORS) && tags.len().is_multiple_of(SECTORS);
        // Half of the whole-block writes use `write_blocks`, which servers call for large writes
        // that they received into blocks.
        let done = if is_whole && tags[0].is_multiple_of(2) {
            let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
            opened.volume.write_blocks(offset, Block::copies_of(blocks)).await
        } else {
            opened.volume.write(offset, &bytes).await
        };
        self.acknowledge(opened, start, tags, done)
    }

    async fn write_same(
        &mut self,
        opened: &Opened,
        start: usize,
        count: usize,
    ) -> Result<(), Stop> {
        let tags = {
            let mut expected = self.expected.borrow_mut();
            let write = expected.new_tag(opened.index, start, self.rng.coin());
            let tags = whole_blocks(&vec![write; count]);
            expected.came_to_hold(&tags, start * SECTORS);
            tags
        };
        let (offset, len) = ((start * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u64);
        let pattern = contents_of(&tags[..SECTORS]);
        let done = self.engine.write_same(&opened.volume, offset, len, &pattern).await;
        self.acknowledge(opened, start * SECTORS, tags, done)
    }

    async fn zero(&self, opened: &Opened, range: Range<usize>) -> Result<(), Stop> {
        let bytes = |sectors: usize| (sectors * SECTOR_BYTES) as u64;
        let done = opened.volume.zero(bytes(range.start), bytes(range.len())).await;
        self.acknowledge(opened, range.start, vec![0; range.len()], done)
    }

    /// Records the result of a write from sector `start` on. The caller awaits nothing after the
    /// engine's response, so this function runs in the executor step of the engine's change.
    fn acknowledge(
        &self,
        opened: &Opened,
        start: usize,
        tags: Vec<Tag>,
        done: Result<(), DatasetError>,
    ) -> Result<(), Stop> {
        match done {
            Ok(()) => {
                let book = &mut self.expected.borrow_mut().volumes[opened.index];
                if book.incarnation == opened.incarnation {
                    book.history.acknowledge(start, tags);
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                note(CoveragePoint::NoSpace);
                Ok(())
            }
            Err(error) => self.excuse(opened, (start + tags.len()).div_ceil(SECTORS), error),
        }
    }

    /// Accepts an error that a concurrent call of the administrator explains.
    fn excuse(&self, opened: &Opened, end: usize, error: DatasetError) -> Result<(), Stop> {
        let book = &self.expected.borrow().volumes[opened.index];
        let gone = book.may_be_gone(opened.incarnation);
        match error {
            DatasetError::Destroyed { .. } if gone => Ok(()),
            DatasetError::OutOfRange { .. } if gone || book.may_be_outside(end) => Ok(()),
            error => Err(Stop::Failed(error)),
        }
    }

    async fn flush(&self, opened: &Opened) -> Result<(), Stop> {
        let before = self.expected.borrow().volumes[opened.index].history.acknowledged();
        if let Err(error) = self.engine.flush(&opened.volume).await {
            return self.excuse(opened, 0, error);
        }
        let book = &mut self.expected.borrow_mut().volumes[opened.index];
        if book.incarnation == opened.incarnation {
            book.history.flushed(before);
        }
        Ok(())
    }

    /// Reads one block and compares it with the contents that are possible at this time.
    async fn read(&mut self, opened: &Opened) -> Result<(), Stop> {
        let block = self.rng.index(opened.blocks());
        let mut bytes = [0; BLOCK_BYTES];
        let offset = (block * BLOCK_BYTES) as u64;
        let sectors = sectors(&(block..block + 1));
        let known =
            || self.expected.borrow().volumes[opened.index].history.now()[sectors.clone()].to_vec();
        let before = known();
        let cached = match opened.volume.try_read(offset, &mut bytes) {
            Ok(cached) => cached,
            Err(error) => return self.excuse(opened, block + 1, error),
        };
        if !cached && let Err(error) = opened.volume.read(offset, &mut bytes).await {
            self.check_listed(opened, offset, &error)?;
            return self.excuse(opened, block + 1, error);
        }
        let expected = self.expected.borrow();
        let book = &expected.volumes[opened.index];
        let (found, after) = (tags_of(&bytes), known());
        let another = book.incarnation != opened.incarnation;
        if found == before || found == after || another {
            return Ok(());
        }
        // Other clients may write during a slow read, so any content that the block had during the
        // read is correct.
        let mut all = sectors.clone().zip(&found);
        if cached || !all.all(|(sector, tag)| expected.was_written(*tag, sector)) {
            let what = format!("{} block {block} reads {found:x?}, not {after:x?}", book.name);
            return Err(Stop::Broken(what));
        }
        Ok(())
    }

    /// Checks that the damage list contains a block that the engine reports as lost.
    fn check_listed(&self, opened: &Opened, offset: u64, error: &DatasetError) -> Result<(), Stop> {
        let name = opened.volume.info().name;
        if error.kind() != ErrorKind::Data || self.engine.volume(&name).is_err() {
            return Ok(());
        }
        let damage = self.engine.damage();
        let is_there = damage.data.iter().any(|data| {
            let range = data.offset_bytes..data.offset_bytes + data.len_bytes;
            data.volume == name && data.in_volume && range.contains(&offset)
        });
        if is_there || damage.more > 0 {
            return Ok(());
        }
        Err(Stop::Broken(format!(
            "{name}: {error} at {offset}, but the damage list does not contain it"
        )))
    }

    /// Rewrites a few blocks of a volume until the volume's log queue exceeds the size limit; the
    /// next flush must then wait for a commit.
    pub(crate) async fn storm(&mut self) -> Result<(), Stop> {
        // Commit first, so that the whole dirty-data budget is free and no write waits for a
        // commit.
        self.engine.commit().await.map_err(Stop::Failed)?;
        let Some(opened) = self.open()? else { return Ok(()) };
        self.expected.borrow_mut().volumes[opened.index].busy += 1;
        let done = self.overflow_log(&opened).await;
        self.expected.borrow_mut().volumes[opened.index].busy -= 1;
        done
    }

    async fn overflow_log(&self, opened: &Opened) -> Result<(), Stop> {
        let count = STORM_BLOCKS.min(opened.blocks());
        let times = LOG_QUEUED_BYTES_MAX as usize / (count * BLOCK_BYTES) + 2;
        for _ in 0..times {
            let tags = {
                let mut expected = self.expected.borrow_mut();
                let mut write = |block| expected.new_tag(opened.index, block, true);
                let writes: Vec<Tag> = (0..count).map(&mut write).collect();
                whole_blocks(&writes)
            };
            self.write_tags(opened, 0, tags).await?;
        }
        self.flush(opened).await
    }
}

/// Tags of the sectors of whole blocks.
pub(crate) fn whole_blocks(writes: &[Tag]) -> Vec<Tag> {
    writes.iter().flat_map(|write| (0..SECTORS).map(|sector| at(*write, sector))).collect()
}

impl Opened {
    /// Current size of the volume in blocks.
    fn blocks(&self) -> usize {
        self.volume.size_bytes() as usize / BLOCK_BYTES
    }
}

#[cfg(test)]
mod tests;
