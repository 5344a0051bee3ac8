//! Directory trees against a model: random names in several spellings, missing blocks, damaged
//! blocks.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use weir_base::{BLOCK_BYTES, ObjectId};
use weir_block::{Block, BlockMut};
use weir_format::files::{DirectoryEntry, EntryKey, EntryList, FileType, NameCase};

use super::*;

/// Source that has only some blocks of a directory in memory. If an operation needs another block,
/// the test reads the block and repeats the operation.
struct Partly<'b> {
    blocks: &'b Blocks,
    read: BTreeSet<u32>,
}

impl BlockSource for Partly<'_> {
    fn block(&self, number: u32) -> Option<&[u8; BLOCK_BYTES]> {
        self.blocks.block(number).filter(|_| self.read.contains(&number))
    }
}

struct Model {
    rng: fastrand::Rng,
    blocks: Blocks,
    /// Inode and name of each entry.
    entries: BTreeMap<EntryKey, (u64, Vec<u8>)>,
    /// Number of different hashes. If it is small, many neighbouring entries have equal hashes.
    hashes: u64,
    name_bytes: usize,
    misses: Cell<usize>,
}

impl Model {
    fn new(seed: u64, hashes: u64, name_bytes: usize) -> Self {
        let none = Blocks::new();
        let changes = DirectoryTree::create(&none, &EntryList::default()).into_changes();
        Self {
            rng: fastrand::Rng::with_seed(seed),
            blocks: changes.blocks,
            entries: BTreeMap::new(),
            hashes,
            name_bytes,
            misses: Cell::new(0),
        }
    }

    /// Runs an operation, and repeats it after each missing block was read.
    fn run<T>(
        &self,
        mut op: impl FnMut(&mut DirectoryTree<'_, Partly<'_>>) -> Result<T, DirectoryError>,
    ) -> Result<(T, TreeChanges), DirectoryError> {
        let mut source = Partly { blocks: &self.blocks, read: BTreeSet::new() };
        loop {
            let done = DirectoryTree::open(&source).and_then(|mut tree| {
                let done = op(&mut tree)?;
                Ok((done, tree.into_changes()))
            });
            match done {
                Err(DirectoryError::Missing(number)) if self.blocks.contains_key(&number) => {
                    self.misses.set(self.misses.get() + 1);
                    source.read.insert(number);
                }
                done => return done,
            }
        }
    }

    fn search<'n>(&self, name: &'n [u8]) -> SearchName<'n> {
        let search = NameHash::new(7, NameCase::Insensitive).search(name).unwrap();
        let hash = search.first_key().number() % self.hashes;
        search.with_hash(EntryKey::of_hash(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    fn store(&mut self, changes: TreeChanges) {
        self.blocks.extend(changes.blocks);
        if changes.is_one_block {
            self.blocks.retain(|number, _| *number == 0);
        }
    }

    fn some_name(&mut self) -> Vec<u8> {
        let len = self.rng.usize(1..=self.name_bytes);
        (0..len).map(|_| self.rng.u8(b'a'..=b'z')).collect()
    }

    fn insert(&mut self, name: &[u8]) {
        let inode = self.rng.u64(1..1 << 46);
        let search = self.search(name);
        let first = search.first_key();
        let of = (ObjectId(inode), FileType::Regular, name);
        let run = self.entries.range(first..).take_while(|(key, _)| key.has_hash_of(first));
        let run: Vec<_> = run.map(|(key, (_, name))| (*key, name.clone())).collect();
        let expected = if run.iter().any(|(_, own)| fold(own) == fold(name)) {
            Err(DirectoryError::Exists)
        } else {
            let free = std::iter::successors(Some(first), |key| key.next_of_hash());
            let mut free = free.filter(|key| !run.iter().any(|(taken, _)| taken == key));
            free.next().ok_or(DirectoryError::Full)
        };
        let done = self.run(|tree| tree.insert(&search, of));
        match done {
            Ok((key, changes)) => {
                assert_eq!(expected, Ok(key));
                self.store(changes);
                self.entries.insert(key, (inode, name.to_vec()));
            }
            Err(error) => assert_eq!(expected, Err(error)),
        }
    }

    fn some_key(&mut self) -> Option<EntryKey> {
        let index = self.rng.usize(..self.entries.len().max(1));
        self.entries.keys().nth(index).copied()
    }

    fn remove(&mut self) {
        if let Some(key) = self.some_key() {
            self.remove_key(key);
        }
    }

    fn remove_key(&mut self, key: EntryKey) {
        let (was_there, changes) = self.run(|tree| tree.remove(key)).unwrap();
        assert!(was_there);
        self.store(changes);
        self.entries.remove(&key);
        let (is_there, changes) = self.run(|tree| tree.remove(key)).unwrap();
        assert!(!is_there && changes.blocks.is_empty());
    }

    fn look_up(&mut self) {
        let Some(key) = self.some_key() else { return };
        let (inode, name) = self.entries[&key].clone();
        let other = self.other_spelling(&name);
        let search = self.search(&other);
        let (found, changes) = self.run(|tree| tree.find(&search)).unwrap();
        let found = found.unwrap();
        assert_eq!((found.key, found.inode.0, &*found.name), (key, inode, &name[..]));
        assert!(changes.blocks.is_empty());
        let absent = self.search(b"~").with_hash(search.first_key());
        let (found, _) = self.run(|tree| tree.find(&absent)).unwrap();
        assert_eq!(found, None, "names have only letters");
    }

    /// Another spelling of a name, often of another length: the Kelvin sign has three bytes.
    fn other_spelling(&mut self, name: &[u8]) -> Vec<u8> {
        let mut free = 255 - name.len();
        let mut spelled = String::new();
        for letter in std::str::from_utf8(name).unwrap().chars() {
            let lower = if letter == '\u{212a}' { 'k' } else { letter.to_ascii_lowercase() };
            let letter = match self.rng.u8(..3) {
                0 => lower,
                1 if lower == 'k' && free >= 2 => {
                    free -= 2;
                    '\u{212a}'
                }
                _ => lower.to_ascii_uppercase(),
            };
            spelled.push(letter);
        }
        spelled.into_bytes()
    }

    /// Gives an entry another spelling and inode.
    fn respell(&mut self) {
        let Some(key) = self.some_key() else { return };
        let name = self.entries[&key].1.clone();
        let name = self.other_spelling(&name);
        let inode = ObjectId(self.rng.u64(1..1 << 46));
        let entry = DirectoryEntry { key, inode, file_type: FileType::Regular, name: &name };
        let search = self.search(&name);
        let other = self.search(b"~");
        let (is_done, changes) = self.run(|tree| tree.replace(&other, &entry)).unwrap();
        assert!(!is_done && changes.blocks.is_empty(), "the key has another name");
        let (is_done, changes) = self.run(|tree| tree.replace(&search, &entry)).unwrap();
        assert!(is_done);
        self.store(changes);
        self.entries.insert(key, (inode.0, name));
    }

    /// Lists the entries behind a random cookie.
    fn list(&mut self) {
        let mut cookie = self.some_key().map_or(0, |key| key.number() - self.rng.u64(..2));
        let rest: Vec<_> = self.entries.keys().filter(|key| key.number() > cookie).collect();
        let mut found = Vec::new();
        loop {
            let (some, _) = self.run(|tree| tree.after(cookie)).unwrap();
            let Some(last) = some.last() else { break };
            cookie = last.key.number();
            found.extend(some.into_iter().map(|entry| entry.key));
        }
        assert!(found.iter().eq(rest), "{} entries", found.len());
    }

    fn check(&self) -> Checked {
        let mut found = BTreeMap::new();
        let checked = check(&self.blocks, |entry| {
            found.insert(entry.key, (entry.inode.0, entry.name.to_vec()));
        });
        assert_eq!(found, self.entries);
        let checked = checked.unwrap();
        assert_eq!(checked.entries, found.len() as u64);
        assert_eq!(checked.lost, 0);
        assert_eq!(checked.blocks + checked.free, self.blocks.len() as u32);
        checked
    }

    /// Fills the directory, changes it at random, and empties it.
    fn live(&mut self, entries: usize) -> u32 {
        for _ in 0..entries {
            let name = self.some_name();
            self.insert(&name);
        }
        let most = self.check().blocks;
        for step in 0..entries {
            match self.rng.u8(..8) {
                0..3 => {
                    let name = self.some_name();
                    self.insert(&name);
                }
                3..5 => self.remove(),
                5 => self.respell(),
                6 => self.look_up(),
                _ if step % 32 == 0 => self.list(),
                _ => {}
            }
            if step % 512 == 0 {
                self.check();
            }
        }
        while !self.entries.is_empty() {
            self.remove();
        }
        assert_eq!(self.check(), Checked { entries: 0, blocks: 1, free: 0, lost: 0 });
        most
    }
}

#[test]
fn tree_matches_a_model() {
    for (seed, hashes, name_bytes, entries) in [
        (1, 1 << 40, 20, 6_000),
        (2, 1 << 40, 255, 1_500),
        (3, 40, 60, 3_000),
        (4, 1 << 40, 4, 300),
    ] {
        let mut model = Model::new(seed, hashes, name_bytes);
        let most = model.live(entries);
        assert!(most > 2, "seed {seed}: {most} blocks");
        assert!(model.misses.get() > entries);
    }
}

/// A tree of nodes below nodes: the names are long, so that a leaf has few of them.
#[test]
fn tree_of_three_levels_matches_a_model() {
    let mut model = Model::new(5, 1 << 40, 255);
    for number in 0..8_000 {
        let name = format!("{number:0>250}");
        model.insert(name.as_bytes());
    }
    assert!(model.check().blocks > 500);
    for _ in 0..7_900 {
        model.remove();
    }
    let checked = model.check();
    assert!(checked.blocks < 100, "{checked:?}");
    model.list();
    // Freed blocks are used again.
    let blocks = model.blocks.len();
    for number in 0..4_000 {
        let name = format!("{number:0>240}");
        model.insert(name.as_bytes());
    }
    model.check();
    assert_eq!(model.blocks.len(), blocks);
}

/// `rm -r` removes entries in the order of a listing. The first block of a node is then empty
/// before its neighbour is small enough to be merged with it.
#[test]
fn entries_can_be_removed_in_the_order_of_their_keys() {
    let orders: [fn(&mut Vec<EntryKey>); 4] = [
        |_| {},
        |keys| keys.reverse(),
        |keys| {
            let middle = keys.len() / 2;
            keys.rotate_left(middle);
        },
        |keys| {
            let middle = keys.len() / 2;
            keys[..middle].reverse();
        },
    ];
    for (index, order) in orders.into_iter().enumerate() {
        let mut model = Model::new(20 + index as u64, 1 << 40, 255);
        for number in 0..9_000 {
            model.insert(format!("{number:0>250}").as_bytes());
        }
        let mut keys: Vec<EntryKey> = model.entries.keys().copied().collect();
        order(&mut keys);
        for (removed, key) in keys.into_iter().enumerate() {
            model.remove_key(key);
            if removed % 64 == 0 {
                model.check();
            }
            if removed % 300 == 0 {
                let name = model.some_name();
                model.insert(&name);
                model.look_up();
            }
        }
        while !model.entries.is_empty() {
            model.remove();
        }
        assert_eq!(model.check(), Checked { entries: 0, blocks: 1, free: 0, lost: 0 });
    }
}

/// Removes ranges of neighbouring entries of a tree of three levels and adds other entries, so that
/// nodes become empty, small and full in many orders.
#[test]
fn ranges_of_neighbours_can_be_removed() {
    let mut model = Model::new(30, 1 << 40, 255);
    for round in 0..40 {
        while model.entries.len() < 7_000 {
            let number = model.rng.u64(..);
            model.insert(format!("{number:0>250}").as_bytes());
        }
        let first = model.rng.usize(..model.entries.len());
        let count = model.rng.usize(..2_000);
        let mut keys: Vec<EntryKey> =
            model.entries.keys().copied().skip(first).take(count).collect();
        if model.rng.bool() {
            keys.reverse();
        }
        for key in keys {
            model.remove_key(key);
        }
        model.check();
        if round % 8 == 0 {
            model.list();
        }
    }
}

/// An operation that neither splits nor merges a leaf changes only this leaf.
#[test]
fn change_of_a_leaf_changes_no_other_block() {
    let mut model = Model::new(10, 1 << 40, 20);
    for _ in 0..2_000 {
        let name = model.some_name();
        model.insert(&name);
    }
    let mut single = 0;
    for _ in 0..200 {
        let name = model.some_name();
        let (search, of) = (model.search(&name), (ObjectId(1), FileType::Regular, &name[..]));
        let Ok((key, inserted)) = model.run(|tree| tree.insert(&search, of)) else { continue };
        let split = inserted.blocks.keys().any(|number| !model.blocks.contains_key(number));
        let inserted_blocks = inserted.blocks.len();
        model.store(inserted);
        let (_, removed) = model.run(|tree| tree.remove(key)).unwrap();
        let removed_blocks = removed.blocks.len();
        model.store(removed);
        if !split {
            assert_eq!((inserted_blocks, removed_blocks), (1, 1));
            single += 1;
        }
    }
    assert!(single > 150, "{single}");
    model.check();
}

/// Neighbours of a removed entry keep their cookies, and a list continues behind a removed cookie.
#[test]
fn cookie_of_a_removed_entry_resumes_behind_it() {
    let mut model = Model::new(6, 1 << 40, 12);
    for _ in 0..2_000 {
        let name = model.some_name();
        model.insert(&name);
    }
    for _ in 0..500 {
        let Some(key) = model.some_key() else { break };
        let next = model.entries.range(key..).nth(1).map(|(key, _)| *key);
        let (_, changes) = model.run(|tree| tree.remove(key)).unwrap();
        model.store(changes);
        model.entries.remove(&key);
        let (rest, _) = model.run(|tree| tree.after(key.number())).unwrap();
        assert_eq!(rest.first().map(|entry| entry.key), next);
    }
}

/// Operations on damaged blocks end, without a panic, and the check notices most of the damage.
#[test]
fn damaged_blocks_are_errors() {
    let mut model = Model::new(7, 60, 80);
    for _ in 0..1_500 {
        let name = model.some_name();
        model.insert(&name);
    }
    let mut rng = fastrand::Rng::with_seed(8);
    let names: Vec<_> = model.entries.iter().map(|(key, (_, name))| (*key, name.clone())).collect();
    let mut noticed = 0;
    for _ in 0..400 {
        let mut blocks = model.blocks.clone();
        for _ in 0..rng.usize(1..4) {
            let number = rng.u32(..blocks.len() as u32);
            if rng.bool() {
                let other = blocks[&rng.u32(..blocks.len() as u32)].clone();
                blocks.insert(number, other);
            } else {
                let at = if rng.bool() { rng.usize(..40) } else { rng.usize(..BLOCK_BYTES) };
                let mut block = BlockMut::copy_of(&blocks[&number]);
                block[at] ^= 1 << rng.u8(..8);
                blocks.insert(number, block.freeze());
            }
        }
        noticed += usize::from(check(&blocks, |_| {}).is_err());
        for _ in 0..40 {
            let (key, name) = &names[rng.usize(..names.len())];
            let Ok(mut tree) = DirectoryTree::open(&blocks) else { break };
            let search = model.search(name);
            let _found = tree.find(&search);
            let _after = tree.after(key.number());
            let done = if rng.bool() {
                tree.remove(*key).map(drop)
            } else {
                let new = model.search(b"new").with_hash(search.first_key());
                tree.insert(&new, (ObjectId(9), FileType::Fifo, b"new")).map(drop)
            };
            if done.is_ok() {
                blocks.extend(tree.into_changes().blocks);
            }
        }
    }
    assert!(noticed > 200, "{noticed} of 400");
}

/// A damaged leaf costs only its own entries: other entries are found and can be removed.
#[test]
fn damaged_leaf_costs_only_its_entries() {
    let mut model = Model::new(9, 1 << 40, 20);
    for _ in 0..2_000 {
        let name = model.some_name();
        model.insert(&name);
    }
    let leaf = *model.blocks.keys().last().unwrap();
    model.blocks.insert(leaf, Block::copy_of(&[0xff; BLOCK_BYTES]));
    let (mut lost, mut removed) = (0, 0);
    for (key, (_, name)) in model.entries.clone() {
        let search = model.search(&name);
        match model.run(|tree| tree.find(&search)) {
            Ok((found, _)) => assert_eq!(found.map(|entry| entry.key), Some(key)),
            Err(error) => {
                assert!(matches!(error, DirectoryError::Block { block, .. } if block == leaf));
                lost += 1;
                continue;
            }
        }
        let (was_there, changes) = model.run(|tree| tree.remove(key)).unwrap();
        assert!(was_there);
        model.store(changes);
        removed += 1;
    }
    assert!(lost > 20 && lost < 300 && removed > 1_000, "{lost} lost, {removed} removed");
}
