//! Exports: what NBD clients may connect to, and the bridge from a client to a volume.
//!
//! Not here: the protocol (weir-nbd), remembering exports (state), targets.
//!
//! Invariants: a name is offered once; a connection holds its export open until it ends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;
use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_block::{Block, ExportError, ExportFuture, Extent};
use weir_dataset::{DatasetError, Engine, Volume};
use weir_net::{AllowList, LiveAllowList};

/// One export that can be opened.
pub(super) struct Offered {
    pub(super) engine: Arc<Engine>,
    pub(super) volume: Arc<Volume>,
    pub(super) read_only: bool,
    /// Over TCP it is shown to these addresses only; without a list to every client that the server
    /// takes.
    allowed: Option<AllowList>,
    connections: Arc<AtomicU32>,
}

impl Offered {
    /// True if a client at this address, or on a unix socket, may open it.
    fn is_shown_to(&self, from: Option<IpAddr>, unlisted: bool) -> bool {
        let Some(from) = from else { return true };
        self.allowed.as_ref().map_or(unlisted, |allowed| allowed.contains(from))
    }
}

/// All exports that can be opened, by name.
#[derive(Default)]
pub(super) struct Registry {
    offered: RwLock<BTreeMap<String, Offered>>,
    /// Who may connect over TCP where the server has no rule of its own: the addresses that exports
    /// name. Then an export without a list is shown to no client of TCP.
    named: Option<LiveAllowList>,
}

impl Registry {
    /// None yet. With `named`, only addresses that exports name may connect over TCP, and the list
    /// is kept up to date.
    pub(super) fn new(named: Option<LiveAllowList>) -> Self {
        Self { offered: RwLock::default(), named }
    }

    pub(super) fn offer(
        &self,
        name: &str,
        engine: Arc<Engine>,
        volume: Arc<Volume>,
        read_only: bool,
        allowed: Option<AllowList>,
    ) {
        let connections = Arc::default();
        let offered = Offered { engine, volume, read_only, allowed, connections };
        self.change(|all| drop(all.insert(name.to_owned(), offered)));
    }

    /// From now on clients over TCP open it from these addresses only; connections that are open
    /// stay until they are ended.
    pub(super) fn allow(&self, name: &str, allowed: Option<AllowList>) {
        self.change(|all| {
            if let Some(offered) = all.get_mut(name) {
                offered.allowed = allowed;
            }
        });
    }

    /// Stops offering; connections that are open stay until they are ended.
    pub(super) fn withdraw(&self, name: &str) {
        self.change(|all| drop(all.remove(name)));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Offered>)) {
        let mut offered = self.offered.write();
        change(&mut offered);
        if let Some(named) = &self.named {
            let lists = offered.values().filter_map(|one| one.allowed.as_ref());
            named.set(AllowList::union(lists));
        }
    }

    /// True if clients over TCP may see an export that has (`has_list`) or lacks a list of its own.
    pub(super) fn is_over_tcp(&self, has_list: bool) -> bool {
        has_list || self.named.is_none()
    }

    pub(super) fn connections(&self, name: &str) -> u32 {
        let offered = self.offered.read();
        offered.get(name).map_or(0, |offered| offered.connections.load(Ordering::Relaxed))
    }
}

impl weir_block::Exports for Registry {
    fn names_after(&self, after: &str, from: Option<IpAddr>, show: &mut dyn FnMut(&str) -> bool) {
        let (all, unlisted) = (self.offered.read(), self.named.is_none());
        let rest = all.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        for (name, _) in rest.filter(|(_, offered)| offered.is_shown_to(from, unlisted)) {
            if !show(name) {
                break;
            }
        }
    }

    fn open(
        &self,
        name: &str,
        from: Option<IpAddr>,
    ) -> Result<Arc<dyn weir_block::Export>, ExportError> {
        let offered = self.offered.read();
        let found = offered.get(name);
        let found = found.filter(|offered| offered.is_shown_to(from, self.named.is_none()));
        let found = found.ok_or_else(|| {
            ExportError::new(ErrorKind::NotFound, format!("there is no export {name:?}"))
        })?;
        Ok(Arc::new(OpenVolume {
            engine: Arc::clone(&found.engine),
            volume: Arc::clone(&found.volume),
            read_only: found.read_only,
            _connection: Some(Connected::to(&found.connections)),
        }))
    }
}

/// One volume as the clients of a protocol see it.
pub(super) struct OpenVolume {
    pub(super) engine: Arc<Engine>,
    pub(super) volume: Arc<Volume>,
    read_only: bool,
    /// Counts it while it is open.
    _connection: Option<Connected>,
}

impl OpenVolume {
    /// One that no connection of an export holds.
    pub(super) fn new(engine: Arc<Engine>, volume: Arc<Volume>) -> Self {
        Self { engine, volume, read_only: false, _connection: None }
    }
}

/// Counts a connection while it lasts.
struct Connected(Arc<AtomicU32>);

impl Connected {
    fn to(connections: &Arc<AtomicU32>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connections))
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn bytes_of(blocks: &[Block]) -> u64 {
    (blocks.len() * BLOCK_BYTES) as u64
}

#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
pub(super) fn refused(error: DatasetError) -> ExportError {
    ExportError::new(error.kind(), error.to_string())
}

/// Which way a request moved data.
#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

impl OpenVolume {
    /// Counts a request if it is done now.
    fn count(
        &self,
        way: Way,
        bytes: u64,
        done: Result<bool, DatasetError>,
    ) -> Result<bool, ExportError> {
        if let Ok(true) = done {
            match way {
                Way::Read => self.engine.traffic().read(bytes),
                Way::Write => self.engine.traffic().wrote(bytes),
            }
        }
        done.map_err(refused)
    }
}

impl weir_block::Export for OpenVolume {
    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn block_bytes_preferred(&self) -> u32 {
        u32::try_from(self.volume.record_size().bytes()).expect("a record is at most 1 MiB")
    }

    fn read_only(&self) -> bool {
        self.read_only || self.volume.is_read_only()
    }

    fn description(&self) -> String {
        format!("volume {}/{}", self.engine.pool().name(), self.volume.info().name)
    }

    fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<bool, ExportError> {
        let bytes = out.len() as u64;
        self.count(Way::Read, bytes, self.volume.try_read(offset, out))
    }

    fn try_share(
        &self,
        offset: u64,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Result<bool, ExportError> {
        self.count(Way::Read, len_bytes, self.volume.try_share(offset, len_bytes, blocks))
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ExportFuture<'a, ()> {
        Box::pin(async move {
            let bytes = out.len() as u64;
            let done = self.volume.read(offset, out).await;
            self.count(Way::Read, bytes, done.map(|()| true)).map(|_| ())
        })
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, ExportError> {
        self.count(Way::Write, data.len() as u64, self.volume.try_write(offset, data))
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> ExportFuture<'a, ()> {
        Box::pin(async move {
            let done = self.volume.write(offset, data).await;
            self.count(Way::Write, data.len() as u64, done.map(|()| true)).map(|_| ())
        })
    }

    fn try_write_blocks(&self, offset: u64, blocks: &mut Vec<Block>) -> Result<bool, ExportError> {
        let bytes = bytes_of(blocks);
        self.count(Way::Write, bytes, self.volume.try_write_blocks(offset, blocks))
    }

    fn write_blocks(&self, offset: u64, blocks: Vec<Block>) -> ExportFuture<'_, ()> {
        Box::pin(async move {
            let bytes = bytes_of(&blocks);
            let done = self.volume.write_blocks(offset, blocks).await;
            self.count(Way::Write, bytes, done.map(|()| true)).map(|_| ())
        })
    }

    fn try_zero(&self, offset: u64, len_bytes: u64, _punch: bool) -> Result<bool, ExportError> {
        // A thin volume stores no zeros, so keeping the space (NO_HOLE) has nothing to keep; a
        // later write is admitted like any other.
        self.volume.try_zero(offset, len_bytes).map_err(refused)
    }

    fn zero(&self, offset: u64, len_bytes: u64, _punch: bool) -> ExportFuture<'_, ()> {
        Box::pin(async move { self.volume.zero(offset, len_bytes).await.map_err(refused) })
    }

    fn zero_is_fast(&self, _punch: bool) -> bool {
        true
    }

    fn flush(&self) -> ExportFuture<'_, ()> {
        Box::pin(async move {
            self.engine.flush(&self.volume).await.map_err(refused)?;
            self.engine.traffic().flushed();
            Ok(())
        })
    }

    fn cache(&self, offset: u64, len_bytes: u64) -> ExportFuture<'_, ()> {
        Box::pin(async move { self.volume.prefetch(offset, len_bytes).await.map_err(refused) })
    }

    fn extents(&self, offset: u64, len_bytes: u64, max: usize) -> ExportFuture<'_, Vec<Extent>> {
        Box::pin(async move {
            let extents = self.volume.extents(offset, len_bytes, max).await.map_err(refused)?;
            let convert = |e: weir_dataset::Extent| Extent { len_bytes: e.len, hole: e.hole };
            Ok(extents.into_iter().map(convert).collect())
        })
    }
}
