//! Valid messages from which the seeds of several targets are made, and the check of a message.
//!
//! Invariant: a function returns the same bytes in each call.

use weir_block::OutBuf;
use weir_nfs_wire::nfs3::{
    AccessArgs, AccessResok, Args, CommitArgs, CommitResok, CreateArgs, CreateHow, CreateResok,
    DirOpArgs, Entry, EntryPlus, Fattr3, FileArgs, FileHandle, FileName, FilePath, FsinfoResok,
    FsstatResok, Ftype3, GetattrResok, LinkArgs, LinkWcc, LookupResok, MkdirArgs, MknodArgs,
    MknodData, Nfsstat3, Nfstime3, PathconfResok, ReadArgs, ReadResok, ReaddirArgs, ReaddirResok,
    ReaddirplusArgs, ReaddirplusResok, ReadlinkResok, RenameArgs, RenameWcc, Results, Sattr3,
    SetTime, SetattrArgs, Specdata3, StableHow, SymlinkArgs, WccData, WriteArgs, WriteResok,
};
use weir_oncrpc::message::{
    AcceptStat, AuthStat, AuthSys, Call, Gids, OpaqueAuth, Rejected, Reply, ReplyBody,
};
use weir_oncrpc::{Encoder, Failed, List, Opaque, Xdr};

/// Returns the bytes that `encode` appends.
pub(super) fn encoded(encode: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut out = OutBuf::default();
    encode(&mut Encoder::new(&mut out));
    out.filled().to_vec()
}

/// Decodes a message from the start of `data`. Checks that a valid message has the same length when
/// it is encoded again, and then decodes to the same value.
macro_rules! check_message {
    ($data:expr, $decode:expr) => {{
        let mut input = weir_oncrpc::Decoder::new($data);
        if let Ok(message) = $decode(&mut input) {
            let again = $crate::nfs::samples::encoded(|out| message.encode(out));
            assert_eq!(again.len(), $data.len() - input.rest().len());
            let mut input = weir_oncrpc::Decoder::new(&again);
            let decoded = $decode(&mut input);
            assert_eq!(decoded.as_ref(), Ok(&message));
            assert_eq!(input.finish(), Ok(()));
        }
    }};
}

pub(super) use check_message;

/// Opaque value of a sample.
pub(super) fn opaque<const MAX: usize>(bytes: &[u8]) -> Opaque<'_, MAX> {
    Opaque::new(bytes).expect("a short sample")
}

/// Encodes a value.
pub(super) fn bytes_of<'a>(value: &impl Xdr<'a>) -> Vec<u8> {
    encoded(|out| value.encode(out))
}

/// Header of a call with an AUTH_SYS credential.
pub(super) fn call(program: u32, version: u32, procedure: u32) -> Vec<u8> {
    let gids = Gids::new(&[4, 24]).expect("two groups");
    let sys = AuthSys { stamp: 1, machine_name: opaque(b"host"), uid: 1000, gid: 1000, gids };
    let credential = encoded(|out| sys.encode_opaque(out));
    let credential = OpaqueAuth::decode_whole(&credential).expect("a credential");
    let verifier = OpaqueAuth::NONE;
    let call = Call { xid: 7, program, version, procedure, credential, verifier };
    encoded(|out| call.encode(out))
}

/// Replies of each kind.
pub(super) fn replies() -> Vec<Reply<'static>> {
    let accepted = [
        AcceptStat::Success,
        AcceptStat::ProgUnavail,
        AcceptStat::ProgMismatch { low: 3, high: 4 },
        AcceptStat::ProcUnavail,
        AcceptStat::GarbageArgs,
        AcceptStat::SystemErr,
    ];
    let mismatch = Rejected::RpcMismatch { low: 2, high: 2 };
    let denied = [
        Reply { xid: 7, body: ReplyBody::Denied(mismatch) },
        Reply::auth_error(7, AuthStat::BadCred),
    ];
    accepted.into_iter().map(|stat| Reply::accepted(7, stat)).chain(denied).collect()
}

const TIME: Nfstime3 = Nfstime3 { seconds: 1_600_000_000, nanos: 5 };

/// Attributes of a file.
pub(super) const ATTRIBUTES: Fattr3 = Fattr3 {
    kind: Ftype3::Reg,
    mode: 0o644,
    nlink: 1,
    uid: 1000,
    gid: 1000,
    size: 5000,
    used: 8192,
    rdev: Specdata3 { major: 0, minor: 0 },
    fsid: 9,
    fileid: 10,
    atime: TIME,
    mtime: TIME,
    ctime: TIME,
};

/// Handle of a file.
pub(super) fn handle() -> FileHandle<'static> {
    opaque(b"handle of a file")
}

fn name() -> FileName<'static> {
    opaque(b"name")
}

/// Arguments of each procedure of NFSv3, with each arm of their unions.
pub(super) fn arguments() -> Vec<Args<'static>> {
    let object = handle();
    let (file, dir) = (object, object);
    let place = DirOpArgs { dir, name: name() };
    let one = FileArgs { object };
    let attributes = Sattr3 {
        mode: Some(0o600),
        uid: Some(1),
        gid: None,
        size: Some(5),
        atime: SetTime::ServerTime,
        mtime: SetTime::ClientTime(TIME),
    };
    let target: FilePath<'_> = opaque(b"../target");
    let (stable, data) = (StableHow::Unstable, opaque(b"some data"));
    let device = Specdata3 { major: 8, minor: 1 };
    let create = |how| Args::Create(CreateArgs { place, how });
    let mknod = |what| Args::Mknod(MknodArgs { place, what });
    let (cookie, cookieverf) = (16, [0; 8]);
    vec![
        Args::Null(()),
        Args::Getattr(one),
        Args::Setattr(SetattrArgs { object, new_attributes: attributes, guard: Some(TIME) }),
        Args::Lookup(place),
        Args::Access(AccessArgs { object, access: 0x3f }),
        Args::Readlink(one),
        Args::Read(ReadArgs { file, offset: 4096, count: 4096 }),
        Args::Write(WriteArgs { file, offset: 0, count: 9, stable, data }),
        create(CreateHow::Unchecked(attributes)),
        create(CreateHow::Guarded(attributes)),
        create(CreateHow::Exclusive([1; 8])),
        Args::Mkdir(MkdirArgs { place, attributes }),
        Args::Symlink(SymlinkArgs { place, attributes, target }),
        mknod(MknodData::BlockDevice(attributes, device)),
        mknod(MknodData::Fifo(attributes)),
        Args::Remove(place),
        Args::Rmdir(place),
        Args::Rename(RenameArgs { from: place, to: place }),
        Args::Link(LinkArgs { file, link: place }),
        Args::Readdir(ReaddirArgs { dir, cookie, cookieverf, count: 4096 }),
        Args::Readdirplus(ReaddirplusArgs {
            dir,
            cookie,
            cookieverf,
            dircount: 512,
            maxcount: 4096,
        }),
        Args::Fsstat(one),
        Args::Fsinfo(one),
        Args::Pathconf(one),
        Args::Commit(CommitArgs { file, offset: 0, count: 0 }),
    ]
}

/// Results of each procedure of NFSv3, and one error.
pub(super) fn results() -> Vec<Results<'static>> {
    let attributes = Some(ATTRIBUTES);
    let wcc = WccData { before: Some(ATTRIBUTES.wcc()), after: attributes };
    let created = || CreateResok { object: Some(handle()), attributes, dir_wcc: wcc };
    let renamed = RenameWcc { from_dir: wcc, to_dir: wcc };
    vec![
        Results::Null(()),
        Results::Getattr(Ok(GetattrResok { attributes: ATTRIBUTES })),
        Results::Getattr(Err(Failed { status: Nfsstat3::Stale, info: () })),
        Results::Setattr(Ok(wcc)),
        Results::Lookup(Ok(LookupResok {
            object: handle(),
            attributes,
            dir_attributes: attributes,
        })),
        Results::Access(Ok(AccessResok { attributes, access: 0x1f })),
        Results::Readlink(Ok(ReadlinkResok { attributes, target: opaque(b"../target") })),
        Results::Read(Ok(ReadResok {
            attributes,
            count: 9,
            eof: true,
            data: opaque(b"some data"),
        })),
        Results::Write(Ok(WriteResok {
            wcc,
            count: 9,
            committed: StableHow::FileSync,
            verifier: [1; 8],
        })),
        Results::Create(Ok(created())),
        Results::Mkdir(Ok(created())),
        Results::Symlink(Ok(created())),
        Results::Mknod(Ok(created())),
        Results::Remove(Ok(wcc)),
        Results::Rmdir(Err(Failed { status: Nfsstat3::Notempty, info: wcc })),
        Results::Rename(Ok(renamed)),
        Results::Link(Ok(LinkWcc { attributes, dir_wcc: wcc })),
        Results::Readdir(Ok(ReaddirResok {
            dir_attributes: attributes,
            cookieverf: [0; 8],
            entries: List(vec![Entry { fileid: 10, name: name(), cookie: 16 }]),
            eof: false,
        })),
        Results::Readdirplus(Ok(ReaddirplusResok {
            dir_attributes: attributes,
            cookieverf: [0; 8],
            entries: List(vec![entry(16), entry(17)]),
            eof: true,
        })),
        Results::Fsstat(Ok(FSSTAT)),
        Results::Fsinfo(Ok(FSINFO)),
        Results::Pathconf(Ok(PATHCONF)),
        Results::Commit(Ok(CommitResok { wcc, verifier: [1; 8] })),
    ]
}

fn entry(cookie: u64) -> EntryPlus<'static> {
    let attributes = Some(ATTRIBUTES);
    EntryPlus { fileid: 10, name: name(), cookie, attributes, handle: Some(handle()) }
}

const FSSTAT: FsstatResok = FsstatResok {
    attributes: Some(ATTRIBUTES),
    total_bytes: 1 << 40,
    free_bytes: 1 << 30,
    available_bytes: 1 << 29,
    total_files: 1000,
    free_files: 900,
    available_files: 900,
    invariant_seconds: 0,
};

const FSINFO: FsinfoResok = FsinfoResok {
    attributes: Some(ATTRIBUTES),
    rtmax: 1 << 20,
    rtpref: 1 << 20,
    rtmult: 4096,
    wtmax: 1 << 20,
    wtpref: 1 << 20,
    wtmult: 4096,
    dtpref: 65536,
    maxfilesize: 1 << 44,
    time_delta: Nfstime3 { seconds: 0, nanos: 1 },
    properties: 0x1b,
};

const PATHCONF: PathconfResok = PathconfResok {
    attributes: None,
    linkmax: 65000,
    name_max: 255,
    no_trunc: true,
    chown_restricted: true,
    case_insensitive: false,
    case_preserving: true,
};
