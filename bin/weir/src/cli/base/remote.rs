//! Options for the address of the server and for the format of the output.
//!
//! Not here: the connection (`session`), the commands (`args`).
//!
//! Invariant: an option has the same meaning before and after the verb. If an option is given
//! several times, the last value counts.

use std::path::PathBuf;

use clap::Args;

/// Heading of these options in the help of a command; they come after the command's own options.
const GLOBAL: &str = "Global options";
/// Valid forms of a server's address.
const ADDRESS: &str = "unix:PATH|https://HOST:PORT|HOST:PORT";

/// Flags that every verb with a call to the server has.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Remote {
    /// Address of the server; also from the environment variable WEIR_API
    #[arg(long, global = true, help_heading = GLOBAL, value_name = ADDRESS)]
    api: Option<String>,
    /// File with the CA certificate for a server at https:// (PEM); also WEIR_CA
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
    /// Time limit for the server's response
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
}

/// The flags of [`Remote`] except `--ca`, for a noun with a verb that has a `--ca` of its own. With
/// this noun, the server's `--ca` must come before the noun.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RemoteWithoutCa {
    /// Address of the server; also from the environment variable WEIR_API
    #[arg(long, global = true, help_heading = GLOBAL, value_name = ADDRESS)]
    api: Option<String>,
    /// Print JSON
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
    /// Time limit for the server's response
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
}

/// The flags of [`Remote`] in front of the noun. These flags are not global in clap, because
/// `serve` has an `--api` of its own.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RootRemote {
    /// Address of the server; also from the environment variable WEIR_API
    #[arg(id = "root_api", long = "api", help_heading = GLOBAL, value_name = ADDRESS)]
    pub(crate) api: Option<String>,
    /// File with the CA certificate for a server at https:// (PEM); also WEIR_CA
    #[arg(id = "root_ca", long = "ca", help_heading = GLOBAL, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Print JSON
    #[arg(id = "root_json", long = "json", help_heading = GLOBAL)]
    pub(crate) json: bool,
    /// Time limit for the server's response
    #[arg(id = "root_timeout", long = "timeout", help_heading = GLOBAL, value_name = "SECONDS",
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
