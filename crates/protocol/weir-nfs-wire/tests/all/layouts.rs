//! Layouts of messages, written down from the RFCs.
//!
//! `captured` has whole messages of other implementations.
//!
//! Invariant: the expected bytes come from no encoder of this crate.

use weir_nfs_wire::limits::{
    ACL_ENTRIES_MAX, HANDLE_BYTES_MAX, MOUNT_PATH_BYTES_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX,
};
use weir_nfs_wire::mount::{self, v1, v3};
use weir_nfs_wire::nfs3::{
    Args, CreateArgs, CreateHow, DirOpArgs, Fattr3, FileHandle, FileName, Ftype3, MknodArgs,
    MknodData, Nfs3Result, Nfsstat3, Nfstime3, OtherType, PostOpAttr, Procedure, Results, Sattr3,
    SetTime, Specdata3, WccData, WriteHead,
};
use weir_nfs_wire::nfsacl::{AclEntries, AclEntry, Secattr, mask, tag};
use weir_nfs_wire::{Effect, nfs3, nfsacl, nlm4, rquota};
use weir_oncrpc::{Array, Decoder, Failed, List, Opaque, Xdr, XdrError};

use crate::generate::encoded;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn handle(bytes: &[u8]) -> FileHandle<'_> {
    FileHandle::new(bytes).expect("a short handle")
}

fn place<'a>() -> DirOpArgs<'a> {
    DirOpArgs { dir: handle(b"root"), name: FileName::new(b"new").expect("a short name") }
}

/// `place()` on the wire.
const PLACE: &[u8] = b"\0\0\0\x04root\0\0\0\x03new\0";

fn check<'a, T: Xdr<'a> + PartialEq + std::fmt::Debug>(value: &T, bytes: &'a [u8]) {
    assert_eq!(encoded(|out| value.encode(out)), bytes);
    assert_eq!(T::decode_whole(bytes).as_ref(), Ok(value));
}

const TIME: Nfstime3 = Nfstime3 { seconds: 0x61, nanos: 0x62 };

const ATTRIBUTES: Fattr3 = Fattr3 {
    kind: Ftype3::Chr,
    mode: 0o644,
    nlink: 3,
    uid: 4,
    gid: 5,
    size: 0x0006_0000_0007,
    used: 8,
    rdev: Specdata3 { major: 9, minor: 10 },
    fsid: 11,
    fileid: 12,
    atime: TIME,
    mtime: Nfstime3 { seconds: 15, nanos: 16 },
    ctime: Nfstime3 { seconds: 17, nanos: 18 },
};

const ATTRIBUTE_WORDS: [u32; 21] =
    [4, 0o644, 3, 4, 5, 6, 7, 0, 8, 9, 10, 0, 11, 0, 12, 0x61, 0x62, 15, 16, 17, 18];

#[test]
fn attributes_have_the_layout_of_fattr3() {
    let bytes = words(&ATTRIBUTE_WORDS);
    assert_eq!(bytes.len(), Fattr3::BYTES);
    check(&ATTRIBUTES, &bytes);
    // wcc_data: size, mtime and ctime before; all attributes after.
    let wcc = WccData { before: Some(ATTRIBUTES.wcc()), after: Some(ATTRIBUTES) };
    let before = words(&[1, 6, 7, 15, 16, 17, 18]);
    check(&wcc, &[&before[..], &words(&[1]), &bytes].concat());
    check(&WccData::default(), &words(&[0, 0]));
}

#[test]
fn creations_have_the_layouts_of_their_unions() {
    let attributes = Sattr3 {
        mode: Some(0o600),
        uid: None,
        gid: Some(7),
        size: Some(1 << 32),
        atime: SetTime::ServerTime,
        mtime: SetTime::ClientTime(TIME),
    };
    let attribute_words = [1, 0o600, 0, 1, 7, 1, 1, 0, 1, 2, 0x61, 0x62];
    let with = |head: &[u32], tail: &[u32]| {
        [PLACE, &words(head), &words(&attribute_words), &words(tail)].concat()
    };
    let create = |how| CreateArgs { place: place(), how };
    check(&create(CreateHow::Unchecked(attributes)), &with(&[0], &[]));
    check(&create(CreateHow::Guarded(attributes)), &with(&[1], &[]));
    let exclusive = [PLACE, &words(&[2]), b"verifier"].concat();
    check(&create(CreateHow::Exclusive(*b"verifier")), &exclusive);
    let unknown = [PLACE, &words(&[3])].concat();
    let error = XdrError::UnknownValue { name: "createmode3", value: 3 };
    assert_eq!(CreateArgs::decode_whole(&unknown), Err(error));

    let mknod = |what| MknodArgs { place: place(), what };
    let device = Specdata3 { major: 8, minor: 1 };
    check(&mknod(MknodData::BlockDevice(attributes, device)), &with(&[3], &[8, 1]));
    check(&mknod(MknodData::CharacterDevice(attributes, device)), &with(&[4], &[8, 1]));
    check(&mknod(MknodData::Socket(attributes)), &with(&[6], &[]));
    check(&mknod(MknodData::Fifo(attributes)), &with(&[7], &[]));
    for (number, other) in [(1, OtherType::Reg), (2, OtherType::Dir), (5, OtherType::Lnk)] {
        check(&mknod(MknodData::Other(other)), &[PLACE, &words(&[number])].concat());
    }
    let unchanged = Sattr3::default();
    check(&unchanged, &words(&[0; 6]));
}

/// Fields of the same type whose order neither round trips nor captured bytes can show.
#[test]
fn fields_of_the_same_type_are_in_the_order_of_the_rfc() {
    let (from, to) = (place(), DirOpArgs { dir: handle(b"dir2"), ..place() });
    let (first, second) = (PLACE, b"\0\0\0\x04dir2\0\0\0\x03new\0");
    check(&nfs3::RenameArgs { from, to }, &[first, &second[..]].concat());
    check(
        &nfs3::LinkArgs { file: handle(b"file"), link: to },
        &[b"\0\0\0\x04file", &second[..]].concat(),
    );
    let (cookie, cookieverf) = (0x0001_0000_0002, [7; 8]);
    let dir = handle(b"root");
    let readdirplus = nfs3::ReaddirplusArgs { dir, cookie, cookieverf, dircount: 3, maxcount: 4 };
    let head = [&PLACE[..8], &words(&[1, 2]), &[7; 8]].concat();
    check(&readdirplus, &[&head[..], &words(&[3, 4])].concat());
    check(&nfs3::ReaddirArgs { dir, cookie, cookieverf, count: 3 }, &[head, words(&[3])].concat());

    let wcc = WccData { before: Some(ATTRIBUTES.wcc()), after: None };
    let wcc_words = [1, 6, 7, 15, 16, 17, 18, 0];
    let rename = nfs3::RenameWcc { from_dir: wcc, to_dir: WccData::default() };
    check(&rename, &words(&[&wcc_words[..], &[0, 0]].concat()));
    let link = nfs3::LinkWcc { attributes: None, dir_wcc: wcc };
    check(&link, &words(&[&[0], &wcc_words[..]].concat()));
    let object = handle(b"root");
    let lookup = nfs3::LookupResok { object, attributes: Some(ATTRIBUTES), dir_attributes: None };
    let attributes = words(&ATTRIBUTE_WORDS);
    check(&lookup, &[&PLACE[..8], &words(&[1]), &attributes, &words(&[0])].concat());

    let name = FileName::new(b"name").expect("a short name");
    let entry = nfs3::Entry { fileid: 1, name, cookie: 2 };
    let bytes = [&words(&[0, 1, 4])[..], b"name", &words(&[0, 2])].concat();
    check(&entry, &bytes);
    let entry =
        nfs3::EntryPlus { fileid: 1, name, cookie: 2, attributes: None, handle: Some(object) };
    check(&entry, &[&bytes[..], &words(&[0, 1]), &PLACE[..8]].concat());

    let fsstat = nfs3::FsstatResok {
        attributes: None,
        total_bytes: 1,
        free_bytes: 2,
        available_bytes: 3,
        total_files: 4,
        free_files: 5,
        available_files: 6,
        invariant_seconds: 7,
    };
    check(&fsstat, &words(&[0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 7]));
    let fsinfo = nfs3::FsinfoResok {
        attributes: None,
        rtmax: 1,
        rtpref: 2,
        rtmult: 3,
        wtmax: 4,
        wtpref: 5,
        wtmult: 6,
        dtpref: 7,
        maxfilesize: 8,
        time_delta: TIME,
        properties: 9,
    };
    check(&fsinfo, &words(&[0, 1, 2, 3, 4, 5, 6, 7, 0, 8, 0x61, 0x62, 9]));
    let pathconf = nfs3::PathconfResok {
        attributes: None,
        linkmax: 1,
        name_max: 2,
        no_trunc: true,
        chown_restricted: false,
        case_insensitive: false,
        case_preserving: true,
    };
    check(&pathconf, &words(&[0, 1, 2, 1, 0, 0, 1]));
    check(
        &nfs3::PathconfResok { chown_restricted: true, ..pathconf },
        &words(&[0, 1, 2, 1, 1, 0, 1]),
    );
}

#[test]
fn errors_carry_the_information_of_their_procedure() {
    for status in Nfsstat3::ALL {
        let failed: Nfs3Result<(), PostOpAttr> = Err(Failed { status: *status, info: None });
        check(&failed, &words(&[*status as u32, 0]));
    }
    assert_eq!(Nfsstat3::ALL.len(), 28);
    let numbers = Nfsstat3::ALL.iter().map(|status| *status as u32);
    let below_1000: Vec<u32> = numbers.clone().filter(|number| *number < 1000).collect();
    let of_errno = [1, 2, 5, 6, 13, 17, 18, 19, 20, 21, 22, 27, 28, 30, 31, 63, 66, 69, 70, 71];
    assert_eq!(below_1000, of_errno);
    assert!(numbers.filter(|number| *number > 1000).eq(10_001..=10_008));
    let error = XdrError::UnknownValue { name: "Nfsstat3", value: 4 };
    assert_eq!(Nfs3Result::<(), ()>::decode_whole(&words(&[4])), Err(error));
    // Number of words behind the status, if the server knows no attributes (RFC 1813 section 3.3).
    let words_behind = [0, 0, 2, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 4, 3, 1, 1, 1, 1, 1, 2];
    for (procedure, count) in Procedure::ALL.iter().zip(words_behind).skip(1) {
        let bytes = words(&[&[70][..], &vec![0; count]].concat());
        let mut input = Decoder::new(&bytes);
        let results = Results::decode(*procedure, &mut input).expect("a result");
        assert_eq!(input.finish(), Ok(()), "{procedure:?}");
        assert_eq!(results.procedure(), *procedure);
    }
}

#[test]
fn arguments_above_their_bounds_are_rejected() {
    fn opaque(len: usize) -> Vec<u8> {
        let mut bytes = words(&[len as u32]);
        bytes.resize(4 + len.next_multiple_of(4), b'x');
        bytes
    }
    let decode = |procedure, bytes: &[u8]| {
        Args::decode(procedure, &mut Decoder::new(bytes)).map(|args| args.procedure())
    };
    let too_long = |max| Err(XdrError::TooLong { len: max + 1, max });
    let with_handle = |argument: &[u8]| [&opaque(HANDLE_BYTES_MAX)[..], argument].concat();
    assert_eq!(decode(Procedure::Getattr, &opaque(64)), Ok(Procedure::Getattr));
    assert_eq!(decode(Procedure::Getattr, &opaque(65)), too_long(HANDLE_BYTES_MAX));
    let longest = with_handle(&opaque(NAME_BYTES_MAX));
    assert_eq!(decode(Procedure::Lookup, &longest), Ok(Procedure::Lookup));
    let longer = with_handle(&opaque(NAME_BYTES_MAX + 1));
    assert_eq!(decode(Procedure::Lookup, &longer), too_long(NAME_BYTES_MAX));
    let symlink = |target: &[u8]| [PLACE, &words(&[0; 6]), target].concat();
    let longest = symlink(&opaque(PATH_BYTES_MAX));
    assert_eq!(decode(Procedure::Symlink, &longest), Ok(Procedure::Symlink));
    let longer = symlink(&opaque(PATH_BYTES_MAX + 1));
    assert_eq!(decode(Procedure::Symlink, &longer), too_long(PATH_BYTES_MAX));
    let path =
        mount::DirPath::decode_whole(&opaque(MOUNT_PATH_BYTES_MAX + 1)).map(|_| Procedure::Null);
    assert_eq!(path, too_long(MOUNT_PATH_BYTES_MAX));
    let acl = words(&[15, 1025, 1025]);
    let error = XdrError::TooLong { len: 1025, max: ACL_ENTRIES_MAX };
    assert_eq!(Secattr::decode_whole(&acl), Err(error));
}

#[test]
fn write_is_decoded_up_to_its_data() {
    let bytes = [&words(&[4])[..], b"file", &words(&[0, 4096, 8192, 2, 8192]), b"first"].concat();
    let mut input = Decoder::new(&bytes);
    let head = WriteHead::decode(&mut input).expect("the head is complete");
    assert_eq!((head.file.bytes(), head.offset, head.count), (&b"file"[..], 4096, 8192));
    assert_eq!((head.stable, head.data_bytes), (nfs3::StableHow::FileSync, 8192));
    assert_eq!(input.rest(), b"first");
    for len in 0..bytes.len() - b"first".len() {
        let result = WriteHead::decode(&mut Decoder::new(&bytes[..len]));
        assert_eq!(result, Err(XdrError::Truncated));
    }
}

#[test]
fn times_outside_the_range_of_nfstime3_saturate() {
    let of = Nfstime3::saturating_from;
    assert_eq!(of(7, 8), Nfstime3 { seconds: 7, nanos: 8 });
    assert_eq!(of(-1, 999_999_999), Nfstime3::default());
    assert_eq!(of(i64::MIN, 0), Nfstime3::default());
    assert_eq!(of(i64::from(u32::MAX), 5), Nfstime3 { seconds: u32::MAX, nanos: 5 });
    assert_eq!(of(1 << 32, 0), Nfstime3::MAX);
    assert!(of(0, 2_000_000_000).is_valid());
    assert!(!Nfstime3 { seconds: 0, nanos: 1_000_000_000 }.is_valid());
}

#[test]
fn procedures_have_the_numbers_and_effects_of_the_rfc() {
    for (number, procedure) in (0..).zip(Procedure::ALL) {
        assert_eq!(procedure.number(), number);
        assert_eq!(Procedure::from_number(number), Some(*procedure));
    }
    assert_eq!(Procedure::from_number(22), None);
    let changes = |procedure: &&Procedure| procedure.effect() == Effect::Changes;
    let names: Vec<&str> = Procedure::ALL.iter().filter(changes).map(|p| p.name()).collect();
    let expected = "setattr write create mkdir symlink mknod remove rmdir rename link";
    assert_eq!(names.join(" "), expected);
    assert_eq!(nfsacl::Procedure::Setacl.effect(), Effect::Changes);
    assert_eq!(nlm4::Procedure::from_number(20), Some(nlm4::Procedure::Share));
    // NLM4_TEST_MSG: the result would be a call to the client.
    assert_eq!(nlm4::Procedure::from_number(6), None);
    assert_eq!(rquota::Procedure::from_number(3), None);
}

#[test]
fn mount_results_have_the_layouts_of_the_rfcs() {
    fn string<const MAX: usize>(text: &str) -> Opaque<'_, MAX> {
        Opaque::new(text.as_bytes()).expect("a short string")
    }
    let flavors = Array::new(vec![1, 390_003]).expect("two flavors");
    let mounted: Result<_, Failed<v3::Mountstat3, ()>> =
        Ok(v3::MountResok { handle: handle(b"root"), flavors });
    let bytes = [&words(&[0, 4])[..], b"root", &words(&[2, 1, 390_003])].concat();
    check(&mounted, &bytes);
    for status in v3::Mountstat3::ALL {
        let failed: Result<v3::MountResok<'_>, _> = Err(Failed { status: *status, info: () });
        check(&failed, &words(&[*status as u32]));
    }
    let numbers: Vec<u32> = v3::Mountstat3::ALL.iter().map(|status| *status as u32).collect();
    assert_eq!(numbers, [1, 2, 5, 13, 20, 22, 63, 10004, 10006]);
    check(&v1::FhStatus::Error(13), &words(&[13]));
    check(&v1::FhStatus::Ok([7; 32]), &[&words(&[0])[..], &[7; 32]].concat());

    let groups = List(vec![string("a"), string("b")]);
    let exports = List(vec![
        mount::Export { directory: string("/x"), groups },
        mount::Export { directory: string("/y"), groups: List::default() },
    ]);
    let bytes =
        b"\0\0\0\x01\0\0\0\x02/x\0\0\0\0\0\x01\0\0\0\x01a\0\0\0\0\0\0\x01\0\0\0\x01b\0\0\0\0\0\0\0\
        \0\0\0\x01\0\0\0\x02/y\0\0\0\0\0\0\0\0\0\0";
    check(&exports, bytes);
    let mounts = List(vec![mount::MountEntry { hostname: string("h"), directory: string("/x") }]);
    check(&mounts, b"\0\0\0\x01\0\0\0\x01h\0\0\0\0\0\0\x02/x\0\0\0\0\0\0");
}

#[test]
fn acl_has_the_layout_of_linux() {
    let entries = |list: &[(u32, u32, u32)]| {
        let entry = |&(tag, id, permissions)| AclEntry { tag, id, permissions };
        AclEntries::new(list.iter().map(entry).collect()).expect("few entries")
    };
    let acl = entries(&[(tag::USER_OBJ, 0, 6), (tag::OTHER, 0, 4)]);
    let default_acl = entries(&[(tag::DEFAULT | tag::MASK, 0, 7)]);
    let both = Secattr::new(mask::ALL, acl.clone(), default_acl.clone());
    check(&both, &words(&[15, 2, 2, 1, 0, 6, 0x20, 0, 4, 1, 1, 0x1010, 0, 7]));
    let counts = mask::ACL_COUNT | mask::DEFAULT_ACL_COUNT;
    check(&Secattr::new(counts, acl, default_acl), &words(&[10, 2, 0, 1, 0]));
    let different = words(&[1, 2, 1, 1, 0, 6, 0, 0]);
    let error = XdrError::WrongCount { len: 1, count: 2 };
    assert_eq!(Secattr::decode_whole(&different), Err(error));
}

#[test]
fn locks_are_refused_with_the_cookie_of_the_request() {
    use nlm4::{Procedure, Refusal};
    let arguments = b"\0\0\0\x04abcd the lock, which the server does not decode";
    for procedure in Procedure::ALL {
        let refusal = Refusal::of(*procedure, &mut Decoder::new(arguments)).expect("a cookie");
        let expected: &[u8] = match procedure {
            Procedure::Null | Procedure::FreeAll => b"",
            Procedure::Share | Procedure::Unshare => b"\0\0\0\x04abcd\0\0\0\x02\0\0\0\0",
            _ => b"\0\0\0\x04abcd\0\0\0\x02",
        };
        assert_eq!(encoded(|out| refusal.encode(out)), expected, "{procedure:?}");
    }
    let long = words(&[1025]);
    let error = Refusal::of(Procedure::Lock, &mut Decoder::new(&long));
    assert_eq!(error, Err(XdrError::TooLong { len: 1025, max: 1024 }));
}

#[test]
fn quota_has_the_layout_of_rquota() {
    let quota = rquota::Rquota {
        block_bytes: 4096,
        active: true,
        block_hard_limit: 1,
        block_soft_limit: 2,
        blocks: 3,
        file_hard_limit: 4,
        file_soft_limit: 5,
        files: 6,
        block_seconds_left: 7,
        file_seconds_left: 8,
    };
    check(&rquota::GetquotaResult::Ok(quota), &words(&[1, 4096, 1, 1, 2, 3, 4, 5, 6, 7, 8]));
    check(&rquota::GetquotaResult::NoQuota, &words(&[2]));
    check(&rquota::GetquotaResult::Perm, &words(&[3]));
    let path = Opaque::new(b"/x").expect("a short path");
    let version_2 = rquota::ExtGetquotaArgs { path, kind: rquota::kind::GROUP, id: 100 };
    check(&version_2, &[&words(&[2])[..], b"/x\0\0", &words(&[1, 100])].concat());
    let version_1 = rquota::GetquotaArgs { path, uid: -2 };
    check(&version_1, &[&words(&[2])[..], b"/x\0\0", &words(&[0xffff_fffe])].concat());
}
