//! Refuses to remove exports and logical units that clients still use.
//!
//! The removal itself is in `exports` and `targets`.
//!
//! Invariant: the check waits up to [`DISCONNECT_GRACE`] for clients that have just disconnected;
//! the error names clients that remain.

use std::net::IpAddr;
use std::time::Duration;

use weir_api::ApiError;
use weir_base::ErrorKind;

use crate::answer::errors::not_found;
use crate::state::server::Manager;

/// Maximum time that the check waits for clients to disconnect. A client that has disconnected is
/// counted until another thread has closed its socket.
const DISCONNECT_GRACE: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Maximum number of clients that an error message names.
const NAMED_MAX: usize = 4;

impl Manager {
    /// Returns an error while clients of an export are connected.
    pub(crate) async fn wait_for_clients(&self, name: &str) -> Result<(), ApiError> {
        let known = self.known_export(name).ok_or_else(|| not_found("export", name))?;
        let count = gone(|| self.describe(&known).connections as usize).await;
        let mut clients = self.exports.clients(name);
        if count == 0 || clients.is_empty() {
            return Ok(());
        }
        clients.sort_by_key(Option::is_none);
        let text = |address: IpAddr| address.to_string();
        let names = clients.into_iter().map(|at| at.map_or("the unix socket".to_owned(), text));
        let connections = if count == 1 { "connection" } else { "connections" };
        let message =
            format!("export {name} has {count} {connections} from {}", listed(names.collect()));
        Err(ApiError::new(ErrorKind::Busy, message).with_action(format!(
            "weir export delete {name} --drain waits until they disconnect, --force disconnects \
             them"
        )))
    }

    /// Returns an error while initiators are logged in to a target.
    pub(crate) async fn wait_for_sessions(
        &self,
        target: &str,
        lun: Option<u16>,
    ) -> Result<(), ApiError> {
        let shown = self.show_target(target)?;
        if let Some(number) = lun.filter(|number| shown.luns.iter().all(|l| l.number != *number)) {
            return Err(not_found("LUN", &number.to_string()));
        }
        let initiators = || {
            let sessions = self.show_target(target).map(|target| target.sessions);
            let all = sessions.unwrap_or_default().into_iter();
            all.map(|session| session.initiator).collect::<Vec<String>>()
        };
        gone(|| initiators().len()).await;
        let mut names = initiators();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Ok(());
        }
        let count = names.len();
        let initiators = if count == 1 { "initiator" } else { "initiators" };
        let message = format!("{target} has {count} {initiators} logged in: {}", listed(names));
        let command = match lun {
            Some(number) => format!("weir lun remove {target} {number}"),
            None => format!("weir target delete {target}"),
        };
        Err(ApiError::new(ErrorKind::Busy, message).with_action(format!(
            "{command} --drain waits until they log out, --force does not wait"
        )))
    }
}

/// Returns the first [`NAMED_MAX`] names as text, and the number of the others.
fn listed(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    let others = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &others
}

/// Waits briefly for the last client to disconnect; returns the number of remaining clients.
async fn gone(count: impl Fn() -> usize) -> usize {
    let mut waited = Duration::ZERO;
    loop {
        let left = count();
        if left == 0 || waited >= DISCONNECT_GRACE {
            return left;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        waited += POLL_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_four_clients_are_named() {
        let names = |count: usize| (0..count).map(|n| format!("10.0.0.{n}")).collect();
        assert_eq!(listed(names(1)), "10.0.0.0");
        assert_eq!(listed(names(6)), "10.0.0.0, 10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more");
    }
}
