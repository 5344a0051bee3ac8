//! Advice for errors of a replication: the next command that the user should type.
//!
//! The errors occur in `run` and `verify`; `weir replicate` prints the errors with the command.
//!
//! Invariants:
//! - every error gets an action with an existing `weir` command;
//! - error texts of the other server are cut to [`TEXT_BYTES_MAX`], because this server stores
//!   them.

use weir_api::ApiError;
use weir_base::ErrorKind;

use crate::answer::names::pool_of;
use crate::state::saved_state::KnownReplication;
use crate::verbs::VERBS;

/// Maximum length of a stored error or action from the other server: ten times a usual text.
const TEXT_BYTES_MAX: usize = 2048;

/// An error of a replication run or a comparison; the variant says on which server it occurred.
#[derive(Debug)]
pub(super) enum Failed {
    /// The address, the certificate or the secret of the replication cannot be used.
    Setup(ApiError),
    /// An operation of this server failed.
    Here(ApiError),
    /// This server cannot read a snapshot that it should send.
    Unreadable {
        /// Full name of the snapshot.
        snapshot: String,
        /// True if the snapshot was taken for a replication run. The next run then takes another
        /// snapshot.
        is_of_run: bool,
        error: ApiError,
    },
    /// The other server refused a call or did not respond to it.
    There(ApiError),
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::Here(error)
    }
}

impl Failed {
    /// Returns the error with the next command for the user. `again` is the command that repeats
    /// the run or the comparison that failed.
    pub(super) fn advised(self, known: &KnownReplication, again: &str) -> ApiError {
        let pool = pool_of(&known.volume);
        match self {
            Self::Setup(error) => {
                let action = set_up(known);
                error.with_action(action)
            }
            Self::Unreadable { is_of_run: true, error, .. } => error.with_action(format!(
                "restore the lost data from a backup, or reconnect the disk that has it; to list \
                 the lost data: weir pool status -v {pool}; then: {again}"
            )),
            Self::Unreadable { snapshot, error, .. } => error.with_action(format!(
                "reconnect the disk that has the data of {snapshot}, or destroy the snapshot: weir \
                 snapshot destroy {snapshot}; then: {again}"
            )),
            Self::Here(error) => {
                let action = here(&error, known);
                error.with_action(format!("{action}; then: {again}"))
            }
            Self::There(mut error) => {
                cut(&mut error.message);
                cut(&mut error.action);
                let action = there(&error, known);
                error.with_action(format!("{action}; then: {again}"))
            }
        }
    }
}

/// Returns the command that sets the certificate and secret files of a replication again.
fn set_up(known: &KnownReplication) -> String {
    let KnownReplication { volume, to, every_seconds, .. } = known;
    format!(
        "name the files again: weir replicate create {volume} --to {to} --every {every_seconds}s \
         --ca FILE --secret-file FILE"
    )
}

fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
}

/// True if the text contains a command of the command line.
fn names_command(text: &str) -> bool {
    let mut after = text.match_indices("weir ").map(|(at, found)| &text[at + found.len()..]);
    let is_verb = |rest: &str| {
        let word = rest.split(|c: char| !c.is_ascii_lowercase()).next();
        word.is_some_and(|word| VERBS.binary_search(&word).is_ok())
    };
    after.any(is_verb)
}

fn here(error: &ApiError, known: &KnownReplication) -> String {
    let KnownReplication { volume, .. } = known;
    let pool = pool_of(volume);
    if names_command(&error.action) {
        return error.action.clone();
    }
    match error.kind {
        ErrorKind::NotFound => {
            format!(
                "search for it: weir list; to delete an unwanted replication: weir replicate \
                 delete {volume}"
            )
        }
        ErrorKind::NoSpace => format!("see what takes the space: weir volume list -o space {pool}"),
        ErrorKind::Data => format!("list the lost data: weir pool status -v {pool}"),
        ErrorKind::Unavailable | ErrorKind::Poisoned => {
            format!("check the disks: weir pool status {pool}")
        }
        ErrorKind::Invalid
        | ErrorKind::Exists
        | ErrorKind::Busy
        | ErrorKind::ReadOnly
        | ErrorKind::Permission
        | ErrorKind::Internal => format!("check the snapshots: weir snapshot list {volume}"),
    }
}

fn there(error: &ApiError, known: &KnownReplication) -> String {
    let volume = &known.volume;
    let (server, replica) = place_of(known);
    let pool = pool_of(replica);
    if names_command(&error.action) && error.kind != ErrorKind::Unavailable {
        return format!("on the other server: {}", error.action);
    }
    match error.kind {
        ErrorKind::Unavailable => format!(
            "check that 'weir serve --peer-listen' runs at {server} with the certificate that --ca \
             names, and that this machine reaches it"
        ),
        ErrorKind::Permission => {
            format!("give both servers the same secret; {}", set_up(known))
        }
        ErrorKind::NotFound => {
            format!(
                "on the other server, list volumes and snapshots: weir list, weir snapshot list \
                 {replica}"
            )
        }
        ErrorKind::Exists => format!(
            "replicate to another name: weir replicate delete {volume}, then weir replicate \
             create; or, on the other server, destroy the existing volume: weir volume destroy \
             {replica}"
        ),
        ErrorKind::NoSpace => format!(
            "on the other server, see what takes the space: weir volume list -o space {pool}"
        ),
        ErrorKind::Data | ErrorKind::Poisoned => {
            format!("on the other server, list the lost data: weir pool status -v {pool}")
        }
        ErrorKind::Invalid | ErrorKind::Busy | ErrorKind::ReadOnly | ErrorKind::Internal => {
            format!("on the other server, check the replica: weir volume show {replica}")
        }
    }
}

/// Returns the host and port of the server to which a replication sends, and the name of the volume
/// on that server.
pub(crate) fn place_of(known: &KnownReplication) -> (&str, &str) {
    let place = known.to.strip_prefix("https://").unwrap_or(&known.to);
    place.split_once('/').unwrap_or((place, "POOL/VOLUME"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn known() -> KnownReplication {
        KnownReplication {
            volume: "tank/v".into(),
            pool_guid: 1,
            dataset: 2,
            to: "https://host:7118/back/v".into(),
            every_seconds: 900,
            bandwidth_bytes: None,
            ca_file: "/ca".into(),
            secret_file: "/secret".into(),
            paused: false,
            unfinished: false,
            last_run_unix_ms: 0,
            last: None,
            verified: None,
            verify_failed: None,
            clearing: Vec::new(),
        }
    }

    /// Returns the commands in a text.
    fn commands(text: &str) -> Vec<String> {
        let ends = |c: char| [';', ',', '\'', ')'].contains(&c);
        let after = text.match_indices("weir ").filter(|(at, _)| !text[..*at].ends_with("the "));
        after.map(|(at, _)| text[at..].split(ends).next().unwrap_or_default().to_owned()).collect()
    }

    /// Commands that the tests of the command line parse, one per line.
    const COMMANDS: &str = include_str!("commands.txt");

    #[test]
    fn errors_name_commands_that_the_command_line_tests() {
        let known = known();
        let mut all = BTreeSet::new();
        let again = "weir replicate run tank/v";
        let snapshot = || "tank/v@daily".to_owned();
        for kind in ErrorKind::ALL {
            let error = || ApiError::new(kind, "broken");
            for failed in [
                Failed::Setup(error()),
                Failed::Here(error()),
                Failed::There(error()),
                Failed::Unreadable { snapshot: snapshot(), is_of_run: true, error: error() },
                Failed::Unreadable { snapshot: snapshot(), is_of_run: false, error: error() },
            ] {
                let shown = format!("{failed:?}");
                let advised = failed.advised(&known, again);
                let commands = commands(&advised.action);
                assert!(!commands.is_empty(), "{shown}: {}", advised.action);
                all.extend(commands.iter().map(|command| command.trim().to_owned()));
                assert!(!advised.action.contains("  "), "{}", advised.action);
            }
        }
        let listed = COMMANDS.lines().map(str::to_owned).collect();
        let text = all.iter().cloned().collect::<Vec<_>>().join("\n");
        assert_eq!(all, listed, "commands.txt must be:\n{text}");
    }

    #[test]
    fn long_text_of_the_other_server_is_cut() {
        let error = ApiError::new(ErrorKind::Busy, "\u{e9}".repeat(1 << 20))
            .with_action("weir list ".repeat(1 << 20));
        let advised = Failed::There(error).advised(&known(), "weir replicate run tank/v");
        assert!(advised.message.len() <= TEXT_BYTES_MAX, "{}", advised.message.len());
        assert!(advised.action.len() <= TEXT_BYTES_MAX + 100, "{}", advised.action.len());
    }

    #[test]
    fn exact_action_of_the_other_server_is_kept() {
        let error = ApiError::new(ErrorKind::Permission, "not yours")
            .with_action("weir set weir:received-from=10.0.0.1 back/v");
        let advised = Failed::There(error).advised(&known(), "weir replicate run tank/v");
        assert_eq!(
            advised.action,
            "on the other server: weir set weir:received-from=10.0.0.1 back/v; then: weir \
             replicate run tank/v"
        );
    }
}
