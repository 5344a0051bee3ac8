//! The first words of the command line. The server names commands in its errors and must know which
//! words of another server's text are commands.
//!
//! Not here: the commands (bin/weir, whose tests compare its command line with this list).
//!
//! Invariant: the list is sorted.

/// Every first word of the command line, sorted.
pub const VERBS: &[&str] = &[
    "bench",
    "bookmark",
    "check",
    "completions",
    "dedupe",
    "events",
    "export",
    "get",
    "inherit",
    "list",
    "lun",
    "pool",
    "receive",
    "replicate",
    "rescue",
    "schedule",
    "send",
    "serve",
    "server",
    "set",
    "snapshot",
    "status",
    "stream",
    "target",
    "token",
    "version",
    "volume",
];
