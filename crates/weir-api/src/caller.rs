//! Who made the management call that is being answered.
//!
//! Not here: whether they may (whoever reaches the socket may).
//!
//! Invariant: the name is what the kernel says of the other end, never what a request claims.

use std::future::Future;
use std::net::SocketAddr;

tokio::task_local! {
    static CALLER: Caller;
}

/// Who made a call, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller(String);

impl Caller {
    /// A process of this machine.
    pub(crate) fn of_process(uid: u32, pid: Option<i32>) -> Self {
        Self(pid.map_or_else(|| format!("uid {uid}"), |pid| format!("uid {uid} pid {pid}")))
    }

    /// The other end of a TCP connection.
    pub(crate) fn of_address(peer: &SocketAddr) -> Self {
        Self(peer.to_string())
    }

    pub(crate) fn unknown() -> Self {
        Self("unknown".to_owned())
    }
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who made the call that the running task answers; the server itself where it answers none.
pub fn current() -> Caller {
    CALLER.try_with(Clone::clone).unwrap_or_else(|_| Caller("weir serve".to_owned()))
}

/// Runs `task` with [`current`] telling `caller`.
pub async fn on_behalf_of<T>(caller: Caller, task: impl Future<Output = T>) -> T {
    CALLER.scope(caller, task).await
}
