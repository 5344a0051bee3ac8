//! Fuzzes POSIX ACLs, which clients send.
//!
//! Invariants: no panic; an accepted ACL survives encoding and decoding; after a change of the
//! permission bits, the ACL has this mode.

use weir_format::files::{Acl, AclEntry, AclTag};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let Ok(Some(acl)) = Acl::decode(data) else { return };
    assert_eq!(Acl::decode(&acl.encode()), Ok(Some(acl.clone())));
    for mode in [0, 0o777, 0o640, 0o151] {
        let mut changed = acl.clone();
        changed.set_mode(mode);
        assert_eq!(changed.mode(), mode);
        assert_eq!(acl.inherited(mode).mode(), acl.mode() & mode);
    }
}

/// A list with only the permission bits, and one with named users and groups.
pub fn seeds() -> Vec<Vec<u8>> {
    let minimal = [AclTag::Owner, AclTag::OwningGroup, AclTag::Other];
    let named = [AclTag::User(7), AclTag::User(9), AclTag::Group(8), AclTag::Mask];
    let of = |tags: Vec<AclTag>| {
        let entries = tags.into_iter().map(|tag| AclEntry { tag, permissions: 5 }).collect();
        Acl::new(entries).expect("a complete list").encode()
    };
    vec![of(minimal.to_vec()), of(minimal.into_iter().chain(named).collect())]
}
