//! The buffers of a lane's slots.
//!
//! Not here: who has which (the lane).
//!
//! Invariant: each is memory of its own and begins where direct I/O may: one can be with the kernel
//! while another is used.

use weir_block::IoBuf;

/// Buffers of the same size, by slot.
pub(super) struct Buffers(Vec<IoBuf>);

impl Buffers {
    /// Zeros; at least one byte each.
    pub(super) fn new(slots: usize, each_bytes: usize) -> Self {
        Self((0..slots).map(|_| IoBuf::zeroed(each_bytes.max(1))).collect())
    }

    /// That of a slot.
    pub(super) fn of(&mut self, slot: usize) -> &mut [u8] {
        &mut self.0[slot]
    }

    /// The same, to be looked at.
    pub(super) fn at(&self, slot: usize) -> &[u8] {
        &self.0[slot]
    }

    /// All of them, in the order of their slots.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.0.iter_mut().map(|buffer| &mut **buffer)
    }

    /// Never gives the memory back: somebody may still write to it.
    pub(super) fn leak(&mut self) {
        self.0.drain(..).for_each(std::mem::forget);
    }
}
