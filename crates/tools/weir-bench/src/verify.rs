//! Verification after a run: reads the blocks of the dataset and compares every byte.
//!
//! `load` verifies the reads of a run while the load runs.
//!
//! Invariants: verification writes no data; a block that was trimmed since its last write, or that
//! the target itself wrote since then, is read but neither judged nor counted.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::content::{Content, Mismatch};
use crate::load::Generations;
use crate::result::Verification;
use crate::spec::{DatasetSpec, OpKind};
use crate::target::{Done, Lane, Op, Target, TargetError, Wait};

/// Queue depth of the verification reads.
const SLOTS: usize = 16;
/// Maximum number of bad blocks that the result describes in words.
const EXAMPLES_MAX: usize = 8;

/// Reads `share_pct` percent of all blocks, chosen at random, and checks their contents.
///
/// # Errors
/// If the target is lost. Blocks that cannot be read count as unread, not as bad.
pub fn verify(
    target: &dyn Target,
    content: &Content,
    generations: Option<&Generations>,
    dataset: &DatasetSpec,
    share_pct: f64,
    seed: u64,
) -> Result<Verification, TargetError> {
    let block_bytes = content.block_bytes();
    let blocks = dataset.total_bytes() / block_bytes as u64;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut addresses = (0..blocks)
        .filter(|_| share_pct >= 100.0 || rng.random_range(0.0..100.0) < share_pct)
        .map(|block| block * block_bytes as u64);
    let mut judge = Judge { content, generations, scratch: vec![0; block_bytes], found: None };
    let mut lane = target.lane(SLOTS, block_bytes)?;
    let (mut under_way, mut done) = ([None; SLOTS], Vec::new());
    loop {
        for (slot, work) in under_way.iter_mut().enumerate().filter(|(_, work)| work.is_none()) {
            let Some(offset) = addresses.next() else { break };
            let len_bytes = block_bytes as u32;
            let kind = OpKind::Read;
            lane.submit(slot, &Op { kind, offset, len_bytes, durable: false, source: 0 })?;
            *work = Some(offset);
        }
        if under_way.iter().all(Option::is_none) {
            return Ok(judge.found.unwrap_or_default());
        }
        lane.reap(Wait::One, &mut done)?;
        for Done { slot, result, .. } in done.drain(..) {
            let address = under_way[slot].take().expect("it was sent");
            judge.look(address, result, &mut *lane, slot);
        }
    }
}

struct Judge<'a> {
    content: &'a Content,
    generations: Option<&'a Generations>,
    scratch: Vec<u8>,
    found: Option<Verification>,
}

impl Judge<'_> {
    fn look(&mut self, address: u64, read: std::io::Result<()>, lane: &mut dyn Lane, slot: usize) {
        let found = self.found.get_or_insert_default();
        // Skip the block: since its last write, the block was trimmed or written by the target
        // itself.
        if read.is_ok() && self.generations.is_some_and(|known| !known.is_judged_now(address)) {
            return;
        }
        found.blocks += 1;
        let wanted = self.generations.and_then(|known| known.now(address));
        let block = &lane.buffer(slot)[..self.content.block_bytes()];
        let judged = match read {
            Ok(()) => self.content.check(block, address, wanted, &mut self.scratch),
            Err(error) => {
                *found.unread.entry(error.to_string()).or_default() += 1;
                return;
            }
        };
        if let Err(mismatch) = judged {
            found.bad += 1;
            found.other_run += u64::from(mismatch == Mismatch::OtherRun);
            if found.examples.len() < EXAMPLES_MAX {
                found.examples.push(format!("address {address}: {mismatch}"));
            }
        }
    }
}
