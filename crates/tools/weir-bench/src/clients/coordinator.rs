//! Coordinator: combines several agents into one load and one result.
//!
//! `client` has the dialogue with one agent, `merge` merges the results, `run` decides which cells
//! need several clients.
//!
//! Invariants:
//! - no client starts before all clients are ready, and all clients start at the same time of one
//!   clock;
//! - if one client fails, the other clients are stopped, and all results of the run are discarded.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::client::{Session, lost};
use super::greeting::{GreetingError, greet_agent};
use super::link::{Link, LinkError};
use super::merge::{One, merge};
use super::secret::Secret;
use super::session::flush;
use super::{ClientError, PORT};
use crate::load::Ground;
use crate::result::CellRun;
use crate::spec::{CellSpec, ContentSpec, LoadSpec};

/// Timeout of one connection attempt.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Time between the last ping and the start of the load, in addition to twice the slowest round
/// trip.
const LEAD: Duration = Duration::from_millis(200);
/// Interval between two calls of the observer.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Agents that a run can use.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    agents: Vec<String>,
    target: String,
    secret: Option<Secret>,
}

/// Agent that answered the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentInfo {
    /// Address of the agent, as the user wrote it.
    pub address: String,
    /// Host name of the agent.
    pub host: String,
}

/// Load that all clients generate together.
pub(crate) struct SharedOffer<'a> {
    /// Context that all loads of the run share.
    pub(crate) ground: &'a Ground<'a>,
    /// Specification of the block contents.
    pub(crate) content: &'a ContentSpec,
    /// Cell specification: the streams and the number of clients.
    pub(crate) cell: &'a CellSpec,
    /// Load that each client generates.
    pub(crate) load: LoadSpec,
}

impl Clients {
    /// Creates an empty list of agents: only this process generates load.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates a list of agents, each given as `HOST`, `HOST:PORT` or an IP address. `target` is
    /// the address of the target, which must be valid on every agent.
    pub fn new(agents: Vec<String>, target: &str, secret: Option<Secret>) -> Self {
        Self { agents, target: target.to_owned(), secret }
    }

    /// Address of the target, which is valid on every agent.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// Number of agents.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// True if there are no agents, so that only this process generates load.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// Performs the handshake with every agent, before a long phase of the run starts.
    ///
    /// # Errors
    /// An agent cannot be reached, has another version, or has another secret.
    pub fn check(&self) -> Result<Vec<AgentInfo>, ClientError> {
        let greet = |address: &String| {
            let (_, host) = self.connect(address)?;
            Ok(AgentInfo { address: address.clone(), host })
        };
        self.agents.iter().map(greet).collect()
    }

    /// Measures one load on as many agents as the cell has clients. Calls `tell` periodically with
    /// the elapsed time; if `tell` returns false, the measurement stops.
    pub(crate) fn measure(
        &self,
        offer: &SharedOffer<'_>,
        tell: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<CellRun, ClientError> {
        self.measure_each(offer, tell).map(merge)
    }

    /// Measures a load on several agents and returns the results of each client.
    pub(super) fn measure_each(
        &self,
        offer: &SharedOffer<'_>,
        tell: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Vec<One>, ClientError> {
        let needed = offer.cell.clients;
        if self.agents.len() < needed as usize {
            return Err(ClientError::TooFew { needed, there: self.agents.len() as u32 });
        }
        flush(offer.ground.target)?;
        let stop = AtomicBool::new(false);
        let prepare = (0..needed).zip(&self.agents).map(|(number, address)| {
            let stop = &stop;
            move || Session::prepare(self, address, offer, number, stop)
        });
        let mut sessions = all_at_once(prepare.collect(), &stop, &mut || tell(Duration::ZERO))?;
        let start = synchronise(&mut sessions)?;
        let measure = sessions.into_iter().map(|session| {
            let (stop, ground) = (&stop, offer.ground);
            move || session.measure(start, ground, stop)
        });
        let mut gone_by = || tell(start.elapsed());
        all_at_once(measure.collect(), &stop, &mut gone_by)
    }

    pub(super) fn connect(&self, address: &str) -> Result<(Link, String), ClientError> {
        let client = || address.to_owned();
        let stream = connect_to(address)
            .map_err(|source| ClientError::Connect { client: client(), source })?;
        let lost = |error: LinkError| lost(address, &error);
        let mut link = Link::new(stream).map_err(lost)?;
        let host = greet_agent(&mut link, self.secret.as_ref()).map_err(|error| match error {
            GreetingError::OtherVersion { theirs, ours } => {
                ClientError::OtherVersion { client: client(), theirs, ours }
            }
            GreetingError::Secret(why) => {
                ClientError::Secret { client: client(), why: why.to_owned() }
            }
            GreetingError::Refused(why) => ClientError::Refused { client: client(), why },
            GreetingError::Link(error) => lost(error),
        })?;
        Ok((link, host))
    }
}

fn connect_to(address: &str) -> std::io::Result<TcpStream> {
    let with_port = match (address.parse::<SocketAddr>(), address.parse::<IpAddr>()) {
        (Ok(address), _) => vec![address],
        (_, Ok(ip)) => vec![SocketAddr::new(ip, PORT)],
        _ if address.contains(':') => address.to_socket_addrs()?.collect(),
        _ => (address, PORT).to_socket_addrs()?.collect(),
    };
    let mut failed = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in with_port {
        match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Runs all jobs concurrently. If a job fails or `goes_on` returns false, stops all other jobs.
fn all_at_once<T: Send>(
    jobs: Vec<impl FnOnce() -> Result<T, ClientError> + Send>,
    stop: &AtomicBool,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<T>, ClientError> {
    let done: Vec<Result<T, ClientError>> = std::thread::scope(|scope| {
        let spawn = |job| scope.spawn(move || call(job, stop));
        let threads: Vec<_> = jobs.into_iter().map(spawn).collect();
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            if !goes_on() {
                stop.store(true, Ordering::Release);
            }
            std::thread::sleep(ASK_EVERY);
        }
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    let mut good = Vec::new();
    let mut failed: Option<ClientError> = None;
    for one in done {
        match one {
            Ok(one) => good.push(one),
            // Report the first failure instead of the cancellations that result from it.
            Err(error) if failed.is_none() || matches!(failed, Some(ClientError::CalledOff)) => {
                failed = Some(error);
            }
            Err(_) => {}
        }
    }
    failed.map_or(Ok(good), Err)
}

fn call<T>(
    job: impl FnOnce() -> Result<T, ClientError>,
    stop: &AtomicBool,
) -> Result<T, ClientError> {
    job().inspect_err(|_| stop.store(true, Ordering::Release))
}

/// Measures the clock offset of each session in turn, and chooses the common start time of the
/// load.
fn synchronise(sessions: &mut [Session]) -> Result<Instant, ClientError> {
    let zero = Instant::now();
    for session in sessions.iter_mut() {
        session.compare_clocks(zero)?;
    }
    let slowest = sessions.iter().map(Session::round_trip).max();
    Ok(Instant::now() + LEAD + slowest.unwrap_or_default() * 2)
}
