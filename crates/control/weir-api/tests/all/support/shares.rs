//! The shares of the fake server. They have no clients.
//!
//! Invariants: see `fake`.

use std::collections::BTreeMap;

use serde_json::Value;
use weir_api::types::{
    Outcome, Removed, Share, ShareAllow, ShareCalls, ShareChange, ShareCreate, ShareDelete,
    ShareDeny, ShareKey, ShareList, ShareProtocol, ShareStatistics,
};
use weir_api::{ApiError, Pending};

use super::Fake;
use super::state::{not_found, ready, removed};

/// Identity of the share that a request names.
pub(super) fn key(request: &Value) -> ShareKey {
    let name = request["name"].as_str().unwrap().to_owned();
    ShareKey { protocol: ShareProtocol::Nfs, name }
}

impl Fake {
    pub(super) fn share_create(&self, call: ShareCreate) -> Pending<'_, ShareChange> {
        ready(Ok(self.state().shares.create(call)))
    }

    pub(super) fn share_list(&self) -> Pending<'_, ShareList> {
        ready(Ok(self.state().shares.list()))
    }

    pub(super) fn share_show(&self, name: &str) -> Pending<'_, Share> {
        ready(self.state().shares.get(name).cloned())
    }

    pub(super) fn share_statistics(&self, name: &str) -> Pending<'_, ShareStatistics> {
        ready(self.state().shares.statistics(name))
    }

    pub(super) fn share_allow(&self, call: ShareAllow) -> Pending<'_, ShareChange> {
        ready(self.state().shares.allow(call))
    }

    pub(super) fn share_deny(&self, call: &ShareDeny) -> Pending<'_, ShareChange> {
        ready(self.state().shares.deny(call))
    }

    pub(super) fn share_delete(&self, call: ShareDelete) -> Pending<'_, Removed> {
        match self.state().shares.delete(&call.name) {
            Ok(()) => removed(call.name),
            Err(error) => ready(Err(error)),
        }
    }
}

#[derive(Default)]
pub(crate) struct Shares(BTreeMap<String, Share>);

impl Shares {
    fn list(&self) -> ShareList {
        ShareList { shares: self.0.values().cloned().collect(), next: None }
    }

    fn get(&self, name: &str) -> Result<&Share, ApiError> {
        self.0.get(name).ok_or_else(|| not_found("share", name))
    }

    fn get_mut(&mut self, name: &str) -> Result<&mut Share, ApiError> {
        self.0.get_mut(name).ok_or_else(|| not_found("share", name))
    }

    fn statistics(&self, name: &str) -> Result<ShareStatistics, ApiError> {
        let name = self.get(name)?.name.clone();
        Ok(ShareStatistics {
            name,
            calls: ShareCalls::default(),
            squashed: 0,
            refused: 0,
            stale: 0,
            clients: Vec::new(),
        })
    }

    fn create(&mut self, request: ShareCreate) -> ShareChange {
        let ShareKey { protocol, name } = request.key();
        let outcome =
            if self.0.contains_key(&name) { Outcome::Unchanged } else { Outcome::Created };
        let new = || Share {
            name: name.clone(),
            protocol,
            filesystem: request.filesystem,
            directory: request.directory,
            allow: request.allow,
            asynchronous: request.asynchronous,
            unavailable: None,
            mount: vec![format!("mount -t nfs 127.0.0.1:/{name} /mnt")],
            clients: 0,
            names: Vec::new(),
        };
        let share = self.0.entry(name.clone()).or_insert_with(new).clone();
        ShareChange { outcome, share }
    }

    fn allow(&mut self, call: ShareAllow) -> Result<ShareChange, ApiError> {
        let share = self.get_mut(&call.name)?;
        share.allow.extend(call.rules);
        Ok(ShareChange { outcome: Outcome::Changed, share: share.clone() })
    }

    fn deny(&mut self, call: &ShareDeny) -> Result<ShareChange, ApiError> {
        let share = self.get_mut(&call.name)?;
        share.allow.retain(|rule| !call.clients.contains(rule));
        Ok(ShareChange { outcome: Outcome::Changed, share: share.clone() })
    }

    fn delete(&mut self, name: &str) -> Result<(), ApiError> {
        self.0.remove(name).map(drop).ok_or_else(|| not_found("share", name))
    }
}
