//! Checks that the verification identifies each kind of damage to a block, and that a run detects
//! data of other programs before it overwrites the data.
//!
//! `content` classifies a bad block; `verify` reads the blocks again.
//!
//! Invariant: a check passes only if the verification reports as many blocks as the fault damages,
//! each with the right kind of damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::kit::{BLOCK_BYTES, DATASET_BYTES, Kit};
use super::{Item, Seen};
use crate::run::RunError;
use crate::spec::OpKind;
use crate::target::memory::{Action, Memory};
use crate::target::{Holds, Op, Target, Wait, what_it_holds};
use crate::verify::verify;

/// Offsets of the two blocks that the faults damage.
const VICTIM: u64 = 1 << 20;
const OTHER: u64 = 2 << 20;

pub(super) fn items() -> Vec<Item> {
    let flipped = |kind: OpKind| {
        move |op: &Op, _| match op {
            Op { offset: VICTIM, .. } if op.kind == kind => Action::BitFlipped,
            _ => Action::Right,
        }
    };
    let swapped = |op: &Op, _| match (op.kind, op.offset) {
        (OpKind::Write, VICTIM) => Action::Misplaced(OTHER),
        (OpKind::Write, OTHER) => Action::Misplaced(VICTIM),
        _ => Action::Right,
    };
    let lost = |in_second: bool| {
        move |op: &Op, is_second| match (op.kind, op.offset) {
            (OpKind::Write, VICTIM) if in_second == is_second => Action::Lost,
            _ => Action::Right,
        }
    };
    vec![
        fault("no fault", "every block is right", 0, "", |_, _| Action::Right),
        fault("a bit flipped at rest", "damaged", 1, "damaged", flipped(OpKind::Write)),
        fault("a bit flipped in a read", "damaged", 1, "damaged", flipped(OpKind::Read)),
        fault("two blocks swapped", "both, by address", 2, "the block of address", swapped),
        fault("a stale block", "the older generation", 1, "generation 1 of this block", lost(true)),
        fault("a write that was lost", "zeros", 1, "only zeros", lost(false)),
        Item::new("data of others", "distinguished from zeros and from own data", |_| guard()),
    ]
}

/// Checks that the verification finds a fault: fills the dataset once, or twice if the fault needs
/// an earlier generation, and verifies all blocks. `twist` receives whether the second fill is
/// running.
fn fault(
    name: &str,
    wanted: &str,
    bad: u64,
    words: &'static str,
    twist: impl Fn(&Op, bool) -> Action + Clone + Send + Sync + 'static,
) -> Item {
    Item::new(&format!("verification: {name}"), wanted, move |_| {
        let twist = twist.clone();
        let is_second = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_second);
        let memory = Memory::twisted(DATASET_BYTES as usize, move |op| {
            twist(op, told.load(Ordering::Acquire))
        });
        let kit = Kit::new();
        kit.fill(&memory)?;
        // If the second fill loses a write, the block keeps the contents that the first fill gave
        // it. If the first fill lost the write, the second fill would repair the block.
        if words.contains("generation") {
            is_second.store(true, Ordering::Release);
            kit.fill(&memory)?;
        }
        let Kit { dataset, content, generations } = &kit;
        let found = verify(&memory, content, Some(generations), dataset, 100.0, 1)?;
        let all = found.blocks == DATASET_BYTES / u64::from(BLOCK_BYTES);
        let fits = found.bad == bad && found.examples.iter().all(|text| text.contains(words));
        let text = match found.examples.first() {
            Some(example) => format!("{} of {} blocks: {example}", found.bad, found.blocks),
            None => format!("all {} blocks are right", found.blocks),
        };
        Ok(Seen::of(all && fits, text))
    })
}

fn guard() -> Result<Seen, RunError> {
    let memory = Memory::new(DATASET_BYTES as usize);
    let empty = what_it_holds(&memory)?;
    Kit::new().fill(&memory)?;
    let ours = what_it_holds(&memory)?;
    // Write a few bytes at the start, where a file system or a partition table would be.
    let mut lane = memory.lane(1, BLOCK_BYTES as usize)?;
    lane.buffer(0)[..16].copy_from_slice(b"data of somebody");
    let len_bytes = BLOCK_BYTES;
    let write = Op { kind: OpKind::Write, offset: 0, len_bytes, durable: false, source: 0 };
    lane.submit(0, &write)?;
    lane.reap(Wait::One, &mut Vec::new())?;
    let data = what_it_holds(&memory)?;
    let passed = [empty, ours, data] == [Holds::Nothing, Holds::Ours, Holds::Data];
    Ok(Seen::of(passed, format!("empty: {empty:?}; filled: {ours:?}; with data: {data:?}")))
}
