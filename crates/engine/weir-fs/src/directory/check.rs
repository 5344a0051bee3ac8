//! Check of a whole directory.
//!
//! Invariant: the check visits each block at most once, also in a tree with cycles.

use std::collections::BTreeSet;

use weir_format::files::{DirectoryContent, DirectoryEntry, EntryKey};

use super::tree::{BlockSource, Bounds, DirectoryError, DirectoryTree};

/// Result of the check of a directory without damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Number of entries.
    pub entries: u64,
    /// Number of blocks in the tree.
    pub blocks: u32,
    /// Number of blocks in the list of free blocks.
    pub free: u32,
    /// Number of blocks that are neither in the tree nor free. They only waste space.
    pub lost: u32,
}

/// Verifies the levels, the order and bounds of all keys, that no block is in the tree twice, and
/// the list of free blocks. Calls `each` for each entry in ascending order of the keys.
///
/// # Errors
/// `Missing`, or the first damage.
pub fn check<S: BlockSource>(
    source: &S,
    mut each: impl FnMut(&DirectoryEntry<'_>),
) -> Result<Checked, DirectoryError> {
    let tree = DirectoryTree::open(source)?;
    let (count, mut next_free) = tree.head;
    let (mut seen, mut checked) = (BTreeSet::new(), Checked::default());
    let mut waiting: Vec<(u32, Option<u8>, Bounds)> = vec![(0, None, (EntryKey::MIN, None))];
    while let Some((number, level, (lower, upper))) = waiting.pop() {
        let wrong = |what| DirectoryError::Tree { block: number, what };
        if number >= count {
            return Err(wrong("it is behind the end"));
        }
        if !seen.insert(number) {
            return Err(wrong("it is in the tree twice"));
        }
        checked.blocks += 1;
        let is_below = |key: EntryKey| key >= lower && upper.is_none_or(|upper| key < upper);
        match tree.decode(number)?.content {
            DirectoryContent::Leaf(list) if level.is_none_or(|level| level == 0) => {
                for entry in list.from(0) {
                    if !is_below(entry.key) {
                        return Err(wrong("it has keys outside its bounds"));
                    }
                    checked.entries += 1;
                    each(&entry);
                }
            }
            DirectoryContent::Node(node) if level.is_none_or(|level| level == node.level) => {
                if node.children.first().is_none_or(|first| first.key != lower) {
                    return Err(wrong("its first key is not its lower bound"));
                }
                let mut end = upper;
                // The last child is checked last, so it goes onto the stack first.
                for child in node.children.iter().rev() {
                    if !is_below(child.key) {
                        return Err(wrong("it has keys outside its bounds"));
                    }
                    waiting.push((child.block, Some(node.level - 1), (child.key, end)));
                    end = Some(child.key);
                }
            }
            DirectoryContent::Free => return Err(wrong("it is free")),
            _ => return Err(wrong("its level is wrong")),
        }
    }
    while next_free > 0 {
        let wrong = |what| DirectoryError::Tree { block: next_free, what };
        let block = tree.decode(next_free)?;
        if next_free >= count || block.content != DirectoryContent::Free {
            return Err(wrong("it is in the list of free blocks"));
        }
        if !seen.insert(next_free) {
            return Err(wrong("it is in the list of free blocks twice"));
        }
        checked.free += 1;
        next_free = block.free;
    }
    checked.lost = count - checked.blocks - checked.free;
    Ok(checked)
}
