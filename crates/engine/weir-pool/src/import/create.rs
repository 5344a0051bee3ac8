//! Making a pool: labels, zeroed log, first uberblock.
//!
//! Not here: choosing and opening disks, and what a user may overwrite (the caller asked).
//!
//! Invariants:
//! - nothing is written before every check has passed;
//! - labels are written first and the first uberblock last, so a crash in between leaves disks
//!   that no import accepts.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::limits::STREAM_WRITE_BYTES;
use weir_base::{BLOCK_BYTES, Clock, Guid, Txg, VsegId};
use weir_block::IoBuf;
use weir_device::{Device, Durability, WatchedDevice};
use weir_format::layout::{
    DISK_BYTES_MIN, DISKS_MAX, LABEL_BYTES, LOG_BYTES_MAX, LOG_BYTES_MIN, LOG_SHARE, ROWS_WANTED,
    SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_WANTED, STRIP_BYTES,
};
use weir_format::{Label, LegConfig, TreeRoot, VdevConfig, VdevKind, VdevRole};

use crate::disks::labels::write_labels;
use crate::disks::owner_guard::OwnerGuard;
use crate::disks::vdev::{Leg, Vdev, Vdevs};
use crate::error::PoolError;
use crate::import::open_pool::forget_disk;
use crate::segments::areas::Areas;
use crate::segments::segment_table::{Entries, Segments};
use crate::state::pool::{Committed, History, Pool, PoolOptions};
use crate::txg::commit::CommitInput;

/// One vdev to make.
pub struct VdevSpec {
    /// Redundancy.
    pub kind: VdevKind,
    /// What it is for: data, the log, or to wait as a spare.
    pub role: VdevRole,
    /// Open disks.
    pub disks: Vec<Arc<dyn Device>>,
}

/// Sizes a user rarely sets; `None` = chosen from the disks.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// Segment size; a power of two.
    pub segment_bytes: Option<u32>,
    /// Strip size, of a disk or mirror the row size; a power of two.
    pub strip_bytes: Option<u32>,
    /// Intent log region per leg.
    pub log_bytes: Option<u64>,
    /// Smallest disk accepted instead of the usual one, for the simulator's small pools.
    pub disk_bytes_min: Option<u64>,
}

/// Makes a pool on open disks and opens it. `guid` draws random identities.
///
/// # Durability
/// The pool exists on every disk when this returns.
///
/// # Errors
/// A disk that is too small or fails; nothing was written if a check failed.
#[boxed(?Send)]
pub async fn create(
    name: &str,
    vdevs: &[VdevSpec],
    sizes: CreateOptions,
    options: &PoolOptions,
    guid: &mut dyn FnMut() -> Guid,
) -> Result<Pool, PoolError> {
    let label = plan(name, vdevs, sizes, guid)?;
    for (vdev, config) in vdevs.iter().zip(&label.vdevs) {
        for (disk, leg) in vdev.disks.iter().zip(&config.legs) {
            let own = Label { disk: leg.guid, ..label.clone() };
            // Also a label of another pool at the end of a disk that is longer than the others.
            forget_disk(&**disk, config.disk_bytes).await?;
            write_labels(&**disk, &own).await.map_err(Arc::new)?;
            zero_log(&**disk, label.log_bytes).await?;
        }
    }
    let disks = vdevs.iter().map(|vdev| vdev.disks.iter().cloned().map(Some).collect()).collect();
    let vdevs = build_vdevs(&label, disks, options);
    let segments = Segments::new(Areas::of(&label), Entries::default(), VsegId(0), options.bug)
        .expect("an empty table claims nothing");
    let committed = Committed {
        txg: Txg(0),
        segments: TreeRoot::default(),
        datasets: TreeRoot::default(),
        remaps: TreeRoot::default(),
        references: TreeRoot::default(),
        next_dataset: 1,
        log_vdev: 0,
    };
    let (lineage, left) = (Vec::new(), Vec::new());
    let history = History { log_epoch: 1, lineage, opening: guid(), left };
    let pool = Pool::assemble(label, vdevs, segments, history, &committed, options);
    let mut out = pool.begin_write_out(Txg(1));
    out.finish().await?;
    let datasets = TreeRoot::default();
    pool.commit(out, CommitInput { datasets, next_dataset: 1, all: false, keeps_unread: false })
        .await?;
    Ok(pool)
}

/// Judges whether [`create`] would make a pool of these disks, and touches none.
///
/// # Errors
/// As those checks of [`create`].
pub fn check_create(name: &str, vdevs: &[VdevSpec], sizes: CreateOptions) -> Result<(), PoolError> {
    plan(name, vdevs, sizes, &mut || Guid(0)).map(drop)
}

fn plan(
    name: &str,
    vdevs: &[VdevSpec],
    sizes: CreateOptions,
    guid: &mut dyn FnMut() -> Guid,
) -> Result<Label, PoolError> {
    let min = sizes.disk_bytes_min.unwrap_or(DISK_BYTES_MIN);
    let layout = |why: &str| PoolError::Layout { why: why.to_owned() };
    let mut configs = Vec::new();
    for vdev in vdevs {
        check_disks(vdev, min)?;
        configs.push(vdev_config(vdev, guid));
    }
    check_roles(&configs)?;
    let disks: usize = configs.iter().map(|vdev| vdev.legs.len()).sum();
    if disks > DISKS_MAX {
        return Err(layout(&format!("a pool has at most {DISKS_MAX} disks, not {disks}")));
    }
    let data: Vec<&VdevConfig> = configs.iter().filter(|v| v.role == VdevRole::Data).collect();
    let smallest = data.iter().map(|vdev| vdev.disk_bytes).min();
    let smallest = smallest.ok_or_else(|| layout("a pool has at least one vdev"))?;
    let log_bytes = (smallest / LOG_SHARE).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX);
    let strip_bytes = sizes.strip_bytes.unwrap_or(STRIP_BYTES);
    let label = Label {
        pool: guid(),
        name: name.to_owned(),
        disk: configs[0].legs[0].guid,
        txg: Txg(1),
        segment_bytes: sizes.segment_bytes.unwrap_or(segment_bytes(&data, strip_bytes)),
        strip_bytes,
        log_bytes: sizes.log_bytes.unwrap_or(log_bytes - log_bytes % BLOCK_BYTES as u64),
        vdevs: configs,
    };
    let row_fits = |vdev| label.row_bytes(vdev) <= u64::from(label.segment_bytes);
    assert!(label.vdevs.iter().all(row_fits), "a segment holds a row");
    Ok(label)
}

/// Checks the number of a vdev's disks and their sizes.
pub(crate) fn check_disks(vdev: &VdevSpec, min: u64) -> Result<(), PoolError> {
    check_width(vdev.kind, vdev.disks.len())?;
    for disk in &vdev.disks {
        let bytes = disk.geometry().len_bytes;
        if bytes < min {
            return Err(PoolError::TooSmall { path: disk.path().to_owned(), bytes, min });
        }
    }
    Ok(())
}

/// A vdev as a label will have it.
pub(crate) fn vdev_config(vdev: &VdevSpec, guid: &mut dyn FnMut() -> Guid) -> VdevConfig {
    let smallest = vdev.disks.iter().map(|disk| disk.geometry().len_bytes).min();
    let disk_bytes = smallest.unwrap_or_default();
    let leg = |disk: &Arc<dyn Device>| LegConfig { guid: guid(), path: disk.path().to_owned() };
    VdevConfig {
        kind: vdev.kind,
        role: vdev.role,
        disk_bytes: disk_bytes - disk_bytes % BLOCK_BYTES as u64,
        legs: vdev.disks.iter().map(leg).collect(),
    }
}

/// Checks that each vdev can be what it is for.
pub(crate) fn check_roles(vdevs: &[VdevConfig]) -> Result<(), PoolError> {
    let layout = |why: String| Err(PoolError::Layout { why });
    let data = || vdevs.iter().filter(|vdev| vdev.role == VdevRole::Data);
    for vdev in vdevs {
        let path = || vdev.legs.first().map_or("", |leg| leg.path.as_str());
        match vdev.role {
            VdevRole::Log if vdev.kind.parity() > 0 => {
                return layout("the log is kept on a disk or a mirror, not on raidz".to_owned());
            }
            VdevRole::Spare if data().all(|data| data.disk_bytes > vdev.disk_bytes) => {
                let why = format!("{} is smaller than every disk it could replace", path());
                return layout(why);
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_width(kind: VdevKind, legs: usize) -> Result<(), PoolError> {
    let (least, most) = kind.legs().into_inner();
    if kind.legs().contains(&legs) {
        return Ok(());
    }
    let name = kind.name();
    let why = match kind {
        VdevKind::Disk => "a disk vdev is one disk".to_owned(),
        _ => format!("a {name} is {least} to {most} disks, not {legs}"),
    };
    Err(PoolError::Layout { why })
}

/// So large that the smallest vdev has the segments it should have, and every segment the rows.
fn segment_bytes(vdevs: &[&VdevConfig], strip_bytes: u32) -> u32 {
    let room = vdevs.iter().map(|vdev| vdev.disk_bytes * vdev.data_strips() as u64);
    let row = vdevs.iter().map(|vdev| u64::from(strip_bytes) * vdev.data_strips() as u64);
    let wanted = (room.min().unwrap_or_default() / SEGMENTS_WANTED).next_power_of_two();
    let least = (row.max().unwrap_or_default() * ROWS_WANTED).next_power_of_two();
    wanted.max(least).clamp(SEGMENT_BYTES_MIN.max(1 << 20), SEGMENT_BYTES_MAX) as u32
}

/// Zero-fills the log region, so that no later log write converts unwritten extents or meets old
/// batches.
pub(crate) async fn zero_log(disk: &dyn Device, log_bytes: u64) -> Result<(), PoolError> {
    let zeros = Arc::new(IoBuf::zeroed(STREAM_WRITE_BYTES));
    let mut offset = 0;
    while offset < log_bytes {
        let len = (log_bytes - offset).min(STREAM_WRITE_BYTES as u64) as usize;
        let write =
            disk.write_at(LABEL_BYTES + offset, Arc::clone(&zeros), 0..len, Durability::Cached);
        write.await.map_err(Arc::new)?;
        offset += len as u64;
    }
    Ok(disk.flush().await.map_err(Arc::new)?)
}

/// Vdevs of a label over the disks that are there, in label order; every disk is watched from here
/// on.
pub(crate) fn build_vdevs(
    label: &Label,
    disks: Vec<Vec<Option<Arc<dyn Device>>>>,
    options: &PoolOptions,
) -> Vdevs {
    let guard = OwnerGuard::new(&options.clock, options.bug);
    let vdevs = label
        .vdevs
        .iter()
        .zip(disks)
        .enumerate()
        .map(|(index, (config, disks))| {
            let legs = config
                .legs
                .iter()
                .zip(disks)
                .map(|(leg, disk)| {
                    let disk = disk.map(|disk| guard.guard(disk));
                    let path =
                        disk.as_ref().map_or(leg.path.as_str(), |disk| disk.path()).to_owned();
                    Leg::new(leg.guid, path, disk)
                })
                .collect();
            Vdev::new(label, index, legs, options)
        })
        .collect();
    Vdevs::new(vdevs, guard)
}

/// A disk with its watch.
pub(crate) fn watched(disk: Arc<dyn Device>, clock: &Arc<dyn Clock>) -> Arc<dyn Device> {
    match disk.watch() {
        Some(_) => disk,
        None => Arc::new(WatchedDevice::new(disk, Arc::clone(clock))),
    }
}
