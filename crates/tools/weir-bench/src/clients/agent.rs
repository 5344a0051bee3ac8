//! `weir bench agent`: generates load for a coordinator on another host.
//!
//! `session` has the steps of a session; the binary has the command line.
//!
//! Invariants:
//! - an agent serves one coordinator at a time, and refuses any other with the reason;
//! - without a secret, only processes of the same host can give orders to the agent;
//! - the agent keeps listening, whatever bytes a connection sends.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::greeting::{GreetingError, greet_coordinator, refuse};
use super::link::{Link, LinkError};
use super::secret::Secret;
use super::session::{self, Opener};
use super::wire::Task;
use crate::spec::DatasetSpec;
use crate::target::{Target, TargetError};

/// Interval at which the agent checks its stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of connections; further connections wait in the kernel's backlog.
const CONNECTIONS_MAX: usize = 16;

/// Reason for which an agent cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The requested address needs a secret: without a secret, any host could start loads on this
    /// agent.
    #[error("{listen} is reachable from other hosts and no secret is set")]
    SecretNeeded {
        /// Address that the user requested.
        listen: SocketAddr,
    },
    /// The agent cannot listen on the address.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// Address that the user requested.
        listen: SocketAddr,
        /// Error that the operating system returned.
        source: io::Error,
    },
}

/// An agent that listens for a coordinator.
pub struct Agent {
    listener: TcpListener,
    address: SocketAddr,
    secret: Option<Secret>,
    open: Arc<Opener>,
}

/// Listens and serves coordinators until `stop` is set. Calls `say` with a text for each event.
///
/// # Errors
/// The agent cannot listen on the address.
pub fn serve(
    listen: SocketAddr,
    secret: Option<Secret>,
    stop: &AtomicBool,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), AgentError> {
    Agent::bind(listen, secret)?.serve(stop, say);
    Ok(())
}

impl Agent {
    /// Starts listening; port 0 selects a free port.
    ///
    /// # Errors
    /// The agent cannot listen on the address, or other hosts could reach the address and there is
    /// no secret.
    pub fn bind(listen: SocketAddr, secret: Option<Secret>) -> Result<Self, AgentError> {
        if secret.is_none() && !is_here(listen.ip()) {
            return Err(AgentError::SecretNeeded { listen });
        }
        let bound = TcpListener::bind(listen).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = bound.map_err(|source| AgentError::Listen { listen, source })?;
        Ok(Self { listener, address, secret, open: Arc::new(session::open_existing) })
    }

    /// Replaces the function that opens targets, for example by a function for synthetic targets.
    #[must_use]
    pub fn with_targets(
        self,
        open: impl Fn(&str, &DatasetSpec) -> Result<Box<dyn Target>, TargetError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { open: Arc::new(open), ..self }
    }

    /// Address on which the agent listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves coordinators until `stop` is set, which also aborts a measurement that is running.
    /// Calls `say` with a text for each event.
    pub fn serve(&self, stop: &AtomicBool, say: &(dyn Fn(&str) + Sync)) {
        let open_now: Mutex<Vec<(u64, TcpStream)>> = Mutex::new(Vec::new());
        let is_taken = Mutex::new(());
        let mut number = 0;
        std::thread::scope(|scope| {
            while !stop.load(Ordering::Acquire) {
                let is_full = open_now.lock().len() >= CONNECTIONS_MAX;
                let Some((stream, peer)) =
                    (!is_full).then(|| self.listener.accept().ok()).flatten()
                else {
                    std::thread::sleep(POLL_INTERVAL);
                    continue;
                };
                let Ok(to_end) = stream.try_clone() else { continue };
                number += 1;
                open_now.lock().push((number, to_end));
                let (open_now, is_taken) = (&open_now, &is_taken);
                scope.spawn(move || {
                    self.attend(stream, peer.ip(), is_taken, say);
                    open_now.lock().retain(|(known, _)| *known != number);
                });
            }
            // Shutting down the sockets ends all waits of the sessions, and thus the sessions.
            for (_, stream) in open_now.lock().iter() {
                stream.shutdown(std::net::Shutdown::Both).ok();
            }
        });
    }

    fn attend(
        &self,
        stream: TcpStream,
        peer: IpAddr,
        is_taken: &Mutex<()>,
        say: &(dyn Fn(&str) + Sync),
    ) {
        if self.secret.is_none() && !is_here(peer) {
            return say(&format!("{peer}: rejected: it is another host and no secret is set"));
        }
        match self.session(stream, is_taken, &|| say(&format!("{peer}: accepted as coordinator"))) {
            Ok(Some(task)) => {
                let (number, of, target) = (task.number + 1, task.of, words(&task.target));
                say(&format!("{peer}: measured {target} as client {number} of {of}"));
            }
            Ok(None) => {}
            Err(error) => say(&format!("{peer}: {error}")),
        }
    }

    fn session(
        &self,
        stream: TcpStream,
        is_taken: &Mutex<()>,
        begins: &dyn Fn(),
    ) -> Result<Option<Task>, Ended> {
        let mut link = Link::new(stream)?;
        let accepted = greet_coordinator(&mut link, self.secret.as_ref())?;
        let Some(_taken) = is_taken.try_lock() else {
            refuse(&mut link, "another coordinator uses this agent");
            return Err(Ended::Taken);
        };
        accepted.accept(&mut link)?;
        begins();
        Ok(session::serve(&mut link, &*self.open)?)
    }
}

/// Outcome of a connection, for the text of an event.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("rejected: {0}")]
    Greeting(#[from] GreetingError),
    #[error("rejected: another coordinator uses this agent")]
    Taken,
    #[error("ended: {0}")]
    Link(#[from] LinkError),
    #[error("ended: {0}")]
    Session(#[from] session::SessionError),
}

fn is_here(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Returns text from a peer in a form that is safe to print.
fn words(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
