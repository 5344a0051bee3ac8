//! Fills a directory, then lists it in steps while names are removed.
//!
//! `cargo run -p weir-fs --example list_names`
//!
//! Invariant: a listing resumes behind the entry of its cookie, also after that entry was removed.

#![expect(clippy::print_stdout, reason = "the counts are the result")]

use weir_base::ObjectId;
use weir_format::files::{EntryList, FileType, NameCase};
use weir_fs::directory::{Blocks, DirectoryError, DirectoryTree, NameHash};

fn main() -> Result<(), DirectoryError> {
    let mut blocks = Blocks::new();
    let changes = DirectoryTree::create(&blocks, &EntryList::default()).into_changes();
    blocks.extend(changes.blocks);
    let hash = NameHash::new(0x1234, NameCase::Sensitive);
    for number in 0..10_000_u64 {
        let name = format!("file-{number}");
        let mut tree = DirectoryTree::open(&blocks)?;
        let search = hash.search(name.as_bytes()).expect("any bytes are a name");
        tree.insert(&search, (ObjectId(16 + number), FileType::Regular, name.as_bytes()))?;
        let changes = tree.into_changes();
        blocks.extend(changes.blocks);
    }
    let (mut cookie, mut listed, most) = (0, 0, blocks.len());
    loop {
        let mut tree = DirectoryTree::open(&blocks)?;
        let Some(entry) = tree.after(cookie)?.into_iter().next() else { break };
        assert!(tree.remove(entry.key)?);
        (cookie, listed) = (entry.key.number(), listed + 1);
        let changes = tree.into_changes();
        blocks.extend(changes.blocks);
    }
    println!("{listed} names in {most} blocks, listed and removed one by one");
    assert_eq!(listed, 10_000);
    Ok(())
}
