//! The active exports of a server by name, and the addresses from which clients may open them.
//!
//! The protocol is in weir-nbd; weir-server saves the exports.
//!
//! Invariants: each name has one export; a connection keeps its export open until it ends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::RwLock;
use weir_base::ErrorKind;
use weir_block::ExportError;
use weir_dataset::{Engine, Volume};
use weir_net::{AllowList, LiveAllowList};

use crate::volume_export::{Connected, Connections, OpenVolume};

/// One active export.
struct ActiveExport {
    engine: Arc<Engine>,
    volume: Arc<Volume>,
    read_only: bool,
    /// Addresses that may open the export over TCP; `None` for all clients that the server accepts.
    allowed: Option<AllowList>,
    connections: Arc<Connections>,
}

impl ActiveExport {
    /// True if a client may open the export. `from` is the address of the client, or `None` on a
    /// unix socket; `unlisted` is the result for an export without an allow list.
    fn is_shown_to(&self, from: Option<IpAddr>, unlisted: bool) -> bool {
        let Some(from) = from else { return true };
        self.allowed.as_ref().map_or(unlisted, |allowed| allowed.contains(from))
    }
}

/// All active exports, by name.
#[derive(Default)]
pub struct Registry {
    offered: RwLock<BTreeMap<String, ActiveExport>>,
    /// Addresses that may connect over TCP to a server without an allow list of its own: the union
    /// of the exports' lists. In this case an export without a list is hidden from all TCP clients.
    named: Option<LiveAllowList>,
}

impl Registry {
    /// Creates an empty registry. With `named`, only addresses in the lists of exports may connect
    /// over TCP, and the registry keeps `named` up to date.
    pub fn new(named: Option<LiveAllowList>) -> Self {
        Self { offered: RwLock::default(), named }
    }

    /// Exports a volume under a name. TCP clients can open it from `allowed` addresses only.
    pub fn offer(
        &self,
        name: &str,
        engine: Arc<Engine>,
        volume: Arc<Volume>,
        read_only: bool,
        allowed: Option<AllowList>,
    ) {
        let connections = Arc::default();
        let offered = ActiveExport { engine, volume, read_only, allowed, connections };
        self.change(|all| drop(all.insert(name.to_owned(), offered)));
    }

    /// Changes the addresses from which TCP clients can open an export. Open connections from other
    /// addresses stay until weir-server ends them.
    pub fn allow(&self, name: &str, allowed: Option<AllowList>) {
        self.change(|all| {
            if let Some(offered) = all.get_mut(name) {
                offered.allowed = allowed;
            }
        });
    }

    /// Removes an export. Its open connections stay until weir-server ends them.
    pub fn withdraw(&self, name: &str) {
        self.change(|all| drop(all.remove(name)));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, ActiveExport>)) {
        let mut offered = self.offered.write();
        change(&mut offered);
        if let Some(named) = &self.named {
            let lists = offered.values().filter_map(|one| one.allowed.as_ref());
            named.set(AllowList::union(lists));
        }
    }

    /// True if TCP clients can see an export. `has_list` is true if the export has its own allow
    /// list.
    pub fn is_over_tcp(&self, has_list: bool) -> bool {
        has_list || self.named.is_none()
    }

    /// Returns the number of connections that have the export open.
    pub fn connections(&self, name: &str) -> u32 {
        let offered = self.offered.read();
        offered.get(name).map_or(0, |offered| offered.connections.count())
    }

    /// Returns the addresses of the clients that have the export open, each address once. `None` is
    /// the address of all clients on unix sockets.
    pub fn clients(&self, name: &str) -> Vec<Option<IpAddr>> {
        let offered = self.offered.read();
        offered.get(name).map_or_else(Vec::new, |offered| offered.connections.addresses())
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
            _connection: Some(Connected::new(&found.connections, from)),
        }))
    }
}
