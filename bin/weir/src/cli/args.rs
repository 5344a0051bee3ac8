//! The shape of the command line: nouns, and the flags all verbs share.
//!
//! Not here: the verbs of each noun (one file per noun).
//!
//! Invariant: a flag that says where the server is, or how to print, may stand before the noun,
//! before the verb or after it; the last of these counts.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::bench::run::BenchArgs;
use crate::cli::advise::DedupeVerb;
use crate::cli::base::remote::{Remote, RemoteWithoutCa, RootRemote};
use crate::cli::bookmark::BookmarkVerb;
use crate::cli::export::ExportVerb;
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

/// Software-defined storage in one program: disks become pools, pools serve volumes.
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
    /// List everything: pools, volumes, exports, targets and logical units
    List {
        #[command(flatten)]
        remote: Remote,
        /// For scripts: no header, tabs, sizes in bytes
        #[arg(short = 'H')]
        script: bool,
    },
    /// Show the version of this command and of the server
    Version {
        #[command(flatten)]
        remote: Remote,
    },
    /// Make, look at, and take away pools
    Pool {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: PoolVerb,
    },
    /// Make, change and take away volumes
    Volume {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: VolumeVerb,
    },
    /// Keep volumes as they were, go back to that, and make new volumes of it
    Snapshot {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: SnapshotVerb,
    },
    /// Keep the moment of a snapshot, without its data, so that changes since can be sent
    Bookmark {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: BookmarkVerb,
    },
    /// Show properties of pools, volumes and snapshots, and where their values come from
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
    /// Let something inherit a property again, instead of what was set
    Inherit {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        arguments: InheritArgs,
    },
    /// Send a snapshot, or what changed since an older one, as a stream to standard output
    Send(SendArgs),
    /// Receive a stream from standard input into a volume
    Receive(ReceiveArgs),
    /// Let the server send volumes to another server by itself
    Replicate {
        #[command(flatten)]
        remote: RemoteWithoutCa,
        #[command(subcommand)]
        verb: ReplicateVerb,
    },
    /// Let the server take snapshots by itself
    Schedule {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: ScheduleVerb,
    },
    /// See what dedupe would save before it is switched on
    Dedupe {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: DedupeVerb,
    },
    /// Offer volumes and snapshots to clients
    Export {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: ExportVerb,
    },
    /// Let iSCSI initiators log in, and see who is there
    Target {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: TargetVerb,
    },
    /// Show volumes and snapshots to initiators, as logical units of targets
    Lun {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: LunVerb,
    },
    /// Show and cancel streams that are sent and received
    Stream {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: StreamVerb,
    },
    /// Let programs and people call that are no users of this machine
    Token {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: TokenVerb,
    },
    /// Show what happened: disks that failed, copies that were repaired, calls that were made
    Events {
        #[command(flatten)]
        remote: Remote,
        /// Go on with what happens from now on
        #[arg(short, long)]
        follow: bool,
        /// Only events with a higher number
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        after: u64,
    },
    /// Look at the running server
    Server {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        verb: ServerVerb,
    },
    /// Copy a volume out of the disks that are left of its pool, without a server
    Rescue(RescueArgs),
    /// Verify everything on the disks of a pool, without a server and without a change
    Check(CheckArgs),
    /// Measure any storage, with a verdict on every number; without a verb: one honest minute
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Cli {
    /// Whether to print JSON, errors included.
    pub(crate) fn json(&self) -> bool {
        let near = match &self.command {
            Command::Status { remote }
            | Command::List { remote, .. }
            | Command::Version { remote }
            | Command::Pool { remote, .. }
            | Command::Volume { remote, .. }
            | Command::Snapshot { remote, .. }
            | Command::Bookmark { remote, .. }
            | Command::Get { remote, .. }
            | Command::Set { remote, .. }
            | Command::Inherit { remote, .. }
            | Command::Dedupe { remote, .. }
            | Command::Schedule { remote, .. }
            | Command::Export { remote, .. }
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

/// Ends the process the way a command line that cannot be read does.
pub(crate) fn refuse(message: &str) -> ! {
    Cli::command().error(ErrorKind::ArgumentConflict, message).exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that the server names in errors of replications.
    const ADVISED: &str =
        include_str!("../../../../crates/control/weir-server/src/replication/commands.txt");

    #[test]
    fn server_knows_every_verb() {
        let cli = Cli::command();
        let verbs = cli.get_subcommands().map(|verb| verb.get_name().to_owned());
        let mut verbs: Vec<String> = verbs.collect();
        verbs.sort();
        assert_eq!(verbs, weir_server::VERBS);
    }

    #[test]
    fn commands_that_the_server_advises_exist() {
        assert!(ADVISED.lines().count() > 10);
        for command in ADVISED.lines() {
            let Err(error) = Cli::try_parse_from(command.split_whitespace()) else { continue };
            // A command that is named without its arguments exists all the same.
            let named = [ErrorKind::MissingRequiredArgument, ErrorKind::InvalidValue];
            assert!(named.contains(&error.kind()), "{command}: {error}");
        }
    }
}
