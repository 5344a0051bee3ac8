//! Lanes against a server in this process that sends valid but unusual replies.
//!
//! Invariant: each operation of these tests ends, with its data or with an error that names the
//! reason.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use weir_block::OutBuf;
use weir_nfs_client::{Handle, Identity, Mounted};
use weir_nfs_wire::nfs3::{
    Args, CommitResok, CreateHow, CreateResok, Entry, EntryPlus, FileHandle, FileName, LookupResok,
    Nfsstat3, Nfstime3, ReadResok, ReaddirResok, ReaddirplusResok, Results, SetTime, StableHow,
    WccData, WriteResok,
};
use weir_oncrpc::message::{AcceptStat, Call, Reply};
use weir_oncrpc::{Encoder, List, Opaque, Xdr as _};

use super::{Arc, Lane, Lock, Mount, OpKind, Share, TargetError, Url, lane, retries, tree};
use crate::target::lane::{Done, Op, Wait};
use crate::target::metadata::{
    Directory, EXTRACTED_AT_S, FileName as Name, MetadataCall, MetadataOp,
};

/// Directory that the tests use.
const DIRECTORY: Directory = Directory { client: 0, stream: 0, worker: Some(0) };

/// Starts a server. `reply` appends the results of a call, or returns false: then the server sends
/// no reply.
fn server(reply: impl FnMut(&Args<'_>, &mut Encoder<'_>) -> bool + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let reply = Arc::new(Mutex::new(reply));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let reply = Arc::clone(&reply);
            thread::spawn(move || serve(stream.unwrap(), &*reply));
        }
    });
    address
}

fn serve(mut stream: TcpStream, reply: &Mutex<impl FnMut(&Args<'_>, &mut Encoder<'_>) -> bool>) {
    while let Some(record) = receive(&mut stream) {
        let (call, mut input) = Call::decode(&record).unwrap();
        let procedure = weir_nfs_wire::nfs3::Procedure::from_number(call.procedure).unwrap();
        let args = Args::decode(procedure, &mut input).unwrap();
        let mut out = OutBuf::default();
        let mut encoder = Encoder::new(&mut out);
        Reply::accepted(call.xid, AcceptStat::Success).encode(&mut encoder);
        if (reply.lock())(&args, &mut encoder) {
            let mark = (1 << 31 | out.len() as u32).to_be_bytes();
            stream.write_all(&[&mark, out.filled()].concat()).unwrap();
        }
    }
}

fn receive(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).ok()?;
    let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut record).ok()?;
    Some(record)
}

fn handle(name: &[u8]) -> Handle {
    Handle::new(&FileHandle::new(name).unwrap())
}

fn share(url: &Url) -> Share {
    let root = handle(b"root");
    let mounted = Mounted { path: "/e".to_owned(), root, port: 1 };
    Share { url: url.clone(), mounted, root }
}

/// Lane with 2 slots to a server, whose target has two files of 64 KiB and transfers of 4 KiB.
fn open(address: SocketAddr) -> Box<dyn Lane> {
    Box::new(lane::NfsLane::open(Arc::new(mount(address)), 2, 64 << 10).unwrap())
}

fn mount(address: SocketAddr) -> Mount {
    let url = Url::parse(&format!("nfs://{address}/e")).unwrap();
    let directories = [(DIRECTORY.to_string(), handle(b"dir"))];
    Mount {
        address: url.to_string(),
        identity: Identity::of(&url).unwrap(),
        shares: vec![share(&url)],
        listings: AtomicUsize::new(0),
        lanes: AtomicUsize::new(0),
        files: vec![handle(b"file 0"), handle(b"file 1")],
        part_bytes: 64 << 10,
        read_bytes: 4096,
        write_bytes: 4096,
        directory_bytes: 4096,
        directories: RwLock::new(directories.into()),
        url,
    }
}

#[test]
fn files_and_directories_are_spread_over_the_shares() {
    let made = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&made);
    let address = server(move |args, out| {
        let (attributes, dir_attributes) = (None, None);
        match args {
            Args::Lookup(lookup) => {
                // The directory of the client has the name of its share and `/c`.
                let object = [lookup.dir.bytes(), b"/c"].concat();
                let object = FileHandle::new(&object).unwrap();
                Results::Lookup(Ok(LookupResok { object, attributes, dir_attributes })).encode(out);
            }
            Args::Mkdir(mkdir) => {
                seen.lock().push(String::from_utf8(mkdir.place.dir.bytes().to_vec()).unwrap());
                encode_failed(out, Nfsstat3::Nospc);
            }
            other => panic!("{other:?}"),
        }
        true
    });
    let one = mount(address);
    let shares = [&b"a"[..], b"b", b"c"];
    let shares = shares.map(|name| Share { root: handle(name), ..one.shares[0].clone() });
    let files = vec![handle(b"file"); 5];
    let mount = Mount { shares: shares.to_vec(), files, ..one };
    let roots: Vec<Handle> = (0..5).map(|file| mount.root_of_file(file)).collect();
    assert_eq!(roots, [&b"a"[..], b"a", b"b", b"b", b"c"].map(handle));
    assert_eq!([(); 4].map(|()| mount.next_root()), [&b"a"[..], b"b", b"c", b"a"].map(handle));
    for worker in [Some(4), Some(5), None] {
        let directory = Directory { worker, ..DIRECTORY };
        tree::make_directory(&mount, &directory.to_string()).unwrap_err();
    }
    assert_eq!(*made.lock(), ["b/c", "c/c", "a/c"]);
}

/// Waits for the completion of the operation in slot 0.
fn end(lane: &mut dyn Lane) -> std::io::Result<()> {
    let mut done = Vec::new();
    while done.is_empty() {
        lane.reap(Wait::One, &mut done).unwrap();
    }
    let Done { slot, result, .. } = done.remove(0);
    assert_eq!((slot, done.len()), (0, 0));
    result
}

fn data(lane: &mut dyn Lane, kind: OpKind, offset: u64, len_bytes: u32) -> std::io::Result<()> {
    let op = Op { kind, offset, len_bytes, durable: false, source: 0 };
    lane.submit(0, &op).unwrap();
    end(lane)
}

fn metadata(lane: &mut dyn Lane, call: MetadataCall) -> std::io::Result<()> {
    lane.submit_metadata(0, &MetadataOp { call, durable: true }).unwrap();
    end(lane)
}

fn written(args: &Args<'_>, committed: StableHow, verifier: u8) -> Results<'static> {
    let Args::Write(write) = args else { panic!("{args:?}") };
    let (wcc, count, verifier) = (WccData::default(), write.count, [verifier; 8]);
    Results::Write(Ok(WriteResok { wcc, count, committed, verifier }))
}

#[test]
fn lost_writes_of_a_restarted_server_are_reported_at_the_flush() {
    let address = server(|args, out| {
        match args {
            Args::Write(_) => written(args, StableHow::Unstable, 1).encode(out),
            Args::Commit(commit) => {
                assert_eq!(commit.file.bytes(), b"file 1");
                let (wcc, verifier) = (WccData::default(), [2; 8]);
                Results::Commit(Ok(CommitResok { wcc, verifier })).encode(out);
            }
            other => panic!("{other:?}"),
        }
        true
    });
    let mut lane = open(address);
    data(&mut *lane, OpKind::Write, 64 << 10, 8192).unwrap();
    let lost = data(&mut *lane, OpKind::Flush, 0, 0).unwrap_err();
    assert!(lost.to_string().contains("lost 2 uncommitted writes"), "{lost}");
}

#[test]
fn unstable_data_is_committed_at_the_end_of_a_load() {
    let committed = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&committed);
    let address = server(move |args, out| {
        match args {
            Args::Write(_) => written(args, StableHow::Unstable, 1).encode(out),
            Args::Commit(commit) => {
                let mut seen = seen.lock();
                seen.push(commit.file.bytes().to_vec());
                // The server restarts before the third COMMIT.
                let verifier = if seen.len() > 2 { 2 } else { 1 };
                let (wcc, verifier) = (WccData::default(), [verifier; 8]);
                Results::Commit(Ok(CommitResok { wcc, verifier })).encode(out);
            }
            other => panic!("{other:?}"),
        }
        true
    });
    let mut lane = open(address);
    for offset in [0, 64 << 10] {
        data(&mut *lane, OpKind::Write, offset, 4096).unwrap();
    }
    lane.finish().unwrap();
    committed.lock().sort();
    assert_eq!(*committed.lock(), [b"file 0", b"file 1"]);
    lane.finish().unwrap();
    assert_eq!(committed.lock().len(), 2, "no write is uncommitted");
    data(&mut *lane, OpKind::Write, 0, 4096).unwrap();
    let lost = lane.finish().unwrap_err();
    assert!(lost.to_string().contains("lost 1 uncommitted writes"), "{lost}");
}

#[test]
fn second_run_is_refused_until_the_first_removes_its_lock() {
    let file = Arc::new(Mutex::new(None::<Vec<u8>>));
    let state = Arc::clone(&file);
    let address = server(move |args, out| {
        let mut file = state.lock();
        let object = FileHandle::new(b"lock").unwrap();
        match (args, file.as_mut()) {
            (Args::Create(create), None) => {
                assert!(matches!(create.how, CreateHow::Guarded(_)), "{create:?}");
                assert_eq!(create.place.name.bytes(), b"weir-bench.lock");
                *file = Some(Vec::new());
                let (object, attributes, dir_wcc) = (Some(object), None, WccData::default());
                Results::Create(Ok(CreateResok { object, attributes, dir_wcc })).encode(out);
            }
            (Args::Create(_), Some(_)) => encode_failed(out, Nfsstat3::Exist),
            (Args::Write(write), Some(content)) => {
                *content = write.data.bytes().to_vec();
                written(args, StableHow::FileSync, 1).encode(out);
            }
            (Args::Lookup(_), Some(_)) => {
                let found = LookupResok { object, attributes: None, dir_attributes: None };
                Results::Lookup(Ok(found)).encode(out);
            }
            (Args::Read(_), Some(content)) => {
                let (count, data) = (content.len() as u32, Opaque::new(content).unwrap());
                let read = ReadResok { attributes: None, count, eof: true, data };
                Results::Read(Ok(read)).encode(out);
            }
            (Args::Remove(_), Some(_)) => {
                *file = None;
                Results::Remove(Ok(WccData::default())).encode(out);
            }
            other => panic!("{other:?}"),
        }
        true
    });
    let url = Url::parse(&format!("nfs://{address}/e")).unwrap();
    let share = share(&url);
    let mut client = share.client().unwrap();
    let first = Lock::take(&mut client, &share).unwrap();
    let second = Lock::take(&mut client, &share).err().expect("the directory is locked");
    let TargetError::Locked { holder, .. } = &second else { panic!("{second}") };
    assert!(holder.starts_with(&format!("process {} of ", std::process::id())), "{holder}");
    assert!(second.action().contains("--remove-lock"), "{}", second.action());
    drop(first);
    assert_eq!(*file.lock(), None);
    // The user removed the lock of the third run, and a fourth run made its own.
    let third = Lock::take(&mut client, &share).unwrap();
    *file.lock() = Some(b"process 4".to_vec());
    drop(third);
    assert_eq!(*file.lock(), Some(b"process 4".to_vec()));
}

#[test]
fn less_stable_data_than_requested_is_an_error() {
    let address = server(|args, out| {
        written(args, StableHow::Unstable, 1).encode(out);
        true
    });
    let mut lane = open(address);
    let (kind, offset, len_bytes, source) = (OpKind::Write, 0, 4096, 0);
    lane.submit(0, &Op { kind, offset, len_bytes, durable: true, source }).unwrap();
    let error = end(&mut *lane).unwrap_err();
    assert!(error.to_string().contains("less stable"), "{error}");
}

#[test]
fn short_replies_are_completed_by_further_calls() {
    let address = server(|args, out| {
        let Args::Read(read) = args else { panic!("{args:?}") };
        assert_eq!(read.file.bytes(), b"file 1");
        let count = read.count.min(1000);
        let data: Vec<u8> =
            (0..u64::from(count)).map(|at| ((read.offset + at) % 251) as u8).collect();
        let data = Opaque::new(&data).unwrap();
        Results::Read(Ok(ReadResok { attributes: None, count, eof: false, data })).encode(out);
        true
    });
    let mut lane = open(address);
    data(&mut *lane, OpKind::Read, (64 << 10) + 512, 20_000).unwrap();
    let read = &lane.buffer(0)[..20_000];
    assert!(read.iter().zip(512_u64..).all(|(byte, at)| u64::from(*byte) == at % 251));
}

#[test]
fn file_is_created_with_its_content_and_listed() {
    let address = server(|args, out| {
        let object = FileHandle::new(b"new").unwrap();
        match args {
            // The server may omit the handle of the new file.
            Args::Create(create) => {
                assert_eq!(create.place.dir.bytes(), b"dir");
                let (attributes, dir_wcc) = (None, WccData::default());
                let made = CreateResok { object: None, attributes, dir_wcc };
                Results::Create(Ok(made)).encode(out);
            }
            Args::Lookup(_) => {
                let found = LookupResok { object, attributes: None, dir_attributes: None };
                Results::Lookup(Ok(found)).encode(out);
            }
            Args::Write(write) => {
                assert_eq!((write.file.bytes(), write.stable), (&b"new"[..], StableHow::FileSync));
                assert_eq!(write.data.bytes(), [9; 600]);
                written(args, StableHow::FileSync, 1).encode(out);
            }
            Args::Readdir(list) => {
                let entry = |cookie, name| {
                    let name = FileName::new(name).unwrap();
                    Entry { fileid: cookie, name, cookie }
                };
                // Two replies with two entries each.
                let entries = match list.cookie {
                    0 => vec![entry(1, &b"."[..]), entry(2, &b"a"[..])],
                    2 => vec![entry(3, &b".."[..]), entry(4, &b"b"[..])],
                    other => panic!("cookie {other}"),
                };
                let eof = list.cookie == 2;
                let (dir_attributes, cookieverf) = (None, [7; 8]);
                let entries = List(entries);
                let page = ReaddirResok { dir_attributes, cookieverf, entries, eof };
                Results::Readdir(Ok(page)).encode(out);
            }
            other => panic!("{other:?}"),
        }
        true
    });
    let mut lane = open(address);
    lane.buffer(0)[..600].fill(9);
    let file = Name { directory: DIRECTORY, worker: 0, number: 1, renamed: false };
    metadata(&mut *lane, MetadataCall::Create { file, bytes: 600 }).unwrap();
    metadata(&mut *lane, MetadataCall::List { directory: DIRECTORY, files: 2 }).unwrap();
    let wrong = metadata(&mut *lane, MetadataCall::List { directory: DIRECTORY, files: 3 });
    assert!(wrong.unwrap_err().to_string().contains("2 files instead of 3"));
    let directory = Directory { stream: 9, ..DIRECTORY };
    let missing = metadata(&mut *lane, MetadataCall::List { directory, files: 0 });
    assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn extracted_file_gets_its_mode_and_time_after_its_content() {
    let mut calls = 0;
    let address = server(move |args, out| {
        let object = FileHandle::new(b"new").unwrap();
        calls += 1;
        match (calls, args) {
            (1 | 4, Args::Create(_)) => {
                let (attributes, dir_wcc) = (None, WccData::default());
                let made = CreateResok { object: Some(object), attributes, dir_wcc };
                Results::Create(Ok(made)).encode(out);
            }
            (2, Args::Write(write)) => {
                assert_eq!((write.file.bytes(), write.stable), (&b"new"[..], StableHow::FileSync));
                written(args, StableHow::FileSync, 1).encode(out);
            }
            // An empty file has no WRITE.
            (3 | 5, Args::Setattr(set)) => {
                let mtime = Nfstime3 { seconds: EXTRACTED_AT_S, nanos: 0 };
                assert_eq!(set.object.bytes(), b"new");
                assert_eq!(set.new_attributes.mode, Some(0o644));
                assert_eq!(set.new_attributes.mtime, SetTime::ClientTime(mtime));
                Results::Setattr(Ok(WccData::default())).encode(out);
            }
            (6, Args::Create(_)) => encode_failed(out, Nfsstat3::Exist),
            other => panic!("{other:?}"),
        }
        true
    });
    let mut lane = open(address);
    let file = Name { directory: DIRECTORY, worker: 0, number: 1, renamed: false };
    for bytes in [600, 0] {
        metadata(&mut *lane, MetadataCall::Extract { file, bytes }).unwrap();
    }
    metadata(&mut *lane, MetadataCall::Extract { file, bytes: 600 }).unwrap_err();
}

#[test]
fn listing_with_attributes_needs_the_attributes_of_each_file() {
    let address = server(|args, out| {
        let Args::Readdirplus(_) = args else { panic!("{args:?}") };
        let entry = |cookie, name| {
            let (name, handle) = (FileName::new(name).unwrap(), None);
            EntryPlus { fileid: cookie, name, cookie, attributes: None, handle }
        };
        // The server may leave out the attributes of the directory itself.
        let entries = List(vec![entry(1, &b"."[..]), entry(2, &b"a"[..])]);
        let (dir_attributes, cookieverf, eof) = (None, [7; 8], true);
        let page = ReaddirplusResok { dir_attributes, cookieverf, entries, eof };
        Results::Readdirplus(Ok(page)).encode(out);
        true
    });
    let mut lane = open(address);
    let error = metadata(&mut *lane, MetadataCall::ListPlus { directory: DIRECTORY, files: 1 });
    assert!(error.unwrap_err().to_string().contains("1 of 1 files have no attributes"));
    let error = metadata(&mut *lane, MetadataCall::ListPlus { directory: DIRECTORY, files: 2 });
    assert!(error.unwrap_err().to_string().contains("1 files instead of 2"));
    // A mix of operations accepts entries without attributes, which the protocol permits.
    metadata(&mut *lane, MetadataCall::Readdirplus).unwrap();
}

#[test]
fn server_that_does_not_reply_loses_the_lane() {
    let address = server(|_, _| false);
    let mut lane = open(address);
    let call = MetadataCall::Getattr { file: 0 };
    lane.submit_metadata(0, &MetadataOp { call, durable: false }).unwrap();
    let mut done = Vec::new();
    let lost = lane.reap(Wait::One, &mut done).unwrap_err();
    assert!(matches!(lost, TargetError::NoAnswer { seconds: 1, .. }), "{lost}");
}

/// Encodes the status of a failed procedure, and zeros for the rest of its results: no attributes.
fn encode_failed(out: &mut Encoder<'_>, status: Nfsstat3) {
    status.encode(out);
    out.u32(0);
    out.u32(0);
}

#[test]
fn calls_are_sent_again_after_jukebox_and_the_wait_counts() {
    let mut calls = 0;
    let address = server(move |args, out| {
        calls += 1;
        match (calls, args) {
            (1 | 3, Args::Write(_)) | (5, Args::Commit(_)) => {
                encode_failed(out, Nfsstat3::Jukebox);
            }
            (2 | 4, Args::Write(write)) => {
                let offset = if calls == 2 { 4096 } else { 0 };
                assert_eq!((write.file.bytes(), write.offset), (&b"file 1"[..], offset));
                written(args, StableHow::Unstable, 1).encode(out);
            }
            (6, Args::Commit(_)) => {
                let (wcc, verifier) = (WccData::default(), [1; 8]);
                Results::Commit(Ok(CommitResok { wcc, verifier })).encode(out);
            }
            (7, Args::Remove(_)) => encode_failed(out, Nfsstat3::Jukebox),
            (8, Args::Remove(remove)) => {
                assert_eq!(remove.dir.bytes(), b"dir");
                Results::Remove(Ok(WccData::default())).encode(out);
            }
            other => panic!("{other:?}"),
        }
        true
    });
    let mut lane = open(address);
    let sent = Instant::now();
    data(&mut *lane, OpKind::Write, 64 << 10, 8192).unwrap();
    // The first piece was delayed twice.
    assert!(sent.elapsed() >= 2 * retries::INTERVAL, "{:?}", sent.elapsed());
    data(&mut *lane, OpKind::Flush, 0, 0).unwrap();
    let file = Name { directory: DIRECTORY, worker: 0, number: 1, renamed: false };
    metadata(&mut *lane, MetadataCall::Remove { file }).unwrap();
}

#[test]
fn operation_fails_when_the_server_replies_jukebox_for_too_long() {
    let address = server(|_, out| {
        encode_failed(out, Nfsstat3::Jukebox);
        true
    });
    let mut lane = open(address);
    let sent = Instant::now();
    let error = data(&mut *lane, OpKind::Read, 0, 4096).unwrap_err();
    assert!(sent.elapsed() >= retries::LIMIT, "{:?}", sent.elapsed());
    assert!(error.to_string().starts_with("READ: NFS3ERR_JUKEBOX for 300ms"), "{error}");
    // The next operation of the slot has the whole time again.
    let sent = Instant::now();
    metadata(&mut *lane, MetadataCall::Getattr { file: 0 }).unwrap_err();
    assert!(sent.elapsed() >= retries::LIMIT, "{:?}", sent.elapsed());
}
