//! Clients of a scenario: they write, trim, read and flush volumes.
//!
//! Not here: changing the set of volumes (admin), judging a crash (check).
//!
//! Invariant: what was acknowledged is noted in the same executor step, before anything else runs.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use weir_base::limits::LOG_QUEUED_BYTES_MAX;
use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_dataset::{DatasetError, Engine, Volume};
use weir_device::Block;

use crate::books::Books;
use crate::coverage::{Met, note};
use crate::history::{Tag, content, tag_of};
use crate::rng::Rng;
use crate::scenario::VOLUMES;

/// Blocks that one client rewrites until the log queue overflows.
const STORM_BLOCKS: usize = 8;
/// One step in so many goes to a volume of the administrator's; the idle ones keep old segments of
/// the root stream alive.
const OTHER_ONE_IN: u64 = 5;

pub(crate) struct Client {
    pub(crate) rng: Rng,
    pub(crate) engine: Arc<Engine>,
    pub(crate) books: Rc<RefCell<Books>>,
    pub(crate) blocks_per_write_max: u64,
}

/// A volume as a client knows it.
struct Opened {
    index: usize,
    incarnation: u64,
    volume: Arc<Volume>,
}

/// Why a step did not do its work.
pub(crate) enum Stop {
    /// The engine answered with an error that no client expects.
    Told(DatasetError),
    /// A promise was broken.
    Broken(String),
}

impl Client {
    pub(crate) async fn step(&mut self) -> Result<(), Stop> {
        let Some(opened) = self.open()? else { return Ok(()) };
        let blocks = opened.blocks();
        let start = self.rng.index(blocks);
        let room = (blocks - start) as u64;
        let count = 1 + self.rng.below(self.blocks_per_write_max.min(room)) as usize;
        if self.engine.pool().root_is_stale() {
            note(Met::RootRewrite);
        }
        self.books.borrow_mut().volumes[opened.index].busy += 1;
        // Commits at any filling of the log, not only when it asks for one.
        let done = match self.rng.below(100) {
            0..46 => self.write(&opened, start, count).await,
            46..50 => self.write_same(&opened, start, count).await,
            50..58 => self.zero(&opened, start, count).await,
            58..80 => self.flush(&opened).await,
            80..91 => self.read(&opened).await,
            _ => self.engine.commit().await.map_err(Stop::Told),
        };
        self.books.borrow_mut().volumes[opened.index].busy -= 1;
        done
    }

    fn open(&mut self) -> Result<Option<Opened>, Stop> {
        let books = self.books.borrow();
        let others = self.rng.below(OTHER_ONE_IN) == 0;
        let index = self.rng.index(if others { books.volumes.len() } else { VOLUMES });
        let book = &books.volumes[index];
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
            let mut books = self.books.borrow_mut();
            let mut tag = |block| match self.rng.below(12) {
                // Zeros now and then: they are stored as holes.
                0 => 0,
                // Content that is somewhere already, or was.
                1..4 => books.known_tag(self.rng.next_u64(), block),
                odds => books.new_tag(opened.index, block, odds % 2 == 0),
            };
            (start..start + count).map(&mut tag).collect()
        };
        self.write_tags(opened, start, tags).await
    }

    async fn write_tags(&self, opened: &Opened, start: usize, tags: Vec<Tag>) -> Result<(), Stop> {
        let offset = (start * BLOCK_BYTES) as u64;
        // Half of them the way of a large write, whose blocks were filled as they arrived.
        let done = if tags[0].is_multiple_of(2) {
            let blocks = tags.iter().map(|tag| Block::copy_of(&content(*tag))).collect();
            opened.volume.write_blocks(offset, blocks).await
        } else {
            let bytes: Vec<u8> = tags.iter().flat_map(|tag| content(*tag)).collect();
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
            let mut books = self.books.borrow_mut();
            let tag = books.new_tag(opened.index, start, self.rng.coin());
            let tags = vec![tag; count];
            books.came_to_hold(&tags, start);
            tags
        };
        let (offset, len) = ((start * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u64);
        let pattern = content(tags[0]);
        let done = self.engine.write_same(&opened.volume, offset, len, &pattern).await;
        self.acknowledge(opened, start, tags, done)
    }

    async fn zero(&self, opened: &Opened, start: usize, count: usize) -> Result<(), Stop> {
        let (offset, len) = ((start * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u64);
        let done = opened.volume.zero(offset, len).await;
        self.acknowledge(opened, start, vec![0; count], done)
    }

    /// In the same executor step as the engine's own change: nothing is awaited in between.
    fn acknowledge(
        &self,
        opened: &Opened,
        start: usize,
        tags: Vec<Tag>,
        done: Result<(), DatasetError>,
    ) -> Result<(), Stop> {
        match done {
            Ok(()) => {
                let book = &mut self.books.borrow_mut().volumes[opened.index];
                if book.incarnation == opened.incarnation {
                    book.history.acknowledge(start, tags);
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                note(Met::NoSpace);
                Ok(())
            }
            Err(error) => self.excuse(opened, start + tags.len(), error),
        }
    }

    /// Errors that the administrator's doings explain.
    fn excuse(&self, opened: &Opened, end: usize, error: DatasetError) -> Result<(), Stop> {
        let book = &self.books.borrow().volumes[opened.index];
        let gone = book.may_be_gone(opened.incarnation);
        match error {
            DatasetError::Destroyed { .. } if gone => Ok(()),
            DatasetError::OutOfRange { .. } if gone || book.may_be_outside(end) => Ok(()),
            error => Err(Stop::Told(error)),
        }
    }

    async fn flush(&self, opened: &Opened) -> Result<(), Stop> {
        let before = self.books.borrow().volumes[opened.index].history.acknowledged();
        if let Err(error) = self.engine.flush(&opened.volume).await {
            return self.excuse(opened, 0, error);
        }
        let book = &mut self.books.borrow_mut().volumes[opened.index];
        if book.incarnation == opened.incarnation {
            book.history.flushed(before);
        }
        Ok(())
    }

    /// Reads one block against the model of this very moment.
    async fn read(&mut self, opened: &Opened) -> Result<(), Stop> {
        let block = self.rng.index(opened.blocks());
        let mut bytes = [0; BLOCK_BYTES];
        let offset = (block * BLOCK_BYTES) as u64;
        let known = || self.books.borrow().volumes[opened.index].history.now()[block];
        let before = known();
        let cached = match opened.volume.try_read(offset, &mut bytes) {
            Ok(cached) => cached,
            Err(error) => return self.excuse(opened, block + 1, error),
        };
        if !cached && let Err(error) = opened.volume.read(offset, &mut bytes).await {
            self.check_listed(opened, offset, &error)?;
            return self.excuse(opened, block + 1, error);
        }
        let books = self.books.borrow();
        let book = &books.volumes[opened.index];
        let (found, after) = (tag_of(&bytes), known());
        let another = book.incarnation != opened.incarnation;
        if found == before || found == after || another {
            return Ok(());
        }
        // While a slow read waits, others may write: anything of that time is right.
        if cached || !books.was_written(found, block) {
            let what = format!("{} block {block} reads {found:x}, not {after:x}", book.name);
            return Err(Stop::Broken(what));
        }
        Ok(())
    }

    /// What a client was told to be lost is on the list of damage before it is told.
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
        Err(Stop::Broken(format!("{name}: {error} at {offset}, and the list of damage lacks it")))
    }

    /// Rewrites a few blocks until the log would take more than a commit does.
    pub(crate) async fn storm(&mut self) -> Result<(), Stop> {
        // An empty budget for dirty data, so that no write has to wait for a commit.
        self.engine.commit().await.map_err(Stop::Told)?;
        let Some(opened) = self.open()? else { return Ok(()) };
        self.books.borrow_mut().volumes[opened.index].busy += 1;
        let count = STORM_BLOCKS.min(opened.blocks());
        let times = LOG_QUEUED_BYTES_MAX as usize / (count * BLOCK_BYTES) + 2;
        for _ in 0..times {
            let tags = {
                let mut books = self.books.borrow_mut();
                (0..count).map(|block| books.new_tag(opened.index, block, true)).collect()
            };
            self.write_tags(&opened, 0, tags).await?;
        }
        let done = self.flush(&opened).await;
        self.books.borrow_mut().volumes[opened.index].busy -= 1;
        done
    }
}

impl Opened {
    /// Blocks of the volume as it is now.
    fn blocks(&self) -> usize {
        self.volume.size_bytes() as usize / BLOCK_BYTES
    }
}
