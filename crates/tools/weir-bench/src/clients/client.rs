//! Coordinator's side of the dialogue with one client, in one run of one cell.
//!
//! `coordinator` coordinates several clients; `session` has the agent's side.
//!
//! Invariant: before any later read, the blocks of a lost client are marked as unknown. The
//! coordinator first waits until the client must have noticed the loss and stopped writing.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::blocks::{Taker, pieces};
use super::coordinator::{Clients, SharedOffer};
use super::link::{Link, LinkError};
use super::merge::One;
use super::wire::{Answer, Measured, Order, Task};
use super::{ClientError, SILENCE_MAX};
use crate::load::{Generations, Ground, Place};

/// Number of pings that compare the clocks; the ping with the shortest round trip counts.
const PINGS: usize = 64;

/// Session with a client that is ready to start.
pub(super) struct Session {
    address: String,
    name: String,
    link: Link,
    cores: u32,
    part: Range<u64>,
    writes: bool,
    clock: Clock,
}

/// Offset of an agent's clock from the coordinator's clock.
#[derive(Clone, Copy, Default)]
struct Clock {
    /// Time at which the coordinator's clock reads 0; `None` before the clocks were compared.
    zero: Option<Instant>,
    /// Time on the agent's clock minus the time on the coordinator's clock, in nanoseconds.
    ahead_ns: i128,
    /// Round-trip time of the ping from which `ahead_ns` was computed.
    round_trip: Duration,
}

impl Session {
    /// Connects to an agent, sends the task and the block states, and waits until the agent is
    /// ready.
    pub(super) fn prepare(
        clients: &Clients,
        address: &str,
        offer: &SharedOffer<'_>,
        number: u32,
        stop: &AtomicBool,
    ) -> Result<Self, ClientError> {
        let (mut link, host) = clients.connect(address)?;
        let (ground, cell, of) = (offer.ground, offer.cell, offer.cell.clients);
        let task = Task {
            target: clients.target().to_owned(),
            dataset: ground.dataset.clone(),
            content: offer.content.clone(),
            run: ground.content.run(),
            block_bytes: ground.content.block_bytes() as u32,
            durability: ground.durability,
            streams: cell.streams.clone(),
            load: offer.load,
            warmup_ms: cell.warmup_ms,
            duration_ms: cell.duration_ms,
            number,
            of,
            is_known: ground.generations.is_some(),
            verify_full: cell.verify_full,
        };
        let (writes, lost) = (task.writes(), |error: LinkError| lost(address, &error));
        let part = Place { number, of }.part(ground.dataset);
        link.send(&Order::Prepare(Box::new(task))).map_err(lost)?;
        if let Some(known) = ground.generations {
            for piece in pieces(known, known.numbers(&part)) {
                link.send(&Order::Blocks(piece)).map_err(lost)?;
            }
        }
        let (name, clock) = (format!("{host} ({address})"), Clock::default());
        let (address, cores) = (address.to_owned(), 1);
        let mut session = Self { address, name, link, cores, part, writes, clock };
        match session.attend(stop)? {
            Answer::Ready { cores } => session.cores = cores,
            _ => return Err(session.lost(&LinkError::Unexpected)),
        }
        Ok(session)
    }

    fn lost(&self, error: &LinkError) -> ClientError {
        lost(&self.address, error)
    }

    /// Round-trip time of the ping from which the clock offset was computed.
    pub(super) fn round_trip(&self) -> Duration {
        self.clock.round_trip
    }

    /// Answers the agent's heartbeats until another message arrives.
    fn attend(&mut self, stop: &AtomicBool) -> Result<Answer, ClientError> {
        loop {
            let (answer, _) = self.link.receive(SILENCE_MAX).map_err(|error| self.lost(&error))?;
            match answer {
                Answer::Alive => {
                    let is_over = stop.load(Ordering::Acquire);
                    let order = if is_over { Order::Stop } else { Order::GoOn };
                    self.link.send(&order).map_err(|error| self.lost(&error))?;
                }
                Answer::Failed { .. } if stop.load(Ordering::Acquire) => {
                    return Err(ClientError::CalledOff);
                }
                Answer::Failed { why } => {
                    let why = why.chars().filter(|c| !c.is_control()).take(500).collect();
                    return Err(ClientError::Failed { client: self.address.clone(), why });
                }
                other => return Ok(other),
            }
        }
    }

    /// Measures the clock offset as NTP does: uses the fastest ping, and assumes that each
    /// direction took half of its round trip.
    pub(super) fn compare_clocks(&mut self, zero: Instant) -> Result<(), ClientError> {
        let ns = |at: Instant| at.saturating_duration_since(zero).as_nanos().cast_signed();
        let mut best = Clock { zero: Some(zero), ahead_ns: 0, round_trip: Duration::MAX };
        for _ in 0..PINGS {
            let sent = Instant::now();
            self.link.send(&Order::Ping).map_err(|error| self.lost(&error))?;
            let (answer, back) =
                self.link.receive(SILENCE_MAX).map_err(|error| self.lost(&error))?;
            let Answer::Pong { received_ns, sent_ns } = answer else {
                return Err(self.lost(&LinkError::Unexpected));
            };
            let there_ns = sent_ns.saturating_sub(received_ns);
            let round_trip = (back - sent).saturating_sub(Duration::from_nanos(there_ns));
            if round_trip < best.round_trip {
                let (out, home) =
                    (i128::from(received_ns) - ns(sent), i128::from(sent_ns) - ns(back));
                best = Clock { ahead_ns: i128::midpoint(out, home), round_trip, ..best };
            }
        }
        self.clock = best;
        Ok(())
    }

    /// Starts the agent's measurement, and answers the agent's heartbeats until it has sent its
    /// results.
    pub(super) fn measure(
        mut self,
        start: Instant,
        ground: &Ground<'_>,
        stop: &AtomicBool,
    ) -> Result<One, ClientError> {
        let known = ground.generations.filter(|_| self.writes);
        let done = self.order_start(start).and_then(|()| self.finish(known, stop));
        if let (Err(_), Some(known)) = (&done, known) {
            // The agent receives no more messages and stops, but until then it may still write. So
            // wait before marking its blocks as unknown.
            drop(self.link);
            std::thread::sleep(SILENCE_MAX);
            known.forget(known.numbers(&self.part));
        }
        let Measured { run, began_ns } = done?;
        Ok(One {
            name: self.name,
            cores: self.cores,
            run,
            began_ns: i128::from(began_ns) - self.clock.ahead_ns,
            clock_error_us: self.clock.round_trip.as_secs_f64() * 1e6 / 2.0,
        })
    }

    fn order_start(&mut self, start: Instant) -> Result<(), ClientError> {
        let zero = self.clock.zero.expect("clocks were compared");
        let here_ns = start.saturating_duration_since(zero).as_nanos().cast_signed();
        let at_ns = u64::try_from(here_ns + self.clock.ahead_ns);
        // A negative start time is invalid: the start would precede the zero of the agent's clock.
        let at_ns = at_ns.map_err(|_| self.lost(&LinkError::Unexpected))?;
        self.link.send(&Order::Start { at_ns }).map_err(|error| self.lost(&error))
    }

    fn finish(
        &mut self,
        known: Option<&Generations>,
        stop: &AtomicBool,
    ) -> Result<Measured, ClientError> {
        let Answer::Done(measured) = self.attend(stop)? else {
            return Err(self.lost(&LinkError::Unexpected));
        };
        if let Some(known) = known {
            let mut taker = Taker::new(known, known.numbers(&self.part));
            loop {
                let Answer::Blocks(piece) = self.attend(stop)? else {
                    return Err(self.lost(&LinkError::Unexpected));
                };
                let taken = taker.take(&piece);
                let why = |why: &str| ClientError::Lost {
                    client: self.address.clone(),
                    why: why.to_owned(),
                };
                if taken.map_err(why)? {
                    break;
                }
            }
        }
        match self.attend(stop)? {
            Answer::End => Ok(*measured),
            _ => Err(self.lost(&LinkError::Unexpected)),
        }
    }
}

/// Returns the error for a client whose connection can no longer be used.
pub(super) fn lost(client: &str, error: &LinkError) -> ClientError {
    ClientError::Lost { client: client.to_owned(), why: error.to_string() }
}
