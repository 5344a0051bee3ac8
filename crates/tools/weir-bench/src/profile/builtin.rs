//! Built-in profiles, which are embedded from the folder `profiles` of the repository.
//!
//! `read` parses the profiles.
//!
//! Invariant: each built-in profile can be read (a test checks this), and the program runs a
//! built-in profile without any file.

/// Names and texts of the built-in profiles: first Weir's own profiles, then the profiles that
/// repeat a published document.
pub(super) const PROFILES: [(&str, &str); 11] = [
    ("quick", include_str!("../../../../../profiles/quick.toml")),
    ("vm", include_str!("../../../../../profiles/vm.toml")),
    ("database", include_str!("../../../../../profiles/database.toml")),
    ("backup", include_str!("../../../../../profiles/backup.toml")),
    ("offloads", include_str!("../../../../../profiles/offloads.toml")),
    ("files", include_str!("../../../../../profiles/files.toml")),
    ("s000-nexenta-vm", include_str!("../../../../../profiles/s000-nexenta-vm.toml")),
    ("s001-storpool", include_str!("../../../../../profiles/s001-storpool.toml")),
    ("s002-vlab", include_str!("../../../../../profiles/s002-vlab.toml")),
    ("s003-softnas", include_str!("../../../../../profiles/s003-softnas.toml")),
    ("s004-exchange", include_str!("../../../../../profiles/s004-exchange.toml")),
];
