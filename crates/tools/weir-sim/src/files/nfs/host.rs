//! The NFS server, from a start to its crash.
//!
//! `answer` passes calls to it, `site` has the state that survives a crash.
//!
//! Invariant: the share has another verifier after each open of the filesystem.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use weir_base::ObjectId;
use weir_dataset::Engine;
use weir_fs::{Changed, Filesystem, InodeRef};
use weir_nfs::{
    CacheOptions, Client, HandleKey, Rules, Server, Share, ShareId, Watcher, WatcherSlot,
};
use weir_pool::PlantedBug;

use super::site::Site;
use super::wire::Handles;
use crate::executor::Executor;
use crate::files::access::Access;
use crate::files::content::Inode;
use crate::rng::Rng;

/// Path of the share.
const PATH: &str = "/tank/files";
/// Number of the filesystem in handles.
const FSID: u64 = 11;
/// Purpose of the key of the filesystem that signs handles.
const HANDLES: &str = "NFS handles";
/// First port of the clients: a reserved one, because user 0 is not the anonymous user.
const PORT: u16 = 700;

/// Handles of the share of a filesystem.
pub(super) fn handles_of(files: &Filesystem, root: Inode) -> Handles {
    let key = HandleKey::new(files.derived_key(HANDLES));
    Handles { key, share: ShareId::of(PATH, FSID, inode_ref(root)), fsid: FSID }
}

fn inode_ref((number, generation): Inode) -> InodeRef {
    InodeRef { number: ObjectId(number), generation }
}

/// Notes the changes that calls make. A call makes its change in the poll in which the note comes.
#[derive(Default)]
pub(super) struct Recorder(Mutex<Vec<Changed>>);

impl Recorder {
    /// Takes the changes since the last call.
    pub(super) fn take(&self) -> Vec<Changed> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Watcher for Recorder {
    fn changed(&self, changed: Changed) -> LocalBoxFuture<'static, ()> {
        self.0.lock().push(changed);
        Box::pin(std::future::ready(()))
    }
}

/// A connection of a machine. The server remembers its replies after its end.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) number: u64,
    site: Rc<Site>,
    executor: Executor,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let (number, now) = (self.number, self.executor.now());
        self.site.state(|state| state.cache.close(number, now));
    }
}

/// The server.
pub(super) struct Host {
    pub(super) site: Rc<Site>,
    pub(super) executor: Executor,
    pub(super) engine: Arc<Engine>,
    pub(super) access: Rc<Access>,
    pub(super) server: Rc<Server>,
    pub(super) recorder: Arc<Recorder>,
    /// Present connection of each machine.
    connections: RefCell<Vec<Rc<Connection>>>,
    next_connection: Cell<u64>,
    /// Number of copies of calls on their way, and of those whose reply is on its way.
    pub(super) in_flight: Cell<usize>,
}

impl Host {
    /// Starts a server. Its share is offered while the filesystem is open.
    pub(super) fn start(
        site: &Rc<Site>,
        executor: &Executor,
        engine: &Arc<Engine>,
        seed: u64,
    ) -> Rc<Self> {
        let (clock, bug) = (executor.clock(), site.scenario.bug);
        let server = Rc::new(Server::with_options(CacheOptions { seed, clock, bug }));
        let (access, recorder) = (Rc::<Access>::default(), Arc::<Recorder>::default());
        let offer = Offer {
            site: Rc::clone(site),
            server: Rc::clone(&server),
            recorder: Arc::clone(&recorder),
            rng: RefCell::new(Rng::new(seed).stream("verifier", 0)),
            was_open: Cell::new(false),
        };
        access.listen(move |files| offer.offer(files));
        let host = Rc::new(Self {
            site: Rc::clone(site),
            executor: executor.clone(),
            engine: Arc::clone(engine),
            access,
            server,
            recorder,
            connections: RefCell::default(),
            next_connection: Cell::new(0),
            in_flight: Cell::new(0),
        });
        let machines = site.state(|state| state.machines.len());
        let connections = (0..machines).map(|machine| host.connect(machine)).collect();
        *host.connections.borrow_mut() = connections;
        host
    }

    fn connect(&self, machine: usize) -> Rc<Connection> {
        let number = self.next_connection.get();
        self.next_connection.set(number + 1);
        let address = self.site.state(|state| {
            state.cache.connect(number, self.executor.now());
            state.machines[machine].address
        });
        let port = PORT + (number % 200) as u16;
        let client = self.server.connect(SocketAddr::new(address, port));
        let (site, executor) = (Rc::clone(&self.site), self.executor.clone());
        Rc::new(Connection { client, number, site, executor })
    }

    /// The present connection of a machine.
    pub(super) fn connection(&self, machine: usize) -> Rc<Connection> {
        Rc::clone(&self.connections.borrow()[machine])
    }

    /// Replaces the connection of a machine. The old one ends after its last call.
    pub(super) fn reconnect(&self, machine: usize) {
        let new = self.connect(machine);
        let old = std::mem::replace(&mut self.connections.borrow_mut()[machine], new);
        drop(old);
    }
}

/// Offers the share while the filesystem is open, as weir-server does.
struct Offer {
    site: Rc<Site>,
    server: Rc<Server>,
    recorder: Arc<Recorder>,
    rng: RefCell<Rng>,
    was_open: Cell<bool>,
}

impl Offer {
    fn offer(&self, files: Option<&Arc<Filesystem>>) {
        let Some(files) = files else {
            return self.server.shares.wait(self.site.handles.share, PATH);
        };
        let (root, seq) = self.site.book(|book| (book.root, book.seq()));
        if self.was_open.replace(true) {
            // Only a rollback closes the filesystem.
            self.site.state(|state| {
                state.rolled_back = seq;
                state.counts.rollbacks += 1;
            });
        }
        let handles = handles_of(files, root);
        if handles.of(root) != self.site.handles.of(root) {
            self.site.fail("the server has other handles after a crash or a rollback".to_owned());
        }
        let watcher = WatcherSlot::default();
        watcher.set(Some(Arc::clone(&self.recorder) as Arc<dyn Watcher>));
        let verifier = match self.site.scenario.bug {
            PlantedBug::VerifierStays => 1,
            _ => self.rng.borrow_mut().next_u64(),
        };
        let all = "*:no_root_squash".parse().expect("a rule");
        self.server.shares.set(Share {
            id: handles.share,
            key: handles.key,
            path: PATH.to_owned(),
            files: Arc::clone(files),
            snapshots: None,
            fsid: FSID,
            root: inode_ref(root),
            rules: Rules::new(vec![all]).expect("one rule"),
            is_sync: self.site.scenario.is_sync,
            verifier: verifier.to_le_bytes(),
            statistics: Arc::default(),
            watcher: Arc::new(watcher),
        });
    }
}
