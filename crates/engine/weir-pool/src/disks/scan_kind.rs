//! The kinds of scans.
//!
//! Not here: the scans (`scan`).
//!
//! Invariant: a pool runs one scan at a time.

/// What a scan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanKind {
    /// Verify every copy on every leg that is up to date.
    Scrub,
    /// Write to stale legs what they missed.
    Resilver,
}
