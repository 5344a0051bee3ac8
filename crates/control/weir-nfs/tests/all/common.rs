//! A server with a share of a filesystem in memory, and a client that encodes calls.
//!
//! Invariant: memory devices complete at once, so that a pending call waits only for a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use weir_base::{Guid, RecordSize, SystemClock};
use weir_block::OutBuf;
use weir_dataset::{Engine, EngineOptions};
use weir_device::{Device, MemoryDevice};
use weir_format::files::TimeStamp;
use weir_format::{VdevKind, VdevRole};
use weir_fs::{Filesystem, InodeRef, Layout, NameCase, NewInode, NewKind, ROOT};
use weir_nfs::{Client, Handle, HandleKey, Rules, Server, Share, ShareId, WatcherSlot, put_data};
use weir_nfs_wire::mount::{self, v3};
use weir_nfs_wire::nfs3::{self, Args, Procedure, Results};
use weir_nfs_wire::nfsacl;
use weir_oncrpc::message::{AuthSys, Call, Gids, OpaqueAuth, Reply, ReplyBody, flavor};
use weir_oncrpc::{Encoder, Opaque, Xdr as _};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};

const DISK_BYTES: usize = 128 << 20;
/// Number of the filesystem in handles.
pub(crate) const FSID: u64 = 11;

/// A server with the share `/tank/home`.
pub(crate) struct Served {
    pub(crate) engine: Arc<Engine>,
    pub(crate) files: Arc<Filesystem>,
    pub(crate) server: Server,
    pub(crate) root: InodeRef,
    pub(crate) watcher: Arc<WatcherSlot>,
}

/// A client with a connection and a user.
pub(crate) struct User<'s> {
    pub(crate) served: &'s Served,
    pub(crate) client: Client,
    credential: Vec<u8>,
    xid: AtomicU32,
}

/// Polls a future to completion. Commits while the future waits.
pub(crate) fn run<T>(engine: &Engine, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1000 {
        for _ in 0..1000 {
            if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
        }
        let mut sync = std::pin::pin!(engine.sync());
        while sync.as_mut().poll(&mut context).is_pending() {}
    }
    panic!("commits do not help");
}

impl Served {
    pub(crate) fn new(rules: &[&str]) -> Self {
        let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", DISK_BYTES));
        let vdevs = [VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks: vec![disk] }];
        let clock = Arc::new(SystemClock::default());
        let options = EngineOptions { memory_bytes: 32 << 20, clock, bug: PlantedBug::None };
        let mut guids = (1..).map(Guid);
        let mut guid = || guids.next().expect("endless");
        let create = CreateOptions::default();
        let mut created =
            std::pin::pin!(Engine::create("tank", &vdevs, create, &options, &mut guid));
        let mut context = Context::from_waker(Waker::noop());
        let engine = loop {
            if let Poll::Ready(engine) = created.as_mut().poll(&mut context) {
                break engine.unwrap();
            }
        };
        let layout = Layout {
            hash_key: 7,
            record_size: RecordSize::from_shift(3).expect("32 KiB"),
            case: NameCase::Sensitive,
        };
        let now = Box::new(|| TimeStamp { seconds: 1_000, nanos: 5 });
        let files = run(&engine, Filesystem::create(&engine, "home", layout, &[], now)).unwrap();
        let root = InodeRef::from(&run(&engine, files.attributes(ROOT)).unwrap());
        let server = Server::new(9);
        let watcher = Arc::default();
        let served = Self { engine, files: Arc::new(files), server, root, watcher };
        served.server.shares.set(served.share("/tank/home", root, rules));
        served
    }

    /// A share of a directory.
    pub(crate) fn share(&self, path: &str, root: InodeRef, rules: &[&str]) -> Share {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        Share {
            id: ShareId::of(path, FSID, root),
            key: HandleKey::new(7),
            path: path.to_owned(),
            files: Arc::clone(&self.files),
            snapshots: None,
            fsid: FSID,
            root,
            rules: Rules::new(rules).unwrap(),
            is_sync: true,
            verifier: [3; 8],
            statistics: Arc::default(),
            watcher: Arc::clone(&self.watcher),
        }
    }

    /// Creates an inode without a call.
    pub(crate) fn create(
        &self,
        directory: InodeRef,
        name: &str,
        (kind, permissions): (NewKind<'_>, u32),
        uid: u32,
    ) -> InodeRef {
        let new = NewInode { kind, permissions, umask: 0, uid, gid: uid };
        let created = self.files.create_inode(directory.number, name.as_bytes(), &new);
        InodeRef::from(&run(&self.engine, created).unwrap())
    }

    /// Handle of an inode in the first share.
    pub(crate) fn handle(&self, inode: InodeRef) -> Vec<u8> {
        let share = self.server.shares.all().remove(0);
        let handle = Handle { share: share.id, fsid: share.fsid, inode, snapshot: 0 };
        share.key.encode(&handle).to_vec()
    }

    /// A client with the user `uid`, on a reserved port.
    pub(crate) fn user(&self, uid: u32) -> User<'_> {
        self.user_at("10.0.0.1:700", uid)
    }

    pub(crate) fn user_at(&self, address: &str, uid: u32) -> User<'_> {
        self.user_with(address, (uid, &[]))
    }

    /// As [`Self::user`], with these groups in each call.
    pub(crate) fn user_in(&self, uid: u32, gids: &[u32]) -> User<'_> {
        self.user_with("10.0.0.1:700", (uid, gids))
    }

    fn user_with(&self, address: &str, (uid, gids): (u32, &[u32])) -> User<'_> {
        let client = self.server.connect(address.parse().unwrap());
        let mut credential = OutBuf::default();
        let sys = AuthSys {
            stamp: 0,
            machine_name: Opaque::new(b"client").unwrap(),
            uid,
            gid: uid,
            gids: Gids::new(gids).unwrap(),
        };
        sys.encode(&mut Encoder::new(&mut credential));
        let credential = credential.filled().to_vec();
        User { served: self, client, credential, xid: AtomicU32::new(1) }
    }
}

impl User<'_> {
    /// Record of a call, without marks.
    pub(crate) fn record(
        &self,
        (program, version, procedure): (u32, u32, u32),
        xid: u32,
        arguments: impl Fn(&mut Encoder<'_>),
    ) -> Vec<u8> {
        let body = Opaque::new(&self.credential).unwrap();
        let credential = OpaqueAuth { flavor: flavor::AUTH_SYS, body };
        let verifier = OpaqueAuth::NONE;
        let call = Call { xid, program, version, procedure, credential, verifier };
        let mut record = OutBuf::default();
        let mut encoder = Encoder::new(&mut record);
        call.encode(&mut encoder);
        arguments(&mut encoder);
        record.filled().to_vec()
    }

    /// Sends a call with its own xid. `decode` gets the results.
    fn send<T>(
        &self,
        number: (u32, u32, u32),
        xid: u32,
        arguments: impl Fn(&mut Encoder<'_>),
        decode: impl FnOnce(&ReplyBody<'_>, &mut weir_oncrpc::Decoder<'_>) -> T,
    ) -> T {
        let record = self.record(number, xid, arguments);
        let mut out = OutBuf::default();
        let Served { engine, server, .. } = self.served;
        let data = run(engine, server.answer(&self.client, &record, &mut out)).expect("a call");
        put_data(&data, &mut out);
        let (mark, reply) = out.filled().split_first_chunk::<4>().expect("a reply");
        assert_eq!(u32::from_be_bytes(*mark) as usize, reply.len() | 1 << 31);
        let (reply, mut results) = Reply::decode(reply).unwrap();
        assert_eq!(reply.xid, xid);
        let decoded = decode(&reply.body, &mut results);
        results.finish().unwrap();
        decoded
    }

    /// Calls a procedure of NFSv3. `check` gets the results.
    pub(crate) fn nfs<T>(&self, args: &Args<'_>, check: impl FnOnce(Results<'_>) -> T) -> T {
        self.nfs_as(self.xid.fetch_add(1, Ordering::Relaxed), args, check)
    }

    /// As [`Self::nfs`], with an xid that the caller chooses.
    pub(crate) fn nfs_as<T>(
        &self,
        xid: u32,
        args: &Args<'_>,
        check: impl FnOnce(Results<'_>) -> T,
    ) -> T {
        let procedure: Procedure = args.procedure();
        let number = (nfs3::PROGRAM, nfs3::VERSION, procedure.number());
        self.send(
            number,
            xid,
            |out| args.encode(out),
            |body, results| {
                assert!(matches!(body, ReplyBody::Accepted { .. }), "{body:?}");
                check(Results::decode(procedure, results).unwrap())
            },
        )
    }

    /// Calls SETACL. Returns true if it succeeded.
    pub(crate) fn set_acl(&self, file: &[u8], acls: &nfsacl::Secattr) -> bool {
        let object = Opaque::new(file).unwrap();
        let args = nfsacl::Args::Setacl(nfsacl::SetaclArgs { object, acls: acls.clone() });
        let procedure = nfsacl::Procedure::Setacl;
        let xid = self.xid.fetch_add(1, Ordering::Relaxed);
        self.send(
            (nfsacl::PROGRAM, nfsacl::VERSION, procedure.number()),
            xid,
            |out| args.encode(out),
            |_, results| match nfsacl::Results::decode(procedure, results).unwrap() {
                nfsacl::Results::Setacl(result) => result.is_ok(),
                other => panic!("{other:?}"),
            },
        )
    }

    /// Mounts a path. Returns the handle or the status.
    pub(crate) fn mount(&self, path: &str) -> Result<Vec<u8>, v3::Mountstat3> {
        let args = v3::Args::Mnt(Opaque::new(path.as_bytes()).unwrap());
        let number = (mount::PROGRAM, v3::VERSION, v3::Procedure::Mnt.number());
        let xid = self.xid.fetch_add(1, Ordering::Relaxed);
        self.send(
            number,
            xid,
            |out| args.encode(out),
            |_, results| match v3::Results::decode(v3::Procedure::Mnt, results).unwrap() {
                v3::Results::Mnt(Ok(mounted)) => Ok(mounted.handle.bytes().to_vec()),
                v3::Results::Mnt(Err(failed)) => Err(failed.status),
                other => panic!("{other:?}"),
            },
        )
    }

    /// Outcome of a call without arguments.
    pub(crate) fn call(&self, program: u32, version: u32, procedure: u32) -> String {
        let xid = self.xid.fetch_add(1, Ordering::Relaxed);
        self.send(
            (program, version, procedure),
            xid,
            |_| {},
            |body, results| {
                *results = weir_oncrpc::Decoder::new(&[]);
                format!("{body:?}")
            },
        )
    }
}
