//! The caller of the current management call: display name and rights.
//!
//! Identification is in `unix_access` and `token`, authorization is in `authorization`.
//!
//! Invariants:
//! - the caller's name comes from the kernel or from the list of tokens, never from the request;
//! - an unauthenticated caller has no rights.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};

use crate::access::{Files, Rights, Role};

tokio::task_local! {
    static CALLER: Caller;
}

/// The caller of a management call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    name: String,
    /// Account to which the limits of a caller apply; `None` if it is equal to `name`.
    account: Option<String>,
    rights: Option<Rights>,
    peer: Option<IpAddr>,
}

impl Caller {
    /// Returns an authenticated caller.
    pub fn new(name: impl Into<String>, rights: Rights) -> Self {
        Self { name: name.into(), account: None, rights: Some(rights), peer: None }
    }

    /// Sets the account to which limits apply, for example the caller's token. Calls with one token
    /// from several addresses then share their limits.
    #[must_use]
    pub fn of_account(self, account: impl Into<String>) -> Self {
        Self { account: Some(account.into()), ..self }
    }

    /// Returns an unauthenticated caller.
    pub(crate) fn unauthenticated(name: impl Into<String>) -> Self {
        Self { name: name.into(), account: None, rights: None, peer: None }
    }

    /// Returns the caller for another server that has sent the secret of peers. The router limits
    /// the paths that this caller may call.
    pub(crate) fn of_peer(peer: &SocketAddr) -> Self {
        let rights = Rights { files: Files::Named, ..Rights::everything() };
        let ip = peer.ip().to_canonical();
        Self { peer: Some(ip), ..Self::new(format!("peer {ip}"), rights) }
    }

    /// Returns the address of the caller if it is a peer: another server that uses the port for
    /// peers.
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Returns the account to which limits apply: the token or the user, without an address.
    pub fn account(&self) -> &str {
        self.account.as_deref().unwrap_or(&self.name)
    }

    /// Returns the rights of the caller; `None` if it is unauthenticated.
    pub fn rights(&self) -> Option<&Rights> {
        self.rights.as_ref()
    }

    /// True if the caller's role is at least this one.
    pub fn has(&self, role: Role) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.role >= role)
    }

    /// True if the server opens every file that this caller names.
    pub fn names_any_file(&self) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.files == Files::Any)
    }
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// Returns the caller whose call the current task runs. Outside of calls, the server itself is the
/// caller.
pub fn current() -> Caller {
    CALLER
        .try_with(Clone::clone)
        .unwrap_or_else(|_| Caller::new("weir serve", Rights::everything()))
}

/// Runs `task` with `caller` as its [`current`] caller.
pub async fn on_behalf_of<T>(caller: Caller, task: impl Future<Output = T>) -> T {
    CALLER.scope(caller, task).await
}
