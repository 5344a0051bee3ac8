//! What every volume of a scenario went through: the changes to its data, and what an
//! administrator asked for and was promised.
//!
//! Not here: one volume's data ([`History`]), who writes it (client, admin).
//!
//! Invariants:
//! - one name is changed by one administrator, one call after another, so only its newest volume
//!   can be half asked for;
//! - what was asked for and not yet acknowledged may be there after a crash or not, but whole.

use std::collections::{HashMap, HashSet};

use weir_format::Compression;

use crate::history::{History, SECTORS, Tag, at, write_of};
use crate::replica::{self, Replica};
use crate::together::{Change, Together, What};

/// Tags that may be written again.
const RECENT_MAX: usize = 64;

/// Whether a volume exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Its creation was asked for.
    Creating,
    /// It must be there.
    There,
    /// Its destruction was asked for.
    Destroying,
    /// It must not be there.
    Gone,
}

/// A property: its acknowledged value, and the one asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Property<T> {
    pub(crate) known: T,
    pub(crate) asked: Option<T>,
}

impl<T: Copy + PartialEq> Property<T> {
    pub(crate) fn new(known: T) -> Self {
        Self { known, asked: None }
    }

    /// Whether a recovery may find this value.
    pub(crate) fn admits(&self, found: T) -> bool {
        found == self.known || self.asked == Some(found)
    }

    /// The change asked for was acknowledged.
    pub(crate) fn settle(&mut self) {
        self.known = self.asked.take().unwrap_or(self.known);
    }
}

/// One name and its newest volume.
#[derive(Clone, Debug)]
pub(crate) struct Book {
    pub(crate) name: String,
    pub(crate) history: History,
    pub(crate) presence: Presence,
    /// Size in blocks.
    pub(crate) size: Property<usize>,
    pub(crate) compression: Property<Compression>,
    /// Quota and reservation in bytes, 0: none.
    pub(crate) limits: Property<(u64, u64)>,
    /// Counts the volumes that had this name: a late acknowledgement must not go to the next one.
    pub(crate) incarnation: u64,
    /// What a rollback that was asked for makes of it: size and content.
    pub(crate) rolling: Option<(usize, Vec<Tag>)>,
    /// Range clones and what was asked for beside them.
    pub(crate) together: Option<Together>,
    /// Calls of clients under way.
    pub(crate) busy: usize,
    /// Clients leave it alone.
    pub(crate) quiet: bool,
}

/// A snapshot.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotBook {
    /// No other one ever has this name.
    pub(crate) name: String,
    pub(crate) presence: Presence,
    /// Size of its volume then, in blocks.
    pub(crate) size: usize,
    pub(crate) compression: Compression,
    pub(crate) content: Content,
}

/// What a snapshot holds.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// This.
    Known(Vec<Tag>),
    /// The state of a volume after some prefix of at least so many entries.
    After { volume: usize, entries: usize },
}

impl Book {
    /// Whether a recovery may find this: what a rollback asked for, or a prefix of the changes.
    pub(crate) fn judge(&self, size: usize, found: &[Tag]) -> Result<(), String> {
        if self.rolling.as_ref().is_some_and(|(s, state)| *s == size && state == found) {
            return Ok(());
        }
        if !self.size.admits(size) {
            return Err(format!("{size} blocks are neither of {:?}", self.size));
        }
        self.history.judge(found)
    }

    /// Whether a call on the volume of this incarnation may be told that there is none.
    pub(crate) fn may_be_gone(&self, incarnation: u64) -> bool {
        self.incarnation != incarnation || self.presence != Presence::There
    }

    /// Whether an access that ends at this block may be refused.
    pub(crate) fn may_be_outside(&self, end: usize) -> bool {
        end > self.size.known || self.size.asked.is_some_and(|asked| end > asked)
    }
}

/// What a recovery found of one name.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) size: usize,
    pub(crate) compression: Compression,
    pub(crate) limits: (u64, u64),
    /// By sector, padded with zeros to the longest volume.
    pub(crate) state: Vec<Tag>,
}

/// What a recovery found of everything.
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    /// By the place in the books.
    pub(crate) volumes: Vec<Option<Found>>,
    /// By name.
    pub(crate) snapshots: HashMap<String, Vec<Tag>>,
    pub(crate) replica: Option<replica::Found>,
}

/// All names of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    pub(crate) volumes: Vec<Book>,
    pub(crate) snapshots: Vec<SnapshotBook>,
    pub(crate) replica: Replica,
    next_snapshot: u64,
    /// Where each write's tag was first written: name and block.
    tags: HashMap<Tag, (usize, usize)>,
    /// Blocks that others came to hold: written again, or cloned from other places.
    also: HashSet<(Tag, usize)>,
    /// Tags of late, to be written again.
    recent: Vec<Tag>,
    next_tag: Tag,
    blocks_max: usize,
}

impl Books {
    /// `there`: volumes of this many blocks that exist and are empty; `free`: names not in use.
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
            together: None,
            busy: 0,
            quiet: false,
        };
        let there = (0..there).map(|n| book(format!("v{n}"), Presence::There));
        let free = (0..free).map(|n| book(format!("t{n}"), Presence::Gone));
        let volumes = there.chain(free).collect();
        let (snapshots, replica, next_snapshot) = (Vec::new(), Replica::default(), 0);
        let (tags, also, recent) = (HashMap::new(), HashSet::new(), Vec::new());
        let next_tag = 1 << 16;
        Self {
            volumes,
            snapshots,
            replica,
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

    /// A tag that was never written before, for a write to this block.
    pub(crate) fn new_tag(&mut self, volume: usize, block: usize, compressible: bool) -> Tag {
        // The low bit says whether the content compresses.
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

    /// A tag that was written lately, about to be written here as well.
    pub(crate) fn known_tag(&mut self, draw: u64, block: usize) -> Tag {
        let Some(last) = self.recent.len().checked_sub(1) else { return 0 };
        let tag = self.recent[(draw % (last as u64 + 1)) as usize];
        self.also.insert((tag, block));
        tag
    }

    /// What a volume holds from a sector on may be of any write.
    pub(crate) fn came_to_hold(&mut self, tags: &[Tag], from: usize) {
        let of_block = |(tag, sector): (&Tag, usize)| (write_of(*tag), sector / SECTORS);
        self.also.extend(tags.iter().zip(from..).map(of_block));
    }

    /// Whether a recovery may find this of the volume at this place in the list.
    pub(crate) fn judge(&self, volume: usize, size: usize, found: &[Tag]) -> Result<(), String> {
        let book = &self.volumes[volume];
        if let Some(together) = &book.together {
            // With anything of it all that was acknowledged before is there.
            let before = book.history.now();
            if book.size.admits(size) && together.survives_as(before, found, &self.volumes) {
                return Ok(());
            }
            if together.is_promised() {
                return Err(format!("no order of {together:?} leads to it"));
            }
        }
        book.judge(size, found)
    }

    /// Whether a client once wrote this to this sector: of this volume, or of one it may be a
    /// clone of.
    pub(crate) fn was_written(&self, tag: Tag, sector: usize) -> bool {
        let (write, is_of_place) = (write_of(tag), at(tag, sector) == tag);
        // A clone may be of what another clone brought.
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
            let together = self.volumes.iter().filter_map(|book| book.together.as_ref());
            for Change { to, what, .. } in together.flat_map(Together::changes) {
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

    /// A snapshot of a volume is asked for; its place in the list.
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

    /// Whether a snapshot may hold this.
    pub(crate) fn judge_snapshot(&self, at: usize, found: &[Tag]) -> Result<(), String> {
        match &self.snapshots[at].content {
            Content::Known(state) if state == found => Ok(()),
            Content::Known(state) => {
                let differ = state.iter().zip(found).filter(|(a, b)| a != b).count();
                Err(format!("differs in {differ} sectors from what it held"))
            }
            Content::After { volume, entries } => {
                self.volumes[*volume].history.judge_from(found, *entries)
            }
        }
    }

    /// Says the same of the snapshots of these names.
    pub(crate) fn mark(&mut self, names: &[String], presence: Presence) {
        for snapshot in self.snapshots.iter_mut().filter(|s| names.contains(&s.name)) {
            snapshot.presence = presence;
        }
    }

    /// A new volume takes a free name: an empty one, or one with this content.
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

    /// A volume is what a snapshot of it holds.
    pub(crate) fn rolled_back(&mut self, volume: usize, size: usize, state: Vec<Tag>) {
        let book = &mut self.volumes[volume];
        book.size = Property::new(size);
        book.history = History::of_state(state);
    }

    /// From here on, what a recovery found is what must be there.
    pub(crate) fn rebase(&mut self, Recovered { volumes, snapshots, replica }: Recovered) {
        self.replica.rebase(replica);
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
            (book.rolling, book.together, book.busy, book.quiet) = (None, None, 0, false);
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
