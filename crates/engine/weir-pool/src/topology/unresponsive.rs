//! Unresponsive disks: finds them and stops I/O to them.
//!
//! weir-device measures latencies, `disks::hedge` reads around slow legs, the server reports them.
//!
//! Invariants:
//! - a disk is called slow only in comparison with the pool's other disks, because a slow model of
//!   disk is no fault;
//! - the pool stops I/O to a leg by itself only if responsive legs of its vdev that are up to date
//!   hold all data: one leg of a mirror, or as many legs of raidz as a row has data strips.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use weir_base::limits::{DISK_UNRESPONSIVE, OPEN_UNRESPONSIVE};
use weir_device::{Device, DeviceError, DeviceOp};

use crate::state::pool::Pool;

/// Poll interval for the legs of a pool that is being imported.
const OPEN_POLL_INTERVAL: Duration = Duration::from_millis(500);

impl Pool {
    /// Disks that have requests in flight and completed none for `limit`. Such a disk delays
    /// commits and flushes, even if it was taken offline after the requests were issued.
    pub fn unresponsive_disks(&self, limit: Duration) -> Vec<(String, Duration)> {
        let legs = self.vdevs.legs();
        let legs = legs.filter_map(|leg| Some((leg.path().to_owned(), leg.silent()?)));
        let departed = self.departed();
        let departed = departed
            .iter()
            .filter_map(|disk| Some((disk.path().to_owned(), disk.watch()?.silent()?)));
        legs.chain(departed).filter(|(_, silent)| *silent >= limit).collect()
    }

    /// Keeps track of a disk that no longer belongs to a leg while it has operations in flight, so
    /// that [`Self::fail_unresponsive_legs`] can fail these operations.
    pub(crate) fn depart(&self, device: &Arc<dyn Device>) {
        let mut departed = self.departed.lock();
        departed.retain(|disk| disk.strong_count() > 0);
        departed.push(Arc::downgrade(device));
    }

    fn departed(&self) -> Vec<Arc<dyn Device>> {
        self.departed.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Stops I/O to every leg that was unresponsive for `limit` and that its vdev does not need.
    /// Returns the paths of these legs.
    pub fn fail_unresponsive_legs(&self, limit: Duration) -> Vec<String> {
        let legs = self.vdevs.iter().flat_map(|vdev| vdev.fail_unresponsive_legs(limit));
        let mut gone: Vec<String> = legs.collect();
        for disk in self.departed() {
            // The disk belongs to no leg any more, so no vdev needs it.
            if let Some(watch) = disk.watch()
                && watch.silent().is_some_and(|silent| silent >= DISK_UNRESPONSIVE.min(limit))
                && !watch.is_io_failed()
            {
                watch.fail_io();
                gone.push(disk.path().to_owned());
            }
        }
        gone
    }

    /// Faults every leg whose disk became shorter than the part that the pool uses, if its vdev
    /// does not need the leg. If the vdev needs the leg, the first write beyond the end of the disk
    /// faults the leg.
    pub fn check_lengths(&self) {
        for vdev in self.vdevs.iter() {
            for leg in &vdev.legs {
                let Some(device) = leg.usable() else { continue };
                let Some(len) = device.current_len().filter(|len| *len < vdev.disk_bytes()) else {
                    continue;
                };
                let others = vdev.legs.iter().filter(|other| !std::ptr::eq(*other, leg));
                if others.filter(|other| other.is_whole()).count() >= vdev.legs_needed() {
                    let why = "the disk is shorter than the pool uses";
                    let source = io::Error::new(io::ErrorKind::UnexpectedEof, why);
                    let (path, op) = (leg.path().to_owned(), DeviceOp::Read);
                    leg.fault(&DeviceError { path, op, offset: len, source });
                } else if leg.note().is_none() {
                    tracing::error!(disk = %leg.path(), len, "disk is shorter than the pool uses");
                    leg.set_note("shorter than the pool uses");
                }
            }
        }
    }

    /// Runs `work`, which imports the pool. While `work` runs, stops I/O to unresponsive legs that
    /// their vdevs do not need.
    pub async fn around_silent_legs<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            match select(work, self.clock.sleep(OPEN_POLL_INTERVAL)).await {
                Either::Left((done, _)) => return done,
                Either::Right(((), rest)) => work = rest,
            }
            self.fail_unresponsive_legs(OPEN_UNRESPONSIVE);
        }
    }

    /// Suspends the pool and fails all disk operations in flight, so that no task waits for its
    /// disks. Afterwards the pool may only be dropped.
    ///
    /// # Durability
    /// Flushed data is safe; data that was only acknowledged is lost, as in a crash.
    pub fn abandon(&self, why: &dyn std::fmt::Display) {
        self.poison(why);
        self.end_owner();
        for leg in self.vdevs.legs() {
            if let Some(watch) = leg.device().as_ref().and_then(|device| device.watch()) {
                watch.fail_io();
            }
        }
        for disk in self.departed() {
            if let Some(watch) = disk.watch() {
                watch.fail_io();
            }
        }
    }
}
