//! The verbs (first words) of the command line. The server names commands in its errors, and
//! recognizes commands in the error texts of other servers.
//!
//! The commands are in bin/weir, whose tests compare its command line with this list.
//!
//! Invariant: the list is sorted.

/// All verbs of the command line, sorted.
pub const VERBS: &[&str] = &[
    "bench",
    "bookmark",
    "check",
    "completions",
    "dedupe",
    "events",
    "export",
    "filesystem",
    "get",
    "inherit",
    "list",
    "lun",
    "mount",
    "pool",
    "receive",
    "replicate",
    "rescue",
    "schedule",
    "send",
    "serve",
    "server",
    "set",
    "share",
    "snapshot",
    "status",
    "stream",
    "target",
    "token",
    "unmount",
    "version",
    "volume",
];
