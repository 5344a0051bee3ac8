//! Tests of the structures of a filesystem.

use proptest::collection::{btree_map, vec};

use super::*;
use crate::files::{
    Area, DirectoryBlock, DirectoryContent, DirectoryEntry, DirectoryNode, DirectoryNodeEntry,
    EntryKey, EntryList, FileType, Inode, InodeState, TimeStamp, Xattr,
};

fn area() -> impl Strategy<Value = Area> {
    let item = |most: usize| proptest::option::of(vec(any::<u8>(), 0..most).prop_map(Into::into));
    let items = (item(60), item(300), item(60), item(80), item(80));
    let xattrs = btree_map(vec(1_u8.., 1..20), vec(any::<u8>(), 0..20), 0..5);
    (items, xattrs).prop_map(|((target, data, entries, access_acl, default_acl), xattrs)| {
        let xattrs = xattrs.into_iter();
        let xattrs = xattrs.map(|(name, value)| Xattr { name: name.into(), value: value.into() });
        Area { target, data, entries, access_acl, default_acl, xattrs: xattrs.collect() }
    })
}

fn inode() -> impl Strategy<Value = Inode> {
    let time = || (any::<i64>(), 0_u32..1_000_000_000);
    let times = (time(), time(), time(), time());
    let kind = (0_usize..3, 0_u64..1 << 48, 0_usize..7, 0_u32..=0o7777);
    let numbers = (any::<[u64; 6]>(), any::<[u32; 5]>());
    (times, kind, numbers, area()).prop_map(|(times, kind, numbers, area)| {
        let (state, created_txg, file_type, permissions) = kind;
        let ([size, blocks, change, parent, attributes, device_or_entries], numbers) = numbers;
        let [nlink, uid, gid, project, flags] = numbers;
        let time = |(seconds, nanos)| TimeStamp { seconds, nanos };
        Inode {
            state: [InodeState::Named, InodeState::Orphan, InodeState::Freeing][state],
            created_txg: Txg(created_txg),
            size,
            blocks,
            file_type: FileType::ALL[file_type],
            permissions,
            nlink,
            uid,
            gid,
            project,
            flags,
            change,
            atime: time(times.0),
            mtime: time(times.1),
            ctime: time(times.2),
            btime: time(times.3),
            parent: ObjectId(parent),
            attributes: ObjectId(attributes),
            device_or_entries,
            area,
        }
    })
}

/// Entries with these names, whose keys are sorted as the names.
fn encoded(names: &[Vec<u8>]) -> Vec<u8> {
    let entry = |(index, name): (usize, &Vec<u8>)| {
        let key = EntryKey::new(1000 + index as u64).unwrap();
        let file_type = FileType::ALL[index % FileType::ALL.len()];
        DirectoryEntry { key, inode: ObjectId(1 + index as u64), file_type, name }.encode()
    };
    names.iter().enumerate().flat_map(entry).collect()
}

proptest! {
    #[test]
    fn inode_round_trip(inode in inode()) {
        prop_assume!(inode.area.encoded_bytes() <= Area::BYTES);
        prop_assert_eq!(Inode::decode(&inode.encode()).unwrap(), Some(inode));
    }

    /// An accepted inode has only one encoding.
    #[test]
    fn accepted_inode_reproduces_its_bytes(
        inode in inode(),
        changes in vec((0..ObjectSlot::BODY_BYTES, any::<u8>()), 1..4),
    ) {
        prop_assume!(inode.area.encoded_bytes() <= Area::BYTES);
        let mut body = inode.encode();
        changes.into_iter().for_each(|(at, byte)| body[at] = byte);
        if let Ok(Some(decoded)) = Inode::decode(&body) {
            prop_assert_eq!(decoded.encode(), body);
        }
    }

    #[test]
    fn directory_entries_round_trip(
        names in vec(vec(b'a'..=b'z', 1..40), 0..60),
        at in 0..61_usize,
    ) {
        let bytes = encoded(&names);
        let list = EntryList::parse(&bytes).unwrap();
        let found: Vec<_> = list.from(0).map(|entry| entry.name.to_vec()).collect();
        prop_assert_eq!(&found, &names);
        let (before, after) = list.split(at.min(names.len()));
        prop_assert_eq!([before, after].concat(), &bytes[..]);
        if let Some(entry) = list.get(at) {
            let without = list.without(entry.key);
            let rest = EntryList::parse(&without).unwrap();
            prop_assert_eq!(rest.len() + 1, names.len());
            prop_assert_eq!(rest.with(&entry), &bytes[..]);
        }
        let content = DirectoryContent::Leaf(list);
        let block = DirectoryBlock { blocks: 7, free: 3, content };
        let encoded = block.encode();
        prop_assert_eq!(DirectoryBlock::decode(&encoded).unwrap(), block);
    }

    #[test]
    fn directory_node_round_trip(
        keys in btree_map(16_u64..1 << 62, 1_u32.., 1..340),
        level in 1_u8..=8,
    ) {
        let child = |(key, block)| DirectoryNodeEntry { key: EntryKey::new(key).unwrap(), block };
        let node = DirectoryNode { level, children: keys.into_iter().map(child).collect() };
        let block = DirectoryBlock { blocks: 0, free: 0, content: DirectoryContent::Node(node) };
        let encoded = block.encode();
        prop_assert_eq!(DirectoryBlock::decode(&encoded).unwrap(), block);
    }

    /// An accepted block has only one encoding.
    #[test]
    fn accepted_directory_block_reproduces_its_bytes(
        names in vec(vec(b'a'..=b'z', 1..40), 0..60),
        changes in vec((0..300_usize, any::<u8>()), 1..4),
    ) {
        let bytes = encoded(&names);
        let content = DirectoryContent::Leaf(EntryList::parse(&bytes).unwrap());
        let mut block = DirectoryBlock { blocks: 1, free: 0, content }.encode();
        changes.into_iter().for_each(|(at, byte)| block[at] = byte);
        if let Ok(decoded) = DirectoryBlock::decode(&block) {
            prop_assert_eq!(decoded.encode(), block);
        }
    }
}

#[test]
fn unused_inode_is_zero() {
    let mut body = [0; ObjectSlot::BODY_BYTES];
    assert_eq!(Inode::decode(&body), Ok(None));
    body[900] = 1;
    assert!(Inode::decode(&body).is_err());
}

#[test]
fn invalid_names_are_refused() {
    let long = [b'a'; 256];
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &long] {
        assert!(!DirectoryEntry::is_name(name), "{name:?}");
    }
    for name in [&b"..."[..], b".a", b"\xff\xfe", &long[..255]] {
        assert!(DirectoryEntry::is_name(name), "{name:?}");
    }
    let mut bytes = encoded(&[b"ab".to_vec()]);
    *bytes.last_mut().unwrap() = b'/';
    let error = EntryList::parse(&bytes).unwrap_err().to_string();
    assert_eq!(error, "directory entry: field name holds the impossible value 2");
}

#[test]
fn keys_of_equal_hashes_are_next_to_each_other() {
    let first = EntryKey::of_hash(u64::MAX);
    let keys: Vec<_> = std::iter::successors(Some(first), |key| key.next_of_hash()).collect();
    assert_eq!(keys.len() as u64, EntryKey::SAME_HASH_MAX);
    assert_eq!(keys.last(), Some(&EntryKey::MAX));
    assert!(EntryKey::of_hash(0) > EntryKey::MIN, "clients use the first cookies for . and ..");
    assert!(EntryKey::new(EntryKey::MAX.number() + 1).is_none());
}
