//! Map from block numbers to blocks: a hash map of groups of adjacent blocks.
//!
//! The dirty table (`dirty`) has its blocks in this map.
//!
//! A request of 1 MiB touches 16 groups instead of 256 hash map entries, each of them a cache miss.
//! A block without neighbours costs 128 bytes more than in a map of single blocks.
//!
//! Invariants:
//! - no group is empty;
//! - `len` is the number of blocks in all groups.

use std::ops::Range;

use weir_base::hash::HashMap;
use weir_block::Block;

/// Blocks in a group.
const GROUP: u64 = 16;

type Group = [Option<Block>; GROUP as usize];

/// Map from block numbers to blocks; see the file header.
#[derive(Default)]
pub(crate) struct BlockMap {
    groups: HashMap<u64, Group>,
    len: usize,
}

const fn place(block: u64) -> (u64, usize) {
    (block / GROUP, (block % GROUP) as usize)
}

impl BlockMap {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, block: u64) -> Option<&Block> {
        let (group, slot) = place(block);
        self.groups.get(&group)?[slot].as_ref()
    }

    pub(crate) fn get_mut(&mut self, block: u64) -> Option<&mut Block> {
        let (group, slot) = place(block);
        self.groups.get_mut(&group)?[slot].as_mut()
    }

    /// Inserts a block. Returns true if the map had no block of this number.
    pub(crate) fn insert(&mut self, block: u64, data: Block) -> bool {
        let (group, slot) = place(block);
        let group = self.groups.entry(group).or_default();
        let new = group[slot].replace(data).is_none();
        self.len += usize::from(new);
        new
    }

    /// Inserts adjacent blocks from the number `first` on. Returns how many of these numbers the
    /// map did not have.
    pub(crate) fn insert_all(&mut self, first: u64, blocks: Vec<Block>) -> usize {
        let (mut at, mut new) = (first, 0);
        let mut blocks = blocks.into_iter();
        while blocks.len() > 0 {
            let (group, slot) = place(at);
            let slots = &mut self.groups.entry(group).or_default()[slot..];
            at += slots.len() as u64;
            // `zip` takes no block after the last slot of the group.
            for (slot, block) in slots.iter_mut().zip(&mut blocks) {
                new += usize::from(slot.replace(block).is_none());
            }
        }
        self.len += new;
        new
    }

    /// Appends the blocks of a range to `found`, up to the first block that the map lacks.
    pub(crate) fn copy_to(&self, range: Range<u64>, found: &mut Vec<Block>) {
        let mut at = range.start;
        while at < range.end {
            let (group, slot) = place(at);
            let Some(slots) = self.groups.get(&group) else { return };
            let count = (GROUP - slot as u64).min(range.end - at);
            let slots = &slots[slot..slot + count as usize];
            let before = found.len();
            found.extend(slots.iter().map_while(Option::clone));
            if found.len() - before < slots.len() {
                return;
            }
            at += count;
        }
    }

    /// Removes the blocks of a range. Returns their number.
    pub(crate) fn remove(&mut self, range: &Range<u64>) -> usize {
        let before = self.len;
        let groups = range.start / GROUP..range.end.div_ceil(GROUP);
        if groups.end - groups.start < self.groups.len() as u64 {
            for group in groups {
                if let Some(slots) = self.groups.get_mut(&group) {
                    self.len -= clear(group, slots, range);
                    if slots.iter().all(Option::is_none) {
                        self.groups.remove(&group);
                    }
                }
            }
        } else {
            let len = &mut self.len;
            self.groups.retain(|group, slots| {
                if groups.contains(group) {
                    *len -= clear(*group, slots, range);
                }
                slots.iter().any(Option::is_some)
            });
        }
        before - self.len
    }

    /// All blocks with their numbers, ascending.
    pub(crate) fn sorted(&self) -> Vec<(u64, &Block)> {
        let mut groups: Vec<(&u64, &Group)> = self.groups.iter().collect();
        groups.sort_unstable_by_key(|(group, _)| **group);
        let mut sorted = Vec::with_capacity(self.len);
        for (group, slots) in groups {
            let blocks = (group * GROUP..).zip(slots);
            sorted.extend(blocks.filter_map(|(block, data)| Some((block, data.as_ref()?))));
        }
        sorted
    }

    /// Numbers of the blocks inside a range, unordered.
    pub(crate) fn within(&self, range: &Range<u64>) -> Vec<u64> {
        let mut found = Vec::new();
        let mut add = |group: u64, slots: &Group| {
            let blocks = (group * GROUP..).zip(slots).filter(|(_, data)| data.is_some());
            found.extend(blocks.map(|(block, _)| block).filter(|block| range.contains(block)));
        };
        let groups = range.start / GROUP..range.end.div_ceil(GROUP);
        if groups.end - groups.start < self.groups.len() as u64 {
            for group in groups {
                if let Some(slots) = self.groups.get(&group) {
                    add(group, slots);
                }
            }
        } else {
            self.groups.iter().for_each(|(group, slots)| add(*group, slots));
        }
        found
    }
}

/// Clears the slots of a group that are within a range. Returns the number of blocks removed.
fn clear(group: u64, slots: &mut Group, range: &Range<u64>) -> usize {
    let in_range = (group * GROUP..).zip(slots).filter(|(block, _)| range.contains(block));
    in_range.filter_map(|(_, slot)| slot.take()).count()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use weir_base::BLOCK_BYTES;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_map(
            steps in prop::collection::vec(
                (0..3_u8, 0_u64..200, 0_u64..100, any::<u8>()),
                1..200,
            ),
        ) {
            let (mut map, mut model) = (BlockMap::default(), BTreeMap::new());
            for (kind, start, len, fill) in steps {
                let (range, before) = (start..start + len, model.len());
                match kind {
                    0 => {
                        let new = map.insert(start, Block::copy_of(&[fill; BLOCK_BYTES]));
                        prop_assert_eq!(new, model.insert(start, fill).is_none());
                    }
                    1 => {
                        let block = Block::copy_of(&[fill; BLOCK_BYTES]);
                        let new = map.insert_all(start, vec![block; len as usize]);
                        model.extend(range.clone().map(|block| (block, fill)));
                        prop_assert_eq!(new, model.len() - before);
                    }
                    _ => {
                        model.retain(|block, _| !range.contains(block));
                        prop_assert_eq!(map.remove(&range), before - model.len());
                    }
                }
                prop_assert_eq!(map.len(), model.len());
                let all = || model.iter().map(|(block, fill)| (*block, *fill));
                prop_assert!(all().eq(map.sorted().into_iter().map(|(at, data)| (at, data[0]))));
                let mut found = Vec::new();
                map.copy_to(range.clone(), &mut found);
                let expected: Vec<u8> = range.map_while(|at| model.get(&at).copied()).collect();
                prop_assert!(found.iter().map(|data| data[0]).eq(expected));
                let mut within = map.within(&(start..start + len));
                within.sort_unstable();
                prop_assert!(within.iter().eq(model.range(start..start + len).map(|(b, _)| b)));
                prop_assert_eq!(map.get(start).map(|data| data[0]), model.get(&start).copied());
            }
        }
    }
}
