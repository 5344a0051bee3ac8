//! Heap buffers aligned for direct I/O.
//!
//! Cache cells of 4 KiB are in `arena`.
//!
//! Invariants: the start of a buffer is aligned to [`IoBuf::ALIGN`]; its length never changes; all
//! bytes are initialised, to zero except in buffers for reads.
//!
//! Each thread keeps dropped large buffers and reuses them. Without reuse, clearing a buffer of 1
//! MiB, or getting it from the kernel again, would take about as long as the checksum of the data
//! in it.

#![expect(unsafe_code, reason = "an aligned allocation has no safe form in std")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, RangeInclusive};
use std::ptr::NonNull;

/// Sizes of the buffers that a thread keeps for reuse.
const SPARE_BYTES: RangeInclusive<usize> = 32 << 10..=2 << 20;
/// Maximum total size of the buffers that one thread keeps: about the total size of the concurrent
/// reads of a scan or of the cleaner.
const SPARES_BYTES_MAX: usize = 8 << 20;

/// Dropped buffers of one thread, oldest first.
#[derive(Default)]
struct Spares {
    buffers: VecDeque<Allocation>,
    bytes: usize,
}

thread_local! {
    static SPARES: RefCell<Spares> = RefCell::default();
}

impl Spares {
    fn keep(&mut self, allocation: Allocation) {
        self.bytes += allocation.bytes;
        self.buffers.push_back(allocation);
        while self.bytes > SPARES_BYTES_MAX {
            let oldest = self.buffers.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.bytes);
        }
    }

    /// Takes a kept buffer that has at least `len` bytes and is not much larger.
    fn take(&mut self, len: usize) -> Option<Allocation> {
        let fits = |spare: &Allocation| spare.bytes >= len && spare.bytes / 2 <= len;
        let index = self.buffers.iter().rposition(fits)?;
        let spare = self.buffers.remove(index)?;
        self.bytes -= spare.bytes;
        Some(spare)
    }
}

/// Aligned memory, all of whose bytes are initialised.
struct Allocation {
    start: NonNull<u8>,
    bytes: usize,
}

impl Allocation {
    fn zeroed(bytes: usize) -> Self {
        let layout = Self::layout(bytes);
        // SAFETY: layout has a non-zero size (asserted in `layout`).
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        assert!(bytes > 0, "an I/O buffer has at least one byte");
        Layout::from_size_align(bytes, IoBuf::ALIGN).expect("a buffer length fits in isize")
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with the same layout, and exclusively owned.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.bytes)) }
    }
}

/// Aligned buffer of bytes with one owner.
pub struct IoBuf {
    start: NonNull<u8>,
    len: usize,
    /// Number of allocated bytes: `len` or more.
    allocated: usize,
}

// SAFETY: IoBuf owns its bytes exclusively, like Box<[u8]>.
unsafe impl Send for IoBuf {}
// SAFETY: shared access gives only &[u8].
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// Alignment of a buffer's start; it satisfies the strictest alignment rule of Linux for direct
    /// I/O.
    pub const ALIGN: usize = 4096;

    /// Returns a buffer of `len` zero bytes; `len` is not 0.
    pub fn zeroed(len: usize) -> Self {
        match Self::spare(len) {
            Some(mut spare) => {
                spare.fill(0);
                spare
            }
            None => Self::owning(Allocation::zeroed(len), len),
        }
    }

    /// Returns a buffer of `len` bytes for a read that either fills all of the buffer or fails;
    /// `len` is not 0. Before the read, the buffer may contain any bytes of this process's memory.
    pub fn for_read(len: usize) -> Self {
        Self::spare(len).unwrap_or_else(|| Self::owning(Allocation::zeroed(len), len))
    }

    fn spare(len: usize) -> Option<Self> {
        if !SPARE_BYTES.contains(&len) {
            return None;
        }
        let spare = SPARES.try_with(|spares| spares.borrow_mut().take(len)).ok().flatten()?;
        Some(Self::owning(spare, len))
    }

    fn owning(allocation: Allocation, len: usize) -> Self {
        assert!(len <= allocation.bytes, "a buffer is within its memory");
        let Allocation { start, bytes: allocated } = allocation;
        std::mem::forget(allocation);
        Self { start, len, allocated }
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        let allocation = Allocation { start: self.start, bytes: self.allocated };
        if SPARE_BYTES.contains(&self.allocated) {
            // While the thread exits, it keeps no buffers; the memory is freed.
            SPARES.try_with(move |spares| spares.borrow_mut().keep(allocation)).ok();
        }
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: start..start+len is one live, initialised allocation.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and &mut self makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_aligned_zeroed_and_writable() {
        let mut buf = IoBuf::zeroed(8192);
        assert_eq!(buf.as_ptr() as usize % IoBuf::ALIGN, 0);
        assert!(buf.iter().all(|b| *b == 0));
        buf[8191] = 7;
        assert_eq!(buf[8191], 7);
    }

    #[test]
    fn dropped_buffers_are_reused_up_to_a_limit() {
        let mut first = IoBuf::zeroed(1 << 20);
        first.fill(7);
        let start = first.as_ptr();
        drop(first);
        let again = IoBuf::for_read((1 << 20) - 4096);
        assert_eq!((again.as_ptr(), again.len(), again[5]), (start, (1 << 20) - 4096, 7));
        drop(again);
        assert!(IoBuf::zeroed(1 << 20).iter().all(|byte| *byte == 0), "zeroed is zeroed");
        assert_eq!(IoBuf::for_read(32 << 10).allocated, 32 << 10, "a small one takes no large one");
        drop((0..20).map(|_| IoBuf::zeroed(1 << 20)).collect::<Vec<_>>());
        SPARES.with_borrow(|spares| {
            let bytes: usize = spares.buffers.iter().map(|spare| spare.bytes).sum();
            assert_eq!((spares.bytes, bytes <= SPARES_BYTES_MAX), (bytes, true));
        });
    }
}
