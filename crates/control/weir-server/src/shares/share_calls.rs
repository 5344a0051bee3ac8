//! Calls that share directories of filesystems with clients of NFS.
//!
//! `offer` connects a share to its filesystem.
//!
//! Invariants:
//! - the server saves a share before it responds to the call. The saved share has the number of its
//!   dataset, so it follows the filesystem through renames;
//! - without a rule, no client may use a share.

use std::time::Duration;

use weir_api::access::Scope;
use weir_api::calls::lookup;
use weir_api::types::{
    CallStatistics, ListShares, Outcome, Removed, SHARE_RULES_MAX, Share, ShareAllow, ShareCalls,
    ShareChange, ShareClient, ShareCreate, ShareDelete, ShareDeny, ShareKey, ShareList,
    ShareProtocol, ShareStatistics, ShowShare, ShowShareStatistics,
};
use weir_api::{ApiError, Handle};
use weir_base::ErrorKind;
use weir_nfs::{CallFigures, ClassFigures, ClientFigures, Incident, Rules};

use crate::answer::errors::not_found;
use crate::answer::names::{Of, pool_of};
use crate::disks::memory::NFS_BYTES_MAX;
use crate::shares::client_names::refuse_many_names;
use crate::state::nfs_shares::{rule_of, rules_of, spelled};
use crate::state::saved_state::KnownShare;
use crate::state::server::{Manager, refuse_above};

/// Maximum number of shares of one server. Each share keeps a filesystem open, with a thread and
/// its inodes in memory, and has statistics of up to 1 MiB.
const SHARES_MAX: usize = 64;

/// The statistics of all shares, all remembered replies, the own memory of all connections and the
/// names in rules fit in the memory of NFS.
const _: () = {
    use weir_nfs::limits;
    let statistics = SHARES_MAX * (limits::CLIENTS_OF_SHARE_MAX + 1) * limits::STATISTICS_BYTES;
    let connections = weir_net::limits::CONNECTIONS_MAX * limits::OWN_BYTES;
    let incidents = (SHARES_MAX + 1) * limits::INCIDENT_BYTES;
    let most = statistics + incidents + limits::REPLIES_BYTES_MAX + connections;
    let most = most + limits::NAMES_BYTES_MAX;
    assert!(limits::NAMES_MAX >= SHARES_MAX * limits::NAMES_OF_SHARE_MAX);
    assert!(most as u64 <= NFS_BYTES_MAX, "NFS takes too much memory");
};

/// A client without a call for this time does not use a share any more. Linux asks for attributes
/// of a mount in use at least every minute.
const CLIENT_IDLE_MAX: Duration = Duration::from_mins(10);

fn shown_class(figures: ClassFigures) -> CallStatistics {
    let [p50_us, p99_us, p999_us] = figures.percentiles.map(|time| time.as_micros() as u64);
    CallStatistics { calls: figures.calls, p50_us, p99_us, p999_us }
}

fn shown_calls(figures: &CallFigures) -> ShareCalls {
    ShareCalls {
        reads: shown_class(figures.reads),
        writes: shown_class(figures.writes),
        metadata: shown_class(figures.metadata),
        read_bytes: figures.read_bytes,
        written_bytes: figures.written_bytes,
        errors: figures.errors,
    }
}

impl Manager {
    pub(super) fn known_share(&self, name: &str) -> Result<KnownShare, ApiError> {
        let state = self.state.lock();
        let known = state.state.shares.iter().find(|share| share.name == name);
        known.cloned().ok_or_else(|| not_found("share", name).with_action("weir share list"))
    }

    /// Clients that use a share, the most recent one first.
    fn active_clients(&self, name: &str) -> Vec<ClientFigures> {
        let (_, mut clients) = self.nfs.statistics(name).figures();
        clients.retain(|client| {
            client.idle < CLIENT_IDLE_MAX && self.nfs.connections(client.address) > 0
        });
        clients
    }

    fn describe_share(&self, known: &KnownShare) -> Share {
        let not_served = || "the server does not listen for NFS: weir serve --nfs".to_owned();
        let why = self.nfs.why_unavailable(&known.name);
        let listens = !self.nfs.addresses().is_empty();
        Share {
            name: known.name.clone(),
            protocol: ShareProtocol::Nfs,
            filesystem: known.filesystem.clone(),
            directory: (!known.directory.is_empty()).then(|| known.directory.clone()),
            allow: known.allow.clone(),
            asynchronous: known.asynchronous,
            unavailable: why.or_else(|| (!listens).then(not_served)),
            mount: self.nfs.mount_commands(&known.name),
            clients: self.active_clients(&known.name).len() as u32,
            names: Vec::new(),
        }
    }

    /// Changes the rules of a share.
    fn change_rules(
        &self,
        name: &str,
        change: impl FnOnce(&mut Rules) -> Result<(), ApiError>,
    ) -> Result<ShareChange, ApiError> {
        // This call waits for no disk, so that clients of an unresponsive pool can be denied.
        let mut state = self.state.lock();
        let shares = &mut state.state.shares;
        let missing = || not_found("share", name).with_action("weir share list");
        let known = shares.iter_mut().find(|share| share.name == name).ok_or_else(missing)?;
        let before = known.clone();
        let mut rules = rules_of(&known.allow)?;
        change(&mut rules)?;
        let allow = spelled(&rules);
        if allow == before.allow {
            drop(state);
            let share = self.describe_share(&before);
            return Ok(ShareChange { outcome: Outcome::Unchanged, share });
        }
        known.allow = allow;
        let after = known.clone();
        if let Err(error) = state.save() {
            let shares = &mut state.state.shares;
            shares.iter_mut().filter(|share| share.name == name).for_each(|share| {
                share.clone_from(&before);
            });
            return Err(error);
        }
        // The saved and the used rules change under the same lock, so that the later of two
        // concurrent calls decides both.
        self.nfs.set_rules(after.id, &rules);
        drop(state);
        Ok(ShareChange { outcome: Outcome::Changed, share: self.describe_share(&after) })
    }
}

impl Handle<ShareCreate> for Manager {
    /// Shares a directory of a filesystem. Answers `unchanged` for a share that exists.
    ///
    /// # Errors
    /// `Exists` for a share with other settings; `NotFound` for a missing directory.
    async fn handle(&self, request: ShareCreate) -> Result<ShareChange, ApiError> {
        let _changes = self.changes.lock(pool_of(&request.filesystem)).await;
        let ShareKey { name, .. } = request.key();
        let ShareCreate { filesystem, directory, allow, asynchronous, .. } = request;
        let rules = rules_of(&allow)?;
        refuse_many_names(&rules)?;
        let new = KnownShare {
            name,
            filesystem,
            directory: directory.unwrap_or_default(),
            dataset: 0,
            allow: spelled(&rules),
            asynchronous,
            id: 0,
        };
        if let Ok(known) = self.known_share(&new.name) {
            let same = KnownShare { dataset: known.dataset, id: known.id, ..new.clone() };
            if same == known {
                let share = self.add_names(self.describe_share(&known));
                return Ok(ShareChange { outcome: Outcome::Unchanged, share });
            }
            let message = format!("share {} exists already, with other settings", new.name);
            return Err(ApiError::new(ErrorKind::Exists, message).with_action(format!(
                "change its clients with 'weir share allow {0}' and 'weir share deny {0}', or \
                 give this one another --name",
                new.name
            )));
        }
        let shares = self.state.lock().state.shares.len();
        refuse_above(SHARES_MAX, shares, "shares", "weir share delete")?;
        let new = self.offer_share(new).await?;
        if let Err(error) = self.save(|state| state.shares.push(new.clone())) {
            self.nfs.remove(&new);
            return Err(error);
        }
        let share = self.look_up_names(self.describe_share(&new)).await;
        Ok(ShareChange { outcome: Outcome::Created, share })
    }
}

impl Handle<ListShares> for Manager {
    /// Lists shares by name.
    async fn handle(&self, _call: ListShares) -> Result<ShareList, ApiError> {
        let mut known = self.shares_of(Of::All);
        known.sort_by(|a, b| a.name.cmp(&b.name));
        let shares = known.iter().map(|share| self.describe_share(share)).collect();
        Ok(ShareList { shares, next: None })
    }
}

impl Handle<ShowShare> for Manager {
    /// Shows one share.
    async fn handle(&self, call: ShowShare) -> Result<Share, ApiError> {
        Ok(self.add_names(self.describe_share(&self.known_share(&call.name)?)))
    }

    async fn authorize(&self, call: &ShowShare, scope: &Scope) -> Result<(), ApiError> {
        lookup::share(self, call.key(), scope).await
    }
}

impl Handle<ShowShareStatistics> for Manager {
    /// Shows the calls of the clients of a share.
    async fn handle(&self, call: ShowShareStatistics) -> Result<ShareStatistics, ApiError> {
        let known = self.known_share(&call.name)?;
        let statistics = self.nfs.statistics(&known.name);
        let (all, clients) = statistics.figures();
        let incidents = statistics.incidents.totals();
        let client = |figures: &ClientFigures| ShareClient {
            address: figures.address.to_string(),
            connections: self.nfs.connections(figures.address),
            idle_seconds: figures.idle.as_secs(),
            calls: shown_calls(&figures.calls),
        };
        let clients = clients.iter().map(client).collect();
        Ok(ShareStatistics {
            name: known.name,
            calls: shown_calls(&all),
            squashed: incidents.of(Incident::Squashed),
            refused: incidents.of(Incident::Refused),
            stale: incidents.of(Incident::Stale),
            clients,
        })
    }

    async fn authorize(&self, call: &ShowShareStatistics, scope: &Scope) -> Result<(), ApiError> {
        lookup::share(self, call.key(), scope).await
    }
}

impl Handle<ShareAllow> for Manager {
    /// Allows clients to use a share.
    async fn handle(&self, call: ShareAllow) -> Result<ShareChange, ApiError> {
        let new = rules_of(&call.rules)?;
        let change = self.change_rules(&call.name, |rules| {
            rules.allow(new);
            refuse_many_names(rules)?;
            if rules.iter().count() > SHARE_RULES_MAX {
                let message = format!("a share has at most {SHARE_RULES_MAX} rules");
                return Err(ApiError::new(ErrorKind::NoSpace, message)
                    .with_action(format!("weir share deny {} CLIENT", call.name)));
            }
            Ok(())
        })?;
        Ok(ShareChange { share: self.look_up_names(change.share).await, ..change })
    }

    async fn authorize(&self, call: &ShareAllow, scope: &Scope) -> Result<(), ApiError> {
        lookup::share(self, call.key(), scope).await
    }

    fn about(&self, call: &ShareAllow) -> String {
        self.filesystem_of(&call.name)
    }
}

impl Handle<ShareDeny> for Manager {
    /// Removes the rules of clients of a share.
    ///
    /// # Errors
    /// `NotFound` for a client without a rule.
    async fn handle(&self, call: ShareDeny) -> Result<ShareChange, ApiError> {
        let change = self.change_rules(&call.name, |rules| {
            for client in &call.clients {
                if !rules.deny(&rule_of(client)?) {
                    let message = format!("share {} has no rule for {client}", call.name);
                    return Err(ApiError::new(ErrorKind::NotFound, message)
                        .with_action(format!("see its rules: weir share show {}", call.name)));
                }
            }
            Ok(())
        })?;
        Ok(ShareChange { share: self.add_names(change.share), ..change })
    }

    async fn authorize(&self, call: &ShareDeny, scope: &Scope) -> Result<(), ApiError> {
        lookup::share(self, call.key(), scope).await
    }

    fn about(&self, call: &ShareDeny) -> String {
        self.filesystem_of(&call.name)
    }
}

impl Handle<ShareDelete> for Manager {
    /// Deletes a share. The handles of its clients become stale.
    ///
    /// # Errors
    /// `Busy` while clients use the share, without `force`.
    async fn handle(&self, call: ShareDelete) -> Result<Removed, ApiError> {
        let known = self.known_share(&call.name)?;
        let clients = self.active_clients(&call.name);
        if let (Some(first), false) = (clients.first(), call.force) {
            let (count, address) = (clients.len(), first.address);
            let message = format!("{count} clients use share {}, such as {address}", call.name);
            return Err(ApiError::new(ErrorKind::Busy, message).with_action(format!(
                "unmount it on the clients, or let them get errors: weir share delete --force {}",
                call.name
            )));
        }
        // This call waits for no disk, so that shares of an unresponsive pool can be deleted.
        self.save(|state| state.shares.retain(|share| share.name != call.name))?;
        self.nfs.remove(&known);
        if !call.force {
            // A later call, such as the destruction of the filesystem, must not find it in use.
            self.wait_for_ends(Of::Dataset(&known.filesystem)).await?;
        }
        Ok(Removed { outcome: Outcome::Removed, name: call.name })
    }

    async fn authorize(&self, call: &ShareDelete, scope: &Scope) -> Result<(), ApiError> {
        lookup::share(self, call.key(), scope).await
    }

    fn about(&self, call: &ShareDelete) -> String {
        self.filesystem_of(&call.name)
    }
}

impl Manager {
    /// Filesystem of a share, for the history: requests name only the share.
    fn filesystem_of(&self, name: &str) -> String {
        self.known_share(name).map(|share| share.filesystem).unwrap_or_default()
    }
}
