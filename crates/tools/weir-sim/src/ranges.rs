//! Block clones by the administrator of a scenario: sometimes several into one volume concurrently,
//! with concurrent writes to that volume, while clients write to the sources.
//!
//! `snapshots` handles snapshots, `concurrent` computes the possible results, `expected` and
//! `check` verify recoveries.
//!
//! Invariants:
//! - no client uses the destination volume while clones into it run, so the recorded changes are
//!   complete;
//! - a call is recorded as pending before it starts, and as acknowledged right after it returns.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_dataset::{DatasetError, Engine, Volume};

use crate::admin::Admin;
use crate::check::read_tags;
use crate::concurrent::{ConcurrentChanges, LogicalTime, Source, What};
use crate::coverage::{CoveragePoint, note};
use crate::error::Stop;
use crate::executor::Executor;
use crate::expected::{Content, ExpectedState};
use crate::history::Presence;
use crate::history::{SECTOR_BYTES, SECTORS, Tag, at, contents_of, sectors, tags_of};
use crate::rng::Rng;

/// Maximum number of concurrent clones, and of concurrent changes by a writer.
const CLONES_MAX: u64 = 3;
const STEPS_MAX: u64 = 6;
/// Maximum number of blocks in one write.
const BLOCKS_PER_WRITE_MAX: usize = 12;
/// Maximum number of yields before each step of a concurrent writer, and before a clone that starts
/// late.
const PAUSE_MAX: u64 = 24;

/// A block clone that the administrator is about to request.
struct Wanted {
    source: Arc<Volume>,
    /// Content of the source if it is a snapshot.
    content: Option<Vec<Tag>>,
    /// Index of the source if it is a volume.
    volume: usize,
    /// First sector of the range in the source. `to` is the range of sectors in the destination.
    from: usize,
    to: Range<usize>,
}

/// An actor that changes a volume concurrently with other actors.
struct Party {
    rng: Rng,
    engine: Arc<Engine>,
    expected: Rc<RefCell<ExpectedState>>,
    executor: Executor,
    index: usize,
    destination: Arc<Volume>,
    /// Cloned ranges; half of the changes start in one of them.
    near: Vec<Range<usize>>,
}

fn bytes(sectors: usize) -> u64 {
    (sectors * SECTOR_BYTES) as u64
}

impl Admin {
    pub(crate) async fn clone_range(&mut self) -> Result<(), Stop> {
        let (index, name) = self.one_of(&|_| true).expect("the first ones are always there");
        self.clone_range_of(index, &name).await
    }

    /// Draws one of the existing volumes that satisfy `fits`.
    fn one_of(&mut self, fits: &dyn Fn(&str) -> bool) -> Option<(usize, String)> {
        let expected = self.expected.borrow();
        let there = expected.volumes.iter().enumerate();
        let there = there.filter(|(_, book)| book.presence == Presence::There && fits(&book.name));
        let there: Vec<_> = there.map(|(index, book)| (index, book.name.clone())).collect();
        (!there.is_empty()).then(|| there[self.rng.index(there.len())].clone())
    }

    /// Clones ranges of other volumes into this volume.
    pub(crate) async fn clone_range_of(&mut self, index: usize, name: &str) -> Result<(), Stop> {
        self.expected.borrow_mut().volumes[index].quiet = true;
        while self.expected.borrow().volumes[index].busy > 0 {
            self.executor.yield_now().await;
        }
        // If a disk error interrupts the clones, the volume stays quiet, because their outcome is
        // unknown.
        self.clone_together(index, name).await?;
        self.expected.borrow_mut().volumes[index].quiet = false;
        Ok(())
    }

    async fn clone_together(&mut self, index: usize, name: &str) -> Result<(), Stop> {
        let destination = self.engine.volume(name).map_err(Stop::Failed)?;
        let clones = if self.rng.coin() { 1 } else { 1 + self.rng.below(CLONES_MAX) };
        let steps = if self.rng.coin() { 0 } else { 1 + self.rng.below(STEPS_MAX) };
        let mut wanted = Vec::new();
        for _ in 0..clones {
            wanted.extend(self.some_range(&destination, name).await?);
        }
        self.expected.borrow_mut().volumes[index].concurrent = Some(ConcurrentChanges::default());
        let mut working = Vec::new();
        let at_once = self.rng.coin();
        let near: Vec<Range<usize>> = wanted.iter().map(|wanted| wanted.to.clone()).collect();
        for range in wanted {
            let mut party = self.party(index, &destination);
            let cloning = async move {
                if !at_once {
                    party.pause().await;
                }
                party.clone(range).await
            };
            working.push(self.executor.spawn("range clone", cloning));
        }
        if !working.is_empty() && steps > 0 {
            let mut party = Party { near, ..self.party(index, &destination) };
            let writing = async move { party.steps(steps).await };
            working.push(self.executor.spawn("writes beside range clones", writing));
        }
        let mut all = Ok(());
        for handle in working {
            let done = handle.await;
            all = all.and(done);
        }
        all?;
        self.settle(index, name, &destination).await
    }

    fn party(&mut self, index: usize, destination: &Arc<Volume>) -> Party {
        Party {
            rng: Rng::new(self.rng.next_u64()),
            engine: Arc::clone(&self.engine),
            expected: Rc::clone(&self.expected),
            executor: self.executor.clone(),
            index,
            destination: Arc::clone(destination),
            near: Vec::new(),
        }
    }

    /// Draws a range of a volume or snapshot, and its destination.
    async fn some_range(
        &mut self,
        destination: &Arc<Volume>,
        name: &str,
    ) -> Result<Option<Wanted>, Stop> {
        let record = destination.record_size();
        let snapshot = if self.rng.coin() { self.some_snapshot().await? } else { None };
        let (source, content, volume) = if let Some((at, id)) = snapshot {
            let content = match &self.expected.borrow().snapshots[at].content {
                Content::Known(state) => state.clone(),
                // A disk error prevented reading the snapshot after it was taken, so its content is
                // not known, and it cannot be a source.
                Content::After { .. } => return Ok(None),
            };
            (self.engine.open_snapshot(&id).map_err(Stop::Failed)?, Some(content), 0)
        } else {
            let any = self.rng.below(8) == 0;
            let engine = Arc::clone(&self.engine);
            let fits = |name: &str| {
                any || engine.volume(name).is_ok_and(|volume| volume.record_size() == record)
            };
            let Some((volume, name)) = self.one_of(&fits) else { return Ok(None) };
            (self.engine.volume(&name).map_err(Stop::Failed)?, None, volume)
        };
        if source.record_size() != record {
            let done = self.engine.clone_range(&source, 0, destination, 0, bytes(SECTORS)).await;
            return match done {
                Err(DatasetError::Unfit { .. }) => Ok(None),
                Err(error) => Err(Stop::Failed(error)),
                Ok(()) => Err(Stop::Broken(format!("{name} shares records of another size"))),
            };
        }
        let records = |bytes: u64| record.records_in(bytes) as usize;
        let sizes = (records(source.size_bytes()), records(destination.size_bytes()));
        let (from, to) = (self.rng.index(sizes.0), self.rng.index(sizes.1));
        let count = 1 + self.rng.index((sizes.0 - from).min(sizes.1 - to));
        let [from, to, count] =
            [from, to, count].map(|records| (records << record.shift()) * SECTORS);
        Ok(Some(Wanted { source, content, volume, from, to: to..to + count }))
    }

    /// After all changes ended, makes the current content the expected content.
    async fn settle(
        &mut self,
        index: usize,
        name: &str,
        destination: &Arc<Volume>,
    ) -> Result<(), Stop> {
        // Clones are durable when acknowledged. The concurrent writes become durable by a flush.
        self.party(index, destination).flush().await?;
        let (quota, _) = self.expected.borrow().volumes[index].limits.known;
        let used = destination.info().space.used;
        if quota > 0 && used > quota {
            let what = format!("{name} is a clone of {used} bytes, and its quota is {quota}");
            return Err(Stop::Broken(what));
        }
        let size = destination.size_bytes() as usize / BLOCK_BYTES;
        let mut found = read_tags(destination, 0, size).await.map_err(Stop::Failed)?;
        let mut expected = self.expected.borrow_mut();
        found.resize(expected.sectors_max(), 0);
        let concurrent =
            expected.volumes[index].concurrent.take().expect("this is what it went through");
        if !concurrent.ends_as(expected.volumes[index].history.now(), &found, &expected.volumes) {
            let what =
                format!("no order of {concurrent:?} explains the contents of {name}: {found:?}");
            return Err(Stop::Broken(what));
        }
        let is_clone = |what: &What| matches!(what, What::Cloned { .. });
        let clones = concurrent.changes().filter(|change| is_clone(&change.what)).count();
        let met = [
            CoveragePoint::RangeCloned,
            CoveragePoint::RangesTogether,
            CoveragePoint::WrittenBesideClone,
        ];
        let others = concurrent.changes().count() - clones;
        for (met, whether) in met.into_iter().zip([clones > 0, clones > 1, clones * others > 0]) {
            if whether {
                note(met);
            }
        }
        expected.came_to_hold(&found, 0);
        let history = &mut expected.volumes[index].history;
        history.acknowledge(0, found);
        let promised = history.acknowledged();
        history.flushed(promised);
        Ok(())
    }
}

impl Party {
    /// Updates the record of concurrent changes.
    fn note<T>(&self, what: impl FnOnce(&mut ConcurrentChanges) -> T) -> T {
        let mut expected = self.expected.borrow_mut();
        what(expected.volumes[self.index].concurrent.as_mut().expect("it goes through something"))
    }

    async fn pause(&mut self) {
        for _ in 0..self.rng.below(PAUSE_MAX) {
            self.executor.yield_now().await;
        }
    }

    async fn clone(&mut self, wanted: Wanted) -> Result<(), Stop> {
        let Wanted { source, content, volume, from, to } = wanted;
        let acknowledged = || self.expected.borrow().volumes[volume].history.acknowledged();
        let refers = match content {
            Some(content) => Source::Snapshot(content),
            None if volume == self.index => Source::Itself,
            None => Source::Other { volume, least: acknowledged(), most: None },
        };
        let what = What::Cloned { source: refers, from };
        let began = self.note(|concurrent| concurrent.begin(to.clone(), what));
        let (start, len) = (bytes(to.start), bytes(to.len()));
        let cloned =
            self.engine.clone_range(&source, bytes(from), &self.destination, start, len).await;
        let entries = acknowledged();
        self.ended(began, entries, cloned)
    }

    /// Records the engine's response to a change in the executor step of the response.
    fn ended(
        &self,
        began: LogicalTime,
        entries: usize,
        done: Result<(), DatasetError>,
    ) -> Result<(), Stop> {
        match done {
            Ok(()) => self.note(|concurrent| concurrent.end(began, entries)),
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                note(CoveragePoint::NoSpace);
                self.note(|concurrent| concurrent.refuse(began));
            }
            Err(error) => return Err(Stop::Failed(error)),
        }
        Ok(())
    }

    /// Writes, trims, flushes and reads at random.
    async fn steps(&mut self, steps: u64) -> Result<(), Stop> {
        for _ in 0..steps {
            self.pause().await;
            match self.rng.below(10) {
                0..6 => self.write().await?,
                6 => self.zero().await?,
                7 => self.flush().await?,
                _ => self.read().await?,
            }
        }
        Ok(())
    }

    /// Draws whole blocks or an arbitrary range of sectors.
    fn some_sectors(&mut self) -> Range<usize> {
        let blocks = self.destination.size_bytes() as usize / BLOCK_BYTES;
        let start = if self.near.is_empty() || self.rng.coin() {
            self.rng.index(blocks)
        } else {
            let near = &self.near[self.rng.index(self.near.len())];
            (near.start + self.rng.index(near.len())) / SECTORS
        };
        let end = start + 1 + self.rng.index(BLOCKS_PER_WRITE_MAX.min(blocks - start));
        let whole = sectors(&(start..end));
        if self.rng.coin() { some_part(&mut self.rng, &whole) } else { whole }
    }

    async fn write(&mut self) -> Result<(), Stop> {
        let range = self.some_sectors();
        let tags: Vec<Tag> = {
            let mut expected = self.expected.borrow_mut();
            let blocks = range.start / SECTORS..range.end.div_ceil(SECTORS);
            let writes: Vec<Tag> = blocks
                .clone()
                .map(|block| expected.new_tag(self.index, block, self.rng.coin()))
                .collect();
            range
                .clone()
                .map(|sector| at(writes[sector / SECTORS - blocks.start], sector))
                .collect()
        };
        let data = contents_of(&tags);
        let began = self.note(|concurrent| concurrent.begin(range.clone(), What::Written(tags)));
        let written = self.destination.write(bytes(range.start), &data).await;
        self.ended(began, 0, written)
    }

    async fn zero(&mut self) -> Result<(), Stop> {
        let range = self.some_sectors();
        let zeros = What::Written(vec![0; range.len()]);
        let began = self.note(|concurrent| concurrent.begin(range.clone(), zeros));
        let zeroed = self.destination.zero(bytes(range.start), bytes(range.len())).await;
        self.ended(began, 0, zeroed)
    }

    async fn flush(&mut self) -> Result<(), Stop> {
        let then = self.note(ConcurrentChanges::moment);
        let before = self.expected.borrow().volumes[self.index].history.acknowledged();
        self.engine.flush(&self.destination).await.map_err(Stop::Failed)?;
        self.note(|concurrent| concurrent.flushed(then));
        self.expected.borrow_mut().volumes[self.index].history.flushed(before);
        Ok(())
    }

    async fn read(&mut self) -> Result<(), Stop> {
        let range = self.some_sectors();
        let then = self.note(ConcurrentChanges::moment);
        let mut data = vec![0; range.len() * SECTOR_BYTES];
        self.destination.read(bytes(range.start), &mut data).await.map_err(Stop::Failed)?;
        let (expected, found) = (self.expected.borrow(), tags_of(&data));
        let book = &expected.volumes[self.index];
        let concurrent = book.concurrent.as_ref().expect("it goes through something");
        let (now, all) = (book.history.now(), &expected.volumes);
        // A read is consistent only within one sector, so check each sector separately.
        for (sector, tag) in range.zip(found) {
            if !concurrent.reads((now, all), (sector, &[tag]), then) {
                let name = &book.name;
                let what = format!("{name} sector {sector} reads {tag:x} during {concurrent:?}");
                return Err(Stop::Broken(what));
            }
        }
        Ok(())
    }
}

/// Draws a range that starts in the first block of `whole` and ends in its last block.
pub(crate) fn some_part(rng: &mut Rng, whole: &Range<usize>) -> Range<usize> {
    let start = whole.start + rng.index(SECTORS);
    let last = whole.end - SECTORS;
    let end = last.max(start) + 1;
    start..end + rng.index(whole.end - end + 1)
}
