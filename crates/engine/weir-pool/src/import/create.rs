//! Pool creation: writes the labels, zeroes the log and writes the first uberblock.
//!
//! Not here: selecting and opening the disks; asking the user before disks are overwritten (the
//! caller).
//!
//! Invariants:
//! - all checks pass before the first write;
//! - labels are written first and the first uberblock last, so a crash before the first uberblock
//!   leaves disks that no import accepts.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, Guid, Txg, VsegId};
use weir_format::layout::{
    DISK_BYTES_MIN, DISKS_MAX, FORMAT_VERSION, LOG_BYTES_MAX, LOG_BYTES_MIN, LOG_SHARE, STRIP_BYTES,
};
use weir_format::{Features, Label, TreeRoot, VdevConfig, VdevRole};

use crate::disks::labels::{erase_all_labels, write_labels};
use crate::disks::layout::{
    VdevSpec, build_vdevs, check_disks, check_roles, segment_bytes, vdev_config, zero_log,
};
use crate::error::PoolError;
use crate::options::PoolOptions;
use crate::segments::areas::Areas;
use crate::segments::entries::Entries;
use crate::segments::segment_table::Segments;
use crate::state::pool::{Committed, History, Pool};
use crate::txg::commit::CommitInput;

/// Sizes that a user rarely sets; `None` derives the size from the disks.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// Segment size; a power of two.
    pub segment_bytes: Option<u32>,
    /// Strip size, or row size for a disk or mirror; a power of two.
    pub strip_bytes: Option<u32>,
    /// Size of the intent log region on each leg.
    pub log_bytes: Option<u64>,
    /// Minimum disk size instead of the default, for the small pools of the simulator.
    pub disk_bytes_min: Option<u64>,
}

/// Creates a pool on open disks and opens it. `guid` returns random ids.
///
/// # Durability
/// The pool exists on every disk when this returns.
///
/// # Errors
/// A disk is too small or fails. If a check failed, no disk was written.
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
            // Erasing also removes a label of another pool at the end of a disk that is longer than
            // the others.
            erase_all_labels(&**disk, config.disk_bytes).await?;
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
        version: FORMAT_VERSION,
    };
    let (lineage, left) = (Vec::new(), Vec::new());
    let (log_epoch, import_epoch, has_old_labels) = (1, guid(), false);
    let history = History { log_epoch, lineage, import_epoch, left, has_old_labels };
    let pool = Pool::assemble(label, vdevs, segments, history, &committed, options);
    let mut out = pool.begin_write_out(Txg(1));
    out.finish().await?;
    let datasets = TreeRoot::default();
    pool.commit(out, CommitInput { datasets, next_dataset: 1, all: false, keeps_unread: false })
        .await?;
    Ok(pool)
}

/// Runs the checks of [`create`] without access to the disks.
///
/// # Errors
/// The error of the first check that fails.
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
        version: FORMAT_VERSION,
        pool: guid(),
        name: name.to_owned(),
        disk: configs[0].legs[0].guid,
        txg: Txg(1),
        segment_bytes: sizes.segment_bytes.unwrap_or(segment_bytes(&data, strip_bytes)),
        strip_bytes,
        log_bytes: sizes.log_bytes.unwrap_or(log_bytes - log_bytes % BLOCK_BYTES as u64),
        vdevs: configs,
        features: Features::default(),
    };
    let row_fits = |vdev| label.row_bytes(vdev) <= u64::from(label.segment_bytes);
    assert!(label.vdevs.iter().all(row_fits), "a segment holds a row");
    Ok(label)
}
