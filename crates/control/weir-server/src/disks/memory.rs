//! The split of `--memory`: who may use how much of it, all derived from the one number.
//!
//! Not here: keeping to it (the budgets named below), reading the command line (bin/weir).
//!
//! ```text
//! --memory M        connections  M / 8, 4 MiB to 512 MiB: replies and payloads of NBD and iSCSI
//!                   pools        the rest, shared equally by the open pools; of each share
//!                                38 % caches (blocks, nodes, segment tables, dedupe index),
//!                                42 % data not yet written, 20 % I/O in flight and bookkeeping
//! beside it         PROCESS_BYTES_MAX: the program, its threads, what each connection has of its
//!                   own, calls of the management interface; ISCSI_BYTES_MAX where iSCSI is
//!                   served, TLS_BYTES_MAX where NBD clients use TLS
//! ```
//!
//! Invariant: resident memory stays below [`MemoryPlan::resident_max_bytes`].

use weir_api::types::{MemoryPart, MemoryUse};

/// Part of the memory that connections share, as a divisor.
const CONNECTIONS_SHARE: u64 = 8;
/// ... at least: four parts of a long write at once.
const CONNECTIONS_BYTES_MIN: u64 = 4 << 20;
/// ... at most: half a MiB for each connection.
const CONNECTIONS_BYTES_MAX: u64 = 512 << 20;

/// Part of the memory that dedupe indexes take unless told otherwise, in percent.
const DEDUPE_PERCENT: u64 = 10;
/// ... and at most, in percent: they come out of the caches, and those must have something left.
const DEDUPE_PERCENT_MAX: u64 = 25;

/// Memory that the process takes beside `--memory`: 64 MiB for 1024 connections of 64 KiB, 32 MiB
/// for calls of the management interface and streams, 32 MiB for the program and its threads.
pub(crate) const PROCESS_BYTES_MAX: u64 = 128 << 20;

/// ... and more where iSCSI is served: 64 MiB that sessions have of their own, and 1024 receive
/// buffers with a PDU of 16 KiB each and the tables of a session.
pub(crate) const ISCSI_BYTES_MAX: u64 = 128 << 20;

/// ... and where NBD clients use TLS: [`weir_net::limits::TLS_BYTES`] for each of 1024
/// connections, and 8 MiB for handshakes ([`weir_net::limits::TURNS_MAX`]).
pub(crate) const TLS_BYTES_MAX: u64 = 64 << 20;

/// What allocators and their bookkeeping add to `--memory`, in percent.
const SLACK_PERCENT: u64 = 10;

/// See the file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// `--memory`.
    pub total_bytes: u64,
    /// At most, of the pools' caches.
    pub dedupe_bytes: u64,
    /// The process then takes more beside the total.
    pub serves_iscsi: bool,
    /// As for iSCSI.
    pub serves_nbd_tls: bool,
}

impl MemoryPlan {
    /// What connections share.
    pub(crate) fn connections_bytes(&self) -> u64 {
        let share = self.total_bytes / CONNECTIONS_SHARE;
        share.clamp(CONNECTIONS_BYTES_MIN, CONNECTIONS_BYTES_MAX)
    }

    /// What all pools share.
    pub(crate) fn pools_bytes(&self) -> u64 {
        self.total_bytes - self.connections_bytes()
    }

    const fn process_bytes(&self) -> u64 {
        process_bytes(self.serves_iscsi, self.serves_nbd_tls)
    }

    /// Most resident memory of the process.
    pub(crate) const fn resident_max_bytes(&self) -> u64 {
        resident_max_bytes(self.total_bytes, self.process_bytes())
    }

    /// The split, for people, with what of it is in use.
    pub(crate) fn describe(&self, connections: &ConnectionsUse, pools: &PoolsUse) -> MemoryUse {
        let part = |name: &str, limit_bytes, used_bytes| MemoryPart {
            name: name.to_owned(),
            limit_bytes,
            used_bytes,
        };
        MemoryUse {
            resident_bytes: resident_bytes(),
            resident_max_bytes: self.resident_max_bytes(),
            parts: vec![
                part("connections", self.connections_bytes(), connections.shared_bytes),
                part("pools", self.pools_bytes(), pools.cells_bytes + pools.dedupe_bytes),
                part("dedupe", self.dedupe_bytes, pools.dedupe_bytes),
                part("process", self.process_bytes(), connections.excess_bytes),
            ],
        }
    }
}

/// The memory that connections of NBD and iSCSI use now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionsUse {
    /// Of the budgets that they share; counts against the part `connections`.
    pub(crate) shared_bytes: u64,
    /// Above the budgets: a request larger than its budget goes alone, and each connection has some
    /// memory of its own. Counts against the part `process`.
    pub(crate) excess_bytes: u64,
}

impl ConnectionsUse {
    /// The use of two budgets together.
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            shared_bytes: self.shared_bytes + other.shared_bytes,
            excess_bytes: self.excess_bytes + other.excess_bytes,
        }
    }
}

/// The memory that pools use now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolsUse {
    /// Caches and data not yet written.
    pub(crate) cells_bytes: u64,
    /// Dedupe indexes.
    pub(crate) dedupe_bytes: u64,
}

/// Bytes that the process takes beside `--memory`, by the protocols that it serves.
pub const fn process_bytes(iscsi: bool, nbd_tls: bool) -> u64 {
    let iscsi = if iscsi { ISCSI_BYTES_MAX } else { 0 };
    PROCESS_BYTES_MAX + iscsi + if nbd_tls { TLS_BYTES_MAX } else { 0 }
}

/// Most resident memory with so much `--memory`, and so much beside it.
pub const fn resident_max_bytes(memory_bytes: u64, process_bytes: u64) -> u64 {
    memory_bytes + memory_bytes / 100 * SLACK_PERCENT + process_bytes
}

/// The largest `--memory` that keeps the process below this many bytes.
pub const fn memory_that_fits(limit_bytes: u64, process_bytes: u64) -> u64 {
    limit_bytes.saturating_sub(process_bytes) / (100 + SLACK_PERCENT) * 100
}

/// Memory of dedupe indexes unless told otherwise.
pub const fn dedupe_default(memory_bytes: u64) -> u64 {
    memory_bytes / 100 * DEDUPE_PERCENT
}

/// Most memory that dedupe indexes may be given.
pub const fn dedupe_max(memory_bytes: u64) -> u64 {
    memory_bytes / 100 * DEDUPE_PERCENT_MAX
}

/// Resident memory of this process; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn parts_add_up_to_the_memory_given() {
        for total_bytes in [64 * MIB, 256 * MIB, 1 << 30, 1 << 40] {
            let dedupe_bytes = dedupe_default(total_bytes);
            let (serves_iscsi, serves_nbd_tls) = (true, true);
            let plan = MemoryPlan { total_bytes, dedupe_bytes, serves_iscsi, serves_nbd_tls };
            assert_eq!(plan.connections_bytes() + plan.pools_bytes(), total_bytes);
            assert!(plan.dedupe_bytes <= dedupe_max(total_bytes));
            assert!(plan.connections_bytes() <= total_bytes / 8);
        }
    }

    // `weir server show` said "connections 40.9 of 8.4 MB": a read of 32 MiB went alone.
    #[test]
    fn no_part_shows_more_use_than_its_limit() {
        let (total_bytes, dedupe_bytes) = (64 * MIB, 6 * MIB);
        let plan =
            MemoryPlan { total_bytes, dedupe_bytes, serves_iscsi: true, serves_nbd_tls: false };
        let budget = weir_net::Budget::new(3 << 20, 64 << 10);
        let share = budget.share();
        assert!(share.ask(0, 32 << 20));
        share.hold(32 << 20);
        let excess_bytes = budget.excess_bytes() as u64;
        let shared_bytes = budget.used_bytes() as u64 - excess_bytes;
        let connections = ConnectionsUse { shared_bytes, excess_bytes };
        let shown = plan.describe(&connections, &PoolsUse::default());
        for part in &shown.parts {
            assert!(part.used_bytes <= part.limit_bytes, "{part:?}");
        }
        let process = shown.parts.iter().find(|part| part.name == "process").unwrap();
        assert!(process.used_bytes > 28 * MIB, "{process:?}");
    }

    #[test]
    fn sessions_and_handshakes_of_tls_fit_beside_the_memory() {
        use weir_net::limits::{CONNECTIONS_MAX, TLS_BYTES, TURNS_MAX};
        let most = CONNECTIONS_MAX * TLS_BYTES + TURNS_MAX * (128 << 10);
        assert!(most as u64 <= TLS_BYTES_MAX, "{most}");
    }

    #[test]
    fn what_fits_below_a_limit_stays_below_it() {
        for beside in [process_bytes(false, false), process_bytes(true, true)] {
            for limit in [384 * MIB, 512 * MIB, (1 << 30) + 12345, 1 << 40] {
                let memory = memory_that_fits(limit, beside);
                let most = |memory| resident_max_bytes(memory, beside);
                assert!(most(memory) <= limit, "{limit}");
                assert!(most(memory + MIB) > limit - 2 * MIB, "{limit}: too little");
            }
            assert_eq!(memory_that_fits(64 * MIB, beside), 0);
        }
    }
}
