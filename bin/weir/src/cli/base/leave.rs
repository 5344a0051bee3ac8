//! Options of the verbs that delete an export or a logical unit, which clients may still use.
//!
//! Not here: the check for connected clients, which the server makes.
//!
//! Invariant: without `--force` no client is disconnected.

use std::time::Duration;

use clap::Args;
use weir_api::ApiError;
use weir_base::ErrorKind;

use crate::cli::base::session::Session;

/// Pause between two calls of `--drain`. The server itself also waits up to a second in each call.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Options that decide what happens to connected clients.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LeaveArgs {
    /// Disconnect clients; writes in flight may be lost
    #[arg(long)]
    force: bool,
    /// Wait until the last client has disconnected
    #[arg(long, conflicts_with = "force")]
    drain: bool,
}

impl LeaveArgs {
    /// Makes a call with the value of `--force`. With `--drain`, repeats the call until no client
    /// is connected.
    pub(crate) fn call<T>(
        self,
        session: &Session,
        call: impl Fn(bool) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut told = String::new();
        loop {
            match call(self.force) {
                Err(error) if self.drain && error.kind == ErrorKind::Busy => {
                    if error.message != told {
                        session.say(&format!("waiting: {}", error.message));
                        told = error.message;
                    }
                    std::thread::sleep(ASK_EVERY);
                }
                done => return done,
            }
        }
    }
}
