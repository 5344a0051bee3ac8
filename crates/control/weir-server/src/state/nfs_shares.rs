//! The NFS server, and the filesystems that its shares keep open.
//!
//! weir-nfs has the protocol and the shares as clients see them.
//!
//! Invariants:
//! - while the server cannot open the filesystem of a saved share, its clients wait: their handles
//!   become stale only when the share is deleted;
//! - a share that clients can use keeps its filesystem open.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_nfs::rpcbind::{Registration, RpcbindError, SOCKET};
use weir_nfs::{Nfs, Rule, RuleError, Rules, Share, ShareId, ShareStatistics};

use crate::state::open_filesystems::OpenFilesystem;
use crate::state::saved_state::KnownShare;

/// The NFS server with its shares.
pub(crate) struct NfsShares {
    pub(crate) server: Arc<weir_nfs::Server>,
    /// Threads and connections; `None` if NFS is not served.
    threads: Mutex<Option<weir_net::ServerHandle<Nfs>>>,
    /// Addresses on which the server listens.
    addresses: Vec<SocketAddr>,
    /// Entries at rpcbind; `None` if the server is not registered.
    registration: Option<Arc<Registration>>,
    known: Mutex<BTreeMap<String, State>>,
}

/// State of a saved share in this process.
#[derive(Default)]
struct State {
    statistics: Arc<ShareStatistics>,
    /// The open filesystem; `None` while clients wait.
    open: Option<Arc<OpenFilesystem>>,
    /// Reason why clients wait.
    why: Option<String>,
}

/// Path that clients mount.
pub(crate) fn path_of(name: &str) -> String {
    format!("/{name}")
}

fn bad_rule(error: &RuleError) -> ApiError {
    ApiError::new(ErrorKind::Invalid, error.to_string()).with_action(
        "write CLIENT[:OPTION,OPTION], such as 10.0.0.0/8:ro or 10.0.0.7:no_root_squash",
    )
}

/// Parses a rule of a share.
///
/// # Errors
/// `Invalid` for a rule that cannot be parsed.
pub(crate) fn rule_of(rule: &str) -> Result<Rule, ApiError> {
    rule.parse().map_err(|error| bad_rule(&error))
}

/// Parses the rules of a share.
///
/// # Errors
/// `Invalid` for a rule that cannot be parsed, and for two rules for the same clients.
pub(crate) fn rules_of(rules: &[String]) -> Result<Rules, ApiError> {
    let rules = rules.iter().map(|rule| rule_of(rule)).collect::<Result<Vec<_>, _>>()?;
    Rules::new(rules).map_err(|error| bad_rule(&error))
}

/// Writes rules with all options.
pub(crate) fn spelled(rules: &Rules) -> Vec<String> {
    rules.iter().map(Rule::to_string).collect()
}

impl NfsShares {
    /// The server with the shares of the saved state, whose clients wait at first.
    pub(crate) fn new(server: Arc<weir_nfs::Server>, saved: &[KnownShare]) -> Self {
        let known = Mutex::default();
        let (threads, addresses) = (Mutex::default(), Vec::new());
        let shares = Self { server, threads, addresses, registration: None, known };
        for share in saved {
            shares.wait(share, "its pool is not open".to_owned());
        }
        shares
    }

    /// Sets the threads that serve clients.
    pub(crate) fn serve(&mut self, threads: weir_net::ServerHandle<Nfs>) {
        let tcp = |address: &weir_net::Address| match address {
            weir_net::Address::Tcp(address) => Some(*address),
            weir_net::Address::Unix(_) => None,
        };
        self.addresses = threads.addresses().iter().filter_map(tcp).collect();
        *self.threads.get_mut() = Some(threads);
    }

    /// Registers the server at the rpcbind of this machine.
    pub(crate) fn register(&mut self) -> Result<(), RpcbindError> {
        let registration = Registration::new(Path::new(SOCKET), &self.addresses)?;
        self.registration = Some(Arc::new(registration));
        Ok(())
    }

    /// Removes the entries at rpcbind, and ends the threads: clients get their outstanding replies.
    pub(crate) async fn stop(&self) {
        let (registration, threads) = (self.registration.clone(), self.threads.lock().take());
        let stop = move || {
            let removed = registration.map(|of| of.remove(Path::new(SOCKET)));
            if let Some(Err(error)) = removed {
                tracing::warn!(%error, "the entries of NFS at rpcbind stay");
            }
            threads.map(weir_net::ServerHandle::stop)
        };
        drop(tokio::task::spawn_blocking(stop).await);
    }

    /// Offers a share to clients. `share` gives it its statistics.
    pub(crate) fn offer(
        &self,
        name: &str,
        open: Arc<OpenFilesystem>,
        share: impl FnOnce(Arc<ShareStatistics>) -> Share,
    ) {
        let mut known = self.known.lock();
        let state = known.entry(name.to_owned()).or_default();
        self.server.shares.set(share(Arc::clone(&state.statistics)));
        (state.open, state.why) = (Some(open), None);
    }

    /// Lets the clients of a share wait, and gives up its use of the filesystem.
    pub(crate) fn wait(&self, share: &KnownShare, why: String) {
        let mut known = self.known.lock();
        let state = known.entry(share.name.clone()).or_default();
        self.server.shares.wait(ShareId(share.id), &path_of(&share.name));
        (state.open, state.why) = (None, Some(why));
    }

    /// Removes a share: its handles are stale from now on.
    pub(crate) fn remove(&self, share: &KnownShare) {
        let mut known = self.known.lock();
        self.server.shares.remove(ShareId(share.id));
        known.remove(&share.name);
    }

    /// Changes the rules of a share that clients can use.
    pub(crate) fn set_rules(&self, id: u64, rules: &Rules) {
        let _known = self.known.lock();
        self.server.shares.set_rules(ShareId(id), rules);
    }

    /// Reason why clients cannot use a share now.
    pub(crate) fn why_unavailable(&self, name: &str) -> Option<String> {
        self.known.lock().get(name)?.why.clone()
    }

    /// Statistics of a share.
    pub(crate) fn statistics(&self, name: &str) -> Arc<ShareStatistics> {
        self.known.lock().get(name).map(|state| Arc::clone(&state.statistics)).unwrap_or_default()
    }

    /// Shares with squashed, refused or stale calls since their last report.
    pub(crate) fn shares_with_incidents(&self) -> Vec<(String, Arc<ShareStatistics>)> {
        let known = self.known.lock();
        let new = known.iter().filter(|(_, state)| state.statistics.incidents.has_new());
        new.map(|(name, state)| (name.clone(), Arc::clone(&state.statistics))).collect()
    }

    /// Number of open connections of a client.
    pub(crate) fn connections(&self, client: IpAddr) -> u32 {
        self.server.connections(client) as u32
    }

    /// Addresses on which the server listens.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Number of failed lookups of the groups of users, for rules with `manage_gids`.
    pub(crate) fn group_failures(&self) -> u64 {
        self.server.groups.failures()
    }

    /// Commands that mount a share on a Linux client.
    pub(crate) fn mount_commands(&self, name: &str) -> Vec<String> {
        let command = |address: &SocketAddr| {
            let host = match address.ip() {
                ip if ip.is_unspecified() => {
                    rustix::system::uname().nodename().to_string_lossy().into_owned()
                }
                IpAddr::V4(ip) => ip.to_string(),
                IpAddr::V6(ip) => format!("[{ip}]"),
            };
            if self.registration.is_some() {
                return format!("mount -t nfs -o vers=3,tcp,nolock {host}:{} /mnt", path_of(name));
            }
            // Without the ports, the client would ask rpcbind. `nolock`: the server has no NLM.
            let port = address.port();
            format!(
                "mount -t nfs -o vers=3,tcp,nolock,port={port},mountport={port},mountproto=tcp \
                 {host}:{} /mnt",
                path_of(name)
            )
        };
        self.addresses.iter().map(command).collect()
    }
}
