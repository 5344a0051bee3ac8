//! Test of changing calls whose replies are lost: the client sends them again.
//!
//! Clients send random calls about few names. `replay_model` applies each call once.
//!
//! Invariants:
//! - the reply to a replay is the reply to the first call;
//! - after each step, the directories and files of the server equal the model;
//! - the same record from another client, or another call with the same xid, is a new call.

use std::collections::{BTreeMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use futures_util::future::LocalBoxFuture;
use weir_block::OutBuf;
use weir_fs::{Changed, NewKind};
use weir_nfs::{Client, Watcher, put_data};
use weir_nfs_wire::nfs3::{
    self, Args, CreateHow, DirOpArgs, Ftype3, Procedure, ReadArgs, ReaddirplusArgs, Results,
};
use weir_oncrpc::Opaque;
use weir_oncrpc::message::Reply;

use crate::common::{Served, User};
use crate::replay_model::{Model, NAMES, Node, Op, Outcome, SECOND, handle};

const SEEDS: u64 = 200;
const STEPS: usize = 40;
/// Addresses of the clients. All have the same user, so their records can be equal.
const ADDRESSES: [&str; 3] = ["10.0.0.1:700", "10.0.0.2:700", "10.0.0.3:700"];
/// Delays the reply of each call that changed something by one poll, so that replays arrive while
/// the call runs.
struct Delay;

impl Watcher for Delay {
    fn changed(&self, _: Changed) -> LocalBoxFuture<'static, ()> {
        let mut is_first = true;
        Box::pin(std::future::poll_fn(move |_| {
            if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }
        }))
    }
}

/// A call that was sent, and its first reply.
#[derive(Clone)]
struct Sent {
    client: usize,
    xid: u32,
    op: Op,
    record: Vec<u8>,
    reply: Vec<u8>,
}

/// Numbers of events in all runs, which show that the runs reach the rare cases.
#[derive(Debug, Default)]
struct Counts {
    replays: u32,
    /// Replays that arrived while the first call ran.
    concurrent: u32,
    /// Replays that would have had another reply, or another effect, if the call had run again.
    not_idempotent: u32,
    /// Replays after later calls of other clients.
    late: u32,
    /// New calls with an xid that their client used before.
    same_xid: u32,
    /// New calls with the record of another client.
    copies: u32,
}

struct Run<'s> {
    served: &'s Served,
    seed: u64,
    rng: Rng,
    model: Model,
    /// Current connection of each client.
    users: Vec<User<'s>>,
    observer: User<'s>,
    sent: Vec<Sent>,
    /// Calls of each client so far.
    known: HashSet<(usize, Vec<u8>)>,
    xids: [u32; ADDRESSES.len()],
    counts: Counts,
}

impl<'s> Run<'s> {
    fn new(served: &'s Served, seed: u64) -> Self {
        served.watcher.set(Some(Arc::new(Delay)));
        served.create(served.root, SECOND, (NewKind::Directory, 0o755), 0);
        let observer = served.user_at("10.0.0.9:700", 0);
        let root = observer.mount("/tank/home").unwrap();
        let name = Opaque::new(SECOND.as_bytes()).unwrap();
        let lookup = Args::Lookup(DirOpArgs { dir: handle(&root), name });
        let second = observer.nfs(&lookup, |results| match results {
            Results::Lookup(Ok(found)) => found.object.bytes().to_vec(),
            other => panic!("{other:?}"),
        });
        let directories = [root, second];
        Self {
            served,
            seed,
            rng: Rng::with_seed(seed),
            model: Model { directories, names: BTreeMap::new(), nodes: Vec::new() },
            users: ADDRESSES.iter().map(|address| served.user_at(address, 0)).collect(),
            observer,
            sent: Vec::new(),
            known: HashSet::new(),
            xids: [0; ADDRESSES.len()],
            counts: Counts::default(),
        }
    }

    /// Chooses a new call of a client.
    fn new_call(&mut self, client: usize) -> (u32, Op, Vec<u8>) {
        if self.rng.u32(..8) == 0
            && let Some(Sent { xid, op, record, .. }) = self.rng.choice(&self.sent).cloned()
            && !self.known.contains(&(client, record.clone()))
            // Clients choose different verifiers.
            && !matches!(op, Op::Create(_, CreateHow::Exclusive(_)))
        {
            self.counts.copies += 1;
            return (xid, op, record);
        }
        let unique = self.rng.u64(..);
        let op = self.model.random_op(&mut self.rng, unique);
        if self.rng.u32(..6) == 0 && self.xids[client] > 0 {
            let xid = self.rng.u32(0..self.xids[client]);
            let record = self.record(client, xid, &op);
            if !self.known.contains(&(client, record.clone())) {
                self.counts.same_xid += 1;
                return (xid, op, record);
            }
        }
        let xid = self.xids[client];
        self.xids[client] += 1;
        let record = self.record(client, xid, &op);
        (xid, op, record)
    }

    fn record(&self, client: usize, xid: u32, op: &Op) -> Vec<u8> {
        let args = self.model.args(op);
        let number = (nfs3::PROGRAM, nfs3::VERSION, args.procedure().number());
        self.users[client].record(number, xid, |out| args.encode(out))
    }

    /// Replaces the connection of a client. Returns the old one.
    fn reconnect(&mut self, client: usize) -> User<'s> {
        let new = self.served.user_at(ADDRESSES[client], 0);
        std::mem::replace(&mut self.users[client], new)
    }

    /// Sends a new call, and sends it again if its reply is lost.
    fn step(&mut self) {
        let client = self.rng.usize(..ADDRESSES.len());
        let (xid, op, record) = self.new_call(client);
        let fate = self.rng.u32(..10);
        let old = (fate == 7 || fate == 8).then(|| self.reconnect(client));
        let new = &self.users[client].client;
        let first = old.as_ref().map_or(new, |old| &old.client);
        let mut connections = vec![first];
        if fate >= 7 {
            // The replay arrives while the call runs, on another connection or on the same one.
            connections.push(new);
        }
        let (replies, waited) = answer(self.served, &connections, &record);
        self.counts.concurrent += u32::from(connections.len() > 1 && waited);
        let reply = replies[0].clone();
        assert!(replies.iter().all(|other| *other == reply), "{op:?}: replies differ");
        drop(old);
        let names = self.model.names.clone();
        let outcome = outcome(xid, &self.model.args(&op), &reply);
        let created = outcome.as_ref().ok().and_then(Option::as_deref);
        assert_eq!(self.model.apply(&op, created), outcome, "{op:?} with {names:?}");
        self.known.insert((client, record.clone()));
        let sent = Sent { client, xid, op, record, reply };
        match fate {
            4 => self.replay(&sent),
            5 => {
                drop(self.reconnect(client));
                self.replay(&sent);
            }
            6 | 8 => {
                self.replay(&sent);
                drop(self.reconnect(client));
                self.replay(&sent);
            }
            _ => {}
        }
        self.sent.push(sent);
    }

    /// Sends a call again after its end.
    fn replay(&mut self, sent: &Sent) {
        let connection = &self.users[sent.client].client;
        let (replies, _) = answer(self.served, &[connection], &sent.record);
        assert_eq!(replies, [&*sent.reply], "replay of {:?}", sent.op);
        self.counts.replays += 1;
        let first = outcome(sent.xid, &self.model.args(&sent.op), &sent.reply);
        let mut changed = self.model.clone();
        let again = changed.apply(&sent.op, Some(b"another inode"));
        self.counts.not_idempotent += u32::from(again != first || changed != self.model);
    }

    /// Sends one of the last calls again, also if other clients changed its names since.
    fn replay_late(&mut self) {
        let oldest = self.sent.len().saturating_sub(20);
        let sent = self.rng.choice(&self.sent[oldest..]).cloned().expect("a call was sent");
        let later = self.sent.iter().rev().take_while(|other| other.record != sent.record);
        self.counts.late += u32::from(later.into_iter().any(|other| other.client != sent.client));
        self.replay(&sent);
    }

    /// Compares the directories and the attributes of their entries with the model.
    fn check(&self) {
        let mut found = BTreeMap::new();
        for (number, directory) in self.model.directories.iter().enumerate() {
            let args = Args::Readdirplus(ReaddirplusArgs {
                dir: handle(directory),
                cookie: 0,
                cookieverf: [0; 8],
                dircount: 1 << 16,
                maxcount: 1 << 16,
            });
            self.observer.nfs(&args, |results| {
                let Results::Readdirplus(Ok(list)) = results else { panic!("{results:?}") };
                assert!(list.eof);
                for entry in &list.entries.0 {
                    let name = entry.name.bytes();
                    let Some(name) = NAMES.iter().position(|own| own.as_bytes() == name) else {
                        assert!([&b"."[..], b"..", SECOND.as_bytes()].contains(&name));
                        continue;
                    };
                    let attributes = entry.attributes.unwrap();
                    let is_file = attributes.kind == Ftype3::Reg;
                    let file = is_file.then_some((attributes.size, attributes.nlink));
                    found.insert((number, name), (entry.handle.unwrap().bytes().to_vec(), file));
                }
            });
        }
        let expected = self.model.names.iter().map(|(place, node)| {
            let Node { handle, data, links } = &self.model.nodes[*node];
            let file = data.as_ref().map(|data| (data.len() as u64, *links));
            (*place, (handle.clone(), file))
        });
        assert_eq!(found, expected.collect());
    }

    /// Compares the content of all files with the model.
    fn check_data(&self) {
        for Node { handle: file, data, links } in &self.model.nodes {
            let Some(data) = data.as_ref().filter(|_| *links > 0) else { continue };
            let args = Args::Read(ReadArgs { file: handle(file), offset: 0, count: 1000 });
            self.observer.nfs(&args, |results| match results {
                Results::Read(Ok(read)) => assert_eq!(read.data.bytes(), data),
                other => panic!("{other:?}"),
            });
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {} failed in step {}", self.seed, self.sent.len());
        }
    }
}

/// Decodes a reply.
fn outcome(xid: u32, args: &Args<'_>, reply: &[u8]) -> Outcome {
    let procedure: Procedure = args.procedure();
    let (reply, mut results) = Reply::decode(reply.get(4..).expect("a reply")).unwrap();
    assert_eq!(reply.xid, xid);
    let results = Results::decode(procedure, &mut results).unwrap();
    let status = match results {
        Results::Create(Ok(created)) | Results::Mkdir(Ok(created)) => {
            return Ok(Some(created.object.unwrap().bytes().to_vec()));
        }
        Results::Create(Err(failed)) | Results::Mkdir(Err(failed)) => Err(failed.status),
        Results::Remove(result) | Results::Rmdir(result) | Results::Setattr(result) => {
            result.map(drop).map_err(|failed| failed.status)
        }
        Results::Rename(result) => result.map(drop).map_err(|failed| failed.status),
        Results::Link(result) => result.map(drop).map_err(|failed| failed.status),
        Results::Write(result) => result.map(drop).map_err(|failed| failed.status),
        other => panic!("{other:?}"),
    };
    status.map(|()| None)
}

/// Sends one record on several connections at the same time. Returns the replies with their marks,
/// and true if the first call waited, so that the others arrived while it ran.
fn answer(served: &Served, connections: &[&Client], record: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let call = async |client: &Client| {
        let mut out = OutBuf::default();
        let data = served.server.answer(client, record, &mut out).await.expect("a call");
        put_data(&data, &mut out);
        out.filled().to_vec()
    };
    let mut calls: Vec<Pin<Box<dyn Future<Output = Vec<u8>>>>> = Vec::new();
    for client in connections {
        calls.push(Box::pin(call(client)));
    }
    let mut replies = vec![None; calls.len()];
    let mut context = Context::from_waker(Waker::noop());
    for round in 0..1000 {
        for (call, reply) in calls.iter_mut().zip(&mut replies) {
            if reply.is_none()
                && let Poll::Ready(done) = call.as_mut().poll(&mut context)
            {
                *reply = Some(done);
            }
        }
        if replies.iter().all(Option::is_some) {
            return (replies.into_iter().flatten().collect(), round > 0);
        }
        let mut sync = std::pin::pin!(served.engine.sync());
        while sync.as_mut().poll(&mut context).is_pending() {}
    }
    panic!("a call has no reply");
}

#[test]
fn replayed_calls_run_once_and_get_the_first_reply() {
    let mut counts = Counts::default();
    for seed in 0..SEEDS {
        let served = Served::new(&["*:no_root_squash"]);
        let mut run = Run::new(&served, seed);
        for _ in 0..STEPS {
            run.step();
            run.check();
            if run.rng.u32(..4) == 0 {
                run.replay_late();
                run.check();
            }
        }
        run.check_data();
        counts.add(&run.counts);
    }
    let Counts { replays, concurrent, not_idempotent, late, same_xid, copies } = counts;
    let rarest = [replays, concurrent, not_idempotent, late, same_xid, copies].into_iter().min();
    assert!(rarest > Some(200), "{counts:?}");
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.replays += other.replays;
        self.concurrent += other.concurrent;
        self.not_idempotent += other.not_idempotent;
        self.late += other.late;
        self.same_xid += other.same_xid;
        self.copies += other.copies;
    }
}
