//! Handshake between coordinator and agent: checks that both run the same version and know the same
//! secret.
//!
//! `wire` has the messages that follow the handshake.
//!
//! Invariants: the handshake precedes all other messages and all work; a side that has a secret
//! continues only after the other side has proved that it knows the secret; the coordinator sends
//! its proof first.

use std::path::Path;
use std::time::Duration;

use super::link::{Link, LinkError};
use super::secret::{Proof, Secret, Side};
use super::wire::{Hello, Nonce, PROGRAM, PROTOCOL, Proven};

/// Timeout for each message of the handshake.
const WITHIN: Duration = Duration::from_secs(5);

/// Reason for which the handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum GreetingError {
    #[error("it runs {theirs}, this host runs {ours}")]
    OtherVersion { theirs: String, ours: String },
    #[error("{0}")]
    Secret(&'static str),
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Performs the handshake with an agent, and returns the agent's host name.
pub(super) fn greet_agent(
    link: &mut Link,
    secret: Option<&Secret>,
) -> Result<String, GreetingError> {
    let own = hello(secret.is_some());
    link.send(&own)?;
    let (theirs, _): (Hello, _) = link.receive(WITHIN)?;
    same_version(&theirs)?;
    same_secrets(secret.is_some(), theirs.has_secret, "agent")?;
    let proof = |side| secret.map(|secret| secret.proof(side, &own.nonce, &theirs.nonce));
    let text = proof(Side::Coordinator).map(Proof::to_text);
    link.send(&Proven::Yes { proof: text, host: host() })?;
    match link.receive(WITHIN)?.0 {
        Proven::Yes { proof: text, host } => {
            let wanted = proof(Side::Agent);
            if wanted.is_some_and(|wanted| !wanted.is(text.as_deref().unwrap_or_default())) {
                return Err(GreetingError::Secret("the agent has a different secret"));
            }
            link.trust();
            Ok(host)
        }
        Proven::Refused { why } => Err(GreetingError::Refused(why)),
    }
}

/// Performs the handshake with a coordinator until the coordinator has sent its proof. The caller
/// completes the handshake with [`Accepted::accept`] or [`refuse`].
pub(super) fn greet_coordinator(
    link: &mut Link,
    secret: Option<&Secret>,
) -> Result<Accepted, GreetingError> {
    let (theirs, _): (Hello, _) = link.receive(WITHIN)?;
    let own = hello(secret.is_some());
    link.send(&own)?;
    same_version(&theirs)?;
    same_secrets(secret.is_some(), theirs.has_secret, "coordinator")?;
    let Proven::Yes { proof: text, .. } = link.receive(WITHIN)?.0 else {
        return Err(LinkError::Unexpected.into());
    };
    let proof = |side| secret.map(|secret| secret.proof(side, &theirs.nonce, &own.nonce));
    let wanted = proof(Side::Coordinator);
    if wanted.is_some_and(|wanted| !wanted.is(text.as_deref().unwrap_or_default())) {
        let error = GreetingError::Secret("the coordinator has a different secret");
        refuse(link, &error.to_string());
        return Err(error);
    }
    Ok(Accepted { proof: proof(Side::Agent).map(Proof::to_text) })
}

/// Coordinator that has proved that it knows the secret.
#[derive(Debug)]
pub(super) struct Accepted {
    proof: Option<String>,
}

impl Accepted {
    /// Sends the acceptance to the coordinator.
    pub(super) fn accept(self, link: &mut Link) -> Result<(), LinkError> {
        link.send(&Proven::Yes { proof: self.proof, host: host() })?;
        link.trust();
        Ok(())
    }
}

/// Sends the reason for a refusal. Ignores errors, because the connection ends in any case.
pub(super) fn refuse(link: &mut Link, why: &str) {
    link.send(&Proven::Refused { why: why.to_owned() }).ok();
}

fn hello(has_secret: bool) -> Hello {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).expect("the kernel has random numbers");
    let (program, nonce) = (PROGRAM.to_owned(), Nonce(nonce));
    Hello { protocol: PROTOCOL, program, nonce, has_secret }
}

fn same_version(theirs: &Hello) -> Result<(), GreetingError> {
    if (theirs.protocol, theirs.program.as_str()) == (PROTOCOL, PROGRAM) {
        return Ok(());
    }
    let name = |program: &str, protocol: u32| format!("{program}, protocol {protocol}");
    // The text comes from a peer, so strip control characters and limit the length.
    let program: String = theirs.program.chars().filter(|c| !c.is_control()).take(64).collect();
    let (theirs, ours) = (name(&program, theirs.protocol), name(PROGRAM, PROTOCOL));
    Err(GreetingError::OtherVersion { theirs, ours })
}

fn same_secrets(ours: bool, theirs: bool, who: &str) -> Result<(), GreetingError> {
    let why = match (ours, theirs, who) {
        (true, false, "agent") => "the agent has no secret and the coordinator has one",
        (true, false, _) => "the coordinator has no secret and this agent has one",
        (false, true, "agent") => "the agent has a secret and the coordinator has none",
        (false, true, _) => "the coordinator has a secret and this agent has none",
        _ => return Ok(()),
    };
    Err(GreetingError::Secret(why))
}

/// Host name of this machine.
pub(super) fn host() -> String {
    let name = std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname"));
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
