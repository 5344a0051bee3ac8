//! State of the server: open pools, sessions, and files that survive a restart.

pub(crate) mod closed_names;
pub(crate) mod jobs;
pub(crate) mod mounts;
pub(crate) mod nfs_shares;
pub(crate) mod open_filesystems;
pub(crate) mod pool_file;
pub(crate) mod recent_snapshots;
pub(crate) mod replication_activity;
pub(crate) mod saved_state;
pub(crate) mod scan_file;
pub(crate) mod seen;
pub(crate) mod sends;
pub(crate) mod server;
pub(crate) mod snapshot_directory;
pub(crate) mod stream_session;
pub(crate) mod target_registry;
pub(crate) mod transfers;
