//! Command line of measurements with several clients: the options that name agents (other machines
//! that also run load), and the verb `weir bench agent`, which is an agent.
//!
//! Not here: the protocol between an agent and the coordinator, which controls it (weir-bench).
//!
//! Invariant: a secret comes from a file, because other users of the machine may read the command
//! line and the environment of a process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_base::private::read_secret;
use weir_bench::clients::agent::{self, AgentError};
use weir_bench::clients::{AgentInfo, ClientError, Clients, PORT, Secret};
use weir_bench::target::Address;

use crate::bench::answer::{Answer, invalid};
use crate::bench::plan::told;
use crate::bench::progress;
use crate::cli::base::output;

/// Options that name agents, which run load together with this process.
#[derive(Debug, Args)]
pub(super) struct AgentsArgs {
    /// Host that runs `weir bench agent`, for cells with several clients; repeat it for each host
    #[arg(long = "agent", value_name = "HOST[:PORT]")]
    agents: Vec<String>,
    /// File with the secret shared with the agents
    #[arg(long, value_name = "FILE", requires = "agents")]
    secret_file: Option<PathBuf>,
}

/// Arguments of `weir bench agent`.
#[derive(Debug, Args)]
pub(super) struct AgentArgs {
    /// Listen address and port; addresses other than loopback require a secret
    #[arg(long, value_name = "ADDRESS:PORT",
        default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)))]
    listen: SocketAddr,
    /// File with a secret of at least 16 characters, the same as the coordinator's
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

impl AgentsArgs {
    /// Connects to all agents and checks their versions. `target` is the address that the agents
    /// will measure.
    pub(super) fn clients(&self, target: &str) -> Result<Clients, ApiError> {
        if self.agents.is_empty() {
            return Ok(Clients::none());
        }
        // An agent has another working directory than this process, so make the path of a file
        // absolute.
        let target = match Address::parse(target).map_err(|error| told(&error))? {
            Address::File(path) => format!("file:{}", absolute(&path)?),
            Address::Directory(path) => format!("dir:{}", absolute(&path)?),
            Address::Null { .. } | Address::Nbd(_) | Address::Iscsi(_) | Address::Nfs(_) => {
                target.to_owned()
            }
        };
        let secret = secret(self.secret_file.as_deref())?;
        let clients = Clients::new(self.agents.clone(), &target, secret);
        for AgentInfo { address, host } in clients.check().map_err(|error| unreachable(&error))? {
            output::say(&format!("weir: agent {address} on {host} is ready"));
        }
        Ok(clients)
    }
}

fn absolute(path: &Path) -> Result<String, ApiError> {
    let path = std::path::absolute(path).map_err(|error| invalid(&error))?;
    Ok(path.display().to_string())
}

fn unreachable(error: &ClientError) -> ApiError {
    ApiError::new(ErrorKind::Unavailable, error.to_string())
        .with_action("start `weir bench agent` of this version there, with the same secret")
}

fn secret(file: Option<&Path>) -> Result<Option<Secret>, ApiError> {
    let Some(file) = file else { return Ok(None) };
    let bytes = read_secret(file).map_err(|error| {
        ApiError::new(error.kind(), error.to_string()).with_action(error.action())
    })?;
    let text = String::from_utf8(bytes).map_err(|_| {
        let message = format!("the secret in {} is not UTF-8 text", file.display());
        ApiError::new(ErrorKind::Invalid, message)
    })?;
    Secret::new(&text).map(Some).map_err(|error| invalid(&error))
}

/// Runs the load that coordinators request, until Ctrl-C.
pub(super) fn agent(arguments: &AgentArgs) -> Result<Answer, ApiError> {
    let secret = secret(arguments.secret_file.as_deref())?;
    let stop = Arc::new(AtomicBool::new(false));
    progress::catch_interrupts(&stop, "weir: agent stopped")?;
    output::say(&format!("weir: agent on {}; Ctrl-C stops it", arguments.listen));
    let say = |text: &str| output::say(&format!("weir: {text}"));
    agent::serve(arguments.listen, secret, &stop, &say).map_err(|error| {
        let kind = match error {
            AgentError::SecretNeeded { .. } => ErrorKind::Permission,
            _ => ErrorKind::Unavailable,
        };
        ApiError::new(kind, error.to_string()).with_action(
            "write a secret into a file (openssl rand -hex 16) and pass it with --secret-file, or \
             listen on loopback",
        )
    })?;
    Ok(Answer::Yes)
}
