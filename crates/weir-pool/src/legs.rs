//! Taking a leg out of use and back into it, by a person's word.
//!
//! Not here: finding and opening the disk (the server), copying what it missed (scan).
//!
//! Invariants: only a leg that others can stand in for is taken out; one that comes back is stale
//! before anybody can read from it.
//!
//! Crash safety: nothing is written here. A leg that is taken out is noted as stale by the next
//! commit, and one that comes back is stale from the first moment; an import after a crash finds
//! what the last uberblock said, and what a leg missed since that uberblock was never committed.
//! Being offline is not stored: an import uses every disk it finds, and resilvers it.

use std::sync::Arc;

use weir_base::Guid;
use weir_base::limits::DISK_SILENT;
use weir_device::Device;

use crate::create::watched;
use crate::error::PoolError;
use crate::import::discover;
use crate::pool::Pool;
use crate::status::LegState;
use crate::vdev::{Leg, Vdev};

impl Pool {
    /// Guid, path and state of the leg that `disk` names: by path, by its last part, or by guid.
    ///
    /// # Errors
    /// `NoSuchDisk`.
    pub fn find_leg(&self, disk: &str) -> Result<(Guid, String, LegState), PoolError> {
        let named = |leg: &&Leg| leg.path == disk || leg.guid.to_string() == disk;
        let ends = |leg: &&Leg| leg.path.rsplit('/').next() == Some(disk);
        let all = || self.vdevs.iter().flat_map(|vdev| &vdev.legs);
        let mut by_name = all().filter(ends);
        let found = all().find(named).or_else(|| match (by_name.next(), by_name.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        });
        let none = || PoolError::NoSuchDisk { pool: self.name().to_owned(), disk: disk.to_owned() };
        found.map(|leg| (leg.guid, leg.path.clone(), leg.state())).ok_or_else(none)
    }

    fn leg(&self, guid: Guid) -> Result<(&Vdev, &Leg), PoolError> {
        let legs = |vdev| move |leg| (vdev, leg);
        let mut all = self.vdevs.iter().flat_map(|vdev| vdev.legs.iter().map(legs(vdev)));
        all.find(|(_, leg)| leg.guid == guid).ok_or_else(|| PoolError::NoSuchDisk {
            pool: self.name().to_owned(),
            disk: guid.to_string(),
        })
    }

    /// Takes a leg out of use. Returns whether it was in use or might have come back by itself.
    ///
    /// # Errors
    /// `OnlyCopy`: the other legs of its vdev do not hold everything.
    pub fn take_leg_offline(&self, guid: Guid) -> Result<bool, PoolError> {
        let (vdev, leg) = self.leg(guid)?;
        if leg.is_offline() {
            return Ok(false);
        }
        let others = vdev.legs.iter().filter(|other| other.guid != guid);
        if others.filter(|other| other.is_up_to_date()).count() < vdev.legs_needed() {
            let (pool, disk) = (self.name().to_owned(), leg.path.clone());
            return Err(PoolError::OnlyCopy { pool, disk });
        }
        let silent = leg.silent().is_some_and(|silent| silent >= DISK_SILENT);
        leg.set_offline();
        if let Some(device) = leg.take_device()
            && let Some(watch) = device.watch().filter(|_| silent)
        {
            // Who waits for it must not wait for ever.
            watch.let_go();
        }
        tracing::warn!(disk = %leg.path, "disk taken offline");
        Ok(true)
    }

    /// Lets go of a leg's disk, so that it can be opened anew. Returns false if it is in use.
    pub fn let_go_of_leg(&self, guid: Guid) -> Result<bool, PoolError> {
        let (_, leg) = self.leg(guid)?;
        if leg.usable().is_some() {
            return Ok(false);
        }
        drop(leg.take_device());
        Ok(true)
    }

    /// Takes a leg into use again, on a disk whose label says that it is that leg; a resilver is
    /// wanted from here on.
    ///
    /// # Errors
    /// The disk is another one; nothing was changed.
    pub async fn bring_leg_back(
        &self,
        guid: Guid,
        device: Arc<dyn Device>,
    ) -> Result<(), PoolError> {
        let (vdev, leg) = self.leg(guid)?;
        assert!(leg.usable().is_none(), "the caller let go of it");
        let config = &self.label.vdevs[usize::from(vdev.index)];
        let path = device.path().to_owned();
        let label = match discover(&*device).await? {
            Ok(found) => found.label,
            Err(error) => {
                let why = format!("{path} is not the disk it was: {error}");
                return Err(PoolError::Layout { why });
            }
        };
        if label.pool != self.label.pool || label.disk != guid {
            let why = format!("{path} is another disk now: its label is not that of this leg");
            return Err(PoolError::Layout { why });
        }
        let bytes = device.geometry().len_bytes;
        if bytes < config.disk_bytes {
            return Err(PoolError::TooSmall { path, bytes, min: config.disk_bytes });
        }
        leg.bring_back(watched(device, &self.clock), self.committed_txg());
        tracing::info!(disk = %leg.path, "disk in use again");
        Ok(())
    }

    /// Sets the error counts of one leg or of all to zero.
    pub fn clear_leg_errors(&self, guid: Option<Guid>) {
        let legs = self.vdevs.iter().flat_map(|vdev| &vdev.legs);
        legs.filter(|leg| guid.is_none_or(|guid| leg.guid == guid)).for_each(Leg::clear_errors);
    }
}
