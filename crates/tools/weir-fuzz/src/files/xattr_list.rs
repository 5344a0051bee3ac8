//! Fuzzes the object with the large extended attributes of an inode.
//!
//! Invariants: no panic; encoding an accepted list reproduces its bytes.

use weir_format::files::{Xattr, XattrList};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let Ok(mut list) = XattrList::decode(data) else { return };
    assert_eq!(list.encode(), data);
    assert_eq!(list.encoded_bytes(), data.len());
    if let Some(first) = list.as_slice().first().cloned() {
        assert_eq!(list.get(&first.name), Some(&*first.value));
        assert!(list.remove(&first.name));
        list.insert(first);
        assert_eq!(list.encode(), data);
    }
}

/// Lists with one and with several attributes.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut list = XattrList::default();
    let mut seeds = Vec::new();
    for (name, bytes) in [("user.b", 900), ("security.NTACL", 0), ("user.a", 3)] {
        list.insert(Xattr { name: name.as_bytes().into(), value: vec![7; bytes].into() });
        seeds.push(list.encode());
    }
    seeds
}
