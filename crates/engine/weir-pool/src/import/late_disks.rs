//! Reads the labels of all disks concurrently without waiting for unresponsive disks, and adds a
//! late disk when it responds.
//!
//! Not here: the meaning of the labels (`open_pool`), a disk of an open pool that stops responding
//! (`slowness`).
//!
//! Invariants:
//! - an import waits [`LABELS_WAIT`] for every disk. An import waits longer only while the
//!   responding disks do not suffice to open the pool, or may lack the last writes;
//! - a late disk joins like a reconnected disk: stale until a resilver has copied the missed
//!   writes. A disk with txgs that the pool lacks does not join.

use std::pin::pin;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt as _};
use weir_base::limits::{LABELS_AT_ONCE, LABELS_WAIT};
use weir_device::Device;

use crate::disks::labels::{DiskLabels, read_labels};
use crate::disks::leg::Leg;
use crate::disks::leg_state::LegState;
use crate::disks::owner_guard::watched;
use crate::error::PoolError;
use crate::import::answer::{Answer, Unlabelled};
use crate::import::found_disk::Found;
use crate::import::options::ImportOptions;
use crate::options::PoolOptions;
use crate::state::pool::Pool;

/// A disk that did not respond while its pool was opened.
pub struct LateDisk(Arc<dyn Device>);

impl LateDisk {
    pub(crate) fn path(&self) -> &str {
        self.0.path()
    }
}

async fn answer_of(disk: Arc<dyn Device>) -> Answer {
    let labels = match read_labels(&*disk).await {
        Ok(labels) => labels.map_err(Unlabelled::Format),
        Err(error) => Err(Unlabelled::Device(error)),
    };
    Answer { disk, labels }
}

/// Reads the labels of all disks. Returns the labels, and the disks that did not respond in time.
///
/// # Errors
/// The disks belong to several pools, or to none.
pub(crate) async fn read_all_labels(
    disks: Vec<Arc<dyn Device>>,
    how: ImportOptions,
    options: &PoolOptions,
) -> Result<(Found, Vec<LateDisk>), PoolError> {
    let disks: Vec<_> = disks.into_iter().map(|disk| watched(disk, &options.clock)).collect();
    let mut answers: Vec<Option<Answer>> = disks.iter().map(|_| None).collect();
    let reads = disks
        .clone()
        .into_iter()
        .enumerate()
        .map(|(index, disk)| async move { (index, answer_of(disk).await) });
    let mut reads = pin!(stream::iter(reads).buffer_unordered(LABELS_AT_ONCE));
    let mut wait = options.clock.sleep(LABELS_WAIT);
    let mut waits = !how.waits_for_all;
    let goes_on = waits;
    loop {
        let read = if waits {
            match select(reads.next(), &mut wait).await {
                Either::Left((read, _)) => Some(read),
                Either::Right(_) => None,
            }
        } else {
            Some(reads.next().await)
        };
        match read {
            Some(Some((index, answer))) => answers[index] = Some(answer),
            Some(None) => break,
            None => waits = false,
        }
        if goes_on
            && !waits
            && let Ok(found) = Found::new(answers.iter().flatten())
            && found.suffices(how, options)
        {
            break;
        }
    }
    let found = Found::new(answers.iter().flatten())?;
    let late = disks.into_iter().zip(answers).filter(|(_, answer)| answer.is_none());
    Ok((found, late.map(|(disk, _)| LateDisk(disk)).collect()))
}

impl Pool {
    /// Waits until a late disk responds and brings it online. Returns true if the disk joined, and
    /// false if it is no disk of this pool or if the pool already has it.
    ///
    /// # Errors
    /// The disk fails, another server uses the disk, or the disk has txgs that the pool lacks.
    #[boxed(?Send)]
    pub async fn add_late_disk(&self, late: LateDisk) -> Result<bool, PoolError> {
        let LateDisk(disk) = late;
        let label = match read_labels(&*disk).await.map_err(Arc::new)? {
            Ok(DiskLabels { label, .. }) if label.pool == self.guid() => label,
            Ok(_) | Err(_) => return Ok(false),
        };
        let missing = |leg: &Leg| leg.state() == LegState::Missing;
        if !self.leg(label.disk).is_ok_and(|(_, leg)| missing(leg)) {
            return Ok(false);
        }
        self.online_leg(label.disk, disk, false).await?;
        Ok(true)
    }
}
