//! Snapshots of volumes: read-only copies of a volume at one point in time.
//!
//! Snapshot schedules are in `schedule`, volumes in `volume`.
//!
//! Invariant: all snapshots of one request are in one pool, so that a single txg creates or
//! destroys all the request's snapshots of a volume.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::page::paged;
use super::{Answer, Outcome, Page, Request, page};
use crate::access::Scope;
use crate::limits::{PAGE_ENTRIES_MAX, PEER_ENTRIES_MAX, SNAPSHOT_NAMES_MAX};
use crate::wire::ApiError;
use crate::{Error, caller};

/// Value of [`Snapshot::taken_by`] for snapshots of replication runs.
pub const TAKEN_BY_REPLICATION: &str = "replication";

/// Value of [`Snapshot::taken_by`] for snapshots from received streams that were not renamed since.
pub const TAKEN_BY_STREAM: &str = "stream";

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Full name, such as `tank/vm1@monday`.
    pub name: String,
    /// Full name of the volume.
    pub volume: String,
    /// Identity of the snapshot, unique across pools.
    pub guid: String,
    /// Size of the volume at the snapshot.
    pub size_bytes: u64,
    /// Space that destroying this snapshot alone would free.
    pub used_bytes: u64,
    /// Space of the blocks that the snapshot references: data and tree nodes as stored. Counts each
    /// byte once, whatever the redundancy.
    pub referenced_bytes: u64,
    /// Part of `referenced_bytes` that was written since the previous snapshot.
    pub written_bytes: u64,
    /// Time of the request that created the snapshot.
    pub created_unix_ms: u64,
    /// Tags of the holds on the snapshot, which prevent its destruction.
    pub holds: Vec<String>,
    /// Full names of the volumes cloned from the snapshot.
    pub clones: Vec<String>,
    /// Names of the exports of the snapshot.
    pub exports: Vec<String>,
    /// Creator: `schedule`, `replication` or `stream`; `user` or absent for a user. A schedule and
    /// a replication destroy only their own snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<String>,
}

impl Snapshot {
    /// Removes names outside the scope.
    fn keep(&mut self, scope: &Scope) {
        self.clones.retain(|clone| scope.covers(clone));
    }
}

fn keep_snapshots(snapshots: &mut Vec<Snapshot>, scope: &Scope) {
    snapshots.retain(|snapshot| scope.covers(&snapshot.name));
    snapshots.iter_mut().for_each(|snapshot| snapshot.keep(scope));
}

/// Snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// The snapshots by volume, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for SnapshotList {
    const ENTRIES: Option<&'static str> = Some("snapshots");

    fn keep(&mut self, scope: &Scope) {
        keep_snapshots(&mut self.snapshots, scope);
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, &Page { after: None, limit: page.limit })
    }
}

paged!(SnapshotList, snapshots: Snapshot, |entry| &entry.name);

/// Request to list snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSnapshots {
    /// List only snapshots of this pool or volume, or only this snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// `next` of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of entries in the response, up to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl Request for ListSnapshots {
    fn check(&self) -> Result<(), Error> {
        self.of.as_deref().map_or(Ok(()), check_listed)
    }

    fn names(&self) -> Vec<&str> {
        self.of.as_deref().into_iter().collect()
    }

    /// Limits the request to one page, because the server reads from disk to compute the space of
    /// each snapshot. A peer that does not support pages gets up to [`PEER_ENTRIES_MAX`] entries.
    fn limited(self) -> Self {
        let all = self.after.is_none() && self.limit.is_none();
        let is_peer = caller::current().peer().is_some();
        let most = if all && is_peer { PEER_ENTRIES_MAX } else { PAGE_ENTRIES_MAX };
        Self { limit: Some(self.limit.unwrap_or(most).clamp(1, most)), ..self }
    }
}

impl From<Option<String>> for ListSnapshots {
    /// Creates a request for the pool, volume or snapshot `of`, or for all snapshots if `of` is
    /// `None`.
    fn from(of: Option<String>) -> Self {
        Self { of, ..Self::default() }
    }
}

/// Request to take snapshots at one point in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotCreate {
    /// Full names, at most 4096, such as `tank/vm1@monday`. With `recursive`: one name such as
    /// `tank@monday`.
    pub names: Vec<String>,
    /// Take a snapshot of each volume of the pool.
    #[serde(default)]
    pub recursive: bool,
}

impl Request for SnapshotCreate {
    fn check(&self) -> Result<(), Error> {
        if self.recursive {
            let [name] = self.names.as_slice() else { return Err(Error::NotOnePool) };
            names::pool_snapshot(name)?;
            return Ok(());
        }
        few_enough(self.names.len())?;
        let mut volumes = Vec::new();
        for name in &self.names {
            let (volume, _) = names::snapshot(name)?;
            if volumes.contains(&volume) {
                return Err(Error::VolumeTwice { volume: volume.to_owned() });
            }
            volumes.push(volume);
        }
        of_one_pool(&self.names)
    }

    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    fn about(&self) -> String {
        self.names.join(" ")
    }

    fn details(&self) -> String {
        if self.recursive { "-r".to_owned() } else { String::new() }
    }
}

/// Request to destroy snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotDestroy {
    /// Full names, at most 4096. A name may contain a list and ranges of snapshots of one volume,
    /// such as `tank/vm1@a,c%e`. A range that lacks one end extends to the oldest or the newest
    /// snapshot. Each entry of a list counts as one name.
    pub names: Vec<String>,
    /// Return the snapshots and the space that the call would free, without destroying any.
    #[serde(default)]
    pub dry_run: bool,
}

impl Request for SnapshotDestroy {
    fn check(&self) -> Result<(), Error> {
        few_enough(self.names.iter().map(|name| 1 + name.matches(',').count()).sum())?;
        for name in &self.names {
            names::snapshots(name)?;
        }
        of_one_pool(&self.names)
    }

    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    fn about(&self) -> String {
        self.names.join(" ")
    }

    fn is_dry_run(&self) -> bool {
        self.dry_run
    }
}

/// Snapshots that the call destroyed, or would destroy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotsDestroyed {
    /// Outcome of the call; `unchanged` for a dry run.
    pub outcome: Outcome,
    /// Full names of the snapshots by volume, oldest first.
    pub names: Vec<String>,
    /// Space that the next commits free.
    pub freed_bytes: u64,
}

impl Answer for SnapshotsDestroyed {
    fn keep(&mut self, scope: &Scope) {
        self.names.retain(|name| scope.covers(name));
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

/// Request to hold a snapshot, which prevents its destruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotHold {
    /// Full name, such as `tank/vm1@monday`.
    pub name: String,
    /// Tag of the hold.
    pub tag: String,
}

impl Request for SnapshotHold {
    fn check(&self) -> Result<(), Error> {
        names::snapshot(&self.name)?;
        Ok(names::tag(&self.tag)?)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        self.tag.clone()
    }
}

/// Request to release a hold on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRelease {
    /// Full name, such as `tank/vm1@monday`.
    pub name: String,
    /// Tag of the hold.
    pub tag: String,
}

impl Request for SnapshotRelease {
    fn check(&self) -> Result<(), Error> {
        names::snapshot(&self.name)?;
        Ok(names::tag(&self.tag)?)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        self.tag.clone()
    }
}

/// Request to rename a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRename {
    /// Full name, such as `tank/vm1@monday`.
    pub name: String,
    /// The new full name, of the same volume, such as `tank/vm1@before-upgrade`.
    pub to: String,
}

impl Request for SnapshotRename {
    fn check(&self) -> Result<(), Error> {
        let (volume, _) = names::snapshot(&self.name)?;
        let (of, _) = names::snapshot(&self.to)?;
        if of == volume {
            return Ok(());
        }
        Err(Error::Elsewhere { name: self.name.clone(), to: self.to.clone(), what: "volume" })
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name, &self.to]
    }

    fn details(&self) -> String {
        self.to.clone()
    }
}

/// Request to roll a volume back to a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRollback {
    /// Full name, such as `tank/vm1@monday`.
    pub name: String,
    /// Also destroy newer snapshots.
    #[serde(default)]
    pub destroy_newer: bool,
}

impl Request for SnapshotRollback {
    fn check(&self) -> Result<(), Error> {
        names::snapshot(&self.name)?;
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        if self.destroy_newer { "-r".to_owned() } else { String::new() }
    }
}

/// Request to clone a snapshot into a new volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotClone {
    /// Full name of the snapshot, such as `tank/vm1@monday`.
    pub name: String,
    /// Full name of the new volume, in the same pool.
    pub volume: String,
}

impl Request for SnapshotClone {
    fn check(&self) -> Result<(), Error> {
        let (of, _) = names::snapshot(&self.name)?;
        let (pool, _) = names::volume(of)?;
        let (to, _) = names::volume(&self.volume)?;
        if to == pool {
            return Ok(());
        }
        Err(Error::Elsewhere { name: self.name.clone(), to: self.volume.clone(), what: "pool" })
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name, &self.volume]
    }

    fn details(&self) -> String {
        self.volume.clone()
    }
}

/// Response of a call that changes snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The snapshots after the call.
    pub snapshots: Vec<Snapshot>,
}

impl Answer for SnapshotChange {
    fn keep(&mut self, scope: &Scope) {
        keep_snapshots(&mut self.snapshots, scope);
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

/// Checks the filter of a list of snapshots: it must be the name of a pool, volume or snapshot.
pub fn check_listed(of: &str) -> Result<(), Error> {
    if of.contains(['/', '@']) {
        names::dataset(of)?;
    } else {
        names::pool(of)?;
    }
    Ok(())
}

fn few_enough(names: usize) -> Result<(), Error> {
    if names > SNAPSHOT_NAMES_MAX {
        return Err(Error::TooMany { what: "names of snapshots", most: SNAPSHOT_NAMES_MAX });
    }
    Ok(())
}

fn of_one_pool(names: &[String]) -> Result<(), Error> {
    let pool = |name: &String| name.split('/').next().map(str::to_owned);
    let first = names.first().ok_or(Error::NoSnapshots)?;
    match names.iter().find(|name| pool(name) != pool(first)) {
        None => Ok(()),
        Some(other) => {
            Err(Error::Elsewhere { name: first.clone(), to: other.clone(), what: "pool" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(names: &[&str], recursive: bool) -> Result<(), Error> {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        SnapshotCreate { names, recursive }.check()
    }

    #[test]
    fn request_names_one_pool_and_each_volume_once() {
        create(&["tank/a@m", "tank/b@m"], false).expect("one moment of two volumes");
        create(&["tank@m"], true).expect("one moment of all");
        for (names, recursive, part) in [
            (&["tank/a@m", "other/b@m"][..], false, "other/b@m"),
            (&["tank/a@m", "tank/a@n"], false, "tank/a"),
            (&[], false, "no snapshot"),
            (&["tank@m"], false, "tank/vm1"),
            (&["tank/a@m"], true, "bad pool name"),
            (&["tank@m", "other@m"], true, "one pool"),
        ] {
            let error = create(names, recursive).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn number_of_names_in_one_request_is_limited() {
        let many = |count: usize| (0..count).map(|n| format!("tank/{n}@m")).collect::<Vec<_>>();
        let take = |count: usize| SnapshotCreate { names: many(count), recursive: false }.check();
        let destroy = |names: Vec<String>| SnapshotDestroy { names, dry_run: true }.check();
        take(SNAPSHOT_NAMES_MAX).expect("as many as there may be");
        destroy(many(SNAPSHOT_NAMES_MAX)).expect("as many as there may be");
        // Each entry of the list in a name counts as one name.
        let list = format!("tank/a@{}", vec!["m"; SNAPSHOT_NAMES_MAX].join(","));
        destroy(vec![list.clone()]).expect("as many as there may be");
        for refused in [
            take(SNAPSHOT_NAMES_MAX + 1),
            destroy(many(SNAPSHOT_NAMES_MAX + 1)),
            destroy(vec![list.clone(), "tank/a@m".into()]),
        ] {
            let error = refused.expect_err("one more");
            assert_eq!(error.kind(), weir_base::ErrorKind::Invalid);
            assert!(error.to_string().contains("at most 4096"), "{error}");
        }
    }

    #[test]
    fn rename_stays_in_its_volume_and_clone_in_its_pool() {
        let rename = |to: &str| SnapshotRename { name: "tank/a@m".into(), to: to.into() }.check();
        rename("tank/a@n").expect("the same volume");
        assert!(rename("tank/b@n").expect_err("another").to_string().contains("same volume"));
        let clone =
            |volume: &str| SnapshotClone { name: "tank/a@m".into(), volume: volume.into() }.check();
        clone("tank/b").expect("the same pool");
        assert!(clone("other/b").expect_err("another").to_string().contains("same pool"));
        assert!(clone("tank").is_err());
    }
}
