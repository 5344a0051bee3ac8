//! Settings of this process: core dumps, file modes and descriptor limits.
//!
//! Memory and disks are set up in `run`.
//!
//! Invariant: if the kernel refuses a setting, the program runs without it.

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Disables core dumps, which would contain CHAP secrets and the secrets of other servers. The hard
/// limit is unchanged, so `prlimit --core=unlimited --pid PID` enables core dumps again.
pub fn keep_secrets_out_of_cores() {
    set_soft_limit(Resource::Core, |_| Some(0));
}

/// Makes all files that this process creates private to its user. Other users cannot open the
/// state, the history or the sockets, whatever umask the server inherited.
pub(crate) fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Raises the limit of open descriptors to the hard limit: a server needs one or two descriptors
/// for each connection, and the usual soft limit of 1024 is too low.
pub(crate) fn allow_many_descriptors() {
    set_soft_limit(Resource::Nofile, |hard| hard);
}

fn set_soft_limit(resource: Resource, from_hard: impl Fn(Option<u64>) -> Option<u64>) {
    let Rlimit { maximum, .. } = getrlimit(resource);
    let wanted = Rlimit { current: from_hard(maximum), maximum };
    if let Err(error) = setrlimit(resource, wanted) {
        tracing::debug!(?resource, %error, "limit not changed");
    }
}
