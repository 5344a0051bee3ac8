//! A filesystem on a disk in memory, its mount, an NFS server, and NFS clients that encode calls.
//!
//! Invariant: the clients call the server in this process, so that no test waits for a network.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use compio::runtime::Runtime;
use futures_util::future::LocalBoxFuture;
use weir_base::{Guid, RecordSize, SystemClock};
use weir_block::OutBuf;
use weir_dataset::{Engine, EngineOptions};
use weir_device::{Device, MemoryDevice};
use weir_format::{VdevKind, VdevRole};
use weir_fs::{Changed, Filesystem, InodeRef, Layout, NameCase, ROOT};
use weir_fuse::{KernelCaches, Mount, MountOptions};
use weir_nfs::{Client, HandleKey, Rules, Server, Share, ShareId, Watcher, WatcherSlot, put_data};
use weir_nfs_wire::nfs3::{
    self, Args, CreateArgs, CreateHow, DirOpArgs, FileHandle, LinkArgs, MkdirArgs, Nfsstat3,
    RenameArgs, Results, Sattr3, SetattrArgs, StableHow, WriteArgs,
};
use weir_nfs_wire::{mount, nfsacl};
use weir_oncrpc::message::{AuthSys, Call, Gids, OpaqueAuth, Reply, flavor};
use weir_oncrpc::{Decoder, Encoder, Opaque, Xdr as _};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};

/// Maximum time of one test.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

const DISK_BYTES: usize = 512 << 20;
const NAME: &str = "tank/home";
const PATH: &str = "/tank/home";
const FSID: u64 = 11;

/// Returns the reason why this machine cannot mount, if there is one.
fn no_fuse() -> Option<String> {
    // Capability of mount(2) (capabilities(7)).
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    if u64::from_str_radix(capabilities.trim(), 16).unwrap() & CAP_SYS_ADMIN == 0 {
        return Some("this user may not mount".to_owned());
    }
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.err().map(|error| format!("/dev/fuse: {error}"))
}

/// Runs a test, unless this machine has no FUSE. `is_watched`: the NFS server reports its changes
/// to the mount. Fails if the test takes too long; then detaches the mount.
pub(crate) fn on_machine(is_watched: bool, body: impl FnOnce(&Machine) + Send + 'static) {
    if let Some(why) = no_fuse() {
        eprintln!("skipped: {why}");
        return;
    }
    let machine = Machine::start(is_watched);
    let directory = machine.directory.path().to_owned();
    let (done, ended) = mpsc::channel();
    let test = std::thread::spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&machine)));
        done.send(()).unwrap();
        machine.end();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    if ended.recv_timeout(LIMIT).is_err() {
        drop(weir_fuse::unmount(&directory, true));
        panic!("the test takes too long");
    }
    if let Err(panic) = test.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The mount drops what NFS clients change from the caches of the kernel.
struct OfMount(KernelCaches);

impl Watcher for OfMount {
    fn changed(&self, changed: Changed) -> LocalBoxFuture<'static, ()> {
        let caches = self.0.clone();
        Box::pin(async move { caches.invalidate(changed).await })
    }
}

/// A filesystem with a mount and an NFS server.
pub(crate) struct Machine {
    directory: tempfile::TempDir,
    mount: Mount,
    engine: Arc<Engine>,
    commits: JoinHandle<()>,
    server: Server,
}

/// Starts the engine, with a thread that commits, and creates a filesystem.
fn start_engine() -> (Arc<Engine>, Arc<Filesystem>, JoinHandle<()>) {
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", DISK_BYTES));
    let vdevs = [VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks: vec![disk] }];
    let clock = Arc::new(SystemClock::default());
    let options = EngineOptions { memory_bytes: 64 << 20, clock, bug: PlantedBug::None };
    let record_size = RecordSize::from_shift(5).expect("128 KiB");
    let layout = Layout { hash_key: 7, record_size, case: NameCase::Sensitive };
    let (report, started) = mpsc::channel();
    let commits = std::thread::spawn(move || {
        let mut guids = (1..).map(Guid);
        let mut guid = || guids.next().expect("endless");
        let sizes = CreateOptions::default();
        weir_device::new_runtime().unwrap().block_on(async {
            let engine = Engine::create("tank", &vdevs, sizes, &options, &mut guid).await.unwrap();
            let committer = Arc::clone(&engine);
            let commits =
                compio::runtime::spawn(async move { committer.run(compio::time::sleep).await });
            let now = Box::new(weir_fuse::now);
            let files = Filesystem::create(&engine, "home", layout, &[], now).await.unwrap();
            report.send((engine, Arc::new(files))).unwrap();
            assert!(commits.await.is_ok());
        });
    });
    let (engine, files) = started.recv().unwrap();
    (engine, files, commits)
}

impl Machine {
    fn start(is_watched: bool) -> Self {
        let (engine, files, commits) = start_engine();
        let volume = engine.volume("home").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let options = MountOptions {
            name: NAME.to_owned(),
            directory: directory.path().to_owned(),
            read_only: false,
        };
        let watcher = Arc::new(WatcherSlot::default());
        let connect = |caches: &KernelCaches| {
            if is_watched {
                watcher.set(Some(Arc::new(OfMount(caches.clone()))));
            }
        };
        let of = (Arc::clone(&engine), volume);
        let mount = Mount::start((Arc::clone(&files), None), of, options, connect).unwrap();
        let root = weir_device::new_runtime().unwrap().block_on(files.attributes(ROOT)).unwrap();
        let root = InodeRef::from(&root);
        let server = Server::new(9);
        server.shares.set(Share {
            snapshots: None,
            id: ShareId::of(PATH, FSID, root),
            key: HandleKey::new(7),
            path: PATH.to_owned(),
            files,
            fsid: FSID,
            root,
            rules: Rules::new(vec!["*:no_root_squash".parse().unwrap()]).unwrap(),
            is_sync: false,
            verifier: [3; 8],
            statistics: Arc::default(),
            watcher,
        });
        Self { directory, mount, engine, commits, server }
    }

    fn end(self) {
        let Self { directory, mount, engine, commits, server } = self;
        weir_fuse::unmount(directory.path(), true).unwrap();
        drop(server);
        mount.finish();
        engine.stop();
        commits.join().unwrap();
    }

    /// Path of a file of the root on the mount.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Connects an NFS client, with root as its user.
    pub(crate) fn connect(&self) -> Nfs<'_> {
        let mut credential = OutBuf::default();
        let sys = AuthSys {
            stamp: 0,
            machine_name: Opaque::new(b"client").unwrap(),
            uid: 0,
            gid: 0,
            gids: Gids::default(),
        };
        sys.encode(&mut Encoder::new(&mut credential));
        let mut nfs = Nfs {
            server: &self.server,
            client: self.server.connect("10.0.0.1:700".parse().unwrap()),
            runtime: weir_device::new_runtime().unwrap(),
            credential: credential.filled().to_vec(),
            xid: Cell::new(1),
            root: Vec::new(),
        };
        let args = mount::v3::Args::Mnt(Opaque::new(PATH.as_bytes()).unwrap());
        let procedure = mount::v3::Procedure::Mnt;
        let number = (mount::PROGRAM, mount::v3::VERSION, procedure.number());
        nfs.root = nfs.send(
            number,
            |out| args.encode(out),
            |results| match mount::v3::Results::decode(procedure, results).unwrap() {
                mount::v3::Results::Mnt(Ok(mounted)) => mounted.handle.bytes().to_vec(),
                other => panic!("{other:?}"),
            },
        );
        nfs
    }
}

/// An NFS client.
pub(crate) struct Nfs<'m> {
    server: &'m Server,
    client: Client,
    runtime: Runtime,
    credential: Vec<u8>,
    xid: Cell<u32>,
    root: Vec<u8>,
}

type Done = Result<(), Nfsstat3>;

impl Nfs<'_> {
    fn send<T>(
        &self,
        (program, version, procedure): (u32, u32, u32),
        arguments: impl Fn(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> T,
    ) -> T {
        let body = Opaque::new(&self.credential).unwrap();
        let credential = OpaqueAuth { flavor: flavor::AUTH_SYS, body };
        let (xid, verifier) = (self.xid.get(), OpaqueAuth::NONE);
        self.xid.set(xid + 1);
        let call = Call { xid, program, version, procedure, credential, verifier };
        let mut record = OutBuf::default();
        let mut encoder = Encoder::new(&mut record);
        call.encode(&mut encoder);
        arguments(&mut encoder);
        let mut out = OutBuf::default();
        let answer = self.server.answer(&self.client, record.filled(), &mut out);
        let data = self.runtime.block_on(answer).expect("a call");
        put_data(&data, &mut out);
        let (_, mut results) = Reply::decode(&out.filled()[4..]).unwrap();
        decode(&mut results)
    }

    fn call<T>(&self, args: &Args<'_>, check: impl FnOnce(Results<'_>) -> T) -> T {
        let procedure = args.procedure();
        let number = (nfs3::PROGRAM, nfs3::VERSION, procedure.number());
        self.send(
            number,
            |out| args.encode(out),
            |results| check(Results::decode(procedure, results).unwrap()),
        )
    }

    fn place<'a>(&'a self, name: &'a str) -> DirOpArgs<'a> {
        DirOpArgs { dir: handle(&self.root), name: Opaque::new(name.as_bytes()).unwrap() }
    }

    /// Looks up a file of the root.
    pub(crate) fn lookup(&self, name: &str) -> Result<Vec<u8>, Nfsstat3> {
        self.call(&Args::Lookup(self.place(name)), |results| match results {
            Results::Lookup(Ok(found)) => Ok(found.object.bytes().to_vec()),
            Results::Lookup(Err(failed)) => Err(failed.status),
            other => panic!("{other:?}"),
        })
    }

    pub(crate) fn write(&self, name: &str, offset: u64, data: &[u8]) -> Done {
        let file = self.lookup(name)?;
        let (count, data) = (data.len() as u32, Opaque::new(data).unwrap());
        let stable = StableHow::Unstable;
        let args = WriteArgs { file: handle(&file), offset, count, stable, data };
        self.call(&Args::Write(args), |results| match results {
            Results::Write(result) => result.map(drop).map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        })
    }

    pub(crate) fn set(&self, name: &str, new_attributes: Sattr3) -> Done {
        let file = self.lookup(name)?;
        let args = SetattrArgs { object: handle(&file), new_attributes, guard: None };
        self.call(&Args::Setattr(args), |results| match results {
            Results::Setattr(result) => result.map(drop).map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        })
    }

    pub(crate) fn set_acl(&self, name: &str, acls: &nfsacl::Secattr) {
        let file = self.lookup(name).unwrap();
        let (object, procedure) = (handle(&file), nfsacl::Procedure::Setacl);
        let args = nfsacl::Args::Setacl(nfsacl::SetaclArgs { object, acls: acls.clone() });
        self.send(
            (nfsacl::PROGRAM, nfsacl::VERSION, procedure.number()),
            |out| args.encode(out),
            |results| match nfsacl::Results::decode(procedure, results).unwrap() {
                nfsacl::Results::Setacl(result) => assert!(result.is_ok()),
                other => panic!("{other:?}"),
            },
        );
    }

    pub(crate) fn create(&self, name: &str) -> Done {
        let how = CreateHow::Unchecked(Sattr3::default());
        self.named(&Args::Create(CreateArgs { place: self.place(name), how }))
    }

    pub(crate) fn mkdir(&self, name: &str) -> Done {
        let attributes = Sattr3::default();
        self.named(&Args::Mkdir(MkdirArgs { place: self.place(name), attributes }))
    }

    pub(crate) fn remove(&self, name: &str) -> Done {
        self.named(&Args::Remove(self.place(name)))
    }

    pub(crate) fn rmdir(&self, name: &str) -> Done {
        self.named(&Args::Rmdir(self.place(name)))
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Done {
        self.named(&Args::Rename(RenameArgs { from: self.place(from), to: self.place(to) }))
    }

    pub(crate) fn link(&self, file: &str, name: &str) -> Done {
        let file = self.lookup(file)?;
        self.named(&Args::Link(LinkArgs { file: handle(&file), link: self.place(name) }))
    }

    /// Runs a call that changes names.
    fn named(&self, args: &Args<'_>) -> Done {
        self.call(args, |results| match results {
            Results::Create(result) | Results::Mkdir(result) => {
                result.map(drop).map_err(|failed| failed.status)
            }
            Results::Remove(result) | Results::Rmdir(result) => {
                result.map(drop).map_err(|failed| failed.status)
            }
            Results::Rename(result) => result.map(drop).map_err(|failed| failed.status),
            Results::Link(result) => result.map(drop).map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        })
    }
}

fn handle(bytes: &[u8]) -> FileHandle<'_> {
    Opaque::new(bytes).unwrap()
}
