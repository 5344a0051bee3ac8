//! The kinds of scans.
//!
//! Not here: the scans (`scan`).
//!
//! Invariant: a pool runs one scan at a time.

/// Purpose of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanKind {
    /// Verify every copy on every leg that is up to date.
    Scrub,
    /// Write the missed data to stale legs.
    Resilver,
}
