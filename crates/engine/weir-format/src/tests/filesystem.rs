//! Tests of the structures of a filesystem.

use proptest::collection::{btree_map, vec};

use super::*;
use crate::bytes::Writer;
use crate::files::{
    Acl, AclEntry, AclTag, Area, DirectoryBlock, DirectoryContent, DirectoryEntry, DirectoryHead,
    DirectoryNode, DirectoryNodeEntry, EntryKey, EntryList, FileType, Inode, InodeState, Limits,
    OwnerId, OwnerKind, TimeStamp, Usage, UsageBlock, Xattr, XattrList,
};

const STATES: [InodeState; 4] =
    [InodeState::Named, InodeState::Orphan, InodeState::Freeing, InodeState::Attributes];

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
    let kind = (0_usize..4, 0_u64..1 << 48, 0_usize..7, 0_u32..=0o7777);
    let numbers = (any::<[u64; 6]>(), any::<[u32; 5]>());
    (times, kind, numbers, area()).prop_map(|(times, kind, numbers, area)| {
        let (state, created_txg, file_type, permissions) = kind;
        let ([size, blocks, change, parent, attributes, device_or_entries], numbers) = numbers;
        let [nlink, uid, gid, project, flags] = numbers;
        let time = |(seconds, nanos)| TimeStamp { seconds, nanos };
        Inode {
            state: STATES[state],
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
            parent: ObjectId(parent % OBJECTS_MAX),
            attributes: ObjectId(attributes % OBJECTS_MAX),
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

fn acl_entries() -> impl Strategy<Value = Vec<AclEntry>> {
    let tag = prop_oneof![
        Just(AclTag::Owner),
        Just(AclTag::OwningGroup),
        Just(AclTag::Mask),
        Just(AclTag::Other),
        (0_u32..4).prop_map(AclTag::User),
        (0_u32..4).prop_map(AclTag::Group),
    ];
    vec((tag, 0_u8..8), 0..8).prop_map(|entries| {
        entries.into_iter().map(|(tag, permissions)| AclEntry { tag, permissions }).collect()
    })
}

/// An entry of an ACL.
fn allow(tag: AclTag, permissions: u8) -> AclEntry {
    AclEntry { tag, permissions }
}

proptest! {
    #[test]
    fn acl_round_trip(entries in acl_entries(), mode in 0_u32..0o1000) {
        let Ok(acl) = Acl::new(entries) else { return Ok(()) };
        let decoded = Acl::decode(&acl.encode()).unwrap();
        prop_assert_eq!(decoded.as_ref(), Some(&acl));
        let mut changed = acl.clone();
        changed.set_mode(mode);
        prop_assert_eq!(changed.mode(), mode);
        let inherited = acl.inherited(mode);
        prop_assert_eq!(inherited.mode(), mode & acl.mode());
    }

    /// A list is accepted whatever the order of its entries, and is encoded in one order.
    #[test]
    fn accepted_acl_has_one_encoding(raw in vec(any::<u8>(), 0..60), entries in acl_entries()) {
        let mut w = Writer::default();
        w.u32(2);
        for entry in &entries {
            let code = match entry.tag {
                AclTag::Owner => (1, u32::MAX),
                AclTag::User(id) => (2, id),
                AclTag::OwningGroup => (4, u32::MAX),
                AclTag::Group(id) => (8, id),
                AclTag::Mask => (16, u32::MAX),
                AclTag::Other => (32, u32::MAX),
            };
            w.u16(code.0);
            w.u16(u16::from(entry.permissions));
            w.u32(code.1);
        }
        for bytes in [raw, w.0] {
            if let Ok(Some(acl)) = Acl::decode(&bytes) {
                let encoded = acl.encode();
                prop_assert_eq!(encoded.len(), bytes.len());
                prop_assert_eq!(Acl::decode(&encoded).unwrap(), Some(acl));
            }
        }
    }

    #[test]
    fn xattr_list_round_trip(
        xattrs in btree_map(vec(1_u8.., 1..20), vec(any::<u8>(), 0..900), 0..9),
        changes in vec((0..300_usize, any::<u8>()), 1..4),
    ) {
        let mut list = XattrList::default();
        for (name, value) in xattrs.iter().rev() {
            let (name, value) = (&name[..], &value[..]);
            list.insert(Xattr { name: name.into(), value: b"old"[..].into() });
            list.insert(Xattr { name: name.into(), value: value.into() });
        }
        let mut bytes = list.encode();
        prop_assert_eq!(bytes.len(), list.encoded_bytes());
        prop_assert_eq!(XattrList::decode(&bytes).unwrap(), list.clone());
        for (name, value) in &xattrs {
            prop_assert_eq!(list.get(name), Some(&value[..]));
            prop_assert!(list.remove(name) && !list.remove(name));
        }
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        if let Ok(list) = XattrList::decode(&bytes) {
            prop_assert_eq!(list.encode(), bytes);
        }
    }

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
        let mut block = DirectoryBlock { blocks: 7, free: 3, content };
        let mut encoded = block.encode();
        prop_assert_eq!(DirectoryBlock::decode(&encoded).unwrap(), block.clone());
        let head = DirectoryHead { blocks: 7, free: 3, is_leaf: true };
        prop_assert_eq!(DirectoryHead::read(&encoded), head);
        (block.blocks, block.free) = (9, 0);
        DirectoryBlock::set_numbers(&mut encoded, 9, 0);
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
fn each_owner_has_one_place_in_the_usage() {
    let mut places = std::collections::BTreeMap::new();
    for kind in OwnerKind::ALL {
        for id in [0, 1, 31, 32, 1000, u32::MAX] {
            let owner = OwnerId { kind, id };
            let (block, entry) = owner.block();
            assert!(block < UsageBlock::BLOCKS_MAX && entry < UsageBlock::ENTRIES);
            let mut content = UsageBlock::empty();
            let limits = Limits { blocks: 1, inodes: 2 };
            let usage = Usage { blocks: 3, inodes: 4, limits };
            content.0[entry] = usage;
            let decoded = UsageBlock::decode(&content.encode()).unwrap();
            assert_eq!(decoded, content);
            assert!(decoded.owners(block).eq([(owner, usage)]));
            let mut bytes = UsageBlock::empty().encode();
            UsageBlock::set_entry(&mut bytes, entry, &usage);
            assert_eq!((&bytes, UsageBlock::entry(&bytes, entry)), (&content.encode(), usage));
            assert!(places.insert((block, entry), owner).is_none());
        }
    }
    // The fourth place of each number is unused.
    let mut bytes = UsageBlock::empty().encode();
    bytes[3 * 32] = 1;
    assert!(UsageBlock::decode(&bytes).is_err() && UsageBlock::check(&bytes).is_err());
}

#[test]
fn incomplete_acls_are_refused() {
    let [owner, group, other] =
        [AclTag::Owner, AclTag::OwningGroup, AclTag::Other].map(|tag| allow(tag, 6));
    let (user, mask) = (allow(AclTag::User(5), 4), allow(AclTag::Mask, 1));
    let minimal = Acl::new(vec![other, group, owner]).unwrap();
    assert!(minimal.is_minimal() && minimal.mode() == 0o666);
    let full = Acl::new(vec![user, owner, mask, group, other]).unwrap();
    assert_eq!((full.is_minimal(), full.mode()), (false, 0o616));
    assert_eq!(full.permissions_of(AclTag::User(5)), Some(4));
    for entries in [
        vec![owner, group],
        vec![owner, owner, group, other],
        vec![owner, group, other, user],
        vec![owner, group, other, mask, user, user],
    ] {
        assert!(Acl::new(entries).is_err());
    }
    assert_eq!(Acl::decode(&[2, 0, 0, 0]).unwrap(), None);
    assert!(Acl::decode(&[1, 0, 0, 0]).is_err());
    assert!(Acl::decode(&[]).is_err());
    // User without an ID, unknown tag, permission 8.
    let mut bytes = full.encode();
    for (at, byte) in [(16, 0xFF), (12, 3), (14, 8)] {
        let mut changed = bytes.clone();
        changed[at..at + if at == 16 { 4 } else { 1 }].fill(byte);
        assert!(Acl::decode(&changed).is_err(), "byte {at}");
    }
    bytes.pop();
    assert!(Acl::decode(&bytes).is_err());
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
