//! Built-in profiles, embedded from the repository's folder `profiles`.
//!
//! The module `read` parses the profiles.
//!
//! Invariant: each built-in profile can be read (a test checks it), and the program needs no file
//! to run one.

/// Names and texts of the built-in profiles: Weir's own profiles first, then profiles that repeat a
/// published document.
pub(super) const PROFILES: [(&str, &str); 10] = [
    ("quick", include_str!("../../../../../profiles/quick.toml")),
    ("vm", include_str!("../../../../../profiles/vm.toml")),
    ("database", include_str!("../../../../../profiles/database.toml")),
    ("backup", include_str!("../../../../../profiles/backup.toml")),
    ("offloads", include_str!("../../../../../profiles/offloads.toml")),
    ("s000-nexenta-vm", include_str!("../../../../../profiles/s000-nexenta-vm.toml")),
    ("s001-storpool", include_str!("../../../../../profiles/s001-storpool.toml")),
    ("s002-vlab", include_str!("../../../../../profiles/s002-vlab.toml")),
    ("s003-softnas", include_str!("../../../../../profiles/s003-softnas.toml")),
    ("s004-exchange", include_str!("../../../../../profiles/s004-exchange.toml")),
];
