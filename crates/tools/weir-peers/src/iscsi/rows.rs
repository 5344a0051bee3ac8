//! Rows of the iSCSI table: the loads, with the bars (required values) for Weir.
//!
//! `load` writes the rows as a profile of `weir bench`.
//!
//! Invariant: the benchmark measures the rows in this order.

/// A load that the iSCSI benchmark measures; it is one row of the table.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) pattern: &'static str,
    pub(super) block_bytes: u64,
    pub(super) read_pct: u32,
    pub(super) depth: u32,
    /// True if each write is followed by a flush.
    pub(super) sync: bool,
    /// Minimum ratio of Weir's operations per second to tgt's operations per second.
    pub(super) ratio_min: f64,
}

const SMALL: Row = Row {
    name: "",
    title: "",
    pattern: "random",
    block_bytes: 4096,
    read_pct: 100,
    depth: 32,
    sync: false,
    ratio_min: 2.0,
};
const LARGE: Row = Row { pattern: "seq", block_bytes: 1 << 20, depth: 16, ratio_min: 1.0, ..SMALL };

/// All rows. The reads come first, while the volumes still have the layout of the sequential fill.
pub(super) const ROWS: [Row; 5] = [
    Row { name: "read-1m", title: "1 MiB sequential read, QD16", ..LARGE },
    Row { name: "randread-qd32", title: "4 KiB random read, warm, QD32", ..SMALL },
    Row { name: "write-1m", title: "1 MiB sequential write, QD16", read_pct: 0, ..LARGE },
    Row { name: "randwrite-qd32", title: "4 KiB random write, QD32", read_pct: 0, ..SMALL },
    Row {
        name: "sync-qd1",
        title: "4 KiB random sync write, QD1",
        read_pct: 0,
        depth: 1,
        sync: true,
        ratio_min: 1.0,
        ..SMALL
    },
];
