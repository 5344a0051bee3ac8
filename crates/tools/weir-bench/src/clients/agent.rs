//! `weir bench agent`: offers load for a coordinator on another host.
//!
//! Not here: what a session does (session), reading the command line (the binary).
//!
//! Invariants:
//! - one coordinator at a time; another is told so and sent away;
//! - without a secret nobody gives orders but processes of this host;
//! - whatever comes in, the agent goes on listening.

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

/// How often it looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Connections at a time; more wait with the kernel.
const CONNECTIONS_MAX: usize = 16;

/// Why an agent cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Anybody could give it orders.
    #[error("{listen} can be reached from other hosts, and there is no secret: give one")]
    SecretNeeded {
        /// Where it was to listen.
        listen: SocketAddr,
    },
    /// The address cannot be used.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// Where it was to listen.
        listen: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
}

/// Listens for a coordinator.
pub struct Agent {
    listener: TcpListener,
    address: SocketAddr,
    secret: Option<Secret>,
    open: Arc<Opener>,
}

/// Listens and serves until `stop`; `say` is told in words what happens.
///
/// # Errors
/// It cannot listen there.
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
    /// Listens; a port of 0 is any that is free.
    ///
    /// # Errors
    /// It cannot listen there, or others could reach it and there is no secret.
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

    /// Measures what `open` gives for an address, such as a target of known behaviour.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is set; what is being measured then is given up. `say` is told in words
    /// what happens.
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
                    std::thread::sleep(LOOK_EVERY);
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
            // Ends every wait of a session, and with it the session.
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
            return say(&format!("{peer}: sent away: it is another host, and there is no secret"));
        }
        match self.session(stream, is_taken, &|| say(&format!("{peer}: may give orders"))) {
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
            refuse(&mut link, "another coordinator measures with it");
            return Err(Ended::Taken);
        };
        accepted.accept(&mut link)?;
        begins();
        Ok(session::serve(&mut link, &*self.open)?)
    }
}

/// How a connection can end, for the one who reads along.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("sent away: {0}")]
    Greeting(#[from] GreetingError),
    #[error("sent away: another coordinator measures")]
    Taken,
    #[error("ended: {0}")]
    Link(#[from] LinkError),
    #[error("ended: {0}")]
    Session(#[from] session::SessionError),
}

fn is_here(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Somebody else's text, as it may be printed.
fn words(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
