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
    /// Number of blocks that are neither in the tree nor free. Such blocks only waste space.
    pub lost: u32,
}

/// Verifies the levels, the order and bounds of all keys, and the list of free blocks, and that no
/// block is in the tree twice. Calls `each` for each entry in ascending order of the keys.
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
    while let Some((number, level, bounds)) = waiting.pop() {
        let content = tree.content(number, level, bounds)?;
        if !seen.insert(number) {
            let what = "it is in the tree twice";
            return Err(DirectoryError::Tree { block: number, what });
        }
        checked.blocks += 1;
        match content {
            DirectoryContent::Leaf(list) => {
                checked.entries += list.len() as u64;
                list.from(0).for_each(|entry| each(&entry));
            }
            DirectoryContent::Node(node) => {
                let mut end = bounds.1;
                // The last child is checked last, so it goes onto the stack first.
                for child in node.children.iter().rev() {
                    waiting.push((child.block, Some(node.level - 1), (child.key, end)));
                    end = Some(child.key);
                }
            }
            DirectoryContent::Free => unreachable!("a free block has no place in the tree"),
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
