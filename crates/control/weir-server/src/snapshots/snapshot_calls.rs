//! Calls that take, list, change and destroy snapshots, roll back and clone.
//!
//! Scheduled snapshots are in `schedules`, exports of snapshots in `exports`.
//!
//! Invariants:
//! - a call resolves lists and ranges of names to snapshots once, before it destroys any of them;
//! - the server neither destroys nor rolls back an exported object; the error names the export.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_api::access::{Role, Scope};
use weir_api::types::{
    ListSnapshots, Outcome, Snapshot, SnapshotChange, SnapshotClone, SnapshotCreate,
    SnapshotDestroy, SnapshotHold, SnapshotList, SnapshotRelease, SnapshotRename, SnapshotRollback,
    SnapshotsDestroyed, TAKEN_BY_REPLICATION, TAKEN_BY_STREAM, VolumeChange, gone,
};
use weir_api::{ApiError, Handle, caller};
use weir_base::ErrorKind;
use weir_base::names::{self, NameError, Picked};
use weir_dataset::{DatasetError, Engine, SnapshotId, SnapshotInfo, TakenBy};

use crate::answer::errors::{api_error, not_found, outcome};
use crate::answer::names::{Of, pool_of, split};
use crate::disks::pool_thread::OpenPool;
use crate::state::server::{Entry, Manager};

const _: () = assert!(names::TAG_BYTES_MAX == weir_format::HOLD_BYTES_MAX);

fn bad_name(error: &NameError) -> ApiError {
    ApiError::new(ErrorKind::Invalid, error.to_string())
}

/// Splits the full name of a snapshot into its pool and the snapshot's id in the pool.
fn id(full: &str) -> Result<(&str, SnapshotId), ApiError> {
    let (volume, name) = names::snapshot(full).map_err(|error| bad_name(&error))?;
    let (pool, own) = split(volume)?;
    Ok((pool, SnapshotId::new(own, name)))
}

/// Returns the names in `all` that `picked` selects; `all` is in chronological order.
fn resolve(of: &str, all: &[String], picked: &[Picked<'_>]) -> Result<Vec<String>, ApiError> {
    let place = |name: &str| {
        let at = all.iter().position(|known| known == name);
        at.ok_or_else(|| not_found("snapshot", &format!("{of}@{name}")))
    };
    let mut chosen = vec![false; all.len()];
    for pick in picked {
        let (first, last) = match *pick {
            Picked::One(name) => (place(name)?, place(name)?),
            Picked::Range(first, last) => {
                (first.map_or(Ok(0), place)?, last.map_or(Ok(all.len().saturating_sub(1)), place)?)
            }
        };
        let Some(range) = chosen.get_mut(first..=last).filter(|range| !range.is_empty()) else {
            let message = match all.get(first).zip(all.get(last)) {
                Some((first, last)) => format!(
                    "no snapshot is in the range {of}@{first}%{last}: its first snapshot is newer \
                     than its last"
                ),
                None => format!("{of} has no snapshot"),
            };
            return Err(ApiError::new(ErrorKind::NotFound, message).with_action(
                "name the older snapshot first; 'weir snapshot list' shows the order",
            ));
        };
        range.fill(true);
    }
    Ok(all.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(name, _)| name.clone()).collect())
}

/// Returns an error if a hold or a clone needs one of these snapshots.
fn refuse_kept(pool: &str, infos: &[(String, SnapshotInfo)]) -> Result<(), ApiError> {
    for (volume, info) in infos {
        let full = format!("{pool}/{volume}@{}", info.name);
        if !info.holds.is_empty() {
            let message = format!("{full} is held by {}", info.holds.join(", "));
            return Err(ApiError::new(ErrorKind::Busy, message).with_action(format!(
                "release it: weir snapshot release {} {full}",
                info.holds[0]
            )));
        }
        if let Some(first) = info.clones.first() {
            let clones: Vec<_> = info.clones.iter().map(|own| format!("{pool}/{own}")).collect();
            let message = format!("{full} is the origin of {}", clones.join(", "));
            return Err(ApiError::new(ErrorKind::Busy, message).with_action(format!(
                "destroy its clones first, or promote one: weir volume promote {pool}/{first}"
            )));
        }
    }
    Ok(())
}

/// Returns the name of a snapshot's creator in the API.
const fn taker_word(taker: TakenBy) -> &'static str {
    match taker {
        TakenBy::Schedule(_) => "schedule",
        TakenBy::Replication => TAKEN_BY_REPLICATION,
        TakenBy::Received(_) => TAKEN_BY_STREAM,
        TakenBy::User => "user",
    }
}

impl Manager {
    fn show_snapshot(&self, pool: &str, volume: &str, info: SnapshotInfo) -> Snapshot {
        let volume = format!("{pool}/{volume}");
        let name = format!("{volume}@{}", info.name);
        Snapshot {
            exports: self.exports_of(Of::Dataset(&name)),
            name,
            volume,
            guid: info.guid.to_string(),
            size_bytes: info.size_bytes,
            used_bytes: info.used_bytes,
            referenced_bytes: info.referenced_bytes,
            written_bytes: info.written_bytes,
            created_unix_ms: info.created_unix_ms,
            holds: info.holds,
            clones: info.clones.iter().map(|own| format!("{pool}/{own}")).collect(),
            taken_by: info.taken_by.map(|taker| taker_word(taker).to_owned()),
        }
    }

    /// Returns details of snapshots of a pool, in the requested order. Reads tree nodes.
    pub(crate) async fn snapshot_infos(
        &self,
        open: &OpenPool,
        ids: Vec<SnapshotId>,
    ) -> Result<Vec<(String, SnapshotInfo)>, ApiError> {
        open.call(move |engine| async move {
            let mut known: BTreeMap<String, Vec<SnapshotInfo>> = BTreeMap::new();
            let mut found = Vec::new();
            for SnapshotId { volume, name } in ids {
                if !known.contains_key(&volume) {
                    known.insert(volume.clone(), engine.snapshots(&volume).await?);
                }
                let info = known[&volume].iter().find(|info| info.name == name).cloned();
                found.extend(info.map(|info| (volume, info)));
            }
            Ok(found)
        })
        .await
    }

    async fn show_snapshots(
        &self,
        open: &OpenPool,
        ids: Vec<SnapshotId>,
    ) -> Result<Vec<Snapshot>, ApiError> {
        let pool = open.engine.pool().name();
        let infos = self.snapshot_infos(open, ids).await?;
        let show = |(volume, info): (String, _)| self.show_snapshot(pool, &volume, info);
        Ok(infos.into_iter().map(show).collect())
    }

    /// Takes snapshots and stores their creator `by`; without `by` the creator is a user.
    pub(crate) async fn create_snapshots(
        &self,
        request: SnapshotCreate,
        by: Option<TakenBy>,
    ) -> Result<SnapshotChange, ApiError> {
        let SnapshotCreate { names, recursive } = request;
        let pool = pool_of(names.first().map_or("", String::as_str));
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        let ids: Vec<SnapshotId> = if recursive {
            let name = names[0].split('@').nth(1).unwrap_or_default().to_owned();
            let of = |volume: Arc<weir_dataset::Volume>| volume.info().name;
            let settled = |volume: &Arc<weir_dataset::Volume>| volume.receiving().is_none();
            let volumes = open.engine.volumes().into_iter().filter(settled).map(of);
            volumes.map(|volume| SnapshotId { volume, name: name.clone() }).collect()
        } else {
            names.iter().map(|name| id(name).map(|(_, id)| id)).collect::<Result<_, _>>()?
        };
        if ids.is_empty() {
            let message = format!("pool {pool} has no volumes");
            return Err(ApiError::new(ErrorKind::NotFound, message));
        }
        let wanted = ids.clone();
        open.call(move |engine| async move { engine.create_snapshots_by(&wanted, by).await })
            .await?;
        let snapshots = self.show_snapshots(&open, ids).await?;
        Ok(SnapshotChange { outcome: Outcome::Created, snapshots })
    }
}

impl Handle<ListSnapshots> for Manager {
    /// Lists snapshots in the scope of the caller. Reads tree nodes for the listed snapshots only.
    ///
    /// # Errors
    /// `NotFound` if `after` is no longer in the list.
    async fn handle(&self, query: ListSnapshots) -> Result<SnapshotList, ApiError> {
        let ListSnapshots { of, after, limit } = query;
        let pools: Vec<(String, Arc<OpenPool>)> = match &of {
            Some(of) => vec![(pool_of(of).to_owned(), self.pool(pool_of(of))?)],
            None => {
                let pools = self.pools.read();
                let open = pools.iter().filter_map(|(name, entry)| match entry {
                    Entry::Open(pool) => Some((name.clone(), Arc::clone(pool))),
                    Entry::Unavailable(_) => None,
                });
                open.collect()
            }
        };
        let (volume, one) = match &of {
            Some(of) if of.contains('/') => {
                let (volume, one) = names::dataset(of).map_err(|error| bad_name(&error))?;
                (Some(volume), one)
            }
            _ => (None, None),
        };
        let mut window = Window::new(after, limit);
        let mut snapshots = Vec::new();
        for (pool, open) in pools {
            let own = volume.map(split).transpose()?.map(|(_, own)| own);
            let ids = listed(&open.engine, own).map_err(|error| api_error(&error))?;
            let ids = ids.into_iter().filter(|id| one.is_none_or(|one| id.name == one));
            let ids = ids.filter(|id| window.takes(format!("{pool}/{}@{}", id.volume, id.name)));
            let mut found = self.show_snapshots(&open, ids.collect()).await?;
            tracing::trace!(pool, count = found.len(), "snapshots listed");
            snapshots.append(&mut found);
        }
        let next = window.end()?;
        match of.as_ref().filter(|_| one.is_some() && snapshots.is_empty()) {
            Some(missing) => Err(not_found("snapshot", missing)),
            None => Ok(SnapshotList { snapshots, next }),
        }
    }
}

impl Handle<SnapshotDestroy> for Manager {
    /// Destroys snapshots: of each volume, all or none of the named ones. A dry run lists the
    /// snapshots and the space that their destruction would free.
    ///
    /// # Errors
    /// `Busy` for an exported snapshot, a held snapshot and the origin of a clone; `NotFound` for a
    /// name or range that selects no snapshot.
    async fn handle(&self, request: SnapshotDestroy) -> Result<SnapshotsDestroyed, ApiError> {
        let pool = pool_of(request.names.first().map_or("", String::as_str));
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        let mut picked: BTreeMap<&str, Vec<Picked<'_>>> = BTreeMap::new();
        for name in &request.names {
            let (volume, picks) = names::snapshots(name).map_err(|error| bad_name(&error))?;
            picked.entry(volume).or_default().extend(picks);
        }
        let (mut going, mut closed) = (Vec::new(), Vec::new());
        for (volume, picks) in picked {
            let (_, own) = split(volume)?;
            let all = open.engine.snapshot_names(own).map_err(|error| api_error(&error))?;
            let names = resolve(volume, &all, &picks)?;
            for name in &names {
                let full = format!("{volume}@{name}");
                closed.push(self.close_snapshots(Of::Dataset(&full)).await?);
                self.refuse_in_use(Of::Dataset(&full))?;
            }
            going.push((own.to_owned(), names));
        }
        let id = |volume: &String, name: &String| SnapshotId {
            volume: volume.clone(),
            name: name.clone(),
        };
        let ids: Vec<SnapshotId> =
            going.iter().flat_map(|(v, names)| names.iter().map(move |n| id(v, n))).collect();
        let full = |id: &SnapshotId| format!("{pool}/{}@{}", id.volume, id.name);
        let names = ids.iter().map(full).collect();
        refuse_kept(pool, &self.snapshot_infos(&open, ids).await?)?;
        let dry_run = request.dry_run;
        let freed_bytes = open
            .call(move |engine| async move {
                let mut freed = 0;
                for (volume, names) in going {
                    freed += engine.freed_by(&volume, &names).await?;
                    if !dry_run {
                        engine.destroy_snapshots(&volume, &names).await?;
                    }
                }
                Ok(freed)
            })
            .await?;
        drop(closed);
        let outcome = if dry_run { Outcome::Unchanged } else { Outcome::Removed };
        Ok(SnapshotsDestroyed { outcome, names, freed_bytes })
    }
}

impl Manager {
    /// Changes a snapshot; `to` is its new name if the change renames it.
    pub(crate) async fn change_snapshot<F>(
        &self,
        full: &str,
        to: Option<&str>,
        change: impl FnOnce(Arc<Engine>, SnapshotId) -> F + Send + 'static,
    ) -> Result<SnapshotChange, ApiError>
    where
        F: Future<Output = Result<weir_dataset::Outcome, DatasetError>> + 'static,
    {
        let (pool, snapshot) = id(full)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        let outcome = outcome(open.call(move |engine| change(engine, snapshot)).await?);
        self.follow_names(&open.engine)?;
        let (_, snapshot) = id(to.unwrap_or(full))?;
        let snapshots = self.show_snapshots(&open, vec![snapshot]).await?;
        Ok(SnapshotChange { outcome, snapshots })
    }
}

impl Handle<SnapshotRelease> for Manager {
    /// Removes a tag from a snapshot. If an operator removes the tag, the schedule that took the
    /// snapshot no longer destroys the snapshot: operators may not destroy snapshots, not even
    /// through a schedule.
    async fn handle(&self, request: SnapshotRelease) -> Result<SnapshotChange, ApiError> {
        let SnapshotRelease { name, tag } = request;
        let may_destroy = caller::current().has(Role::Admin);
        self.change_snapshot(&name, None, move |engine, id| async move {
            if may_destroy {
                engine.release_snapshot(&id, &tag).await
            } else {
                engine.release_to_user(&id, &tag).await
            }
        })
        .await
    }
}

impl Handle<SnapshotRollback> for Manager {
    /// Rolls a volume back to a snapshot and discards all later writes.
    ///
    /// # Errors
    /// `Busy` if the volume is exported. `Busy` if it has newer snapshots and `destroy_newer` is
    /// false. With `destroy_newer`, the errors of `snapshot_destroy`.
    async fn handle(&self, request: SnapshotRollback) -> Result<VolumeChange, ApiError> {
        let SnapshotRollback { name, destroy_newer } = request;
        let (pool, snapshot) = id(&name)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        let volume = format!("{pool}/{}", snapshot.volume);
        let all = open.engine.snapshot_names(&snapshot.volume);
        let all = all.map_err(|error| api_error(&error))?;
        if !all.contains(&snapshot.name) {
            return Err(not_found("snapshot", &name));
        }
        self.refuse_exported(Of::Dataset(&volume))?;
        let _closed = self.close_snapshots(Of::Volume(&volume)).await?;
        self.refuse_mounted(Of::Dataset(&volume))?;
        let newer = all.iter().skip_while(|other| **other != snapshot.name).skip(1);
        for newer in newer.filter(|_| destroy_newer) {
            self.refuse_in_use(Of::Dataset(&format!("{volume}@{newer}")))?;
        }
        // Clients of a share wait during the rollback. Their files can be other files afterwards.
        let of = Of::Dataset(&volume);
        self.suspend_shares(of, "it is being rolled back");
        let done = async {
            self.wait_for_ends(of).await?;
            let back = move |engine: Arc<Engine>| async move {
                engine.rollback(&snapshot, destroy_newer).await
            };
            open.call(back).await
        };
        let done = done.await;
        self.offer_shares(of).await;
        let outcome = outcome(done?);
        Ok(VolumeChange { outcome, volume: self.show_volume(&volume)? })
    }
}

impl Handle<SnapshotClone> for Manager {
    /// Clones a snapshot into a new volume, which shares the blocks of the snapshot.
    async fn handle(&self, request: SnapshotClone) -> Result<VolumeChange, ApiError> {
        let (_, origin) = id(&request.name)?;
        self.change_volume(&request.volume, Outcome::Created, move |engine, own| async move {
            engine.clone_snapshot(&origin, &own).await
        })
        .await
    }
}

/// Selects one page of names from a list, limited to the scope of the caller.
struct Window {
    scope: Option<Scope>,
    /// The last name of the previous page; `None` once the list has passed that name.
    after: Option<String>,
    left: usize,
    last: Option<String>,
    has_more: bool,
}

impl Window {
    fn new(after: Option<String>, limit: Option<usize>) -> Self {
        let scope = caller::current().rights().map(|rights| rights.scope.clone());
        let left = limit.unwrap_or(usize::MAX);
        Self { scope, after, left, last: None, has_more: false }
    }

    /// True if this page contains `name`, which is the next name of the list.
    fn takes(&mut self, name: String) -> bool {
        // The authorizer also filters every response by the scope. This check keeps names outside
        // the scope out of `next`.
        if !self.scope.as_ref().is_some_and(|scope| scope.covers(&name)) {
            return false;
        }
        if let Some(after) = &self.after {
            if *after == name {
                self.after = None;
            }
            return false;
        }
        if self.left == 0 {
            self.has_more = true;
            return false;
        }
        self.left -= 1;
        self.last = Some(name);
        true
    }

    /// Returns the last name of this page if another page follows.
    ///
    /// # Errors
    /// `NotFound` if the list does not contain the last name of the previous page.
    fn end(self) -> Result<Option<String>, ApiError> {
        match self.after {
            Some(after) => Err(gone(&after)),
            None => Ok(self.last.filter(|_| self.has_more)),
        }
    }
}

/// Returns the snapshots of one volume, or of all volumes sorted by name.
fn listed(engine: &Engine, volume: Option<&str>) -> Result<Vec<SnapshotId>, DatasetError> {
    let volumes = match volume {
        Some(own) => vec![own.to_owned()],
        None => {
            let mut all: Vec<String> =
                engine.volumes().into_iter().map(|volume| volume.info().name).collect();
            all.sort();
            all
        }
    };
    let mut ids = Vec::new();
    for volume in volumes {
        let names = engine.snapshot_names(&volume)?;
        ids.extend(names.into_iter().map(|name| SnapshotId { volume: volume.clone(), name }));
    }
    Ok(ids)
}

impl Handle<SnapshotCreate> for Manager {
    /// Takes snapshots in one transaction group: all or none.
    ///
    /// # Errors
    /// `Exists` if a snapshot of that name exists with other contents.
    async fn handle(&self, call: SnapshotCreate) -> Result<SnapshotChange, ApiError> {
        self.create_snapshots(call, None).await
    }
}

impl Handle<SnapshotHold> for Manager {
    /// Holds a snapshot: it cannot be destroyed until the tag is released.
    async fn handle(&self, call: SnapshotHold) -> Result<SnapshotChange, ApiError> {
        let SnapshotHold { name, tag } = call;
        self.change_snapshot(&name, None, |engine, id| async move {
            engine.hold_snapshot(&id, &tag).await
        })
        .await
    }
}

impl Handle<SnapshotRename> for Manager {
    /// Renames a snapshot.
    ///
    /// # Errors
    /// `Busy` while the snapshot is mounted.
    async fn handle(&self, call: SnapshotRename) -> Result<SnapshotChange, ApiError> {
        let SnapshotRename { name, to } = call;
        let own = to.split('@').nth(1).unwrap_or_default().to_owned();
        self.wait_for_ends(Of::Dataset(&name)).await?;
        self.refuse_mounted(Of::Dataset(&name))?;
        self.change_snapshot(&name, Some(&to), |engine, id| async move {
            engine.rename_snapshot(&id, &own).await
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_selects_a_page_and_returns_the_next_name() {
        let all = ["tank/a@1", "tank/a@2", "tank/b@1"];
        let page = |after: Option<&str>, limit| {
            let mut window = Window::new(after.map(str::to_owned), limit);
            let taken: Vec<_> =
                all.into_iter().filter(|name| window.takes((*name).to_owned())).collect();
            window.end().map(|next| (taken, next))
        };
        assert_eq!(page(None, None), Ok((all.to_vec(), None)));
        assert_eq!(page(None, Some(2)), Ok((all[..2].to_vec(), Some(all[1].to_owned()))));
        assert_eq!(page(Some(all[1]), Some(2)), Ok((all[2..].to_vec(), None)));
        assert_eq!(page(Some("tank/a@3"), None).unwrap_err().kind, ErrorKind::NotFound);
    }

    fn resolved(list: &str) -> Result<Vec<String>, ApiError> {
        let all = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let (of, picked) = names::snapshots(list).unwrap();
        resolve(of, &all, &picked)
    }

    #[test]
    fn lists_and_ranges_are_in_chronological_order() {
        for (list, wanted) in [
            ("tank/v@c", "c"),
            ("tank/v@b%d", "bcd"),
            ("tank/v@d%", "de"),
            ("tank/v@%b", "ab"),
            ("tank/v@%", "abcde"),
            ("tank/v@e,a,b%c,b", "abce"),
        ] {
            assert_eq!(resolved(list).unwrap().concat(), wanted, "{list}");
        }
        for (list, part) in [
            ("tank/v@x", "tank/v@x"),
            ("tank/v@a%x", "tank/v@x"),
            ("tank/v@a,x", "tank/v@x"),
            ("tank/v@d%b", "tank/v@d%b"),
        ] {
            let error = resolved(list).unwrap_err();
            assert_eq!(error.kind, ErrorKind::NotFound);
            assert!(error.message.contains(part), "{}", error.message);
        }
        let none = resolve("tank/v", &[], &[Picked::Range(None, None)]).unwrap_err();
        assert!(none.message.contains("no snapshot"), "{}", none.message);
    }
}
