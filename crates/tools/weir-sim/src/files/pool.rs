//! The pool of a run: a mirror of two disks with one filesystem.
//!
//! Invariant: the sizes are small, so that a run reaches the limits of memory and log.

use std::sync::Arc;

use weir_base::{Clock as _, Guid, RecordSize};
use weir_dataset::{DatasetError, Engine, EngineOptions, SnapshotId};
use weir_format::files::TimeStamp;
use weir_format::{VdevKind, VdevRole};
use weir_fs::{Filesystem, FilesystemLayer, FreeingLimits, FsError, Layout, NameCase, Now};
use weir_pool::{CreateOptions, ImportOptions, VdevSpec};

use super::content::{State, read_state};
use super::scenario::FilesScenario;
use crate::executor::Executor;
use crate::media::{DiskOptions, MediaImage};
use crate::world::SimWorld;

/// Limits under which a file of two records is large.
pub(super) const LIMITS: FreeingLimits = FreeingLimits { at_once: 1, part: 1 };
const RECORD_SIZE: RecordSize = RecordSize::from_shift(2).expect("16 KiB");

pub(super) fn clock(executor: &Executor) -> Now {
    let clock = executor.clock();
    Box::new(move || {
        let milliseconds = clock.unix_ms();
        TimeStamp { seconds: (milliseconds / 1000).cast_signed(), nanos: 0 }
    })
}

impl FilesScenario {
    fn options(&self, world: &SimWorld) -> EngineOptions {
        let memory_bytes = if self.is_large { 256 << 20 } else { 8 << 20 };
        EngineOptions { memory_bytes, clock: world.executor().clock(), bug: self.bug }
    }

    /// A world with new disks.
    pub(super) fn new_world(&self) -> SimWorld {
        let disk_bytes = if self.is_large { 512 << 20 } else { 64 << 20 };
        let disks = ["disk0", "disk1"];
        let blank = |name| MediaImage::blank(DiskOptions::new(name, disk_bytes));
        SimWorld::from_media(self.seed, disks.map(blank).to_vec())
    }

    /// Creates the pool with an empty filesystem.
    pub(super) async fn create(
        &self,
        world: &SimWorld,
        name: &str,
    ) -> Result<(Arc<Engine>, Filesystem), FsError> {
        let (kind, role) = (VdevKind::Mirror, VdevRole::Data);
        let vdev = VdevSpec { kind, role, disks: world.devices() };
        let log_bytes = self.is_large.then_some(64 << 20);
        let sizes =
            CreateOptions { segment_bytes: Some(1 << 20), log_bytes, ..CreateOptions::default() };
        let mut guids = (1..).map(Guid);
        let mut guid = || guids.next().expect("endless");
        let options = self.options(world);
        let engine = Engine::create("tank", &[vdev], sizes, &options, &mut guid).await?;
        let case = if self.folds { NameCase::Insensitive } else { NameCase::Sensitive };
        let layout = Layout { hash_key: 5, record_size: RECORD_SIZE, case };
        let files = Filesystem::create(&engine, name, layout, &[], clock(world.executor())).await?;
        files.set_freeing_limits(LIMITS);
        Ok((engine, files))
    }

    /// Imports the pool after a power cut.
    pub(super) async fn recover(&self, world: &SimWorld) -> Result<Arc<Engine>, DatasetError> {
        let (how, options) = (ImportOptions::new(Guid(99)), self.options(world));
        Engine::open_with_layer(world.devices(), how, &options, &FilesystemLayer).await
    }
}

/// Reads a snapshot. `checks`: also checks its filesystem.
///
/// # Errors
/// The first error of a read, or the first finding.
pub(super) async fn read_snapshot(
    engine: &Arc<Engine>,
    id: &SnapshotId,
    checks: bool,
) -> Result<State, String> {
    let told = |error: FsError| format!("{id:?}: {error}");
    let view = engine.open_snapshot(id).map_err(|error| error.to_string())?;
    // No read of a snapshot stores a time.
    let now: Now = Box::new(|| TimeStamp { seconds: 0, nanos: 0 });
    let files = Filesystem::open_volume(engine, view, now).await.map_err(told)?;
    let state = read_state(&files).await.map_err(told)?;
    if checks {
        let findings = files.check().await.map_err(told)?;
        if !findings.is_empty() {
            return Err(format!("the check of {id:?} found {findings:?}"));
        }
    }
    Ok(state)
}
