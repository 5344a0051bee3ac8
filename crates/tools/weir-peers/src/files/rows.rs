//! Rows of the table of rates, with the bars (required values) for Weir.
//!
//! `visits` measures the rows.
//!
//! Invariant: a row with a bar includes the effect of the kernel's caches, as in daily use; the
//! rows after a drop of these caches measure the servers.

/// Minimum ratio of Weir's rate with small files to passthrough_ll's rate.
const FILES_MIN: f64 = 1.0;
/// Minimum ratio of Weir's rate with small files to zfs-fuse's rate.
const FILES_ZFS_MIN: f64 = 3.0;
/// Minimum ratio of Weir's sequential rate to passthrough_ll's rate.
const SEQUENTIAL_MIN: f64 = 0.9;
/// Maximum ratio of the p99 of fsync during a stream to the p99 in an idle filesystem.
pub(super) const FSYNC_RATIO_MAX: f64 = 3.0;

/// Numbers of processes with which the steps of small files are measured.
pub(super) const PROCESSES: [u64; 2] = [1, 4];

/// Steps on small files: name, title, and whether the steps have bars.
const SMALL: [(&str, &str, bool); 6] = [
    ("create", "create", true),
    ("stat", "stat", true),
    ("read", "read", true),
    ("stat-cold", "stat, kernel caches dropped", false),
    ("read-cold", "read, kernel caches dropped", false),
    ("unlink", "unlink", true),
];

/// A row of the table of rates.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) title: String,
    /// True if the table shows MiB/s instead of files per second.
    pub(super) is_sequential: bool,
    /// Minimum ratio of Weir's rate to passthrough_ll's rate.
    pub(super) passthrough_min: Option<f64>,
    /// Minimum ratio of Weir's rate to zfs-fuse's rate.
    pub(super) zfs_min: Option<f64>,
}

/// Name of the row of a step on small files.
pub(super) fn small(step: &str, processes: u64) -> String {
    format!("{step}-{processes}")
}

/// All rows, in the order of the table.
pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for processes in PROCESSES {
        for (step, title, has_bars) in SMALL {
            let plural = if processes == 1 { "" } else { "es" };
            rows.push(Row {
                name: small(step, processes),
                title: format!("{title}, {processes} process{plural}"),
                is_sequential: false,
                passthrough_min: has_bars.then_some(FILES_MIN),
                zfs_min: has_bars.then_some(FILES_ZFS_MIN),
            });
        }
    }
    for (name, title) in [("write", "sequential write"), ("read", "sequential read, cold")] {
        rows.push(Row {
            name: name.to_owned(),
            title: title.to_owned(),
            is_sequential: true,
            passthrough_min: Some(SEQUENTIAL_MIN),
            zfs_min: None,
        });
    }
    rows
}
