//! The operator of a scenario: scrubs, takes a leg offline, and brings legs back under load.
//!
//! Not here: volumes (admin); what a resilver is worth once the power is cut (enumerate lets any
//! leg be absent again as soon as all are online).
//!
//! Invariants:
//! - one leg at a time is out of use by the operator's doing, and never the one that has all;
//! - a scrub of disks without trouble finds nothing, and of a mirror never a block without a good
//!   copy.

use std::sync::Arc;
use std::time::Duration;

use weir_base::ErrorKind;
use weir_dataset::{DatasetError, Engine};
use weir_device::Device;
use weir_pool::{LegState, ScanKind};

use crate::client::Stop;
use crate::executor::Executor;
use crate::rng::Rng;
use crate::scenario::{Layout, Scenario, Trouble};

/// Looks at a resilver until it is done, or gives up.
const LOOKS_MAX: usize = 100;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

pub(crate) struct Operator {
    pub(crate) rng: Rng,
    pub(crate) engine: Arc<Engine>,
    pub(crate) executor: Executor,
    pub(crate) disks: Vec<Arc<dyn Device>>,
    pub(crate) scenario: Scenario,
}

/// The legs that are not online, by the number of their disks.
pub(crate) fn legs_out_of_use(engine: &Engine) -> Vec<(usize, LegState)> {
    let status = engine.pool().status();
    let states: Vec<LegState> =
        status.vdevs.iter().flat_map(|vdev| &vdev.legs).map(|leg| leg.state).collect();
    states.into_iter().enumerate().filter(|(_, state)| *state != LegState::Online).collect()
}

impl Operator {
    pub(crate) async fn step(&mut self) -> Result<(), Stop> {
        self.judge_scan()?;
        match self.rng.below(12) {
            0..3 => Self::busy_is_fine(self.engine.scrub_start().map(drop)),
            3 => Self::busy_is_fine(self.engine.scrub_pause().map(drop)),
            4 => Self::busy_is_fine(self.engine.scrub_stop().map(drop)),
            5..8 => {
                self.settle().await;
                Ok(())
            }
            _ => self.change_leg().await,
        }
    }

    fn busy_is_fine(done: Result<(), DatasetError>) -> Result<(), Stop> {
        match done {
            Err(error) if error.kind() != ErrorKind::Busy => Err(Stop::Told(error)),
            _ => Ok(()),
        }
    }

    /// Waits for a resilver.
    async fn settle(&self) {
        for _ in 0..LOOKS_MAX {
            if !self.engine.pool().wants_resilver() {
                break;
            }
            self.executor.sleep(BETWEEN_LOOKS).await;
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
            None if self.scenario.trouble == Trouble::None => self.rng.index(self.disks.len()),
            None => 0,
        };
        let told = |error: weir_pool::PoolError| Stop::Told(error.into());
        let (guid, _, state) = pool.find_leg(self.disks[disk].path()).map_err(told)?;
        if state == LegState::Online {
            return Self::busy_is_fine(
                pool.take_leg_offline(guid).map(drop).map_err(DatasetError::from),
            );
        }
        if pool.let_go_of_leg(guid).map_err(told)? {
            // A disk that is broken for good cannot be opened: nothing has changed then.
            if pool.bring_leg_back(guid, Arc::clone(&self.disks[disk])).await.is_ok() {
                self.engine.leg_came_back();
            } else if self.scenario.trouble == Trouble::None {
                return Err(Stop::Broken(format!("disk {disk} did not come back")));
            }
        }
        Ok(())
    }

    /// What the scan so far must look like.
    fn judge_scan(&self) -> Result<(), Stop> {
        let Some(scan) = self.engine.pool().scan_status() else { return Ok(()) };
        let found = scan.repaired_bytes + scan.unrepaired > 0;
        let scrub = scan.kind == ScanKind::Scrub;
        let damaged = scan.damaged > 0 && self.scenario.layout != Layout::Single;
        if damaged || (scrub && found && self.scenario.trouble == Trouble::None) {
            return Err(Stop::Broken(format!("a scan found what cannot be: {scan:?}")));
        }
        Ok(())
    }
}
