//! The administrator of a scenario clones ranges, while clients write to the source.
//!
//! Not here: what else is done with snapshots (snapshots), judging a crash (books, check).
//!
//! Invariants:
//! - no client uses the destination meanwhile, so that there is one order of things;
//! - what was asked for is noted before the call, what was promised right after it: it holds what
//!   the source held at some moment after the call.

use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_dataset::DatasetError;

use crate::admin::Admin;
use crate::books::{Cloning, Content};
use crate::check::read_tags;
use crate::client::Stop;
use crate::coverage::{Met, note};

impl Admin {
    pub(crate) async fn clone_range(&mut self) -> Result<(), Stop> {
        let Some((index, name)) = self.some_volume() else { return Ok(()) };
        self.clone_range_of(index, &name).await
    }

    /// Makes a range of this volume a clone of some other.
    pub(crate) async fn clone_range_of(&mut self, index: usize, name: &str) -> Result<(), Stop> {
        self.books.borrow_mut().volumes[index].quiet = true;
        while self.books.borrow().volumes[index].busy > 0 {
            self.executor.yield_now().await;
        }
        let done = self.clone_into(index, name).await;
        let book = &mut self.books.borrow_mut().volumes[index];
        book.quiet = false;
        // A clone that a bad disk cut short, or that could not be read back, may still be there.
        if done.is_ok() {
            book.cloning = None;
        }
        done
    }

    async fn clone_into(&mut self, index: usize, name: &str) -> Result<(), Stop> {
        let destination = self.engine.volume(name).map_err(Stop::Told)?;
        let snapshot = if self.rng.coin() { self.some_snapshot().await? } else { None };
        let (source, content) = if let Some((at, id)) = snapshot {
            let content = self.books.borrow().snapshots[at].content.clone();
            (self.engine.open_snapshot(&id).map_err(Stop::Told)?, content)
        } else {
            let Some((volume, name)) = self.some_volume() else { return Ok(()) };
            let entries = self.books.borrow().volumes[volume].history.acknowledged();
            let content = Content::After { volume, entries };
            (self.engine.volume(&name).map_err(Stop::Told)?, content)
        };
        let (record, other) = (destination.record_size(), source.record_size());
        let records = |bytes: u64| record.records_in(bytes) as usize;
        let sizes = (records(source.size_bytes()), records(destination.size_bytes()));
        if record != other {
            let done =
                self.engine.clone_range(&source, 0, &destination, 0, BLOCK_BYTES as u64).await;
            return match done {
                Err(DatasetError::Unfit { .. }) => Ok(()),
                Err(error) => Err(Stop::Told(error)),
                Ok(()) => Err(Stop::Broken(format!("{name} shares records of another size"))),
            };
        }
        let (from, to) = (self.rng.index(sizes.0), self.rng.index(sizes.1));
        let count = 1 + self.rng.index((sizes.0 - from).min(sizes.1 - to));
        let [from, to, count] = [from, to, count].map(|records| records << record.shift());
        let cloning = Cloning { source: content, from, to, count };
        self.books.borrow_mut().volumes[index].cloning = Some(cloning.clone());
        let bytes = |blocks: usize| (blocks * BLOCK_BYTES) as u64;
        let (from, to, len) = (bytes(from), bytes(to), bytes(count));
        match self.engine.clone_range(&source, from, &destination, to, len).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                note(Met::NoSpace);
                return Ok(());
            }
            Err(error) => return Err(Stop::Told(error)),
        }
        let (quota, _) = self.books.borrow().volumes[index].limits.known;
        let used = destination.info().space.used;
        if quota > 0 && used > quota {
            let what = format!("{name} is a clone of {used} bytes, and its quota is {quota}");
            return Err(Stop::Broken(what));
        }
        let read = read_tags(&destination, to / BLOCK_BYTES as u64, count).await;
        let found = read.map_err(|error: DatasetError| Stop::Told(error))?;
        let mut books = self.books.borrow_mut();
        if !books.is_shown(&cloning, &found) {
            return Err(Stop::Broken(format!("{name} is no clone of its source: {cloning:?}")));
        }
        books.came_to_hold(&found, cloning.to);
        let history = &mut books.volumes[index].history;
        history.acknowledge(cloning.to, found);
        let promised = history.acknowledged();
        history.flushed(promised);
        note(Met::RangeCloned);
        Ok(())
    }
}
