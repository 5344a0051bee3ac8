//! State that the server saves across restarts: open pools, exports, targets, schedules and
//! replications.
//!
//! The pools store their own state on their disks.
//!
//! Invariant: the file is replaced atomically and durably, so after a crash it has either the old
//! or the new contents.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_api::ApiError;
use weir_api::types::{ChapAccount, Keep, Snapshot, Verification, VerifyFailure};
use weir_base::{ErrorKind, replace_file};
use weir_net::AllowList;

/// A pool that was open when the state was saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPool {
    pub(crate) name: String,
    /// Guid of the pool; 0 in files of older servers, which did not store it.
    #[serde(default)]
    pub(crate) guid: u64,
    pub(crate) disks: Vec<PathBuf>,
    /// True if the pool was not online at the last poll. After a restart the server then waits for
    /// all disks of the pool, because the first disks to respond may lack the last writes.
    #[serde(default)]
    pub(crate) degraded: bool,
}

/// Saved NBD export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownExport {
    pub(crate) name: String,
    /// Full name of the volume or snapshot.
    pub(crate) volume: String,
    pub(crate) read_only: bool,
    /// Number of the exported dataset, by which the server finds the dataset after renames and
    /// promotions.
    #[serde(default)]
    pub(crate) dataset: Option<u64>,
    /// Addresses from which clients may connect over TCP. Empty: all addresses that the server
    /// accepts.
    #[serde(default)]
    pub(crate) allow: Vec<String>,
}

impl KnownExport {
    /// Rewrites the addresses in the form that lists of exports show. Returns the addresses as an
    /// allow list.
    ///
    /// # Errors
    /// The errors of [`Self::allowed`].
    pub(crate) fn spell_addresses(&mut self) -> Result<Option<AllowList>, ApiError> {
        let allowed = self.allowed()?;
        self.allow = allowed.as_ref().map(AllowList::entries).unwrap_or_default();
        Ok(allowed)
    }

    /// Returns the addresses as an allow list; `None` if the export accepts all addresses.
    ///
    /// # Errors
    /// `Invalid` for an address that cannot be parsed as a network.
    pub(crate) fn allowed(&self) -> Result<Option<AllowList>, ApiError> {
        let entries = self.allow.iter().map(String::as_str);
        let list = AllowList::parse(entries).map_err(|error| {
            ApiError::new(error.kind(), format!("allow: {error}"))
                .with_action("name clients by address, such as 10.0.0.7 or 10.0.0.0/24")
        })?;
        Ok((!list.is_empty()).then_some(list))
    }
}

/// Saved snapshot schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownSchedule {
    /// Full name of the volume or pool.
    pub(crate) name: String,
    pub(crate) pool_guid: u64,
    /// Number of the volume; `None` for the schedule of a pool.
    pub(crate) dataset: Option<u64>,
    pub(crate) keep: Keep,
    /// True if the schedule only destroys snapshots and takes none.
    #[serde(default)]
    pub(crate) prune_only: bool,
    /// Number of the schedule, which its snapshots store as their creator; 0 in files of older
    /// servers.
    #[serde(default)]
    pub(crate) id: u64,
    /// True if the schedule also destroys received snapshots; true if an admin has set it.
    #[serde(default)]
    pub(crate) prunes_received: bool,
}

impl KnownSchedule {
    /// Gives a number to a schedule that an older server saved without a number. The number is
    /// computed from the pool and volume, so a server that stopped before it saved the file gives
    /// the same number again.
    fn number(&mut self) {
        if self.id == 0 {
            self.id = self.pool_guid.wrapping_add(self.dataset.map_or(1, |dataset| dataset + 2));
        }
    }
}

/// A volume that is replicated to another server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownReplication {
    /// Full name of the volume.
    pub(crate) volume: String,
    pub(crate) pool_guid: u64,
    /// Dataset number of the volume.
    pub(crate) dataset: u64,
    pub(crate) to: String,
    pub(crate) every_seconds: u64,
    pub(crate) bandwidth_bytes: Option<u64>,
    pub(crate) ca_file: String,
    pub(crate) secret_file: String,
    pub(crate) paused: bool,
    /// True if a replication run has started and has not completed, even before a restart.
    #[serde(default)]
    pub(crate) unfinished: bool,
    /// Start time of the last replication run.
    pub(crate) last_run_unix_ms: u64,
    /// The newest snapshot that exists on both servers.
    pub(crate) last: Option<ReplicatedSnapshot>,
    pub(crate) verified: Option<Verification>,
    /// Error of the last comparison; `None` if it completed.
    #[serde(default)]
    pub(crate) verify_failed: Option<VerifyFailure>,
    /// Guids of the snapshots that a replication run releases and then destroys at its end. If the
    /// run is interrupted between the two steps, the released snapshot has no tag, and only this
    /// list names it.
    #[serde(default)]
    pub(crate) clearing: Vec<String>,
}

/// A snapshot that exists on both servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReplicatedSnapshot {
    /// Name of the snapshot, without the volume, at the time of the replication.
    pub(crate) snapshot: String,
    /// Guid of the snapshot; empty in files of older servers, which did not store it.
    #[serde(default)]
    pub(crate) guid: String,
    /// Creation time of the snapshot.
    pub(crate) unix_ms: u64,
}

impl ReplicatedSnapshot {
    /// True if `snapshot`, on either server, is the replicated snapshot, even after a rename.
    pub(crate) fn is(&self, snapshot: &Snapshot) -> bool {
        let own = snapshot.name.split_once('@').map_or("", |(_, own)| own);
        if self.guid.is_empty() { own == self.snapshot } else { snapshot.guid == self.guid }
    }
}

/// Saved iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownTarget {
    pub(crate) name: String,
    pub(crate) initiators: Vec<KnownInitiator>,
    pub(crate) luns: Vec<KnownLun>,
}

/// An initiator that may log in to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownInitiator {
    /// iSCSI name of the initiator, or `*` for any.
    pub(crate) name: String,
    pub(crate) chap: Option<ChapAccount>,
    pub(crate) mutual: Option<ChapAccount>,
}

/// Saved logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownLun {
    pub(crate) number: u16,
    /// Full name of a volume or snapshot.
    pub(crate) volume: String,
    /// Number of the dataset, by which the server finds the dataset after renames and promotions.
    pub(crate) dataset: u64,
    pub(crate) block_bytes: u32,
    /// True if writes may be acknowledged before they are durable.
    pub(crate) write_cache: bool,
    pub(crate) shared: bool,
}

/// Saved share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownShare {
    pub(crate) name: String,
    /// Full name of the filesystem.
    pub(crate) filesystem: String,
    /// Number of the dataset, by which the server finds the filesystem after renames and
    /// promotions.
    pub(crate) dataset: u64,
    /// Directory of the filesystem that clients mount; empty: its root.
    pub(crate) directory: String,
    /// Rules of clients, with all options.
    pub(crate) allow: Vec<String>,
    /// True if changes of names and attributes are acknowledged before they are durable.
    pub(crate) asynchronous: bool,
    /// Identifier in the handles of clients.
    pub(crate) id: u64,
}

/// The state that a restart of the server preserves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) pools: Vec<SavedPool>,
    pub(crate) exports: Vec<KnownExport>,
    #[serde(default)]
    pub(crate) schedules: Vec<KnownSchedule>,
    #[serde(default)]
    pub(crate) replications: Vec<KnownReplication>,
    #[serde(default)]
    pub(crate) targets: Vec<KnownTarget>,
    #[serde(default)]
    pub(crate) shares: Vec<KnownShare>,
}

impl State {
    /// Returns the paths of the secret files that the saved state uses.
    pub(crate) fn secret_files(&self) -> BTreeSet<&str> {
        let sent = self.replications.iter().flat_map(|known| [&known.ca_file, &known.secret_file]);
        let proven = self.targets.iter().flat_map(|target| &target.initiators);
        let proven = proven.flat_map(|known| known.chap.iter().chain(&known.mutual));
        let proven = proven.filter_map(|account| account.secret_file.as_ref());
        sent.chain(proven).map(String::as_str).collect()
    }
}

/// The state file and its contents.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    pub(crate) state: State,
}

impl StateFile {
    /// Reads the file; a missing file is an empty state.
    pub(crate) fn load(dir: &Path) -> Result<Self, ApiError> {
        let path = dir.join("state.json");
        let failed = |why: String| {
            ApiError::new(ErrorKind::Data, format!("{}: {why}", path.display()))
                .with_action("repair or remove the file; pools can be imported again")
        };
        let mut state: State = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(failed(error.to_string())),
        };
        state.schedules.iter_mut().for_each(KnownSchedule::number);
        Ok(Self { path, state })
    }

    /// Replaces the file.
    ///
    /// # Durability
    /// The new state survives any crash once this function returns.
    pub(crate) fn save(&self) -> Result<(), ApiError> {
        let text = serde_json::to_vec_pretty(&self.state).map_err(std::io::Error::from);
        text.and_then(|text| replace_file(&self.path, &text)).map_err(|error| {
            let message = format!("cannot save {}: {error}", self.path.display());
            ApiError::new(ErrorKind::Unavailable, message)
        })
    }
}
