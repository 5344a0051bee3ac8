//! Operator of a scenario: scrubs, takes a leg offline, brings legs online and replaces them, or
//! adds and removes vdevs, under load.
//!
//! `admin` handles volumes. `enumerate` tests resilvers after a power cut: once all legs are
//! online, the next recovery may run without any one of the legs.
//!
//! Invariants:
//! - the operator takes at most one leg offline at a time, and never the only complete leg;
//! - a scrub of disks without injected faults finds no error, and a scrub of a pool with redundancy
//!   finds no block without a good copy.

use std::sync::Arc;
use std::time::Duration;

use weir_base::{ErrorKind, Guid};
use weir_dataset::{DatasetError, Engine};
use weir_device::Device;
use weir_format::{VdevKind, VdevRole};
use weir_pool::{LegState, ScanKind, VdevSpec};

use crate::error::Stop;
use crate::executor::Executor;
use crate::rng::Rng;
use crate::scenario::{FaultPlan, Layout, Scenario};

/// Maximum number of polls until a resilver ends.
const POLLS_MAX: usize = 100;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) struct Operator {
    pub(crate) rng: Rng,
    pub(crate) engine: Arc<Engine>,
    pub(crate) executor: Executor,
    pub(crate) disks: Vec<Arc<dyn Device>>,
    pub(crate) scenario: Scenario,
}

/// Legs of the pool, each with the number of its disk.
pub(crate) fn legs(engine: &Engine) -> Vec<(usize, LegState)> {
    let vdevs = engine.pool().status().vdevs.into_iter();
    let number = |path: &str| path.strip_prefix("disk").and_then(|n| n.parse().ok());
    let legs = vdevs.flat_map(|vdev| vdev.legs);
    legs.map(|leg| (number(&leg.path).expect("disks are numbered"), leg.state)).collect()
}

/// Legs that may lack writes. An unconfirmed leg is not one of them: it lacks no writes if its disk
/// acknowledges flushes correctly.
pub(crate) fn legs_that_lack(engine: &Engine) -> Vec<usize> {
    let vdevs = engine.pool().status().vdevs.into_iter();
    let unconfirmed: Vec<_> = vdevs.flat_map(|vdev| vdev.legs).map(|leg| leg.unconfirmed).collect();
    let all = legs(engine).into_iter().zip(unconfirmed);
    let lack = all.filter(|((_, state), unconfirmed)| *state != LegState::Online && !unconfirmed);
    lack.map(|((leg, _), _)| leg).collect()
}

/// Legs that are not online.
pub(crate) fn legs_out_of_use(engine: &Engine) -> Vec<(usize, LegState)> {
    legs(engine).into_iter().filter(|(_, state)| *state != LegState::Online).collect()
}

impl Operator {
    pub(crate) async fn step(&mut self) -> Result<(), Stop> {
        self.judge_scan()?;
        match self.rng.below(12) {
            0..3 => Self::busy_is_fine(self.engine.scrub_start().map(drop)),
            3 => Self::busy_is_fine(self.engine.scrub_pause().map(drop)),
            4 => Self::busy_is_fine(self.engine.scrub_stop().map(drop)),
            5..7 => {
                self.settle().await;
                Ok(())
            }
            7..10 if self.scenario.reshapes => self.reshape().await,
            7 => self.replace_leg().await,
            _ => self.change_leg().await,
        }
    }

    fn busy_is_fine(done: Result<(), DatasetError>) -> Result<(), Stop> {
        match done {
            Err(error) if error.kind() != ErrorKind::Busy => Err(Stop::Failed(error)),
            _ => Ok(()),
        }
    }

    /// Waits until no leg needs a resilver.
    async fn settle(&self) {
        for _ in 0..POLLS_MAX {
            if !self.engine.pool().wants_resilver() {
                break;
            }
            self.executor.sleep(POLL_INTERVAL).await;
        }
    }

    async fn change_leg(&mut self) -> Result<(), Stop> {
        if self.scenario.layout == Layout::Single {
            return Ok(());
        }
        let pool = self.engine.pool();
        let out = legs_out_of_use(&self.engine);
        let disk = match out.iter().find(|(_, state)| *state != LegState::Stale) {
            None if !out.is_empty() => return Ok(()),
            Some((disk, _)) => *disk,
            None if self.scenario.trouble == FaultPlan::None => self.rng.index(self.disks.len()),
            None => 0,
        };
        let told = |error: weir_pool::PoolError| Stop::Failed(error.into());
        // The disk is no leg if an earlier step replaced it.
        let Ok((guid, _, state)) = pool.find_leg(self.disks[disk].path()) else { return Ok(()) };
        if state == LegState::Online {
            return Self::busy_is_fine(
                pool.take_leg_offline(guid).map(drop).map_err(DatasetError::from),
            );
        }
        if pool.fail_leg(guid).map_err(told)? {
            match pool.online_leg(guid, Arc::clone(&self.disks[disk]), false).await {
                Ok(()) => self.engine.leg_came_back(),
                // The pool detached the leg while the operator read its disk, because the
                // replacement of the leg was complete.
                Err(_) if pool.find_leg(&guid.to_string()).is_err() => {}
                // A disk with permanent faults cannot be opened; the pool is unchanged.
                Err(_) if self.scenario.trouble != FaultPlan::None => {}
                Err(error) => {
                    return Err(Stop::Broken(format!(
                        "disk {disk} cannot be brought online: {error}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Replaces a leg by a disk that the pool does not use: an offline or faulted leg if there is
    /// one, otherwise an online leg.
    async fn replace_leg(&mut self) -> Result<(), Stop> {
        let legs = legs(&self.engine);
        let out = legs.iter().find(|(_, state)| *state != LegState::Online);
        let old = match out {
            // Replace no leg while another leg is stale: only the other legs have the writes that
            // the stale leg lacks.
            Some((_, LegState::Stale)) => return Ok(()),
            Some((disk, _)) => *disk,
            None if self.scenario.trouble == FaultPlan::None => legs[self.rng.index(legs.len())].0,
            None => 0,
        };
        let spare = (0..self.disks.len()).find(|n| legs.iter().all(|(disk, _)| disk != n));
        let Ok((guid, ..)) = self.engine.pool().find_leg(self.disks[old].path()) else {
            return Ok(());
        };
        let Some(spare) = spare else { return Ok(()) };
        let device = Arc::clone(&self.disks[spare]);
        let (new, at_once) = (Guid(self.rng.next_u64()), self.rng.coin());
        let done = self.engine.replace_leg(guid, device, new, at_once).await;
        if done.is_ok() {
            tracing::debug!("disk replaced");
        }
        match done {
            // In a mixed layout, the spare disk may have the wrong size for the leg's vdev, so this
            // error is expected; in other layouts it violates the guarantees.
            Err(error)
                if error.kind() == ErrorKind::Invalid && self.scenario.layout != Layout::Mixed =>
            {
                Err(Stop::Broken(format!("disk {old} cannot be replaced by {spare}: {error}")))
            }
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(()),
            // The pool detached the leg at the same time, because its replacement was complete.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            // The spare disk is a faulty disk that an earlier replacement removed, so the error is
            // expected.
            Err(_) if spare < self.scenario.layout.troubled() => Ok(()),
            done => Self::busy_is_fine(done.map(drop)),
        }
    }

    /// Adds a vdev for data or for the log, removes a vdev, or cancels a removal.
    async fn reshape(&mut self) -> Result<(), Stop> {
        let status = self.engine.pool().status();
        if let Some(left) = status.evacuations.first()
            && self.rng.below(3) == 0
        {
            return Self::refusal_is_fine(self.engine.cancel_removal(left.vdev).await);
        }
        let unused = self.unused_disks();
        if unused.is_empty() || self.rng.coin() {
            let vdev = &status.vdevs[self.rng.index(status.vdevs.len())];
            let Ok(number) = self.engine.pool().find_vdev(&vdev.name) else { return Ok(()) };
            return Self::refusal_is_fine(self.engine.remove_vdev(number).await);
        }
        let (kind, role) = match self.rng.below(3) {
            0 => (VdevKind::Disk, VdevRole::Log),
            1 => (VdevKind::Disk, VdevRole::Data),
            _ => (VdevKind::Mirror, VdevRole::Data),
        };
        let wanted = if kind == VdevKind::Mirror { 2 } else { 1 };
        let disks = unused.iter().take(wanted).map(|n| Arc::clone(&self.disks[*n])).collect();
        let rng = &mut self.rng;
        let mut guid = || Guid(rng.next_u64());
        let spec = VdevSpec { kind, role, disks };
        Self::refusal_is_fine(self.engine.add_vdev(&spec, &mut guid).await)
    }

    /// Disks without injected faults that the pool does not use.
    fn unused_disks(&self) -> Vec<usize> {
        let legs = legs(&self.engine);
        let unused = |n: &usize| legs.iter().all(|(disk, _)| disk != n);
        (self.scenario.layout.troubled()..self.disks.len()).filter(unused).collect()
    }

    fn refusal_is_fine<T>(done: Result<T, DatasetError>) -> Result<(), Stop> {
        let fine = [ErrorKind::Busy, ErrorKind::Invalid, ErrorKind::NoSpace, ErrorKind::NotFound];
        match done {
            Err(error) if !fine.contains(&error.kind()) => Err(Stop::Failed(error)),
            _ => Ok(()),
        }
    }

    /// Checks the results of the running or last scan.
    fn judge_scan(&self) -> Result<(), Stop> {
        let Some(scan) = self.engine.pool().scan_status() else { return Ok(()) };
        let found = scan.repaired_bytes + scan.unrepaired > 0;
        let scrub = scan.kind == ScanKind::Scrub;
        let damaged = scan.damaged > 0 && self.scenario.layout != Layout::Single;
        if damaged || (scrub && found && self.scenario.trouble == FaultPlan::None) {
            return Err(Stop::Broken(format!("impossible scan result: {scan:?}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
