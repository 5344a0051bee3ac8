//! Vdevs of a new or opened pool: layout checks and construction.
//!
//! Not here: creation (`create`), import (`open_pool`).
//!
//! Invariant: the pool writes nothing to disks whose layout fails a check.

use std::sync::Arc;

use weir_base::limits::STREAM_WRITE_BYTES;
use weir_base::{BLOCK_BYTES, Guid};
use weir_block::IoBuf;
use weir_device::{Device, Durability};
use weir_format::layout::{
    LABEL_BYTES, ROWS_WANTED, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_WANTED,
};
use weir_format::{Label, LegConfig, VdevConfig, VdevKind, VdevRole};

use crate::disks::leg::Leg;
use crate::disks::owner_guard::OwnerGuard;
use crate::disks::vdev::Vdev;
use crate::disks::vdevs::Vdevs;
use crate::error::PoolError;
use crate::options::PoolOptions;

/// Description of a vdev to create.
pub struct VdevSpec {
    /// Redundancy of the vdev.
    pub kind: VdevKind,
    /// Role of the vdev: data, log or spare.
    pub role: VdevRole,
    /// Disks of the vdev, already open.
    pub disks: Vec<Arc<dyn Device>>,
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

/// Builds the vdev's entry in the label.
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

/// Checks that each vdev can serve its role.
pub(crate) fn check_roles(vdevs: &[VdevConfig]) -> Result<(), PoolError> {
    let layout = |why: String| Err(PoolError::Layout { why });
    let data = || vdevs.iter().filter(|vdev| vdev.role == VdevRole::Data);
    for vdev in vdevs {
        let path = || vdev.legs.first().map_or("", |leg| leg.path.as_str());
        match vdev.role {
            VdevRole::Log if vdev.kind.parity() > 0 => {
                return layout("a log vdev is a disk or a mirror, not raidz".to_owned());
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

/// Segment size that gives the smallest vdev about `SEGMENTS_WANTED` segments, and each segment at
/// least `ROWS_WANTED` rows.
pub(crate) fn segment_bytes(vdevs: &[&VdevConfig], strip_bytes: u32) -> u32 {
    let room = vdevs.iter().map(|vdev| vdev.disk_bytes * vdev.data_strips() as u64);
    let row = vdevs.iter().map(|vdev| u64::from(strip_bytes) * vdev.data_strips() as u64);
    let wanted = (room.min().unwrap_or_default() / SEGMENTS_WANTED).next_power_of_two();
    let least = (row.max().unwrap_or_default() * ROWS_WANTED).next_power_of_two();
    wanted.max(least).clamp(SEGMENT_BYTES_MIN.max(1 << 20), SEGMENT_BYTES_MAX) as u32
}

/// Zero-fills the log region, so that later log writes convert no unwritten extents and replay
/// finds no old batches.
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

/// Builds the vdevs of a label from the available disks, in label order. Wraps each disk: adds I/O
/// statistics and stall detection (`DiskWatch`), and checks before writes that this server still
/// owns the pool.
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
