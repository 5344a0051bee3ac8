//! Heap buffers aligned for direct I/O.
//!
//! Not here: 4 KiB cache cells (the arena).
//!
//! Invariants: the start is aligned to [`IoBuf::ALIGN`]; the length never changes; all bytes are
//! initialised (zero at first), so no read can show another buffer's old content.

#![expect(unsafe_code, reason = "an aligned allocation has no safe form in std")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// An owned, zero-filled, aligned byte buffer.
pub struct IoBuf {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: IoBuf owns its bytes exclusively, like Box<[u8]>.
unsafe impl Send for IoBuf {}
// SAFETY: shared access gives only &[u8].
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// Alignment of the start: covers the strictest direct I/O rule Linux has.
    pub const ALIGN: usize = 4096;

    /// A buffer of `len` zero bytes; `len > 0`.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: layout has a non-zero size (asserted in `layout`).
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, len }
    }

    fn layout(len: usize) -> Layout {
        assert!(len > 0, "an I/O buffer has at least one byte");
        Layout::from_size_align(len, Self::ALIGN).expect("a buffer length fits in isize")
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with the same layout, and owned by nobody else.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
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
    fn is_aligned_zeroed_and_writable() {
        let mut buf = IoBuf::zeroed(8192);
        assert_eq!(buf.as_ptr() as usize % IoBuf::ALIGN, 0);
        assert!(buf.iter().all(|b| *b == 0));
        buf[8191] = 7;
        assert_eq!(buf[8191], 7);
    }
}
