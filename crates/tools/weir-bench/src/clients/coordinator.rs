//! The coordinator: several agents, one load, one result.
//!
//! Not here: what is said to one of them (client), merging what they measured (merge), which cells
//! need several clients (run).
//!
//! Invariants:
//! - nobody begins before all are ready, and all begin at the same time of one clock;
//! - where one fails the others are told to end, and nothing of the run is kept.

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

/// Until a connection is made.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// From the last ping to the start; the slowest connection's time is added to it.
const LEAD: Duration = Duration::from_millis(200);
/// How often the observer is asked whether to go on.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The agents that a run may use.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    agents: Vec<String>,
    target: String,
    secret: Option<Secret>,
}

/// An agent that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentInfo {
    /// As given.
    pub address: String,
    /// Name of its host.
    pub host: String,
}

/// A load as all clients are to offer it.
pub(crate) struct SharedOffer<'a> {
    /// What is common to all loads of the run.
    pub(crate) ground: &'a Ground<'a>,
    /// What the ground's content was made from.
    pub(crate) content: &'a ContentSpec,
    /// Its streams, and how many clients.
    pub(crate) cell: &'a CellSpec,
    /// Of each client.
    pub(crate) load: LoadSpec,
}

impl Clients {
    /// None: only this process measures.
    pub fn none() -> Self {
        Self::default()
    }

    /// Agents by `HOST`, `HOST:PORT` or address; `target` is how they all find the target.
    pub fn new(agents: Vec<String>, target: &str, secret: Option<Secret>) -> Self {
        Self { agents, target: target.to_owned(), secret }
    }

    /// How all of them find the target.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// How many agents there are.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// Greets every agent, before anything long is begun.
    ///
    /// # Errors
    /// One of them is not there, is of another version, or has another secret.
    pub fn check(&self) -> Result<Vec<AgentInfo>, ClientError> {
        let greet = |address: &String| {
            let (_, host) = self.connect(address)?;
            Ok(AgentInfo { address: address.clone(), host })
        };
        self.agents.iter().map(greet).collect()
    }

    /// Has the first agents offer a load at the same time. `tell` is called now and then with the
    /// time that has gone by; false ends it.
    pub(crate) fn measure(
        &self,
        offer: &SharedOffer<'_>,
        tell: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<CellRun, ClientError> {
        self.measure_each(offer, tell).map(merge)
    }

    /// What each of them measured.
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

/// Does all jobs at the same time. Where one fails, or `goes_on` says no, the others are told to
/// stop.
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
            // What failed first made the others be called off.
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

/// Compares all clocks, one after the other, and says when to start.
fn synchronise(sessions: &mut [Session]) -> Result<Instant, ClientError> {
    let zero = Instant::now();
    for session in sessions.iter_mut() {
        session.compare_clocks(zero)?;
    }
    let slowest = sessions.iter().map(Session::round_trip).max();
    Ok(Instant::now() + LEAD + slowest.unwrap_or_default() * 2)
}
