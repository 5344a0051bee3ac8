//! Statistics of the calls on a share, in total and by client.
//!
//! Invariant: the memory is bounded: at the limit, the client whose last call is the oldest leaves.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::incidents::Incidents;
use crate::limits::CLIENTS_OF_SHARE_MAX;

/// Longest time that the statistics tell apart. Clients repeat a call after a minute.
const LATENCY_MAX: Duration = Duration::from_mins(1);

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallClass {
    /// READ.
    Read,
    /// WRITE and COMMIT.
    Write,
    /// All other procedures.
    Metadata,
}

/// A completed call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) class: CallClass,
    /// Bytes that the call read or wrote.
    pub(crate) bytes: u64,
    pub(crate) latency: Duration,
    /// True if the call failed because of the server.
    pub(crate) has_failed: bool,
}

/// Number and latency of the calls of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassFigures {
    /// Number of calls.
    pub calls: u64,
    /// Latency at 50 %, 99 % and 99.9 % of the calls; zero without calls.
    pub percentiles: [Duration; 3],
}

/// Figures of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallFigures {
    /// READ.
    pub reads: ClassFigures,
    /// WRITE and COMMIT.
    pub writes: ClassFigures,
    /// All other procedures.
    pub metadata: ClassFigures,
    /// Bytes that clients read.
    pub read_bytes: u64,
    /// Bytes that clients wrote.
    pub written_bytes: u64,
    /// Calls that failed because of the server.
    pub errors: u64,
}

/// Figures of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFigures {
    /// Address of the client.
    pub address: IpAddr,
    /// Time since the last call.
    pub idle: Duration,
    /// Its calls since the first one.
    pub calls: CallFigures,
}

/// Calls of a share or of one client.
struct Calls {
    /// Latencies in microseconds, by class, with one significant digit.
    latencies: [Histogram<u32>; 3],
    read_bytes: u64,
    written_bytes: u64,
    errors: u64,
}

struct OfClient {
    calls: Calls,
    last: Instant,
}

/// Statistics of the calls on a share.
#[derive(Default)]
pub struct ShareStatistics {
    /// Squashed, refused and stale calls.
    pub incidents: Incidents,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    all: Calls,
    clients: HashMap<IpAddr, OfClient>,
}

impl Default for Calls {
    fn default() -> Self {
        let max = LATENCY_MAX.as_micros() as u64;
        let empty = || Histogram::new_with_max(max, 1).expect("the range is valid");
        Self { latencies: [empty(), empty(), empty()], read_bytes: 0, written_bytes: 0, errors: 0 }
    }
}

impl Calls {
    fn add(&mut self, call: &Completed) {
        let [reads, writes, metadata] = &mut self.latencies;
        let latencies = match call.class {
            CallClass::Read => {
                self.read_bytes += call.bytes;
                reads
            }
            CallClass::Write => {
                self.written_bytes += call.bytes;
                writes
            }
            CallClass::Metadata => metadata,
        };
        latencies.saturating_record(call.latency.as_micros() as u64);
        self.errors += u64::from(call.has_failed);
    }

    fn figures(&self) -> CallFigures {
        let class = |latencies: &Histogram<u32>| {
            let at = |quantile| Duration::from_micros(latencies.value_at_quantile(quantile));
            let percentiles =
                if latencies.is_empty() { Default::default() } else { [0.5, 0.99, 0.999].map(at) };
            ClassFigures { calls: latencies.len(), percentiles }
        };
        let [reads, writes, metadata] = &self.latencies;
        CallFigures {
            reads: class(reads),
            writes: class(writes),
            metadata: class(metadata),
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            errors: self.errors,
        }
    }
}

impl ShareStatistics {
    pub(crate) fn add(&self, client: IpAddr, call: &Completed, now: Instant) {
        let client = client.to_canonical();
        let mut table = self.table.lock();
        table.all.add(call);
        let clients = &mut table.clients;
        if clients.len() >= CLIENTS_OF_SHARE_MAX && !clients.contains_key(&client) {
            let oldest = clients.iter().min_by_key(|(_, of)| of.last).map(|(address, _)| *address);
            oldest.and_then(|oldest| clients.remove(&oldest));
        }
        let fresh = || OfClient { calls: Calls::default(), last: now };
        let of = clients.entry(client).or_insert_with(fresh);
        of.last = now;
        of.calls.add(call);
    }

    /// Figures of all calls, and of each client, the most recent client first.
    pub fn figures(&self) -> (CallFigures, Vec<ClientFigures>) {
        let table = self.table.lock();
        let client = |(address, of): (&IpAddr, &OfClient)| ClientFigures {
            address: *address,
            idle: of.last.elapsed(),
            calls: of.calls.figures(),
        };
        let mut clients: Vec<_> = table.clients.iter().map(client).collect();
        clients.sort_by_key(|client| (client.idle, client.address));
        (table.all.figures(), clients)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::STATISTICS_BYTES;

    #[test]
    fn statistics_of_a_client_fit_in_their_memory() {
        let calls = Calls::default();
        let counts: usize = calls.latencies.iter().map(Histogram::distinct_values).sum();
        let bytes = counts * size_of::<u32>() + size_of::<(IpAddr, OfClient)>();
        assert!(bytes <= STATISTICS_BYTES, "{bytes}");
    }

    fn call(class: CallClass, bytes: u64, micros: u64) -> Completed {
        Completed { class, bytes, latency: Duration::from_micros(micros), has_failed: micros == 7 }
    }

    #[test]
    fn calls_count_for_the_share_and_for_their_client() {
        let statistics = ShareStatistics::default();
        let (one, two) = ("10.0.0.1".parse().unwrap(), "::ffff:10.0.0.2".parse().unwrap());
        let now = Instant::now();
        for micros in 1..=100 {
            statistics.add(one, &call(CallClass::Read, 4096, micros), now);
        }
        let later = now + Duration::from_millis(1);
        statistics.add(two, &call(CallClass::Write, 10, 3_000_000_000), later);
        let (all, clients) = statistics.figures();
        assert_eq!((all.reads.calls, all.read_bytes, all.errors), (100, 409_600, 1));
        assert_eq!((all.writes.calls, all.written_bytes, all.metadata.calls), (1, 10, 0));
        let [p50, p99, _] = all.reads.percentiles.map(|latency| latency.as_micros());
        assert!((48..=54).contains(&p50) && (96..=104).contains(&p99), "{p50} {p99}");
        assert!(all.writes.percentiles[0] >= Duration::from_secs(55), "the longest that it has");
        let addresses: Vec<_> = clients.iter().map(|client| client.address.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.2", "10.0.0.1"]);
        assert_eq!(clients[1].calls.reads, all.reads);
    }

    #[test]
    fn client_with_the_oldest_call_leaves_at_the_limit() {
        let statistics = ShareStatistics::default();
        let start = Instant::now();
        let address = |number: usize| IpAddr::from((number as u128).to_be_bytes());
        for number in 0..=CLIENTS_OF_SHARE_MAX {
            let now = start + Duration::from_millis(number as u64);
            statistics.add(address(1 << 20 | number), &call(CallClass::Metadata, 0, 1), now);
        }
        let (all, clients) = statistics.figures();
        assert_eq!(all.metadata.calls, CLIENTS_OF_SHARE_MAX as u64 + 1);
        assert_eq!(clients.len(), CLIENTS_OF_SHARE_MAX);
        assert!(clients.iter().all(|client| client.address != address(1 << 20)));
    }
}
