//! The command line: its nouns, and the flags that all verbs have.
//!
//! Not here: the verbs of each noun (one file for each noun).
//!
//! Invariant: the flags for the server's address and for the output format may stand before the
//! noun, before the verb or after it. If a flag is given several times, the last one counts.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::bench::run::BenchArgs;
use crate::cli::advise::DedupeVerb;
use crate::cli::base::examples;
use crate::cli::base::list::ListArgs;
use crate::cli::base::remote::{Remote, RemoteWithoutCa, RootRemote};
use crate::cli::base::typed;
use crate::cli::bookmark::BookmarkVerb;
use crate::cli::events::EventArgs;
use crate::cli::export::ExportVerb;
use crate::cli::filesystem::mount::{MountArgs, UnmountArgs};
use crate::cli::filesystem::share::ShareVerb;
use crate::cli::filesystem::verbs::FilesystemVerb;
use crate::cli::lun::LunVerb;
use crate::cli::pool::PoolVerb;
use crate::cli::property::{GetArgs, InheritArgs, SetArgs};
use crate::cli::replicate::ReplicateVerb;
use crate::cli::schedule::ScheduleVerb;
use crate::cli::server::ServerVerb;

use crate::cli::snapshot::SnapshotVerb;
use crate::cli::stream::StreamVerb;
use crate::cli::target::TargetVerb;
use crate::cli::token::TokenVerb;
use crate::cli::transfer::{ReceiveArgs, SendArgs};
use crate::cli::volume::VolumeVerb;
use crate::offline::check::CheckArgs;
use crate::offline::rescue::RescueArgs;
use crate::serve_args::ServeArgs;

/// Software-defined storage in one program: disks form pools, and pools serve volumes and
/// filesystems.
#[derive(Debug, Parser)]
#[command(name = "weir", version, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) remote: RootRemote,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server: engine, data protocols and management interface in one process
    Serve(ServeArgs),
    /// Show the state of all pools, problems first
    Status {
        #[command(flatten)]
        remote: Remote,
    },
    /// List all pools, volumes, filesystems, exports, targets and logical units
    List {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show the version of this command and of the server
    Version {
        #[command(flatten)]
        remote: Remote,
    },
    /// Create, inspect and destroy pools
    Pool {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: PoolVerb,
    },
    /// Create, change and destroy volumes
    Volume {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: VolumeVerb,
    },
    /// Create, show and destroy filesystems
    #[command(visible_alias = "fs")]
    Filesystem {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: FilesystemVerb,
    },
    /// Mount a filesystem or a snapshot of a filesystem on the machine of the server
    Mount {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        arguments: MountArgs,
    },
    /// Unmount a filesystem or snapshot
    #[command(alias = "umount")]
    Unmount {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        arguments: UnmountArgs,
    },
    /// Create snapshots, roll volumes back to them and clone them
    Snapshot {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: SnapshotVerb,
    },
    /// Create bookmarks: the point in time of a snapshot, without its data, from which changes can
    /// be sent
    Bookmark {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: BookmarkVerb,
    },
    /// Show properties of pools, volumes and snapshots, and the source of each value
    Get {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        arguments: GetArgs,
    },
    /// Set properties
    Set {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        arguments: SetArgs,
    },
    /// Clear local property values, so that they are inherited again
    Inherit {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        arguments: InheritArgs,
    },
    /// Send a snapshot, or the changes since an older one, to standard output as a stream
    Send(SendArgs),
    /// Receive a stream from standard input into a volume
    Receive(ReceiveArgs),
    /// Replicate volumes to another server in the background
    Replicate {
        #[command(flatten)]
        remote: RemoteWithoutCa,
        #[command(subcommand)]
        verb: ReplicateVerb,
    },
    /// Take snapshots on a schedule
    Schedule {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: ScheduleVerb,
    },
    /// Estimate the savings of dedupe before it is enabled
    Dedupe {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: DedupeVerb,
    },
    /// Export volumes and snapshots to NBD clients
    Export {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: ExportVerb,
    },
    /// Share filesystems with NFS clients
    Share {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: ShareVerb,
    },
    /// Create iSCSI targets, set their allowed initiators and show sessions
    Target {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: TargetVerb,
    },
    /// Map volumes and snapshots to logical units of iSCSI targets
    Lun {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: LunVerb,
    },
    /// Show and cancel streams that the server sends or receives
    Stream {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: StreamVerb,
    },
    /// Create tokens for programs and users without an account on this machine
    Token {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: TokenVerb,
    },
    /// Show events: failed disks, repaired data and management calls
    Events {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        arguments: EventArgs,
    },
    /// Show the state of the running server
    Server {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: ServerVerb,
    },
    /// Copy a volume from the remaining disks of its pool, without a server
    Rescue(RescueArgs),
    /// Verify all data and metadata on the disks of a pool, without a server and without writing
    Check(CheckArgs),
    /// Benchmark any storage, with a verdict on each figure; without a verb: a one-minute benchmark
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions {
        /// Shell to print the script for
        shell: Shell,
    },
}

impl Cli {
    /// True if the output must be JSON, including error messages.
    pub(crate) fn json(&self) -> bool {
        let near = match &self.command {
            Command::Status { remote }
            | Command::List { remote, .. }
            | Command::Version { remote }
            | Command::Pool { remote, .. }
            | Command::Volume { remote, .. }
            | Command::Filesystem { remote, .. }
            | Command::Mount { remote, .. }
            | Command::Unmount { remote, .. }
            | Command::Snapshot { remote, .. }
            | Command::Bookmark { remote, .. }
            | Command::Get { remote, .. }
            | Command::Set { remote, .. }
            | Command::Inherit { remote, .. }
            | Command::Dedupe { remote, .. }
            | Command::Schedule { remote, .. }
            | Command::Export { remote, .. }
            | Command::Share { remote, .. }
            | Command::Target { remote, .. }
            | Command::Lun { remote, .. }
            | Command::Stream { remote, .. }
            | Command::Token { remote, .. }
            | Command::Events { remote, .. }
            | Command::Server { remote, .. } => remote.json,
            Command::Replicate { remote, .. } => remote.json,
            Command::Send(arguments) => arguments.remote.json,
            Command::Receive(arguments) => arguments.remote.json,
            Command::Rescue(arguments) => arguments.json,
            Command::Check(arguments) => arguments.json,
            Command::Bench(arguments) => arguments.json,
            Command::Serve(_) | Command::Completions { .. } => false,
        };
        near || self.remote.json
    }
}

/// Maximum number of examples in the help of a command.
const EXAMPLES_SHOWN: usize = 2;

/// Returns the grammar of the command line; the help of each command has examples.
pub(crate) fn grammar() -> clap::Command {
    with_examples(Cli::command(), "weir")
}

fn with_examples(mut command: clap::Command, path: &str) -> clap::Command {
    let verbs: Vec<String> =
        command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    let is_noun = !verbs.is_empty();
    for verb in verbs {
        let below = format!("{path} {verb}");
        command = command.mut_subcommand(verb, |verb| with_examples(verb, &below));
    }
    // After a noun without a verb, such as `bench`, only options can follow.
    let next = if is_noun { " -" } else { " " };
    let is_shown = |line: &&str| {
        line.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(next))
    };
    let examples: Vec<String> =
        examples::all().filter(is_shown).take(EXAMPLES_SHOWN).map(|e| format!("  {e}")).collect();
    if examples.is_empty() {
        return command;
    }
    let mut text = format!("Examples:\n{}", examples.join("\n"));
    if let Some(more) = command.get_after_help() {
        text = format!("{text}\n\n{more}");
    }
    command.after_help(text)
}

/// Parses the command line. The examples are added only if the user asks for help.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let error = match Cli::try_parse() {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    if let Some(Ok(cli)) = with_negative_size(typed::words()).map(Cli::try_parse_from) {
        return Ok(cli);
    }
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let with_examples = || grammar().try_get_matches_from(std::env::args_os()).err();
    Err(Some(error).filter(|_| !is_help).or_else(with_examples).expect("help is an error"))
}

/// Inserts the option `-s` before the size in the words of `volume resize NAME -SIZE`. Without `-s`
/// the parser refuses `-SIZE` as an unknown option. With `-s` the command itself refuses the size,
/// and its error has the resulting size.
fn with_negative_size(mut words: Vec<String>) -> Option<Vec<String>> {
    let is_resize = words.windows(2).any(|pair| pair == ["volume", "resize"]);
    let is_size = |word: &String| word[1..].starts_with(char::is_numeric);
    let at = words.iter().position(|word| word.starts_with('-') && is_size(word))?;
    words.insert(at, "-s".to_owned());
    words.insert(0, env!("CARGO_PKG_NAME").to_owned());
    is_resize.then_some(words)
}

/// Prints the error for an invalid command line like clap, and exits.
pub(crate) fn refuse(message: &str) -> ! {
    Cli::command().error(ErrorKind::ArgumentConflict, message).exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that the server recommends in the errors of replications.
    const ADVISED: &str =
        include_str!("../../../../crates/control/weir-server/src/replication/commands.txt");

    #[test]
    fn server_accepts_every_verb() {
        let cli = Cli::command();
        let verbs = cli.get_subcommands().map(|verb| verb.get_name().to_owned());
        let mut verbs: Vec<String> = verbs.collect();
        verbs.sort();
        assert_eq!(verbs, weir_server::VERBS);
    }

    #[test]
    fn help_of_each_command_has_two_examples_that_parse() {
        for line in examples::all() {
            let line = line.split(['<', '>']).next().unwrap_or_default().replace('\'', "");
            let words = line.split_whitespace();
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
        let mut commands = vec![(grammar(), String::new())];
        while let Some((command, path)) = commands.pop() {
            let path = format!("{path} {}", command.get_name());
            let below = command.get_subcommands().filter(|verb| verb.get_name() != "help");
            let below: Vec<_> = below.map(|verb| (verb.clone(), path.clone())).collect();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let is_complete = below.is_empty() || path == " weir bench";
            let start = format!("\n {path}");
            let shown = help.starts_with("Examples:").then(|| help.matches(&start).count());
            assert!(!is_complete || shown == Some(EXAMPLES_SHOWN), "{path}: {help}");
            commands.extend(below);
        }
    }

    use std::fmt::Write as _;

    /// Writes the help of a command and of its verbs as a page of the manual.
    fn page(command: &clap::Command, path: &str, text: &mut String) {
        let depth = path.split(' ').count();
        let mut command = command.clone().bin_name(path).disable_help_subcommand(true);
        if path != "weir" {
            let help = command.render_long_help().to_string();
            // Leave out the global options, which are the same for all commands.
            let (own, rest) = help.split_once("\nGlobal options:\n").unwrap_or((&help, ""));
            let after = rest.split_once("\n\nExamples:").map(|(_, after)| after);
            let after = after.map(|after| format!("\nExamples:{after}")).unwrap_or_default();
            let lines = own.lines().chain(after.lines()).map(str::trim_end);
            let lines: Vec<&str> = lines.collect();
            let title = "#".repeat(depth);
            writeln!(text, "\n{title} {path}\n\n```text").unwrap();
            *text += lines.join("\n").trim_end();
            *text += "\n```\n";
        }
        let verbs = command.get_subcommands().filter(|verb| verb.get_name() != "help");
        for verb in verbs {
            page(verb, &format!("{path} {}", verb.get_name()), text);
        }
    }

    #[test]
    fn command_line_is_documented() {
        let mut text = "# Command line\n\nPrinted from the code: `UPDATE=1 cargo test -p weir \
                        --bin weir`.\n\nEvery command that calls the server also has the options \
                        `--api ADDRESS`, `--ca FILE`, `--json` and `--timeout SECONDS`. The exit \
                        code is 0 for success, 1 for a negative result of `weir bench`, 2 for an \
                        invalid command line, and otherwise the kind of the \
                        [error](../errors.md).\n"
            .to_owned();
        page(&grammar(), "weir", &mut text);
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(file, &text).unwrap();
        }
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            found == text,
            "docs/reference/cli.md is not what the code says; refresh it: UPDATE=1 cargo test -p \
             weir --bin weir"
        );
    }

    #[test]
    fn commands_advised_by_the_server_exist() {
        assert!(ADVISED.lines().count() > 10);
        for command in ADVISED.lines() {
            let Err(error) = Cli::try_parse_from(command.split_whitespace()) else { continue };
            // The command exists if the parser complains only about its arguments.
            let named = [ErrorKind::MissingRequiredArgument, ErrorKind::InvalidValue];
            assert!(named.contains(&error.kind()), "{command}: {error}");
        }
    }
}
