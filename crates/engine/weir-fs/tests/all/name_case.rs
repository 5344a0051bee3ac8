//! Tests of case-insensitive filesystems.

use weir_base::{ObjectId, RecordSize};
use weir_dataset::ObjectChange;
use weir_format::files::{DirectoryEntry, FileType, Inode};
use weir_fs::directory::NameHash;
use weir_fs::{FsError, NameCase, NewInode, NewKind, ROOT, RenameMode};

use crate::common::{LAYOUT, Pool};

const DISK_BYTES: usize = 64 << 20;

const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 1, gid: 2 };
const DIRECTORY: NewInode<'static> = NewInode { kind: NewKind::Directory, ..FILE };

fn new_pool() -> Pool {
    Pool::with_case(DISK_BYTES, NameCase::Insensitive)
}

fn create(pool: &Pool, directory: ObjectId, name: &str) -> Result<ObjectId, FsError> {
    pool.run(pool.files.create_inode(directory, name.as_bytes(), &FILE)).map(|made| made.number)
}

fn lookup(pool: &Pool, directory: ObjectId, name: &str) -> Result<ObjectId, FsError> {
    pool.run(pool.files.lookup(directory, name.as_bytes())).map(|found| found.number)
}

fn rename(pool: &Pool, from: &str, to: &str, mode: RenameMode) -> Result<(), FsError> {
    pool.run(pool.files.rename((ROOT, from.as_bytes()), (ROOT, to.as_bytes()), mode))
}

/// Names of all entries of a directory, in the order of their keys.
fn names(pool: &Pool, directory: ObjectId) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let part = pool.run(pool.files.list(directory, cookie)).unwrap();
        let Some(last) = part.last() else { return names };
        cookie = last.key.number();
        let text = part.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap());
        names.extend(text);
    }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names
}

/// The Kelvin sign, of three bytes, whose folding is `k`.
const KELVIN: &str = "\u{212a}";

#[test]
fn each_spelling_finds_the_file_and_none_creates_another() {
    let pool = new_pool();
    let file = create(&pool, ROOT, "R\u{e9}sum\u{e9}").unwrap();
    for spelling in ["R\u{e9}sum\u{e9}", "R\u{c9}SUM\u{c9}", "re\u{301}sume\u{301}"] {
        assert_eq!(lookup(&pool, ROOT, spelling).unwrap(), file, "{spelling}");
        assert!(matches!(create(&pool, ROOT, spelling), Err(FsError::Exists)), "{spelling}");
        let name = spelling.as_bytes();
        let made = pool.run(pool.files.create_inode(ROOT, name, &DIRECTORY));
        assert!(matches!(made, Err(FsError::Exists)), "{spelling}");
        let linked = pool.run(pool.files.link(file, ROOT, name));
        assert!(matches!(linked, Err(FsError::Exists)), "{spelling}");
    }
    assert!(matches!(lookup(&pool, ROOT, "resume"), Err(FsError::NotFound)));
    pool.run(pool.files.link(file, ROOT, b"LINK")).unwrap();
    pool.run(pool.files.remove(ROOT, b"link", false)).unwrap();
    assert_eq!(names(&pool, ROOT), ["R\u{e9}sum\u{e9}"], "the name has its first spelling");
    pool.run(pool.files.remove(ROOT, "r\u{e9}sum\u{e9}".as_bytes(), false)).unwrap();
    assert_eq!(names(&pool, ROOT), [""; 0]);
    pool.check();
}

#[test]
fn rename_to_another_spelling_keeps_one_entry_also_after_a_crash() {
    let pool = new_pool();
    let file = create(&pool, ROOT, "readme").unwrap();
    pool.run(pool.files.write(file, 0, b"content", false)).unwrap();
    let key = pool.run(pool.files.list(ROOT, 0)).unwrap()[0].key;
    for (from, to, mode, then) in [
        ("readme", "README", RenameMode::Replace, "README"),
        ("Readme", "ReadMe", RenameMode::Keep, "ReadMe"),
        // The name has this spelling already.
        ("readme", "ReadMe", RenameMode::Replace, "ReadMe"),
        ("README", "README", RenameMode::Replace, "ReadMe"),
        ("README", "readme", RenameMode::Exchange, "ReadMe"),
        ("readme", "README", RenameMode::Replace, "README"),
    ] {
        rename(&pool, from, to, mode).unwrap();
        assert_eq!(names(&pool, ROOT), [then], "{from} to {to}");
    }
    let kept = rename(&pool, "readme", "README", RenameMode::Keep);
    assert!(matches!(kept, Err(FsError::Exists)), "the name has this spelling");
    let found = pool.run(pool.files.attributes(file)).unwrap();
    assert_eq!((found.nlink, found.size), (1, 7));
    pool.run(pool.files.sync(file)).unwrap();
    let pool = pool.crash();
    assert_eq!(names(&pool, ROOT), ["README"]);
    assert_eq!(pool.run(pool.files.list(ROOT, 0)).unwrap()[0].key, key, "its cookie is the same");
    assert_eq!(lookup(&pool, ROOT, "readme").unwrap(), file);
    pool.check();
    assert_eq!(names(&pool.crash(), ROOT), ["README"]);
}

#[test]
fn renames_between_files_agree_on_names() {
    let pool = new_pool();
    let (one, two) = (create(&pool, ROOT, "one").unwrap(), create(&pool, ROOT, "Two").unwrap());
    let kept = rename(&pool, "ONE", "TWO", RenameMode::Keep);
    assert!(matches!(kept, Err(FsError::Exists)));
    rename(&pool, "ONE", "TWO", RenameMode::Exchange).unwrap();
    assert_eq!(
        (lookup(&pool, ROOT, "one").unwrap(), lookup(&pool, ROOT, "two").unwrap()),
        (two, one)
    );
    assert_eq!(sorted(names(&pool, ROOT)), ["Two", "one"], "an exchange keeps both spellings");
    rename(&pool, "ONE", "TWO", RenameMode::Replace).unwrap();
    assert_eq!(names(&pool, ROOT), ["TWO"], "a replaced name gets the new spelling");
    assert_eq!(lookup(&pool, ROOT, "two").unwrap(), two);
    assert!(matches!(pool.run(pool.files.attributes(one)), Err(FsError::Stale)));
    let directory = pool.run(pool.files.create_inode(ROOT, b"Dir", &DIRECTORY)).unwrap().number;
    // Two names of one file in two directories: nothing happens.
    pool.run(pool.files.link(two, directory, b"two")).unwrap();
    let between = pool.files.rename((ROOT, b"TWO"), (directory, b"TWO"), RenameMode::Replace);
    pool.run(between).unwrap();
    assert_eq!(
        (names(&pool, directory), pool.run(pool.files.attributes(two)).unwrap().nlink),
        (vec!["two".to_owned()], 2)
    );
    rename(&pool, "dIR", "DIR", RenameMode::Replace).unwrap();
    assert_eq!(lookup(&pool, ROOT, "dir").unwrap(), directory);
    pool.check();
}

#[test]
fn limit_of_a_name_counts_the_bytes_that_the_client_sent() {
    let pool = new_pool();
    let longest = KELVIN.repeat(85);
    let file = create(&pool, ROOT, &longest).unwrap();
    assert_eq!(lookup(&pool, ROOT, &"k".repeat(85)).unwrap(), file);
    let short = "K".repeat(86);
    create(&pool, ROOT, &short).unwrap();
    let too_long = KELVIN.repeat(86);
    assert!(matches!(lookup(&pool, ROOT, &too_long), Err(FsError::NameTooLong)));
    assert!(matches!(create(&pool, ROOT, &too_long), Err(FsError::NameTooLong)));
    // The folded form has 381 bytes.
    let growing = "\u{23a}".repeat(127);
    let file = create(&pool, ROOT, &growing).unwrap();
    rename(&pool, &growing, &format!("{}x", "\u{2c65}".repeat(84)), RenameMode::Keep).unwrap();
    assert_eq!(lookup(&pool, ROOT, &format!("{}X", "\u{23a}".repeat(84))).unwrap(), file);
    pool.check();
}

#[test]
fn names_that_are_not_utf_8_are_refused_only_where_case_is_ignored() {
    let name = b"\xff";
    let pool = new_pool();
    create(&pool, ROOT, "a").unwrap();
    let made = pool.run(pool.files.create_inode(ROOT, name, &FILE)).map(drop);
    let found = pool.run(pool.files.lookup(ROOT, name)).map(drop);
    let removed = pool.run(pool.files.remove(ROOT, name, false));
    let renamed = pool.run(pool.files.rename((ROOT, b"a"), (ROOT, name), RenameMode::Replace));
    let file = lookup(&pool, ROOT, "A").unwrap();
    let linked = pool.run(pool.files.link(file, ROOT, name)).map(drop);
    for refused in [made, found, removed, renamed, linked] {
        assert!(matches!(refused, Err(FsError::NotUnicode)), "{refused:?}");
    }
    pool.check();
    let pool = Pool::new(DISK_BYTES);
    pool.run(pool.files.create_inode(ROOT, name, &FILE)).unwrap();
    create(&pool, ROOT, "a").unwrap();
    create(&pool, ROOT, "A").unwrap();
    pool.check();
}

/// A directory with a tree of blocks: other spellings of other lengths make leaves split.
#[test]
fn large_directory_is_respelled_name_by_name() {
    let pool = new_pool();
    let name = |number: u32, letter: &str| format!("{}{number}", letter.repeat(60));
    for number in 0..300 {
        create(&pool, ROOT, &name(number, "k")).unwrap();
    }
    for number in 0..300 {
        let (old, new) = (name(number, "K"), name(number, KELVIN));
        rename(&pool, &old, &new, RenameMode::Replace).unwrap();
    }
    let expected: Vec<String> = (0..300).map(|number| name(number, KELVIN)).collect();
    assert_eq!(sorted(names(&pool, ROOT)), sorted(expected));
    pool.check();
    let pool = pool.crash();
    for number in 0..300 {
        pool.run(pool.files.remove(ROOT, name(number, "k").as_bytes(), false)).unwrap();
        assert!(matches!(lookup(&pool, ROOT, &name(number, KELVIN)), Err(FsError::NotFound)));
    }
    assert_eq!(names(&pool, ROOT), [""; 0]);
    pool.check();
}

/// Replaces the entries of the root directory, and returns the findings about it.
fn findings(pool: &Pool, entries: &[DirectoryEntry<'_>]) -> Vec<String> {
    let volume = pool.engine.volume("home").unwrap();
    let (_, body) = pool.run(volume.object_slot(ROOT)).unwrap().unwrap();
    let mut inode = Inode::decode(&body).unwrap().unwrap();
    let bytes: Vec<u8> = entries.iter().flat_map(DirectoryEntry::encode).collect();
    (inode.area.entries, inode.device_or_entries) = (Some(bytes.into()), entries.len() as u64);
    let (size, body) = (RecordSize::BLOCK, inode.encode());
    let slot = ObjectChange::SetSlot { object: ROOT, size, body };
    pool.run(volume.change_objects(vec![slot])).unwrap();
    pool.run(pool.engine.sync()).unwrap();
    let found = pool.run(pool.files.check()).unwrap();
    let own = found.into_iter().filter(|finding| finding.inode == ROOT.0);
    own.map(|finding| finding.what).collect()
}

#[test]
fn check_finds_names_with_equal_folding_and_keys_without_folding() {
    let pool = new_pool();
    let (one, two) = (create(&pool, ROOT, "a").unwrap(), create(&pool, ROOT, "b").unwrap());
    let hash = |case| NameHash::new(LAYOUT.hash_key, case);
    let key_of = |case, name: &[u8]| hash(case).search(name).unwrap().first_key();
    let first = key_of(NameCase::Insensitive, b"a");
    let entry =
        |key, inode, name| DirectoryEntry { key, inode, file_type: FileType::Regular, name };
    let next = first.next_of_hash().unwrap();
    let twice = [entry(first, one, b"a"), entry(next, two, b"A")];
    assert_eq!(findings(&pool, &twice), ["two entries have the same name"]);
    let unfolded = key_of(NameCase::Sensitive, b"A");
    let other = [entry(unfolded, one, b"A")];
    assert_eq!(findings(&pool, &other), ["an entry has the key of another name"]);
    let no_text = [entry(first, one, b"\xff")];
    assert_eq!(findings(&pool, &no_text), ["the name of an entry is not UTF-8"]);
    // A rescue reads the entries without a search, so it lists both.
    let _found = findings(&pool, &twice);
    let readable = pool.run(pool.files.readable_entries(ROOT)).unwrap();
    assert_eq!((readable.entries.len(), readable.damage), (2, None));
}
