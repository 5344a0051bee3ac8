//! Expected state of a scenario: the data of every volume, and the administrator's calls, both
//! pending and acknowledged.
//!
//! [`History`] holds the data of one volume; the modules `client` and `admin` record their calls.
//!
//! Invariants:
//! - one administrator creates and destroys all volumes with the same name, one call at a time, so
//!   only the newest volume with a name can have a pending call;
//! - after a crash, a call that was not acknowledged took effect completely or not at all.

use std::collections::{HashMap, HashSet};

use weir_base::RecordSize;
use weir_format::Compression;

use crate::concurrent::{Change, ConcurrentChanges, What};
use crate::history::Presence;
use crate::history::{History, SECTORS, Tag, at, write_of};
use crate::objects::book::{FoundObjects, ObjectsBook};
use crate::replication::replica::{FoundReplica, Replica};
use crate::replication::volumes::{VolumeContent, no_replica};

/// Number of volumes that exist from the start and are never destroyed.
pub(crate) const VOLUMES: usize = 2;
/// Size of large records: two blocks. The smallest segments hold no larger records.
pub(crate) const LARGE_RECORD: RecordSize = RecordSize::from_shift(1).expect("two blocks");
/// Number of recent tags that clients may write again.
const RECENT_MAX: usize = 64;

/// A property with its acknowledged value and its pending value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Property<T> {
    pub(crate) known: T,
    pub(crate) asked: Option<T>,
}

impl<T: Copy + PartialEq> Property<T> {
    pub(crate) fn new(known: T) -> Self {
        Self { known, asked: None }
    }

    /// True if a recovery may find this value.
    pub(crate) fn admits(&self, found: T) -> bool {
        found == self.known || self.asked == Some(found)
    }

    /// Records that the pending change was acknowledged.
    pub(crate) fn settle(&mut self) {
        self.known = self.asked.take().unwrap_or(self.known);
    }
}

/// Expected state of the newest volume with a certain name.
#[derive(Clone, Debug)]
pub(crate) struct Book {
    pub(crate) name: String,
    pub(crate) history: History,
    pub(crate) presence: Presence,
    /// Size of the volume in blocks.
    pub(crate) size: Property<usize>,
    pub(crate) compression: Property<Compression>,
    /// Quota and reservation in bytes; 0 means none.
    pub(crate) limits: Property<(u64, u64)>,
    /// Number of volumes that have had this name, so that a late acknowledgement for an older
    /// volume is not recorded for the newest volume.
    pub(crate) incarnation: u64,
    /// Size and content of the volume after the pending rollback.
    pub(crate) rolling: Option<(usize, Vec<Tag>)>,
    /// Block clones and the changes concurrent with them.
    pub(crate) concurrent: Option<ConcurrentChanges>,
    /// Number of client calls on the volume in progress.
    pub(crate) busy: usize,
    /// If true, clients skip the volume.
    pub(crate) quiet: bool,
}

/// Expected state of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotBook {
    /// Name, unique among all snapshots of the scenario.
    pub(crate) name: String,
    pub(crate) presence: Presence,
    /// Size of the snapshot's volume when it was taken, in blocks.
    pub(crate) size: usize,
    pub(crate) compression: Compression,
    pub(crate) content: Content,
}

/// Expected content of a snapshot.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// The snapshot has exactly this content.
    Known(Vec<Tag>),
    /// The snapshot has the state of this volume after a prefix of the volume's changes, with at
    /// least `entries` entries.
    After { volume: usize, entries: usize },
}

impl Book {
    /// Checks that the state found by a recovery is the result of a pending rollback, or of a
    /// prefix of the changes.
    pub(crate) fn judge(&self, size: usize, found: &[Tag]) -> Result<(), String> {
        if self.rolling.as_ref().is_some_and(|(s, state)| *s == size && state == found) {
            return Ok(());
        }
        if !self.size.admits(size) {
            return Err(format!("{size} blocks: not one of the expected sizes {:?}", self.size));
        }
        self.history.judge(found)
    }

    /// True if a call on the volume with this incarnation number may fail because the volume was
    /// destroyed.
    pub(crate) fn may_be_gone(&self, incarnation: u64) -> bool {
        self.incarnation != incarnation || self.presence != Presence::There
    }

    /// True if the engine may refuse an access that ends at this block.
    pub(crate) fn may_be_outside(&self, end: usize) -> bool {
        end > self.size.known || self.size.asked.is_some_and(|asked| end > asked)
    }
}

/// Recovered state of one volume.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) size: usize,
    pub(crate) compression: Compression,
    pub(crate) limits: (u64, u64),
    /// Tag of each sector, padded with zeros to the length of the longest volume.
    pub(crate) state: Vec<Tag>,
}

/// Recovered state of the pool.
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    /// Recovered volumes, in the order of [`ExpectedState::volumes`].
    pub(crate) volumes: Vec<Option<Found>>,
    /// Content of each recovered snapshot by name.
    pub(crate) snapshots: HashMap<String, Vec<Tag>>,
    pub(crate) replica: Option<FoundReplica>,
    pub(crate) objects: FoundObjects,
}

/// Expected state of all volumes and snapshots of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedState {
    pub(crate) volumes: Vec<Book>,
    pub(crate) snapshots: Vec<SnapshotBook>,
    pub(crate) replica: Replica<VolumeContent>,
    /// Datasets with many objects.
    pub(crate) objects: ObjectsBook,
    next_snapshot: u64,
    /// Volume and block for which each write's tag was created.
    tags: HashMap<Tag, (usize, usize)>,
    /// Further blocks that may hold a write's tag, because a client wrote the tag again or a clone
    /// copied it.
    also: HashSet<(Tag, usize)>,
    /// Recent tags, from which clients draw tags to write again.
    recent: Vec<Tag>,
    next_tag: Tag,
    blocks_max: usize,
}

impl ExpectedState {
    /// Creates a state with `there` empty volumes of `blocks` blocks each, and with `free` unused
    /// names.
    pub(crate) fn new(there: usize, free: usize, blocks: usize, blocks_max: usize) -> Self {
        let book = |name, presence| Book {
            name,
            history: History::new(blocks_max * SECTORS),
            presence,
            size: Property::new(blocks),
            compression: Property::new(Compression::Lz4),
            limits: Property::new((0, 0)),
            incarnation: 0,
            rolling: None,
            concurrent: None,
            busy: 0,
            quiet: false,
        };
        let there = (0..there).map(|n| book(format!("v{n}"), Presence::There));
        let free = (0..free).map(|n| book(format!("t{n}"), Presence::Gone));
        let volumes = there.chain(free).collect();
        let (snapshots, replica, next_snapshot) = (Vec::new(), no_replica(), 0);
        let (tags, also, recent) = (HashMap::new(), HashSet::new(), Vec::new());
        let next_tag = 1 << 16;
        Self {
            volumes,
            snapshots,
            replica,
            objects: ObjectsBook::new(Vec::new()),
            next_snapshot,
            tags,
            also,
            recent,
            next_tag,
            blocks_max,
        }
    }

    pub(crate) fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    pub(crate) fn sectors_max(&self) -> usize {
        self.blocks_max * SECTORS
    }

    /// Returns a tag that was never written, for a write to this block.
    pub(crate) fn new_tag(&mut self, volume: usize, block: usize, compressible: bool) -> Tag {
        // The low bit is 0 if the content compresses.
        self.next_tag += 512;
        let tag = self.next_tag + u64::from(!compressible);
        self.tags.insert(tag, (volume, block));
        if self.recent.len() < RECENT_MAX {
            self.recent.push(tag);
        } else {
            self.recent[(tag >> 9) as usize % RECENT_MAX] = tag;
        }
        tag
    }

    /// Returns a recently written tag, for a write to this block.
    pub(crate) fn known_tag(&mut self, draw: u64, block: usize) -> Tag {
        let Some(last) = self.recent.len().checked_sub(1) else { return 0 };
        let tag = self.recent[(draw % (last as u64 + 1)) as usize];
        self.also.insert((tag, block));
        tag
    }

    /// Records that the sectors from `from` on may have these tags, so that their blocks may hold
    /// data of these writes.
    pub(crate) fn came_to_hold(&mut self, tags: &[Tag], from: usize) {
        let of_block = |(tag, sector): (&Tag, usize)| (write_of(*tag), sector / SECTORS);
        self.also.extend(tags.iter().zip(from..).map(of_block));
    }

    /// Checks the state in which a recovery found the volume with this index.
    pub(crate) fn judge(&self, volume: usize, size: usize, found: &[Tag]) -> Result<(), String> {
        let book = &self.volumes[volume];
        if let Some(concurrent) = &book.concurrent {
            // If a recovery contains any of the concurrent changes, it also contains all changes
            // that were acknowledged before the concurrent changes began.
            let before = book.history.now();
            if book.size.admits(size) && concurrent.survives_as(before, found, &self.volumes) {
                return Ok(());
            }
            if concurrent.is_durable() {
                return Err(format!("no order of {concurrent:?} explains it"));
            }
        }
        book.judge(size, found)
    }

    /// True if the sector with this index may hold this tag: the tag is zero, a client wrote it to
    /// this sector of some volume, or a recorded block clone may have copied it there.
    pub(crate) fn was_written(&self, tag: Tag, sector: usize) -> bool {
        let (write, is_of_place) = (write_of(tag), at(tag, sector) == tag);
        // The source of a clone may be a clone itself, so follow sources transitively.
        let mut places = vec![sector];
        let mut seen = 0;
        while let Some(&place) = places.get(seen) {
            let block = place / SECTORS;
            let is_of_block = self.tags.get(&write).is_some_and(|(_, home)| *home == block)
                || self.also.contains(&(write, block));
            let there = tag == 0 || (is_of_place && is_of_block);
            if there {
                return true;
            }
            let concurrent = self.volumes.iter().filter_map(|book| book.concurrent.as_ref());
            for Change { to, what, .. } in concurrent.flat_map(ConcurrentChanges::changes) {
                if let What::Cloned { from, .. } = what
                    && to.contains(&place)
                    && !places.contains(&(from + place - to.start))
                {
                    places.push(from + place - to.start);
                }
            }
            seen += 1;
        }
        false
    }

    /// Records a pending snapshot of a volume; returns the index of the snapshot.
    pub(crate) fn take(&mut self, volume: usize) -> usize {
        self.next_snapshot += 1;
        let book = &self.volumes[volume];
        self.snapshots.push(SnapshotBook {
            name: format!("s{}", self.next_snapshot),
            presence: Presence::Creating,
            size: book.size.known,
            compression: book.compression.known,
            content: Content::After { volume, entries: book.history.acknowledged() },
        });
        self.snapshots.len() - 1
    }

    /// Checks the content of a snapshot.
    pub(crate) fn judge_snapshot(&self, at: usize, found: &[Tag]) -> Result<(), String> {
        match &self.snapshots[at].content {
            Content::Known(state) if state == found => Ok(()),
            Content::Known(state) => {
                let differ = state.iter().zip(found).filter(|(a, b)| a != b).count();
                Err(format!("differs in {differ} sectors from its expected contents"))
            }
            Content::After { volume, entries } => {
                self.volumes[*volume].history.judge_from(found, *entries)
            }
        }
    }

    /// Sets the presence of the snapshots with these names.
    pub(crate) fn mark(&mut self, names: &[String], presence: Presence) {
        for snapshot in self.snapshots.iter_mut().filter(|s| names.contains(&s.name)) {
            snapshot.presence = presence;
        }
    }

    /// Records a pending new volume under a free name, either empty or with this content.
    pub(crate) fn create(
        &mut self,
        volume: usize,
        blocks: usize,
        compression: Compression,
        content: Option<Vec<Tag>>,
    ) {
        let new = || History::new(self.blocks_max * SECTORS);
        let history = content.map_or_else(new, History::of_state);
        let book = &mut self.volumes[volume];
        book.history = history;
        book.presence = Presence::Creating;
        book.size = Property::new(blocks);
        book.compression = Property::new(compression);
        book.limits = Property::new((0, 0));
        book.incarnation += 1;
    }

    /// Records that a volume was rolled back to a snapshot.
    pub(crate) fn rolled_back(&mut self, volume: usize, size: usize, state: Vec<Tag>) {
        let book = &mut self.volumes[volume];
        book.size = Property::new(size);
        book.history = History::of_state(state);
    }

    /// Makes the recovered state the expected state.
    pub(crate) fn rebase(&mut self, recovered: Recovered) {
        let Recovered { volumes, snapshots, replica, objects } = recovered;
        self.replica.rebase(replica);
        self.objects.rebase(objects);
        for found in volumes.iter().flatten() {
            self.came_to_hold(&found.state, 0);
        }
        self.snapshots.retain_mut(|snapshot| {
            let Some(state) = snapshots.get(&snapshot.name) else { return false };
            snapshot.presence = Presence::There;
            snapshot.content = Content::Known(state.clone());
            true
        });
        for (book, found) in self.volumes.iter_mut().zip(volumes) {
            (book.rolling, book.concurrent, book.busy, book.quiet) = (None, None, 0, false);
            let Some(found) = found else {
                book.presence = Presence::Gone;
                continue;
            };
            book.presence = Presence::There;
            book.size = Property::new(found.size);
            book.compression = Property::new(found.compression);
            book.limits = Property::new(found.limits);
            book.history = History::of_state(found.state);
        }
    }
}
