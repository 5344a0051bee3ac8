//! Tests with replies in any order, in pieces and in fragments, and with replies that violate the
//! protocol.
//!
//! Invariant: the server of these tests is the codec of weir-nfs-wire.

use weir_nfs_wire::nfs3::{
    Args, CommitArgs, CommitResok, DirOpArgs, FileArgs, FileHandle, FileName, GetattrResok,
    Nfsstat3, PROGRAM, Procedure, ReadResok, Results, StableHow, WccData, WriteResok,
};
use weir_oncrpc::message::{self, AcceptStat, AuthStat, Call as CallHeader, Credential};
use weir_oncrpc::record::{Framed, frame};
use weir_oncrpc::{Encoder, Failed, Opaque};

use super::{Buffers, Done, Exchange, Identity, IoSlice, NfsError, OutBuf, Place, Reply, Request};
use crate::handle::Handle;
use crate::limits::{HEAD_BYTES_MAX, RECORD_BYTES_MAX};
use crate::refusal::Refusal;

/// Transaction id of the first call.
const FIRST: u32 = u32::MAX;

struct Memory(Vec<Vec<u8>>);

impl Buffers for Memory {
    fn data(&self, slot: usize) -> &[u8] {
        &self.0[slot]
    }

    fn data_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.0[slot]
    }
}

fn start() -> (Exchange, Memory) {
    let identity = Identity::sys(7, 8, &[9], "client").unwrap();
    (Exchange::new(identity, FIRST, 4), Memory(vec![vec![0x5a; 64]; 2]))
}

fn handle() -> Handle {
    Handle::new(&FileHandle::new(b"file").unwrap())
}

fn submit_read(exchange: &mut Exchange, memory: &Memory, tag: u64, slot: usize, to: usize) {
    let (file, range) = (handle(), 0..to);
    exchange.submit(tag, &Request::Read { file: &file, offset: 4096, slot, range }, memory);
}

fn submit_getattr(exchange: &mut Exchange, memory: &Memory, tag: u64) {
    let file = handle();
    let args = Args::Getattr(FileArgs { object: file.wire() });
    exchange.submit(tag, &Request::Nfs(&args), memory);
}

/// Content of a record with the results of a procedure.
fn content(xid: u32, results: &Results<'_>) -> Vec<u8> {
    let mut out = OutBuf::default();
    let mut encoder = Encoder::new(&mut out);
    message::Reply::accepted(xid, AcceptStat::Success).encode(&mut encoder);
    results.encode(&mut encoder);
    out.filled().to_vec()
}

/// A record of one fragment.
fn record(content: &[u8]) -> Vec<u8> {
    [&(1 << 31 | content.len() as u32).to_be_bytes(), content].concat()
}

fn read_results(data: &[u8]) -> Results<'_> {
    let count = data.len() as u32;
    Results::Read(Ok(ReadResok {
        attributes: None,
        count,
        eof: false,
        data: Opaque::new(data).unwrap(),
    }))
}

fn getattr_stale() -> Results<'static> {
    Results::Getattr(Err(Failed { status: Nfsstat3::Stale, info: () }))
}

fn take_all(exchange: &mut Exchange, memory: &mut Memory, bytes: &[u8]) -> Vec<Done> {
    assert_eq!(exchange.take(bytes, memory).unwrap(), bytes.len());
    let mut done = Vec::new();
    exchange.take_done(&mut done);
    done
}

/// Error of the exchange after a reply to a READ of 64 bytes into slot 0.
fn error_of(reply: &[u8]) -> NfsError {
    let (mut exchange, mut memory) = start();
    submit_read(&mut exchange, &memory, 1, 0, 64);
    let error = exchange.take(reply, &mut memory).expect_err("the reply is invalid");
    assert!(memory.0[1].iter().all(|byte| *byte == 0x5a), "another slot is untouched");
    error
}

/// Sends all queued bytes and returns them.
fn send_all(exchange: &mut Exchange, memory: &Memory) -> Vec<u8> {
    let mut bytes = Vec::new();
    while exchange.has_outgoing() {
        let mut pieces = [IoSlice::new(&[]); 2];
        let count = exchange.outgoing(memory, &mut pieces);
        // One byte at a time, as the smallest socket buffer accepts it.
        bytes.push(*pieces[..count].iter().flat_map(|piece| piece.iter()).next().unwrap());
        exchange.sent(1);
    }
    bytes
}

#[test]
fn calls_have_the_credential_and_their_arguments() {
    let (mut exchange, mut memory) = start();
    memory.0[1][..5].copy_from_slice(b"hello");
    let file = handle();
    let (offset, stable) = (12, StableHow::DataSync);
    let write = Request::Write { file: &file, offset, stable, slot: 1, range: 0..5 };
    exchange.submit(1, &write, &memory);
    let place = DirOpArgs { dir: file.wire(), name: FileName::new(b"name").unwrap() };
    exchange.submit(2, &Request::Nfs(&Args::Lookup(place)), &memory);
    let mut sent = send_all(&mut exchange, &memory);
    let Framed::Record { record, used } = frame(&mut sent, 4096).unwrap() else { panic!() };
    let (header, mut input) = CallHeader::decode(record).unwrap();
    let Ok(Credential::Sys(sys)) = header.credential.credential() else { panic!() };
    assert_eq!((sys.uid, sys.gid, sys.gids.as_slice()), (7, 8, &[9][..]));
    assert_eq!(
        (header.xid, header.program, header.version, header.procedure),
        (FIRST, PROGRAM, 3, 7)
    );
    let Args::Write(args) = Args::decode(Procedure::Write, &mut input).unwrap() else { panic!() };
    assert_eq!(
        (args.offset, args.count, args.stable, args.data.bytes()),
        (12, 5, stable, &b"hello"[..])
    );
    assert_eq!(input.finish(), Ok(()));
    let mut rest = sent.split_off(used);
    let Framed::Record { record, used } = frame(&mut rest, 4096).unwrap() else { panic!() };
    let (header, mut input) = CallHeader::decode(record).unwrap();
    assert_eq!((header.xid, header.procedure), (0, 3));
    assert_eq!(Args::decode(Procedure::Lookup, &mut input), Ok(Args::Lookup(place)));
    assert_eq!(used, rest.len());
}

#[test]
fn replies_in_any_order_complete_their_calls() {
    let (mut exchange, mut memory) = start();
    submit_read(&mut exchange, &memory, 10, 0, 8);
    submit_getattr(&mut exchange, &memory, 11);
    submit_read(&mut exchange, &memory, 12, 1, 8);
    let bytes = [
        record(&content(1, &read_results(b"second"))),
        record(&content(0, &getattr_stale())),
        record(&content(FIRST, &read_results(b"first123"))),
    ]
    .concat();
    let done = take_all(&mut exchange, &mut memory, &bytes);
    let replies: Vec<_> = done.iter().map(|done| (done.tag, done.reply.clone())).collect();
    let data = |bytes| Reply::Read { bytes, eof: false };
    let expected = [(12, data(6)), (11, Reply::Failed(Nfsstat3::Stale)), (10, data(8))];
    assert_eq!(replies, expected);
    assert_eq!(&memory.0[0][..9], b"first123\x5a");
    assert_eq!(&memory.0[1][..7], b"second\x5a");
    assert_eq!(exchange.under_way(), 0);
}

#[test]
fn replies_survive_any_split_and_fragments() {
    let head = content(FIRST, &read_results(b"0123456789a"));
    let (one, two) = head.split_at(37);
    let fragment = |len: usize, is_last: u32| (is_last << 31 | len as u32).to_be_bytes();
    let fragments =
        [&fragment(37, 0)[..], one, &fragment(0, 0), &fragment(two.len(), 1), two].concat();
    for bytes in [record(&head), fragments] {
        for piece in 1..bytes.len() {
            let (mut exchange, mut memory) = start();
            submit_read(&mut exchange, &memory, 1, 0, 64);
            submit_getattr(&mut exchange, &memory, 2);
            let bytes = [&bytes[..], &record(&content(0, &getattr_stale()))].concat();
            let mut held = Vec::new();
            for part in bytes.chunks(piece) {
                held.extend_from_slice(part);
                let used = exchange.take(&held, &mut memory).unwrap();
                held.drain(..used);
                assert!(held.len() < 4 + HEAD_BYTES_MAX);
            }
            let mut done = Vec::new();
            exchange.take_done(&mut done);
            assert_eq!(done.iter().map(|done| done.tag).collect::<Vec<_>>(), [1, 2]);
            assert_eq!(&memory.0[0][..12], b"0123456789a\x5a");
        }
    }
}

#[test]
fn data_can_be_received_directly_into_its_place() {
    let (mut exchange, mut memory) = start();
    submit_read(&mut exchange, &memory, 1, 0, 64);
    let bytes = record(&content(FIRST, &read_results(&[7; 61])));
    let (head, data) = bytes.split_at(bytes.len() - 64);
    assert_eq!(exchange.take(head, &mut memory).unwrap(), head.len());
    assert_eq!(exchange.place(), Some(Place { slot: 0, range: 0..61 }));
    exchange.placed(61);
    assert_eq!(exchange.place(), None);
    let done = take_all(&mut exchange, &mut memory, &data[61..]);
    assert_eq!(done[0].reply, Reply::Read { bytes: 61, eof: false });
}

#[test]
fn early_reply_to_a_write_waits_until_its_data_is_sent() {
    let (mut exchange, mut memory) = start();
    let file = handle();
    let (offset, stable) = (0, StableHow::Unstable);
    let write = Request::Write { file: &file, offset, stable, slot: 0, range: 0..64 };
    exchange.submit(5, &write, &memory);
    let verifier = [3; 8];
    let results = Results::Write(Ok(WriteResok {
        wcc: WccData::default(),
        count: 60,
        committed: StableHow::FileSync,
        verifier,
    }));
    let reply = record(&content(FIRST, &results));
    assert!(take_all(&mut exchange, &mut memory, &reply).is_empty());
    assert!(exchange.take(&reply, &mut memory).is_err(), "a second reply");
    send_all(&mut exchange, &memory);
    let mut done = Vec::new();
    exchange.take_done(&mut done);
    let reply = Reply::Write { bytes: 60, committed: StableHow::FileSync, verifier };
    assert_eq!(done, [Done { tag: 5, name: "WRITE", reply }]);
}

#[test]
fn results_and_refusals_reach_the_caller() {
    let (mut exchange, mut memory) = start();
    let file = handle();
    for _ in 0..3 {
        let commit = CommitArgs { file: file.wire(), offset: 0, count: 0 };
        exchange.submit(1, &Request::Nfs(&Args::Commit(commit)), &memory);
    }
    submit_getattr(&mut exchange, &memory, 2);
    assert!(!exchange.has_room());
    let encoded = |reply: message::Reply<'_>| {
        let mut out = OutBuf::default();
        reply.encode(&mut Encoder::new(&mut out));
        record(out.filled())
    };
    let commit = CommitResok { wcc: WccData::default(), verifier: [4; 8] };
    let bytes = [
        record(&content(FIRST, &Results::Commit(Ok(commit)))),
        encoded(message::Reply::auth_error(0, AuthStat::TooWeak)),
        encoded(message::Reply::accepted(1, AcceptStat::ProgUnavail)),
        record(&content(2, &Results::Getattr(Ok(GetattrResok { attributes: ATTRIBUTES })))),
    ]
    .concat();
    let done = take_all(&mut exchange, &mut memory, &bytes);
    assert_eq!(done[0].reply, Reply::Commit { verifier: [4; 8] });
    assert_eq!(done[1].reply, Reply::Refused(Refusal::Auth(AuthStat::TooWeak)));
    assert_eq!(done[2].reply, Reply::Refused(Refusal::Accept(AcceptStat::ProgUnavail)));
    let Reply::Other(body) = &done[3].reply else { panic!("{:?}", done[3]) };
    let expected = GetattrResok { attributes: ATTRIBUTES };
    assert_eq!(body.results().unwrap(), Results::Getattr(Ok(expected)));
}

#[test]
fn replies_that_violate_the_protocol_end_the_connection() {
    let good = content(FIRST, &read_results(&[1; 64]));
    let unknown = error_of(&record(&content(5, &read_results(b""))));
    assert!(unknown.to_string().contains("unknown call"), "{unknown}");
    let more = error_of(&record(&content(FIRST, &read_results(&[1; 65]))));
    assert!(more.to_string().contains("more data than a READ requested"), "{more}");
    let longer = error_of(&record(&[&good[..], b"more"].concat()));
    assert!(longer.to_string().contains("longer or shorter"), "{longer}");
    let truncated = error_of(&record(&good[..30]));
    assert!(matches!(truncated, NfsError::Reply { what: "READ", .. }), "{truncated}");
    let mut count = good.clone();
    // The count of the READ does not equal the length of its data.
    count[35] = 63;
    assert!(matches!(error_of(&record(&count)), NfsError::Reply { .. }));
    let huge = error_of(&(1 << 31 | (RECORD_BYTES_MAX as u32 + 1)).to_be_bytes());
    assert!(matches!(huge, NfsError::Record(_)), "{huge}");
    let endless = error_of(&[0; 4 * 600]);
    assert!(matches!(endless, NfsError::Record(_)), "{endless}");
    let call = error_of(&record(&[&FIRST.to_be_bytes()[..], &[0; 40]].concat()));
    assert!(matches!(call, NfsError::Reply { .. }), "{call}");
    error_of(&record(b""));
    error_of(&record(b"ab"));
}

#[test]
fn malformed_results_are_errors_of_their_call() {
    let (mut exchange, mut memory) = start();
    submit_getattr(&mut exchange, &memory, 1);
    let mut bytes = content(FIRST, &Results::Getattr(Ok(GetattrResok { attributes: ATTRIBUTES })));
    bytes.extend(b"more");
    let done = take_all(&mut exchange, &mut memory, &record(&bytes));
    let Reply::Other(body) = &done[0].reply else { panic!("{done:?}") };
    assert!(matches!(body.results(), Err(NfsError::Reply { what: "GETATTR", .. })));
    submit_getattr(&mut exchange, &memory, 2);
    let mut bytes = content(0, &getattr_stale());
    // The RFC defines no status 99.
    *bytes.last_mut().unwrap() = 99;
    assert!(exchange.take(&record(&bytes), &mut memory).is_err());
}

#[test]
fn call_is_never_sent_with_the_number_of_a_call_in_flight() {
    let identity = Identity::none();
    let (mut exchange, mut memory) = (Exchange::new(identity, 0, 2), Memory(Vec::new()));
    submit_getattr(&mut exchange, &memory, 0);
    for xid in 1..100 {
        // Call 0 stays in flight, so its entry of the table stays in use.
        submit_getattr(&mut exchange, &memory, 1);
        let expected = xid + (xid - 1) / 3;
        let reply = record(&content(expected, &getattr_stale()));
        assert_eq!(take_all(&mut exchange, &mut memory, &reply).len(), 1, "{xid}");
    }
    assert_eq!(exchange.under_way(), 1);
}

const ATTRIBUTES: weir_nfs_wire::nfs3::Fattr3 = {
    use weir_nfs_wire::nfs3::{Fattr3, Ftype3, Nfstime3, Specdata3};
    let time = Nfstime3 { seconds: 1_600_000_000, nanos: 5 };
    Fattr3 {
        kind: Ftype3::Reg,
        mode: 0o644,
        nlink: 1,
        uid: 7,
        gid: 8,
        size: 4096,
        used: 4096,
        rdev: Specdata3 { major: 0, minor: 0 },
        fsid: 1,
        fileid: 2,
        atime: time,
        mtime: time,
        ctime: time,
    }
};
