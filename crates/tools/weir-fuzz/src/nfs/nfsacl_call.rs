//! Fuzzes the arguments and results of NFSACL. The first byte of the input selects the message.
//!
//! `acl` fuzzes the ACLs that a filesystem stores.
//!
//! Invariants: no panic; a decoded message survives encoding; an ACL has at most 1,024 entries, and
//! its count is the number of the entries if they are present.

use weir_nfs_wire::limits::ACL_ENTRIES_MAX;
use weir_nfs_wire::nfsacl::{
    AclEntries, AclEntry, Args, GetaclArgs, GetaclResok, Procedure, Results, Secattr, SetaclArgs,
    SetaclResok, mask, tag,
};
use weir_oncrpc::{Decoder, Xdr};

use super::samples::{ATTRIBUTES, bytes_of, check_message, encoded, handle};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice % 4 {
        0 => check_message!(bytes, |input| Args::decode(Procedure::Getacl, input)),
        1 => {
            check_message!(bytes, |input| Args::decode(Procedure::Setacl, input));
            if let Ok(args) = SetaclArgs::decode(&mut Decoder::new(bytes)) {
                check_acls(&args.acls);
            }
        }
        2 => {
            check_message!(bytes, |input| Results::decode(Procedure::Getacl, input));
            let results = Results::decode(Procedure::Getacl, &mut Decoder::new(bytes));
            if let Ok(Results::Getacl(Ok(result))) = results {
                check_acls(&result.acls);
            }
        }
        _ => check_message!(bytes, |input| Results::decode(Procedure::Setacl, input)),
    }
}

fn check_acls(acls: &Secattr) {
    let lists = [(acls.acl_count, &acls.acl), (acls.default_acl_count, &acls.default_acl)];
    for (count, entries) in lists {
        let len = entries.items().len();
        assert!(len <= ACL_ENTRIES_MAX);
        assert!(len == 0 || len == count as usize, "{len} entries, the count is {count}");
    }
}

/// Messages of each kind, with ACLs and with counts alone.
pub fn seeds() -> Vec<Vec<u8>> {
    let entries = |bit: u32| {
        let tags = [tag::USER_OBJ, tag::USER, tag::GROUP_OBJ, tag::MASK, tag::OTHER];
        let entry = |tag| AclEntry { tag: tag | bit, id: 1000, permissions: 5 };
        AclEntries::new(tags.into_iter().map(entry).collect()).expect("five entries")
    };
    let acls = |mask| Secattr::new(mask, entries(0), entries(tag::DEFAULT));
    let attributes = Some(ATTRIBUTES);
    let seed = |choice: u8, bytes: Vec<u8>| [&[choice], &bytes[..]].concat();
    let counts = mask::ACL_COUNT | mask::DEFAULT_ACL_COUNT;
    let read = |mask| Results::Getacl(Ok(GetaclResok { attributes, acls: acls(mask) }));
    let written = Results::Setacl(Ok(SetaclResok { attributes }));
    vec![
        seed(0, bytes_of(&GetaclArgs { object: handle(), mask: mask::ALL })),
        seed(1, bytes_of(&SetaclArgs { object: handle(), acls: acls(mask::ALL) })),
        seed(1, bytes_of(&SetaclArgs { object: handle(), acls: Secattr::default() })),
        seed(2, encoded(|out| read(mask::ALL).encode(out))),
        seed(2, encoded(|out| read(counts).encode(out))),
        seed(3, encoded(|out| written.encode(out))),
    ]
}
