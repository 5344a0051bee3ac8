//! Snapshots of volumes: what a volume was at one moment, read-only.
//!
//! Not here: schedules of them (`schedule`), volumes that begin as one (`volume`).
//!
//! Invariant: the snapshots of one request are of one pool, so that one change of the pool makes or
//! takes away all of a volume.

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

/// Value of [`Snapshot::taken_by`] for snapshots from streams that kept their names.
pub const TAKEN_BY_STREAM: &str = "stream";

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Full name, such as `tank/vm1@monday`.
    pub name: String,
    /// Full name of the volume.
    pub volume: String,
    /// Tells it apart from every other one, on other pools too.
    pub guid: String,
    /// Size of the volume at that time.
    pub size_bytes: u64,
    /// What destroying it alone would free.
    pub used_bytes: u64,
    /// What it leads to: data and tree nodes, one copy, as stored.
    pub referenced_bytes: u64,
    /// Of that, what was written since the snapshot before it.
    pub written_bytes: u64,
    /// When it was asked for.
    pub created_unix_ms: u64,
    /// Tags that keep it from being destroyed.
    pub holds: Vec<String>,
    /// Full names of the volumes cloned from it.
    pub clones: Vec<String>,
    /// Names of its exports.
    pub exports: Vec<String>,
    /// Creator: `schedule`, `replication` or `stream`; `user` or absent for a user. A schedule and
    /// a replication destroy only their own snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<String>,
}

impl Snapshot {
    /// Removes the names outside of the scope.
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
    /// The snapshots: by volume, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Where the list continues: `after` of the call for the next entries. Absent at its end.
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

/// Which snapshots to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSnapshots {
    /// Only the snapshots of this pool or volume, or only this snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most this many entries, up to 1000.
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

    /// The space of each snapshot takes reads, so that the server looks up one page only.
    fn limited(self) -> Self {
        let all = self.after.is_none() && self.limit.is_none();
        let is_peer = caller::current().peer().is_some();
        let most = if all && is_peer { PEER_ENTRIES_MAX } else { PAGE_ENTRIES_MAX };
        Self { limit: Some(self.limit.unwrap_or(most).clamp(1, most)), ..self }
    }
}

impl From<Option<String>> for ListSnapshots {
    /// All snapshots of this pool or volume, or this one.
    fn from(of: Option<String>) -> Self {
        Self { of, ..Self::default() }
    }
}

/// Snapshots to be taken at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotCreate {
    /// Full names, at most 4096, such as `tank/vm1@monday`; with `recursive` one such as
    /// `tank@monday`.
    pub names: Vec<String>,
    /// Take one of each volume of the pool.
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

/// Snapshots to be destroyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotDestroy {
    /// Full names; also lists and ranges of one volume's snapshots, such as `tank/vm1@a,c%e`, where
    /// a range without one end reaches to the oldest or the newest. At most 4096 names and ranges.
    pub names: Vec<String>,
    /// Only tell what would go and what that would free.
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

/// What was, or would be, destroyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotsDestroyed {
    /// Outcome of the call; `unchanged` for a dry run.
    pub outcome: Outcome,
    /// Full names of the snapshots: by volume, oldest first.
    pub names: Vec<String>,
    /// What that frees, over the next commits.
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

/// A tag that shall keep a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotHold {
    /// Full name, such as `tank/vm1@monday`.
    pub name: String,
    /// The tag.
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

/// A tag that shall keep a snapshot no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRelease {
    /// Full name, such as `tank/vm1@monday`.
    pub name: String,
    /// The tag.
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

/// A snapshot to get another name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRename {
    /// Full name, such as `tank/vm1@monday`.
    pub name: String,
    /// The new full name; of the same volume.
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

/// A volume to become what it was at a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRollback {
    /// Full name, such as `tank/vm1@monday`.
    pub name: String,
    /// Also destroy the snapshots that are newer.
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

/// A volume to be made that begins as a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotClone {
    /// Full name of the snapshot, such as `tank/vm1@monday`.
    pub name: String,
    /// Full name of the new volume; of the same pool.
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

/// The answer of a call that changes snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The snapshots as they are now.
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

/// Finds what is wrong with the name of what snapshots are listed of: a pool, a volume, or one of
/// them.
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
    fn one_call_is_about_one_pool_and_each_volume_once() {
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
    fn snapshots_that_one_call_names_are_limited() {
        let many = |count: usize| (0..count).map(|n| format!("tank/{n}@m")).collect::<Vec<_>>();
        let take = |count: usize| SnapshotCreate { names: many(count), recursive: false }.check();
        let destroy = |names: Vec<String>| SnapshotDestroy { names, dry_run: true }.check();
        take(SNAPSHOT_NAMES_MAX).expect("as many as there may be");
        destroy(many(SNAPSHOT_NAMES_MAX)).expect("as many as there may be");
        // Names in one list count as much.
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
    fn what_changes_stays_where_it_is() {
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
