//! What clients did and were promised, and the oracle that judges what a crash left.
//!
//! Not here: doing it (scenario).
//!
//! Invariants:
//! - an entry is added in the same executor step in which the engine acknowledged it, so the order
//!   here is the engine's order;
//! - what a recovery finds is right if it equals the state after some prefix of the entries that
//!   includes every flushed one.

use std::ops::{Range, RangeInclusive};

use weir_base::BLOCK_BYTES;

use crate::rng::Rng;

/// Content of a block by number: 0 is zeros; odd ones are noise, even ones compress.
pub(crate) type Tag = u64;

/// Read back, but nothing anybody wrote.
pub(crate) const GARBAGE: Tag = u64::MAX;

/// The bytes a tag stands for.
pub(crate) fn content(tag: Tag) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    if tag == 0 {
        return block;
    }
    if tag % 2 == 1 {
        Rng::new(tag).fill(&mut block);
    } else {
        block.iter_mut().zip((tag >> 8).to_le_bytes().iter().cycle()).for_each(|(b, t)| *b = *t);
    }
    block[..8].copy_from_slice(&tag.to_le_bytes());
    block
}

/// The tag of a block read back.
pub(crate) fn tag_of(block: &[u8; BLOCK_BYTES]) -> Tag {
    let tag = u64::from_le_bytes(*block.first_chunk().expect("a block has eight bytes"));
    if content(tag) == *block { tag } else { GARBAGE }
}

/// Blocks `start ..` became these tags.
#[derive(Clone, Debug)]
struct Entry {
    start: usize,
    tags: Vec<Tag>,
}

/// The life of one volume.
#[derive(Clone, Debug)]
pub(crate) struct History {
    blocks: usize,
    entries: Vec<Entry>,
    /// Entries that every recovery must show.
    flushed: usize,
    /// The state after all entries.
    now: Vec<Tag>,
}

impl History {
    pub(crate) fn new(blocks: usize) -> Self {
        Self { blocks, entries: Vec::new(), flushed: 0, now: vec![0; blocks] }
    }

    /// The history of a volume that holds `state`, all of it on disk.
    pub(crate) fn of_state(state: Vec<Tag>) -> Self {
        let base = Entry { start: 0, tags: state.clone() };
        Self { blocks: state.len(), entries: vec![base], flushed: 1, now: state }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Notes an acknowledged change.
    pub(crate) fn acknowledge(&mut self, start: usize, tags: Vec<Tag>) {
        self.now[start..start + tags.len()].copy_from_slice(&tags);
        self.entries.push(Entry { start, tags });
    }

    /// Entries acknowledged so far; what a flush that starts now promises.
    pub(crate) fn acknowledged(&self) -> usize {
        self.entries.len()
    }

    /// Notes that a flush that started after `entries` entries returned.
    pub(crate) fn flushed(&mut self, entries: usize) {
        self.flushed = self.flushed.max(entries);
    }

    /// What a read must return now.
    pub(crate) fn now(&self) -> &[Tag] {
        &self.now
    }

    /// What some blocks held after prefixes of so many entries, each content once.
    pub(crate) fn contents(
        &self,
        blocks: Range<usize>,
        entries: RangeInclusive<usize>,
    ) -> Vec<Vec<Tag>> {
        let mut state = vec![0; self.blocks];
        let mut contents: Vec<Vec<Tag>> = Vec::new();
        for prefix in 0..=*entries.end() {
            if prefix > 0 {
                let Entry { start, tags } = &self.entries[prefix - 1];
                state[*start..start + tags.len()].copy_from_slice(tags);
            }
            let content = &state[blocks.clone()];
            if entries.contains(&prefix) && !contents.iter().any(|known| known == content) {
                contents.push(content.to_vec());
            }
        }
        contents
    }

    /// Whether `found` is the state after some prefix that includes all flushed entries.
    pub(crate) fn judge(&self, found: &[Tag]) -> Result<(), String> {
        self.judge_from(found, self.flushed)
    }

    /// Whether `found` is the state after some prefix of at least so many entries.
    pub(crate) fn judge_from(&self, found: &[Tag], least: usize) -> Result<(), String> {
        let mut state = vec![0; self.blocks];
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
             in {} blocks; {garbage} blocks hold what nobody wrote",
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
        for tag in [0, 7, 8, 0x1234_5678_9abc_def1, 0x00ff_0000] {
            assert_eq!(tag_of(&content(tag)), tag);
        }
        let mut torn = content(7);
        torn[4000] ^= 1;
        assert_eq!(tag_of(&torn), GARBAGE);
    }

    #[test]
    fn only_prefixes_that_hold_what_was_flushed_pass() {
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
