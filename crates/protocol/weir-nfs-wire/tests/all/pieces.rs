//! Replies that a server encodes piece by piece: READ, READDIR and READDIRPLUS.
//!
//! Invariant: the decoder of clients reads the replies.

use proptest::prelude::*;
use weir_block::OutBuf;
use weir_nfs_wire::nfs3::{
    DirectoryReply, Entry, EntryPlus, Fattr3, FileHandle, FileName, Ftype3, Nfs3Result, Nfstime3,
    PostOpAttr, ReadReply, ReadResok, ReaddirResok, ReaddirplusResok, Specdata3, encode_read_head,
};
use weir_oncrpc::{Encoder, Xdr};

use crate::generate::encoded;

const ATTRIBUTES: Fattr3 = Fattr3 {
    kind: Ftype3::Dir,
    mode: 0o755,
    nlink: 2,
    uid: 1,
    gid: 1,
    size: 4096,
    used: 4096,
    rdev: Specdata3 { major: 0, minor: 0 },
    fsid: 5,
    fileid: 6,
    atime: Nfstime3 { seconds: 7, nanos: 8 },
    mtime: Nfstime3 { seconds: 9, nanos: 10 },
    ctime: Nfstime3 { seconds: 11, nanos: 12 },
};

/// Length of a reply to READDIR without entries, behind its status.
const EMPTY_BYTES: u32 = 4 + 84 + 8 + 8;

fn name(bytes: &[u8]) -> FileName<'_> {
    FileName::new(bytes).expect("a short name")
}

#[test]
fn reply_to_read_is_completed_around_its_data() {
    for (space, len, eof) in [(4096, 4096, false), (4096, 5, true), (16, 0, true)] {
        let mut out = OutBuf::default();
        out.put(b"earlier reply");
        let mut encoder = Encoder::new(&mut out);
        let reply = ReadReply::begin(&mut encoder);
        encoder.space(space).fill(0xab);
        reply.finish(&mut encoder, ATTRIBUTES, len, eof);
        let bytes = out.filled().strip_prefix(b"earlier reply").expect("it is unchanged");
        let result = Nfs3Result::<ReadResok<'_>, PostOpAttr>::decode_whole(bytes);
        let read = result.expect("a valid result").expect("success");
        assert_eq!((read.attributes, read.count, read.eof), (Some(ATTRIBUTES), len as u32, eof));
        assert_eq!(read.data.bytes(), vec![0xab; len]);
        // The same reply with the data in other buffers.
        let mut shared = encoded(|out| {
            let padding = encode_read_head(out, &Some(ATTRIBUTES), len, eof);
            assert_eq!(padding, len.next_multiple_of(4) - len);
        });
        shared.extend(vec![0xab; len]);
        shared.resize(shared.len().next_multiple_of(4), 0);
        assert_eq!(shared, bytes);
    }
}

#[test]
fn abandoned_replies_leave_no_bytes() {
    let mut out = OutBuf::default();
    out.put(b"earlier reply");
    let mut encoder = Encoder::new(&mut out);
    let reply = ReadReply::begin(&mut encoder);
    encoder.space(100).fill(1);
    reply.abandon(&mut encoder);
    let mut reply =
        DirectoryReply::readdir(&mut encoder, &Some(ATTRIBUTES), [0; 8], 1000).expect("room");
    assert!(reply.push(&Entry { fileid: 1, name: name(b"a"), cookie: 2 }));
    reply.abandon();
    let too_small = DirectoryReply::readdir(&mut encoder, &None, [0; 8], 4 + 8 + 8 - 1);
    assert!(too_small.is_none());
    let too_small =
        DirectoryReply::readdirplus(&mut encoder, &Some(ATTRIBUTES), [0; 8], (9, EMPTY_BYTES - 1));
    assert!(too_small.is_none());
    assert_eq!(out.filled(), b"earlier reply");
}

#[test]
fn listing_without_room_for_an_entry_is_visible_to_the_server() {
    // An entry with a name of 1 byte has 4 + 8 + 4 + 4 + 8 bytes.
    for (count, entries) in [(EMPTY_BYTES, 0), (EMPTY_BYTES + 27, 0), (EMPTY_BYTES + 28, 1)] {
        let bytes = encoded(|out| {
            let mut reply =
                DirectoryReply::readdir(out, &Some(ATTRIBUTES), [3; 8], count).expect("room");
            assert_eq!(reply.push(&Entry { fileid: 1, name: name(b"a"), cookie: 2 }), entries == 1);
            assert!(!reply.push(&Entry { fileid: 1, name: name(b"b"), cookie: 3 }));
            assert_eq!(reply.entries(), entries);
            reply.finish(false);
        });
        assert!(bytes.len() <= 4 + count as usize);
    }
}

#[test]
fn dircount_limits_all_entries_but_the_first() {
    let entry = |cookie| EntryPlus {
        fileid: cookie,
        name: name(b"name"),
        cookie,
        attributes: Some(ATTRIBUTES),
        handle: Some(FileHandle::new(&[7; 52]).expect("a short handle")),
    };
    // 28 bytes of directory information for each entry.
    for (dircount, entries) in [(0, 1), (28, 1), (55, 1), (56, 2), (84, 3), (u32::MAX, 4)] {
        let bytes = encoded(|out| {
            let limits = (dircount, 1 << 20);
            let mut reply =
                DirectoryReply::readdirplus(out, &Some(ATTRIBUTES), [0; 8], limits).expect("room");
            let fitting = (1..5).take_while(|cookie| reply.push_plus(&entry(*cookie))).count();
            assert_eq!(fitting, entries);
            reply.finish(entries == 4);
        });
        let result = Nfs3Result::<ReaddirplusResok<'_>, PostOpAttr>::decode_whole(&bytes);
        let listing = result.expect("a valid result").expect("success");
        let expected: Vec<EntryPlus<'_>> = (1..=entries as u64).map(entry).collect();
        assert_eq!(listing.entries.0, expected);
        assert_eq!(listing.eof, entries == 4);
    }
}

proptest! {
    #[test]
    fn listings_never_exceed_the_limit_and_refuse_only_entries_that_do_not_fit(
        names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..255), 0..20),
        count in 0..4000_u32,
        with_attributes in any::<bool>(),
        eof in any::<bool>(),
    ) {
        let attributes = with_attributes.then_some(ATTRIBUTES);
        let mut entries: Vec<Entry<'_>> = Vec::new();
        let mut refused = None;
        let mut too_small = false;
        let bytes = encoded(|out| {
            let Some(mut reply) = DirectoryReply::readdir(out, &attributes, [3; 8], count) else {
                too_small = true;
                return;
            };
            for (cookie, bytes) in (16..).zip(&names) {
                let entry = Entry { fileid: cookie, name: name(bytes), cookie };
                if !reply.push(&entry) {
                    refused = Some(entry);
                    break;
                }
                entries.push(entry);
            }
            reply.finish(eof);
        });
        let empty_bytes = if with_attributes { EMPTY_BYTES } else { EMPTY_BYTES - 84 };
        prop_assert_eq!(too_small, count < empty_bytes);
        if too_small {
            prop_assert!(bytes.is_empty());
            return Ok(());
        }
        prop_assert!(bytes.len() <= 4 + count as usize);
        if let Some(entry) = refused {
            let with_entry = bytes.len() + 4 + encoded(|out| entry.encode(out)).len();
            prop_assert!(with_entry > 4 + count as usize);
        }
        let result = Nfs3Result::<ReaddirResok<'_>, PostOpAttr>::decode_whole(&bytes);
        let listing = result.expect("a valid result").expect("success");
        prop_assert_eq!((listing.dir_attributes, listing.cookieverf), (attributes, [3; 8]));
        prop_assert_eq!((listing.entries.0, listing.eof), (entries, eof));
    }
}
