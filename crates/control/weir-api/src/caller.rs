//! The caller of the management call that is being answered: a name for people, and rights.
//!
//! Not here: how a caller proves who it is (`door`), what a call needs (`gate`).
//!
//! Invariants:
//! - the name is what the kernel or the server's own list of tokens says, never what a request
//!   claims;
//! - a caller that proved nothing has no rights.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};

use crate::access::{Files, Rights, Role};

tokio::task_local! {
    static CALLER: Caller;
}

/// Who made a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    name: String,
    /// Account for limits, if it differs from the name.
    account: Option<String>,
    rights: Option<Rights>,
    peer: Option<IpAddr>,
}

impl Caller {
    /// A caller that proved who it is.
    pub fn new(name: impl Into<String>, rights: Rights) -> Self {
        Self { name: name.into(), account: None, rights: Some(rights), peer: None }
    }

    /// The same caller, counted for an account such as a token, wherever it calls from.
    #[must_use]
    pub fn of_account(self, account: impl Into<String>) -> Self {
        Self { account: Some(account.into()), ..self }
    }

    /// A caller that proved nothing yet.
    pub(crate) fn stranger(name: impl Into<String>) -> Self {
        Self { name: name.into(), account: None, rights: None, peer: None }
    }

    /// Another server that knows the secret of peers; which paths it may use, the router says.
    pub(crate) fn of_peer(peer: &SocketAddr) -> Self {
        let rights = Rights { files: Files::Named, ..Rights::everything() };
        let ip = peer.ip().to_canonical();
        Self { peer: Some(ip), ..Self::new(format!("peer {ip}"), rights) }
    }

    /// The address of another server that calls over the port for peers.
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Account for limits: the token or the user, without an address.
    pub fn account(&self) -> &str {
        self.account.as_deref().unwrap_or(&self.name)
    }

    /// What it may do; nothing without.
    pub fn rights(&self) -> Option<&Rights> {
        self.rights.as_ref()
    }

    /// Whether its role is this one or a higher one.
    pub fn has(&self, role: Role) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.role >= role)
    }

    /// Whether the server opens any file that the caller names.
    pub fn names_any_file(&self) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.files == Files::Any)
    }
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// The caller whose call the running task answers; the server itself where it answers none.
pub fn current() -> Caller {
    CALLER
        .try_with(Clone::clone)
        .unwrap_or_else(|_| Caller::new("weir serve", Rights::everything()))
}

/// Runs `task` with [`current`] telling `caller`.
pub async fn on_behalf_of<T>(caller: Caller, task: impl Future<Output = T>) -> T {
    CALLER.scope(caller, task).await
}
