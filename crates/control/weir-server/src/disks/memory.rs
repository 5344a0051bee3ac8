//! The split of `--memory` between connections, pools and the process, derived from one number.
//!
//! The budgets of connections and pools enforce the split; bin/weir parses the command line.
//!
//! Invariant: resident memory stays below [`MemoryPlan::resident_max_bytes`].

use weir_api::types::{MemoryPart, MemoryUse};

/// The connections get this fraction of `--memory`: one eighth.
const CONNECTIONS_SHARE: u64 = 8;
/// Minimum memory for connections: enough for four parts of 1 MiB of a long write.
const CONNECTIONS_BYTES_MIN: u64 = 4 << 20;
/// Maximum memory for connections: half a MiB for each connection.
const CONNECTIONS_BYTES_MAX: u64 = 512 << 20;

/// Default size of all dedupe indexes, in percent of `--memory`.
const DEDUPE_PERCENT: u64 = 10;
/// Maximum size of all dedupe indexes, in percent of `--memory`. The indexes take their memory from
/// the caches, which need the rest.
const DEDUPE_PERCENT_MAX: u64 = 25;

/// Memory of the process in addition to `--memory`: 64 MiB for 1024 connections of 64 KiB, 32 MiB
/// for management calls and streams, 32 MiB for the program and its threads.
pub(crate) const PROCESS_BYTES_MAX: u64 = 128 << 20;

/// Additional memory of the process with iSCSI: 64 MiB of the sessions' own memory, and 64 MiB for
/// 1024 sessions, each with tables and a receive buffer of 16 KiB for one PDU.
pub(crate) const ISCSI_BYTES_MAX: u64 = 128 << 20;

/// Additional memory of the process with NFS: 16 KiB for each of 1024 connections, 33 MiB of
/// remembered replies, 1 MiB of statistics for each of 64 shares, and 8 MiB for names in rules.
pub(crate) const NFS_BYTES_MAX: u64 = 128 << 20;

/// Additional memory of the process with TLS for NBD: [`weir_net::limits::TLS_BYTES`] for each of
/// 1024 connections, and 8 MiB for handshakes ([`weir_net::limits::HANDSHAKES_MAX`]).
pub(crate) const TLS_BYTES_MAX: u64 = 64 << 20;

/// Overhead of the memory allocator, in percent of `--memory`.
const SLACK_PERCENT: u64 = 10;

/// The split of the server's memory.
///
/// ```text
/// --memory M        connections  M / 8, 4 MiB to 512 MiB: replies and payloads of NBD, iSCSI, NFS
///                   pools        the rest, in equal shares for the open pools; of each share
///                                38 % caches (blocks, nodes, segment tables, dedupe index),
///                                42 % data not yet written, 20 % in-flight I/O and bookkeeping
/// in addition       PROCESS_BYTES_MAX: program, threads, fixed memory of each connection,
///                   management calls; ISCSI_BYTES_MAX if iSCSI is served, NFS_BYTES_MAX if NFS
///                   is served, TLS_BYTES_MAX if NBD clients use TLS
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Value of the option `--memory`.
    pub total_bytes: u64,
    /// Maximum size of the dedupe indexes, which are a part of the pools' caches.
    pub dedupe_bytes: u64,
    /// True if the server serves iSCSI, which needs `ISCSI_BYTES_MAX` in addition to `--memory`.
    pub serves_iscsi: bool,
    /// True if the server serves NFS, which needs `NFS_BYTES_MAX` in addition to `--memory`.
    pub serves_nfs: bool,
    /// True if NBD clients may use TLS, which needs `TLS_BYTES_MAX` in addition to `--memory`.
    pub serves_nbd_tls: bool,
}

impl MemoryPlan {
    /// Returns the memory that all connections share.
    pub(crate) fn connections_bytes(&self) -> u64 {
        let grant = self.total_bytes / CONNECTIONS_SHARE;
        grant.clamp(CONNECTIONS_BYTES_MIN, CONNECTIONS_BYTES_MAX)
    }

    /// Returns the memory that all pools share.
    pub(crate) fn pools_bytes(&self) -> u64 {
        self.total_bytes - self.connections_bytes()
    }

    const fn process_bytes(&self) -> u64 {
        process_bytes(self.serves_iscsi, self.serves_nfs, self.serves_nbd_tls)
    }

    /// Returns the maximum resident memory of the process.
    pub(crate) const fn resident_max_bytes(&self) -> u64 {
        resident_max_bytes(self.total_bytes, self.process_bytes())
    }

    /// Returns the split and the current use of each part, for the management interface.
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

/// Current memory use of NBD, iSCSI and NFS connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionsUse {
    /// Memory that the connections use from the shared budgets; shown in the row `connections` of
    /// `weir server show`.
    pub(crate) shared_bytes: u64,
    /// Memory that connections use above the budgets: the excess of a request that is larger than
    /// its budget, and the fixed memory of each connection. Shown in the row `process`.
    pub(crate) excess_bytes: u64,
}

impl ConnectionsUse {
    /// Returns the use of two groups of connections together.
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            shared_bytes: self.shared_bytes + other.shared_bytes,
            excess_bytes: self.excess_bytes + other.excess_bytes,
        }
    }
}

/// Current memory use of pools.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolsUse {
    /// Caches and data not yet written.
    pub(crate) cells_bytes: u64,
    /// Dedupe indexes.
    pub(crate) dedupe_bytes: u64,
}

/// Returns the memory that the process needs in addition to `--memory` for the given protocols.
pub const fn process_bytes(iscsi: bool, nfs: bool, nbd_tls: bool) -> u64 {
    let iscsi = if iscsi { ISCSI_BYTES_MAX } else { 0 };
    let nfs = if nfs { NFS_BYTES_MAX } else { 0 };
    PROCESS_BYTES_MAX + iscsi + nfs + if nbd_tls { TLS_BYTES_MAX } else { 0 }
}

/// Returns the maximum resident memory of a server with this `--memory` and these additional
/// `process_bytes`.
pub const fn resident_max_bytes(memory_bytes: u64, process_bytes: u64) -> u64 {
    memory_bytes + memory_bytes / 100 * SLACK_PERCENT + process_bytes
}

/// Returns the largest `--memory` that keeps the process below `limit_bytes`.
pub const fn memory_that_fits(limit_bytes: u64, process_bytes: u64) -> u64 {
    limit_bytes.saturating_sub(process_bytes) / (100 + SLACK_PERCENT) * 100
}

/// Returns the default size of the dedupe indexes.
pub const fn dedupe_default(memory_bytes: u64) -> u64 {
    memory_bytes / 100 * DEDUPE_PERCENT
}

/// Returns the maximum size of the dedupe indexes.
pub const fn dedupe_max(memory_bytes: u64) -> u64 {
    memory_bytes / 100 * DEDUPE_PERCENT_MAX
}

/// Returns the resident memory of this process; 0 if the kernel does not report it.
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
    fn parts_add_up_to_the_configured_memory() {
        for total_bytes in [64 * MIB, 256 * MIB, 1 << 30, 1 << 40] {
            let dedupe_bytes = dedupe_default(total_bytes);
            let (serves_iscsi, serves_nfs, serves_nbd_tls) = (true, true, true);
            let plan =
                MemoryPlan { total_bytes, dedupe_bytes, serves_iscsi, serves_nfs, serves_nbd_tls };
            assert_eq!(plan.connections_bytes() + plan.pools_bytes(), total_bytes);
            assert!(plan.dedupe_bytes <= dedupe_max(total_bytes));
            assert!(plan.connections_bytes() <= total_bytes / 8);
        }
    }

    // Regression: `weir server show` printed "connections 40.9 of 8.4 MB" while a read of 32 MiB,
    // larger than the budget, ran alone.
    #[test]
    fn no_part_shows_more_use_than_its_limit() {
        let (total_bytes, dedupe_bytes) = (64 * MIB, 6 * MIB);
        let plan = MemoryPlan {
            total_bytes,
            dedupe_bytes,
            serves_iscsi: true,
            serves_nfs: false,
            serves_nbd_tls: false,
        };
        let budget = weir_net::Budget::new(3 << 20, 64 << 10);
        let grant = budget.grant();
        assert!(grant.ask(0, 32 << 20));
        grant.hold(32 << 20);
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
    fn tls_sessions_and_handshakes_fit_in_tls_bytes_max() {
        use weir_net::limits::{CONNECTIONS_MAX, HANDSHAKES_MAX, TLS_BYTES};
        let most = CONNECTIONS_MAX * TLS_BYTES + HANDSHAKES_MAX * (128 << 10);
        assert!(most as u64 <= TLS_BYTES_MAX, "{most}");
    }

    #[test]
    fn fitted_memory_keeps_the_process_below_its_limit() {
        for beside in [process_bytes(false, false, false), process_bytes(true, true, true)] {
            for limit in [512 * MIB, 640 * MIB, (1 << 30) + 12345, 1 << 40] {
                let memory = memory_that_fits(limit, beside);
                let most = |memory| resident_max_bytes(memory, beside);
                assert!(most(memory) <= limit, "{limit}");
                assert!(most(memory + MIB) > limit - 2 * MIB, "{limit}: too little");
            }
            assert_eq!(memory_that_fits(64 * MIB, beside), 0);
        }
    }
}
