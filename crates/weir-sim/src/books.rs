//! What every volume of a scenario went through: the changes to its data, and what an
//! administrator asked for and was promised.
//!
//! Not here: one volume's data ([`History`]), who writes it (client, admin).
//!
//! Invariants:
//! - one name is changed by one administrator, one call after another, so only its newest volume
//!   can be half asked for;
//! - what was asked for and not yet acknowledged may be there after a crash or not, but whole.

use std::collections::HashMap;

use weir_format::Compression;

use crate::history::{History, Tag};

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
    /// Counts the volumes that had this name: a late acknowledgement must not go to the next one.
    pub(crate) incarnation: u64,
}

impl Book {
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
    /// Padded with zeros to the longest volume.
    pub(crate) state: Vec<Tag>,
}

/// All names of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    pub(crate) volumes: Vec<Book>,
    /// Where each tag was ever written: name and block.
    tags: HashMap<Tag, (usize, usize)>,
    next_tag: Tag,
    blocks_max: usize,
}

impl Books {
    /// `there`: volumes of this many blocks that exist and are empty; `free`: names not in use.
    pub(crate) fn new(there: usize, free: usize, blocks: usize, blocks_max: usize) -> Self {
        let book = |name, presence| Book {
            name,
            history: History::new(blocks_max),
            presence,
            size: Property::new(blocks),
            compression: Property::new(Compression::Lz4),
            incarnation: 0,
        };
        let there = (0..there).map(|n| book(format!("v{n}"), Presence::There));
        let free = (0..free).map(|n| book(format!("t{n}"), Presence::Gone));
        let volumes = there.chain(free).collect();
        Self { volumes, tags: HashMap::new(), next_tag: 1 << 16, blocks_max }
    }

    pub(crate) fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    /// A tag nobody wrote before, about to be written here.
    pub(crate) fn new_tag(&mut self, volume: usize, block: usize, compressible: bool) -> Tag {
        // The low bit says whether the content compresses.
        self.next_tag += 512;
        let tag = self.next_tag + u64::from(!compressible);
        self.tags.insert(tag, (volume, block));
        tag
    }

    /// Whether somebody once wrote this there.
    pub(crate) fn was_written(&self, tag: Tag, volume: usize, block: usize) -> bool {
        tag == 0 || self.tags.get(&tag) == Some(&(volume, block))
    }

    /// A new volume takes a free name.
    pub(crate) fn create(&mut self, volume: usize, blocks: usize, compression: Compression) {
        let book = &mut self.volumes[volume];
        book.history = History::new(self.blocks_max);
        book.presence = Presence::Creating;
        book.size = Property::new(blocks);
        book.compression = Property::new(compression);
        book.incarnation += 1;
    }

    /// From here on, what a recovery found is what must be there.
    pub(crate) fn rebase(&mut self, found: Vec<Option<Found>>) {
        for (book, found) in self.volumes.iter_mut().zip(found) {
            let Some(found) = found else {
                book.presence = Presence::Gone;
                continue;
            };
            book.presence = Presence::There;
            book.size = Property::new(found.size);
            book.compression = Property::new(found.compression);
            book.history = History::of_state(found.state);
        }
    }
}
