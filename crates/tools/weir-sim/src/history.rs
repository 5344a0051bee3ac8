//! History of one volume: its acknowledged changes, and the check of a recovered state against
//! them.
//!
//! The module `client` makes the changes. The history counts and compares 512-byte sectors, the
//! smallest unit that a client can write.
//!
//! Invariants:
//! - an entry is added in the executor step in which the engine acknowledged the change, so the
//!   entries are in the engine's order;
//! - a recovered state is correct if it equals the state after a prefix of the entries that
//!   includes every flushed entry.

use std::ops::{Range, RangeInclusive};

use weir_base::BLOCK_BYTES;

use crate::rng::Rng;

/// Expected existence of a volume or snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// A creation is pending.
    Creating,
    /// The object must exist.
    There,
    /// A destruction is pending.
    Destroying,
    /// The object must not exist.
    Gone,
}

/// Smallest unit of a client's read or write.
pub(crate) const SECTOR_BYTES: usize = 512;

/// Number of sectors in a block.
pub(crate) const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

/// Number that determines the content of a sector. 0 means zeros. In other tags the lowest bit is 0
/// if the content compresses, the next three bits are the sector's index in its block, and the
/// other bits identify the write.
pub(crate) type Tag = u64;

/// Tag of data that no client wrote.
pub(crate) const GARBAGE: Tag = u64::MAX;

const PLACE: Tag = (SECTORS as u64 - 1) << 1;

/// Tag of the sector with number `sector` of the volume after this write.
pub(crate) fn at(write: Tag, sector: usize) -> Tag {
    if write == 0 { 0 } else { write_of(write) | ((sector % SECTORS) as u64) << 1 }
}

/// Tag of the write to which a sector's tag belongs.
pub(crate) fn write_of(tag: Tag) -> Tag {
    tag & !PLACE
}

/// Sectors in a range of blocks.
pub(crate) fn sectors(blocks: &Range<usize>) -> Range<usize> {
    blocks.start * SECTORS..blocks.end * SECTORS
}

/// Content of a sector that has this tag.
pub(crate) fn content(tag: Tag) -> [u8; SECTOR_BYTES] {
    let mut sector = [0; SECTOR_BYTES];
    if tag == 0 {
        return sector;
    }
    if tag % 2 == 1 {
        Rng::new(tag).fill(&mut sector);
    } else {
        sector.iter_mut().zip((tag >> 8).to_le_bytes().iter().cycle()).for_each(|(b, t)| *b = *t);
    }
    sector[..8].copy_from_slice(&tag.to_le_bytes());
    sector
}

/// Content of sectors that have these tags.
pub(crate) fn contents_of(tags: &[Tag]) -> Vec<u8> {
    tags.iter().flat_map(|tag| content(*tag)).collect()
}

/// Tags of the whole sectors in `bytes`.
pub(crate) fn tags_of(bytes: &[u8]) -> Vec<Tag> {
    let (sectors, rest) = bytes.as_chunks::<SECTOR_BYTES>();
    assert!(rest.is_empty(), "what is read is whole sectors");
    let tag_of = |sector: &[u8; SECTOR_BYTES]| {
        let tag = u64::from_le_bytes(*sector.first_chunk().expect("a sector has eight bytes"));
        if content(tag) == *sector { tag } else { GARBAGE }
    };
    sectors.iter().map(tag_of).collect()
}

/// A change that gives these tags to the sectors from `start` on.
#[derive(Clone, Debug)]
struct Entry {
    start: usize,
    tags: Vec<Tag>,
}

/// Changes of one volume.
#[derive(Clone, Debug)]
pub(crate) struct History {
    sectors: usize,
    entries: Vec<Entry>,
    /// Number of entries that every recovery must contain.
    flushed: usize,
    /// Content of the volume after all entries.
    now: Vec<Tag>,
}

impl History {
    pub(crate) fn new(sectors: usize) -> Self {
        Self { sectors, entries: Vec::new(), flushed: 0, now: vec![0; sectors] }
    }

    /// History of a volume whose flushed content is `state`.
    pub(crate) fn of_state(state: Vec<Tag>) -> Self {
        let base = Entry { start: 0, tags: state.clone() };
        Self { sectors: state.len(), entries: vec![base], flushed: 1, now: state }
    }

    pub(crate) fn sectors(&self) -> usize {
        self.sectors
    }

    /// Appends an acknowledged change.
    pub(crate) fn acknowledge(&mut self, start: usize, tags: Vec<Tag>) {
        self.now[start..start + tags.len()].copy_from_slice(&tags);
        self.entries.push(Entry { start, tags });
    }

    /// Number of acknowledged entries; a flush that starts now covers them.
    pub(crate) fn acknowledged(&self) -> usize {
        self.entries.len()
    }

    /// Records the end of a flush that started after `entries` entries.
    pub(crate) fn flushed(&mut self, entries: usize) {
        self.flushed = self.flushed.max(entries);
    }

    /// Content of the volume that a read must return now.
    pub(crate) fn now(&self) -> &[Tag] {
        &self.now
    }

    /// Contents that these sectors had after the first n history entries, for each n in `entries`;
    /// without duplicates.
    pub(crate) fn contents(
        &self,
        sectors: Range<usize>,
        entries: RangeInclusive<usize>,
    ) -> Vec<Vec<Tag>> {
        let mut state = vec![0; self.sectors];
        let mut contents: Vec<Vec<Tag>> = Vec::new();
        for prefix in 0..=*entries.end() {
            if prefix > 0 {
                let Entry { start, tags } = &self.entries[prefix - 1];
                state[*start..start + tags.len()].copy_from_slice(tags);
            }
            let content = &state[sectors.clone()];
            if entries.contains(&prefix) && !contents.iter().any(|known| known == content) {
                contents.push(content.to_vec());
            }
        }
        contents
    }

    /// Checks that `found` is the content after a prefix that includes all flushed entries.
    pub(crate) fn judge(&self, found: &[Tag]) -> Result<(), String> {
        self.judge_from(found, self.flushed)
    }

    /// Checks that `found` is the content after a prefix of at least `least` entries.
    pub(crate) fn judge_from(&self, found: &[Tag], least: usize) -> Result<(), String> {
        let mut state = vec![0; self.sectors];
        let mut wrong = state.iter().zip(found).filter(|(s, f)| s != f).count();
        let mut best = (usize::MAX, 0);
        for prefix in 0..=self.entries.len() {
            if prefix > 0 {
                let Entry { start, tags } = &self.entries[prefix - 1];
                for (at, tag) in (*start..).zip(tags) {
                    wrong += usize::from(*tag != found[at]);
                    wrong -= usize::from(state[at] != found[at]);
                    state[at] = *tag;
                }
            }
            if wrong == 0 && prefix >= least {
                return Ok(());
            }
            if prefix >= least {
                best = best.min((wrong, prefix));
            }
        }
        let garbage = found.iter().filter(|tag| **tag == GARBAGE).count();
        Err(format!(
            "no prefix from {} to {} of the acknowledged changes matches; the nearest, {}, differs \
             in {} sectors; {garbage} sectors hold what no client wrote",
            least,
            self.entries.len(),
            best.1,
            best.0,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_content_match() {
        let tags = [0, 7, 8, 0x1234_5678_9abc_def1, 0x00ff_0000];
        assert_eq!(tags_of(&contents_of(&tags)), tags);
        let mut torn = contents_of(&tags);
        torn[1000] ^= 1;
        assert_eq!(tags_of(&torn)[..2], [0, GARBAGE]);
    }

    #[test]
    fn tag_contains_its_write_and_sector_index() {
        for write in [0x1_0200, 0x1_0201] {
            let tags: Vec<Tag> = (8..16).map(|sector| at(write, sector)).collect();
            assert!(tags.iter().all(|tag| write_of(*tag) == write && tag % 2 == write % 2));
            assert!(tags.windows(2).all(|pair| pair[0] < pair[1]), "{tags:?}");
        }
        assert_eq!((at(0, 5), at(GARBAGE, 5) == GARBAGE), (0, false));
    }

    #[test]
    fn recovered_state_must_be_a_prefix_with_all_flushed_entries() {
        let mut history = History::new(3);
        history.acknowledge(0, vec![2, 4]);
        history.flushed(1);
        history.acknowledge(1, vec![6]);
        history.acknowledge(2, vec![8]);
        for good in [[2, 4, 0], [2, 6, 0], [2, 6, 8]] {
            assert_eq!(history.judge(&good), Ok(()));
        }
        for bad in [[0, 0, 0], [2, 4, 8], [2, 0, 0], [2, GARBAGE, 0]] {
            assert!(history.judge(&bad).is_err(), "{bad:?}");
        }
    }
}
