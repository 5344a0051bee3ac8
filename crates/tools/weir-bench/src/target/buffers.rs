//! I/O buffers of a lane's slots.
//!
//! The lane knows which slots are busy.
//!
//! Invariant: each buffer is a separate allocation, aligned for direct I/O, so the kernel can use
//! one buffer while the worker uses another.

use weir_block::IoBuf;

/// Buffers of equal size, indexed by slot.
pub(super) struct Buffers(Vec<IoBuf>);

impl Buffers {
    /// Allocates zeroed buffers of at least one byte each.
    pub(super) fn new(slots: usize, each_bytes: usize) -> Self {
        Self((0..slots).map(|_| IoBuf::zeroed(each_bytes.max(1))).collect())
    }

    /// Buffer of a slot, for writing.
    pub(super) fn of(&mut self, slot: usize) -> &mut [u8] {
        &mut self.0[slot]
    }

    /// Buffer of a slot, for reading.
    pub(super) fn at(&self, slot: usize) -> &[u8] {
        &self.0[slot]
    }

    /// All buffers, in slot order.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.0.iter_mut().map(|buffer| &mut **buffer)
    }

    /// Leaks the memory of all buffers, because the kernel may still write to it.
    pub(super) fn leak(&mut self) {
        self.0.drain(..).for_each(std::mem::forget);
    }
}
