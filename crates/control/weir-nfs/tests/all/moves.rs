//! Tests of sessions that move between threads of the server while they are in use.
//!
//! The tests of weir-net cover the decision to move a session.
//!
//! Invariant: calls wait for a watcher, so that a move often finds running calls.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use weir_fs::{Changed, NewKind};
use weir_net::{Budget, ServerHandle};
use weir_nfs::limits::OWN_BYTES;
use weir_nfs::{Nfs, Watcher};
use weir_nfs_wire::nfs3::{Args, DirOpArgs, MkdirArgs, Nfsstat3, Procedure, Results, Sattr3};
use weir_oncrpc::Opaque;
use weir_oncrpc::message::Reply;

use crate::common::{Served, run};
use crate::connections::{connect_from, nfs_call, read_call, reply_record, serve_shares};

const LIMIT: Duration = Duration::from_secs(20);
/// Number of calls that a client has in flight.
const IN_FLIGHT: usize = 16;
const MIB: usize = 1 << 20;

/// Delays the reply of each call that changed something.
struct Delay(Duration);

impl Watcher for Delay {
    fn changed(&self, _: Changed) -> LocalBoxFuture<'static, ()> {
        let delay = self.0;
        Box::pin(async move { compio::time::sleep(delay).await })
    }
}

/// A server with two threads.
struct Moving {
    server: ServerHandle<Nfs>,
    address: SocketAddr,
    root: Vec<u8>,
    /// A file with [`Self::data`].
    file: Vec<u8>,
    data: Vec<u8>,
}

impl Moving {
    fn new(delay: Duration) -> Self {
        let served = Served::new(&["*:no_root_squash,insecure"]);
        let inode = served.create(served.root, "f", (NewKind::File, 0o600), 0);
        let data: Vec<u8> = (0..MIB).map(|at| (at / 4096 + at % 251) as u8).collect();
        run(&served.engine, served.files.write(inode.number, 0, &data, false)).unwrap();
        served.watcher.set(Some(Arc::new(Delay(delay))));
        let (root, file) = (served.handle(served.root), served.handle(inode));
        let budget = Budget::new(64 << 20, OWN_BYTES);
        let (server, address) = serve_shares(served.server, &budget, 2);
        Self { server, address, root, file, data }
    }

    fn mkdir(&self, xid: u32) -> Vec<u8> {
        let (dir, name) = (Opaque::new(&self.root).unwrap(), format!("{xid}"));
        let place = DirOpArgs { dir, name: Opaque::new(name.as_bytes()).unwrap() };
        nfs_call(xid, &Args::Mkdir(MkdirArgs { place, attributes: Sattr3::default() }))
    }

    /// Orders the session to move to the other thread.
    fn order(&self) {
        self.server.move_sessions(0, 1, 1);
        self.server.move_sessions(1, 0, 1);
    }

    /// Moves the session, whose client has no call in flight: the server reads no move before the
    /// beginning of the next call, which `begin` sends.
    fn move_with(&self, begin: impl FnOnce()) {
        let before = self.server.connections_of_workers();
        self.order();
        std::thread::sleep(Duration::from_millis(20));
        begin();
        let begun = Instant::now();
        while self.server.connections_of_workers() == before {
            assert!(begun.elapsed() < LIMIT, "the session moves");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn mkdir_status(record: &[u8]) -> (u32, Result<(), Nfsstat3>) {
    let (reply, mut results) = Reply::decode(record).unwrap();
    match Results::decode(Procedure::Mkdir, &mut results).unwrap() {
        Results::Mkdir(made) => (reply.xid, made.map(drop).map_err(|failed| failed.status)),
        other => panic!("{other:?}"),
    }
}

fn read_data(record: &[u8]) -> (u32, Vec<u8>) {
    let (reply, mut results) = Reply::decode(record).unwrap();
    match Results::decode(Procedure::Read, &mut results).unwrap() {
        Results::Read(Ok(read)) => (reply.xid, read.data.bytes().to_vec()),
        other => panic!("{other:?}"),
    }
}

/// Sends MKDIRs and READs, and checks their replies.
fn work(moving: &Moving, client: &mut TcpStream, calls: u32) {
    let mut random = fastrand::Rng::with_seed(1);
    // The ranges of the READs in flight; `None` for a MKDIR.
    let mut waiting: HashMap<u32, Option<(usize, usize)>> = HashMap::new();
    let mut sent = 0;
    while sent < calls || !waiting.is_empty() {
        while waiting.len() < IN_FLIGHT && sent < calls {
            sent += 1;
            let (at, len) = (random.usize(..MIB / 2), random.usize(1..MIB / 2));
            let is_read = random.bool();
            let call = if is_read {
                read_call(sent, &moving.file, at as u64, len as u32)
            } else {
                moving.mkdir(sent)
            };
            waiting.insert(sent, is_read.then_some((at, len)));
            client.write_all(&call).unwrap();
        }
        let record = reply_record(client);
        let xid = Reply::decode(&record).unwrap().0.xid;
        match waiting.remove(&xid).expect("a reply to a call in flight") {
            Some((at, len)) => {
                assert!(read_data(&record).1 == moving.data[at..at + len], "{len} at {at}");
            }
            // A call that ran twice would get NFS3ERR_EXIST.
            None => assert_eq!(mkdir_status(&record), (xid, Ok(()))),
        }
    }
}

#[test]
fn each_call_is_answered_once_while_the_session_moves() {
    let moving = Moving::new(Duration::from_micros(300));
    let mut client = connect_from(1, moving.address);
    let (is_done, moves) = (AtomicBool::new(false), AtomicU32::new(0));
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = moving.server.connections_of_workers();
            while !is_done.load(Ordering::Relaxed) {
                let now = moving.server.connections_of_workers();
                if now != last {
                    moves.fetch_add(1, Ordering::Relaxed);
                    last = now;
                }
                moving.order();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        // The other thread must end if the work fails.
        let work = std::panic::AssertUnwindSafe(|| work(&moving, &mut client, 3000));
        let result = std::panic::catch_unwind(work);
        is_done.store(true, Ordering::Relaxed);
        result
    });
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(moves.into_inner() > 5, "the session moves");
    moving.server.stop();
}

#[test]
fn partial_call_moves_with_its_session() {
    let moving = Moving::new(Duration::ZERO);
    let mut client = connect_from(1, moving.address);
    for (xid, part) in [(1, 1), (2, 20), (3, 70)] {
        let call = read_call(xid, &moving.file, 0, MIB as u32);
        client.write_all(&call).unwrap();
        assert_eq!(read_data(&reply_record(&mut client)).0, xid);
        let (first, rest) = call.split_at(part);
        moving.move_with(|| client.write_all(first).unwrap());
        client.write_all(rest).unwrap();
        let (found, data) = read_data(&reply_record(&mut client));
        assert!(found == xid && data == moving.data, "{part}");
    }
    moving.server.stop();
}

#[test]
fn replies_are_remembered_after_a_move() {
    let moving = Moving::new(Duration::ZERO);
    let mut client = connect_from(1, moving.address);
    client.write_all(&moving.mkdir(7)).unwrap();
    let first = reply_record(&mut client);
    assert_eq!(mkdir_status(&first), (7, Ok(())));
    let read = read_call(8, &moving.file, 0, 1);
    moving.move_with(|| client.write_all(&read[..1]).unwrap());
    client.write_all(&read[1..]).unwrap();
    assert_eq!(read_data(&reply_record(&mut client)).0, 8);
    // The client repeats its call, as after a lost reply.
    client.write_all(&moving.mkdir(7)).unwrap();
    assert_eq!(reply_record(&mut client), first);
    moving.server.stop();
}

/// A session whose call takes longer than a move may wait does not move, and gets its reply.
#[test]
fn session_with_a_long_call_does_not_move() {
    let moving = Moving::new(Duration::from_millis(300));
    let mut client = connect_from(1, moving.address);
    client.write_all(&moving.mkdir(1)).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let before = moving.server.connections_of_workers();
    moving.order();
    std::thread::sleep(Duration::from_millis(20));
    client.write_all(&read_call(2, &moving.file, 5, 9)).unwrap();
    assert_eq!(read_data(&reply_record(&mut client)), (2, moving.data[5..14].to_vec()));
    assert_eq!(mkdir_status(&reply_record(&mut client)), (1, Ok(())));
    assert_eq!(moving.server.connections_of_workers(), before);
    moving.server.stop();
}

#[test]
fn shutdown_ends_moving_sessions() {
    for round in 0..30 {
        let moving = Moving::new(Duration::from_micros(50));
        let mut client = connect_from(1, moving.address);
        for xid in 0..20 + 7 * round {
            moving.order();
            client.write_all(&moving.mkdir(xid)).unwrap();
            assert_eq!(mkdir_status(&reply_record(&mut client)), (xid, Ok(())));
        }
        moving.order();
        client.write_all(&moving.mkdir(u32::MAX)).unwrap();
        moving.server.stop();
    }
}
