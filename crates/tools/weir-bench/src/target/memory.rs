//! An in-memory target for tests and for the selftest of the generator.
//!
//! Invariant: operations complete only when the lane is reaped.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;

use super::buffers::Buffers;
use super::error::TargetError;
use super::lane::{Done, Lane, Op, Target, Wait};
use crate::result::TargetInfo;
use crate::spec::OpKind;

/// Function that chooses the fault of each operation; the default function chooses none.
pub(super) type Twist = dyn Fn(&Op) -> Action + Send + Sync;

/// Treatment of an operation by the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The target executes the operation correctly.
    Right,
    /// The target acknowledges the operation but does not execute it.
    Lost,
    /// The target executes the operation, but flips one bit of the data.
    BitFlipped,
    /// The target executes the operation at this address instead of the requested address.
    Misplaced(u64),
    /// The target completes the operation with an error.
    Fails,
}

/// An in-memory target.
#[derive(Clone)]
pub struct Memory {
    info: TargetInfo,
    bytes: Arc<RwLock<Vec<u8>>>,
    twist: Arc<Twist>,
}

impl Memory {
    /// Creates a target of `bytes` bytes, all zero.
    pub fn new(bytes: usize) -> Self {
        Self::twisted(bytes, |_| Action::Right)
    }

    /// Creates a target like [`Self::new`], but with the faults that `twist` chooses.
    pub fn twisted(bytes: usize, twist: impl Fn(&Op) -> Action + Send + Sync + 'static) -> Self {
        let info = TargetInfo {
            address: "memory".to_owned(),
            kind: "memory".to_owned(),
            bytes: bytes as u64,
            block_bytes: 512,
            driver: "none".to_owned(),
            ..TargetInfo::default()
        };
        Self { info, bytes: Arc::new(RwLock::new(vec![0; bytes])), twist: Arc::new(twist) }
    }

    /// Declares a cache of `bytes` bytes in front of the target.
    #[must_use]
    pub fn with_cache(mut self, bytes: u64) -> Self {
        self.info.cache_bytes = Some(bytes);
        self
    }
}

impl Target for Memory {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError> {
        let buffers = Buffers::new(slots, buffer_bytes);
        Ok(Box::new(MemoryLane { memory: self.clone(), buffers, done: Vec::new() }))
    }

    fn op_bytes_max(&self, kind: OpKind) -> u64 {
        if kind.is_data() || kind == OpKind::Flush { u64::MAX } else { 0 }
    }
}

struct MemoryLane {
    memory: Memory,
    buffers: Buffers,
    done: Vec<Done>,
}

impl Lane for MemoryLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        self.buffers.of(slot)
    }

    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
        let action = (self.memory.twist)(op);
        let len = op.len_bytes as usize;
        let offset = match action {
            Action::Misplaced(other) => other as usize,
            _ => op.offset as usize,
        };
        let mut differs = false;
        let buffer = &mut self.buffers.of(slot)[..len];
        match (op.kind, action) {
            (_, Action::Fails | Action::Lost) | (OpKind::Flush, _) => {}
            (OpKind::Read, _) => {
                buffer.copy_from_slice(&self.memory.bytes.read()[offset..offset + len]);
                if action == Action::BitFlipped {
                    buffer[len / 2] ^= 1;
                }
            }
            (OpKind::Trim | OpKind::WriteSame, _) => {
                self.memory.bytes.write()[offset..offset + len].fill(0);
            }
            (OpKind::Copy, _) => {
                let source = op.source as usize;
                self.memory.bytes.write().copy_within(source..source + len, offset);
            }
            (OpKind::CompareAndWrite, _) => {
                let mut bytes = self.memory.bytes.write();
                let both = self.buffers.of(slot);
                if bytes[offset..offset + len] == both[..len] {
                    bytes[offset..offset + len].copy_from_slice(&both[len..2 * len]);
                } else {
                    differs = true;
                }
            }
            (OpKind::Write, _) => {
                let mut bytes = self.memory.bytes.write();
                bytes[offset..offset + len].copy_from_slice(buffer);
                if action == Action::BitFlipped {
                    bytes[offset + len / 2] ^= 1;
                }
            }
            _ => unreachable!("a run with an operation that its target has not is refused"),
        }
        let result = match action {
            _ if differs => Err(std::io::Error::other("it does not compare equal")),
            Action::Fails => Err(std::io::Error::from_raw_os_error(5)),
            _ => Ok(()),
        };
        self.done.push(Done { slot, result, at: Instant::now() });
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        if self.done.is_empty()
            && let Wait::Until(until) = wait
        {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        done.append(&mut self.done);
        Ok(())
    }
}
