//! Fuzzes the blocks of a directory, and the operations on a tree of such blocks.
//!
//! The tests of weir-fs compare the operations with a model.
//!
//! Invariants: no panic; encoding an accepted block reproduces its bytes; every operation ends; a
//! tree that passes the check also passes it after the operations.

use weir_base::ObjectId;
use weir_block::Block;
use weir_format::files::{DirectoryBlock, DirectoryEntry, EntryKey, EntryList, FileType, NameCase};
use weir_fs::directory::{
    BlockSource, Blocks, DirectoryError, DirectoryTree, Entry, NameHash, check,
};

use crate::valid::{padded, trimmed};

/// Bytes of the input for each block; the rest of the block is zero.
const PART_BYTES: usize = 256;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let mut blocks = Blocks::new();
    for (number, part) in (0..).zip(data.chunks(PART_BYTES)) {
        let block = padded(part);
        if let Ok(decoded) = DirectoryBlock::decode(&block) {
            assert_eq!(decoded.encode(), block);
        }
        blocks.insert(number, Block::copy_of(&block));
    }
    let is_valid = check(&blocks, |_| {}).is_ok();
    for case in [NameCase::Sensitive, NameCase::Insensitive] {
        let hash = NameHash::new(1, case);
        for name in [&b"a"[..], b"name", "\u{212a}\u{1fb3}".as_bytes(), &[b'x'; 255]] {
            let search = hash.search(name).expect("the names are UTF-8");
            let of = (ObjectId(3), FileType::Regular, name);
            change(&mut blocks, |tree| tree.insert(&search, of));
            let Ok(tree) = DirectoryTree::open(&blocks) else { return };
            let found = tree.find(&search);
            let Ok(Some(Entry { key, .. })) = found else { continue };
            respell(&mut blocks, (hash, key), name);
        }
        // A name of the input, which may be no UTF-8.
        if let Some(search) = data.get(..16).and_then(|name| hash.search(name)) {
            let _found = DirectoryTree::open(&blocks).map(|tree| tree.find(&search));
        }
    }
    if is_valid {
        check(&blocks, |_| {}).expect("the tree was valid before the operations");
    }
    let mut cookie = 0;
    for _ in 0..64 {
        let Ok(tree) = DirectoryTree::open(&blocks) else { return };
        let Ok(found) = tree.after(cookie) else { break };
        let Some(last) = found.last() else { break };
        assert!(last.key.number() > cookie, "a cookie is behind the one before it");
        cookie = last.key.number();
        change(&mut blocks, |tree| tree.remove(last.key));
    }
    if is_valid {
        check(&blocks, |_| {}).expect("the tree was valid before the operations");
    }
}

/// Gives an entry a shorter spelling, if the rules for names have one.
fn respell(blocks: &mut Blocks, (hash, key): (NameHash, EntryKey), name: &[u8]) {
    let spelled = String::from_utf8_lossy(name).to_lowercase();
    let Some(search) = hash.search(spelled.as_bytes()) else { return };
    let inode = ObjectId(4);
    let entry = DirectoryEntry { key, inode, file_type: FileType::Fifo, name: spelled.as_bytes() };
    change(blocks, |tree| tree.replace(&search, &entry));
}

fn change<T>(
    blocks: &mut Blocks,
    op: impl FnOnce(&mut DirectoryTree<'_, Blocks>) -> Result<T, DirectoryError>,
) {
    let Ok(mut tree) = DirectoryTree::open(blocks) else { return };
    if op(&mut tree).is_ok() {
        let changes = tree.into_changes();
        blocks.extend(changes.blocks);
    }
}

/// A leaf, and a tree of a root and two leaves.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut blocks = Blocks::new();
    blocks
        .extend(DirectoryTree::create(&Blocks::new(), &EntryList::default()).into_changes().blocks);
    let hash = NameHash::new(1, NameCase::Sensitive);
    let mut seeds = Vec::new();
    for number in 0_u32..24 {
        let name = format!("{number:0>200}");
        let search = hash.search(name.as_bytes()).expect("any bytes are a name");
        let of = (ObjectId(7), FileType::Directory, name.as_bytes());
        change(&mut blocks, |tree| tree.insert(&search, of));
        if [1, 23].contains(&number) {
            let part = |number| {
                let block = blocks.block(number).expect("all blocks are there");
                let mut part = trimmed(block);
                part.resize(PART_BYTES, 0);
                part
            };
            seeds.push((0..blocks.len() as u32).flat_map(part).collect());
        }
    }
    seeds
}
