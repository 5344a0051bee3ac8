//! Files in memory (mmap(2)).
//!
//! Invariant: the mapping covers only bytes of the file, so an access fails only if the file
//! shrinks or its server ends. The caller excludes both cases.

#![expect(unsafe_code, reason = "the standard library has no mapping of files")]

use std::fs::File;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// A shared mapping of the start of a file.
pub(crate) struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapped {
    /// Maps the first `bytes` bytes of a file that is open for reading and writing.
    pub(crate) fn new(file: &File, bytes: usize) -> Self {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so the mapping replaces no memory.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) };
        let start = NonNull::new(start.unwrap().cast()).unwrap();
        Self { start, bytes }
    }

    /// Reads bytes through the mapping.
    pub(crate) fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        assert!(offset + bytes <= self.bytes);
        let mut read = vec![0; bytes];
        let target = NonNull::from(&mut read[..]).cast();
        // SAFETY: the range is in the mapping. Only this thread writes to the file.
        unsafe { self.start.add(offset).copy_to_nonoverlapping(target, bytes) };
        read
    }

    /// Writes bytes through the mapping, and waits until the file has them on stable media.
    pub(crate) fn write_synced(&self, offset: usize, data: &[u8]) -> rustix::io::Result<()> {
        assert!(offset + data.len() <= self.bytes);
        let source = NonNull::from(data).cast();
        // SAFETY: the range is in the mapping. Only this thread uses the file.
        unsafe { self.start.add(offset).copy_from_nonoverlapping(source, data.len()) };
        // SAFETY: the mapping has these bytes.
        unsafe { msync(self.start.as_ptr().cast(), self.bytes, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: no reference to the mapping is left.
        unsafe { munmap(self.start.as_ptr().cast(), self.bytes) }.unwrap();
    }
}
