//! Disks that are slow or do not answer: who they are, and letting go of them.
//!
//! Not here: measuring (weir-device), going around a slow leg (hedge), telling people (the server).
//!
//! Invariants:
//! - a disk is called slow only by comparison with the pool's other disks: a kind of disk is not a
//!   fault;
//! - a leg is let go of by itself only where the others of its vdev that are up to date and answer
//!   have everything: one of a mirror, as many as there are data strips of raidz.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use weir_base::limits::{DISK_SILENT, OPEN_SILENT};
use weir_device::{Device, DeviceError, DeviceOp};

use crate::state::pool::Pool;

/// How often the legs of a pool that is being opened are looked at.
const OPEN_LOOK: Duration = Duration::from_millis(500);

impl Pool {
    /// Disks that have completed nothing for `limit` though they were asked: any of them holds up
    /// commits and flushes, also one that was taken out of use meanwhile.
    pub fn silent_disks(&self, limit: Duration) -> Vec<(String, Duration)> {
        let legs = self.vdevs.legs();
        let legs = legs.filter_map(|leg| Some((leg.path().to_owned(), leg.silent()?)));
        let departed = self.departed();
        let departed = departed
            .iter()
            .filter_map(|disk| Some((disk.path().to_owned(), disk.watch()?.silent()?)));
        legs.chain(departed).filter(|(_, silent)| *silent >= limit).collect()
    }

    /// Remembers a disk that a leg has no more for as long as operations of it are under way: who
    /// waits for them must not wait for ever.
    pub(crate) fn depart(&self, device: &Arc<dyn Device>) {
        let mut departed = self.departed.lock();
        departed.retain(|disk| disk.strong_count() > 0);
        departed.push(Arc::downgrade(device));
    }

    fn departed(&self) -> Vec<Arc<dyn Device>> {
        self.departed.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Lets go of every leg that was silent for `limit` and that its vdev can do without.
    /// Returns their paths.
    pub fn let_go_of_silent_legs(&self, limit: Duration) -> Vec<String> {
        let legs = self.vdevs.iter().flat_map(|vdev| vdev.let_go_of_silent_legs(limit));
        let mut gone: Vec<String> = legs.collect();
        for disk in self.departed() {
            // Its vdev does without it already.
            if let Some(watch) = disk.watch()
                && watch.silent().is_some_and(|silent| silent >= DISK_SILENT.min(limit))
                && !watch.is_let_go()
            {
                watch.let_go();
                gone.push(disk.path().to_owned());
            }
        }
        gone
    }

    /// Faults every leg whose disk became shorter than the pool uses, where its vdev can do without
    /// it. Elsewhere the first write beyond the end does.
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

    /// Drives `work`, which opens the pool, and meanwhile lets go of legs that do not answer and
    /// that their vdevs can do without.
    pub async fn around_silent_legs<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            match select(work, self.clock.sleep(OPEN_LOOK)).await {
                Either::Left((done, _)) => return done,
                Either::Right(((), rest)) => work = rest,
            }
            self.let_go_of_silent_legs(OPEN_SILENT);
        }
    }

    /// Suspends the pool and fails every disk operation under way, so that nobody waits for its
    /// disks any more. Only dropping it makes sense after that.
    ///
    /// # Durability
    /// What was flushed is safe; what was only acknowledged is lost, as by a crash.
    pub fn abandon(&self, why: &dyn std::fmt::Display) {
        self.poison(why);
        self.end_owner();
        for leg in self.vdevs.legs() {
            if let Some(watch) = leg.device().as_ref().and_then(|device| device.watch()) {
                watch.let_go();
            }
        }
        for disk in self.departed() {
            if let Some(watch) = disk.watch() {
                watch.let_go();
            }
        }
    }
}
