//! Workloads of the benchmark, with the bars (required values) for Weir.
//!
//! `fio` has the arguments of fio for each workload.
//!
//! Invariant: the benchmark measures the workloads in this order. Reads come first, on volumes that
//! were written sequentially, and then the writes that scatter the data.

/// Rule that decides when a workload sends a flush.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    Never,
    /// The workload sends a flush after each write.
    Each,
    /// The workload sends a flush after every 32 writes.
    Every32,
}

/// Workload that the benchmark measures; it is one row of the table.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Access pattern in the words of fio: `randread`, `write` and so on.
    pub(super) pattern: &'static str,
    pub(super) block_bytes: u64,
    pub(super) depth: u32,
    pub(super) flush: Flush,
    /// True if the workload runs long enough to fill caches, so that the server must write out data
    /// at the rate of the client.
    pub(super) steady: bool,
    /// Minimum ratio of Weir's throughput to the throughput of the best other server.
    pub(super) ratio_min: f64,
    /// Maximum CPU time of Weir for one operation, in microseconds.
    pub(super) cpu_us_max: Option<f64>,
}

impl Workload {
    pub(super) fn writes(&self) -> bool {
        self.pattern.contains("write")
    }

    /// True if the report shows bytes per second instead of operations per second.
    pub(super) fn streams(&self) -> bool {
        self.block_bytes >= 1 << 20
    }
}

const SMALL: Workload = Workload {
    name: "",
    title: "",
    pattern: "randread",
    block_bytes: 4096,
    depth: 32,
    flush: Flush::Never,
    steady: false,
    ratio_min: 1.5,
    cpu_us_max: None,
};

const STREAM: Workload = Workload { block_bytes: 1 << 20, depth: 16, ratio_min: 0.9, ..SMALL };

/// Maximum CPU time of a 4 KiB write with checksums, compression and a mirror.
const WRITE_CPU_US_MAX: Option<f64> = Some(10.0);

pub(super) const WORKLOADS: [Workload; 7] = [
    Workload { name: "randread-qd1", title: "4 KiB random read, warm, QD1", depth: 1, ..SMALL },
    Workload {
        name: "randread-qd32",
        title: "4 KiB random read, warm, QD32",
        cpu_us_max: Some(4.0),
        ..SMALL
    },
    Workload { name: "read-1m", title: "1 MiB sequential read, QD16", pattern: "read", ..STREAM },
    Workload {
        name: "write-1m",
        title: "1 MiB sequential write, QD16",
        pattern: "write",
        ..STREAM
    },
    Workload {
        name: "randwrite-flush32",
        title: "4 KiB random write, QD32, flush every 32",
        pattern: "randwrite",
        flush: Flush::Every32,
        cpu_us_max: WRITE_CPU_US_MAX,
        ..SMALL
    },
    Workload {
        name: "randwrite-flush1",
        title: "4 KiB random write, QD1, flush each",
        pattern: "randwrite",
        depth: 1,
        flush: Flush::Each,
        ratio_min: 0.8,
        ..SMALL
    },
    Workload {
        name: "randwrite-steady",
        title: "4 KiB random write, QD32, no flush, steady",
        pattern: "randwrite",
        steady: true,
        ratio_min: 1.2,
        cpu_us_max: WRITE_CPU_US_MAX,
        ..SMALL
    },
];
