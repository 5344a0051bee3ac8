//! Taking something away that clients may be using.
//!
//! Not here: whether they do (the server).
//!
//! Invariant: without `--force` no client is cut off.

use std::time::Duration;

use clap::Args;
use weir_api::ApiError;
use weir_base::ErrorKind;

use crate::cli::base::session::Session;

/// Pause between two requests of `--drain`; the server waits a second by itself.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Options for clients that are still connected.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LeaveArgs {
    /// Cut clients off: what they are writing may be lost
    #[arg(long)]
    force: bool,
    /// Wait until the last client has left
    #[arg(long, conflicts_with = "force")]
    drain: bool,
}

impl LeaveArgs {
    /// Does a call, which is told whether to cut clients off; with `--drain` until none is left.
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
