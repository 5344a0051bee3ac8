//! The shape of the command line: nouns, and the flags all verbs share.
//!
//! Not here: the verbs of each noun (one file per noun).
//!
//! Invariant: a flag that says where the server is, or how to print, may stand before the noun,
//! before the verb or after it; the last of these counts.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::bench::BenchArgs;
use crate::bookmark::BookmarkVerb;
use crate::export::ExportVerb;
use crate::forecast::DedupeVerb;
use crate::lun::LunVerb;
use crate::offline::check::CheckArgs;
use crate::offline::rescue::RescueArgs;
use crate::pool::PoolVerb;
use crate::properties::{GetArgs, InheritArgs, SetArgs};
use crate::replicate::ReplicateVerb;
use crate::schedule::ScheduleVerb;
use crate::serve_args::ServeArgs;
use crate::server::ServerVerb;
use crate::snapshot::SnapshotVerb;
use crate::stream::StreamVerb;
use crate::target::TargetVerb;
use crate::token::TokenVerb;
use crate::transfer::{ReceiveArgs, SendArgs};
use crate::volume::VolumeVerb;

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

/// Flags of every verb that calls the server.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Remote {
    /// Where the server is; also from the environment: WEIR_API
    #[arg(long, global = true, value_name = "unix:PATH|https://HOST:PORT|HOST:PORT")]
    api: Option<String>,
    /// File with the certificate that vouches for a server at https:// (PEM); also WEIR_CA
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Give up waiting for the answer after this long
    #[arg(long, global = true, value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
}

/// The same, of a noun whose verb has a `--ca` of its own: there it goes before the noun.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RemoteWithoutCa {
    /// Where the server is; also from the environment: WEIR_API
    #[arg(long, global = true, value_name = "unix:PATH|https://HOST:PORT|HOST:PORT")]
    api: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Give up waiting for the answer after this long
    #[arg(long, global = true, value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
}

/// The same flags before the noun. They are not global there: `serve` has its own `--api`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RootRemote {
    /// Where the server is; also from the environment: WEIR_API
    #[arg(id = "root_api", long = "api", value_name = "unix:PATH|https://HOST:PORT|HOST:PORT")]
    pub(crate) api: Option<String>,
    /// File with the certificate that vouches for a server at https:// (PEM); also WEIR_CA
    #[arg(id = "root_ca", long = "ca", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Print JSON
    #[arg(id = "root_json", long = "json")]
    pub(crate) json: bool,
    /// Give up waiting for the answer after this long
    #[arg(id = "root_timeout", long = "timeout", value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: Option<u64>,
}

impl From<Remote> for RootRemote {
    fn from(Remote { api, ca, json, timeout }: Remote) -> Self {
        Self { api, ca, json, timeout }
    }
}

impl From<RemoteWithoutCa> for RootRemote {
    fn from(RemoteWithoutCa { api, json, timeout }: RemoteWithoutCa) -> Self {
        Self { api, ca: None, json, timeout }
    }
}

impl RootRemote {
    pub(crate) fn given(&self) -> bool {
        self.api.is_some() || self.ca.is_some() || self.json || self.timeout.is_some()
    }
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
        include_str!("../../../crates/control/weir-server/src/replication/commands.txt");

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
