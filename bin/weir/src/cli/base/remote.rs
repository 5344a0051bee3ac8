//! Options that say where the server is and how to print.
//!
//! Not here: the connection (`session`), the commands (`args`).
//!
//! Invariant: an option before the verb and the same option after it mean the same; the last one
//! counts.

use std::path::PathBuf;

use clap::Args;

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
