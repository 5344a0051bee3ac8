//! A target that completes every operation at once and without I/O, to measure the generator.
//!
//! Invariant: no operation fails.

use std::time::Instant;

use super::buffers::Buffers;
use super::error::TargetError;
use super::lane::{Done, Lane, Op, Target, Wait};
use crate::result::TargetInfo;

pub(super) struct Null {
    info: TargetInfo,
}

impl Null {
    pub(super) fn new(bytes: u64) -> Self {
        let text = |text: &str| text.to_owned();
        let (address, kind, driver) = (text("null:"), text("null"), text("none"));
        let info =
            TargetInfo { address, kind, bytes, block_bytes: 512, driver, ..Default::default() };
        Self { info }
    }
}

impl Target for Null {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn keeps_data(&self) -> bool {
        false
    }

    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError> {
        let buffers = Buffers::new(slots, buffer_bytes);
        Ok(Box::new(NullLane { buffers, submitted: Vec::with_capacity(slots) }))
    }
}

struct NullLane {
    buffers: Buffers,
    submitted: Vec<usize>,
}

impl Lane for NullLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        self.buffers.of(slot)
    }

    fn submit(&mut self, slot: usize, _: &Op) -> Result<(), TargetError> {
        self.submitted.push(slot);
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        if self.submitted.is_empty()
            && let Wait::Until(until) = wait
        {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        let at = Instant::now();
        done.extend(self.submitted.drain(..).map(|slot| Done { slot, result: Ok(()), at }));
        Ok(())
    }
}
