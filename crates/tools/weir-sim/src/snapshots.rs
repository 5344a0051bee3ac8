//! Snapshots and clones by the administrator of a scenario.
//!
//! `admin` holds the other calls; `check` holds the checks.
//!
//! Invariants:
//! - a call is recorded as pending before it starts, and as acknowledged right after it returns;
//! - a snapshot is read after its acknowledgement, and its content never changes afterwards;
//! - a volume is rolled back while no client uses it.

use weir_dataset::{DatasetError, SnapshotId};

use crate::admin::Admin;
use crate::check::read_snapshot;
use crate::coverage::{CoveragePoint, note};
use crate::error::Stop;
use crate::expected::Content;
use crate::history::Presence;
use crate::objects::book::is_of_objects;
use crate::replication::volumes::is_replica;

impl Admin {
    pub(crate) async fn snapshot_step(&mut self) -> Result<(), Stop> {
        match self.rng.below(20) {
            15..20 => self.replicate().await,
            12..15 => self.clone_range().await,
            0..5 => self.take().await,
            5..8 => self.destroy_some().await,
            8..10 => self.clone_one().await,
            10 => self.roll_back().await,
            _ => self.promote().await,
        }
    }

    /// Names of the snapshots of a volume.
    pub(crate) async fn snapshots_of(&self, volume: &str) -> Result<Vec<String>, Stop> {
        let listed = self.engine.snapshots(volume).await.map_err(Stop::Failed)?;
        Ok(listed.into_iter().map(|info| info.name).collect())
    }

    /// Draws an existing volume.
    pub(crate) fn some_volume(&mut self) -> Option<(usize, String)> {
        let expected = self.expected.borrow();
        let index = self.rng.index(expected.volumes.len());
        let book = &expected.volumes[index];
        (book.presence == Presence::There).then(|| (index, book.name.clone()))
    }

    /// Draws an existing snapshot, with its volume.
    pub(crate) async fn some_snapshot(&mut self) -> Result<Option<(usize, SnapshotId)>, Stop> {
        let (at, name) = {
            let expected = self.expected.borrow();
            if expected.snapshots.is_empty() {
                return Ok(None);
            }
            let at = self.rng.index(expected.snapshots.len());
            if expected.snapshots[at].presence != Presence::There {
                return Ok(None);
            }
            (at, expected.snapshots[at].name.clone())
        };
        for volume in self.engine.volumes() {
            let volume = volume.info().name;
            if is_replica(&volume) || is_of_objects(&volume) {
                continue;
            }
            if self.snapshots_of(&volume).await?.contains(&name) {
                return Ok(Some((at, SnapshotId { volume, name })));
            }
        }
        Err(Stop::Broken(format!("snapshot {name} belongs to no volume")))
    }

    async fn take(&mut self) -> Result<(), Stop> {
        let Some((first, volume)) = self.some_volume() else { return Ok(()) };
        let mut group = vec![(first, volume)];
        // Sometimes add a second volume, so that both snapshots are taken atomically.
        group.extend(self.some_volume().filter(|(second, _)| *second != first));
        self.take_group(group).await
    }

    /// Takes a snapshot of this volume.
    pub(crate) async fn take_of(&mut self, volume: &str) -> Result<(), Stop> {
        let index = self.expected.borrow().volumes.iter().position(|book| book.name == volume);
        let index = index.expect("volumes are found under names of the books");
        self.take_group(vec![(index, volume.to_owned())]).await
    }

    async fn take_group(&mut self, group: Vec<(usize, String)>) -> Result<(), Stop> {
        let mut ids = Vec::new();
        let mut taken = Vec::new();
        for (index, volume) in group {
            let at = self.expected.borrow_mut().take(index);
            let name = self.expected.borrow().snapshots[at].name.clone();
            ids.push(SnapshotId { volume, name });
            taken.push(at);
        }
        match self.engine.create_snapshots(&ids).await {
            Ok(_) => {}
            // The pool lacks space: the snapshot would keep the present data of the volume, and the
            // reservation guarantees additional space to overwrite all this data.
            Err(DatasetError::CannotReserve { .. }) if self.has_reservation(&ids) => {
                let names: Vec<String> = ids.into_iter().map(|id| id.name).collect();
                self.expected.borrow_mut().mark(&names, Presence::Gone);
                note(CoveragePoint::SnapshotRefused);
                return Ok(());
            }
            Err(error) => return Err(Stop::Failed(error)),
        }
        for (at, id) in taken.into_iter().zip(ids) {
            self.expected.borrow_mut().snapshots[at].presence = Presence::There;
            let sectors = self.expected.borrow().sectors_max();
            let state = read_snapshot(&self.engine, &id.volume, &id.name, sectors).await;
            let state = state.map_err(Stop::Failed)?;
            let mut expected = self.expected.borrow_mut();
            let judged = expected.judge_snapshot(at, &state);
            judged.map_err(|what| Stop::Broken(format!("{id:?}: {what}")))?;
            expected.snapshots[at].content = Content::Known(state);
            note(CoveragePoint::SnapshotTaken);
        }
        Ok(())
    }

    /// True if one of these volumes has a reservation.
    fn has_reservation(&self, ids: &[SnapshotId]) -> bool {
        let expected = self.expected.borrow();
        let mut promised = expected.volumes.iter().filter(|book| book.limits.known.1 > 0);
        promised.any(|book| ids.iter().any(|id| id.volume == book.name))
    }

    async fn destroy_some(&mut self) -> Result<(), Stop> {
        let Some((_, id)) = self.some_snapshot().await? else { return Ok(()) };
        let mut names = vec![id.name];
        if self.rng.below(3) == 0 {
            names = self.snapshots_of(&id.volume).await?;
        }
        self.destroy_named(&id.volume, names).await
    }

    async fn destroy_named(&mut self, volume: &str, names: Vec<String>) -> Result<(), Stop> {
        self.expected.borrow_mut().mark(&names, Presence::Destroying);
        let presence = match self.engine.destroy_snapshots(volume, &names).await {
            Ok(_) => Presence::Gone,
            Err(DatasetError::InUse { .. }) => Presence::There,
            Err(error) => return Err(Stop::Failed(error)),
        };
        note(if presence == Presence::Gone {
            CoveragePoint::SnapshotDestroyed
        } else {
            CoveragePoint::OriginKept
        });
        self.expected.borrow_mut().mark(&names, presence);
        Ok(())
    }

    async fn clone_one(&mut self) -> Result<(), Stop> {
        let Some((at, id)) = self.some_snapshot().await? else { return Ok(()) };
        let (index, name) = {
            let expected = self.expected.borrow();
            let free = expected.volumes.iter().position(|book| book.presence == Presence::Gone);
            let Some(index) = free else { return Ok(()) };
            (index, expected.volumes[index].name.clone())
        };
        {
            let mut expected = self.expected.borrow_mut();
            let snapshot = expected.snapshots[at].clone();
            let Content::Known(state) = snapshot.content else { return Ok(()) };
            expected.create(index, snapshot.size, snapshot.compression, Some(state));
        }
        self.engine.clone_snapshot(&id, &name).await.map_err(Stop::Failed)?;
        self.expected.borrow_mut().volumes[index].presence = Presence::There;
        note(CoveragePoint::VolumeCloned);
        Ok(())
    }

    async fn roll_back(&mut self) -> Result<(), Stop> {
        let Some((at, id)) = self.some_snapshot().await? else { return Ok(()) };
        let listed = self.snapshots_of(&id.volume).await?;
        let newer: Vec<String> =
            listed.into_iter().skip_while(|name| *name != id.name).skip(1).collect();
        let index = {
            let mut expected = self.expected.borrow_mut();
            let found = expected.volumes.iter().position(|book| book.name == id.volume);
            let index = found.expect("volumes are found under names of the books");
            expected.volumes[index].quiet = true;
            index
        };
        while self.expected.borrow().volumes[index].busy > 0 {
            self.executor.yield_now().await;
        }
        let (size, state) = {
            let mut expected = self.expected.borrow_mut();
            let snapshot = expected.snapshots[at].clone();
            let Content::Known(state) = snapshot.content else {
                expected.volumes[index].quiet = false;
                return Ok(());
            };
            expected.volumes[index].rolling = Some((snapshot.size, state.clone()));
            expected.mark(&newer, Presence::Destroying);
            (snapshot.size, state)
        };
        let done = match self.engine.rollback(&id, true).await {
            Ok(_) => true,
            Err(DatasetError::InUse { .. }) => false,
            // After a disk error either outcome is possible, so keep the pending rollback in
            // `rolling`.
            Err(error) => return Err(Stop::Failed(error)),
        };
        {
            let mut expected = self.expected.borrow_mut();
            expected.volumes[index].rolling = None;
            expected.volumes[index].quiet = false;
            if !done {
                expected.mark(&newer, Presence::There);
                note(CoveragePoint::OriginKept);
                return Ok(());
            }
            expected.rolled_back(index, size, state);
            expected.mark(&newer, Presence::Gone);
            note(CoveragePoint::RolledBack);
        }
        // Sometimes destroy the snapshot before the pool frees the changes that the rollback
        // dropped.
        if self.rng.coin() { self.destroy_named(&id.volume, vec![id.name]).await } else { Ok(()) }
    }

    async fn promote(&mut self) -> Result<(), Stop> {
        let mut volumes = self.engine.volumes();
        volumes.retain(|volume| {
            let name = volume.info().name;
            !is_replica(&name) && !is_of_objects(&name)
        });
        self.rng.shuffle(&mut volumes);
        for volume in volumes {
            match self.engine.promote(&volume.info().name).await {
                Ok(_) => {
                    note(CoveragePoint::Promoted);
                    break;
                }
                Err(
                    DatasetError::Unfit { .. }
                    | DatasetError::Quota { .. }
                    | DatasetError::CannotReserve { .. },
                ) => {}
                Err(error) => return Err(Stop::Failed(error)),
            }
        }
        Ok(())
    }
}
