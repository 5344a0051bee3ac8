//! What this process asks of the system for itself.
//!
//! Not here: memory and disks (serve).
//!
//! Invariant: where the system refuses, the program runs all the same.

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Has no core written when the program crashes: secrets of CHAP and of other servers would be in
/// it. The hard limit stays, so that `prlimit --core=unlimited --pid PID` allows it again.
pub fn keep_secrets_out_of_cores() {
    set_soft_limit(Resource::Core, |_| Some(0));
}

/// Makes every file that this process creates one of its own user: state, history and sockets are
/// closed to others, whatever the shell that started the server allows.
pub(crate) fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Allows as many descriptors as the system lets this program have: a server has one or two for
/// each connection, and the usual limit is made for programs that cannot have more than 1024.
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
