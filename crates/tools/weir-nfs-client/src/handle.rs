//! File handle that a client stores.
//!
//! `FileHandle` of weir-nfs-wire borrows from a message.
//!
//! Invariant: a handle has at most 64 bytes (NFS3_FHSIZE), so it needs no allocation.

use weir_nfs_wire::limits::HANDLE_BYTES_MAX;
use weir_nfs_wire::nfs3::FileHandle;

/// File handle (nfs_fh3, RFC 1813 section 2.5): 0 to 64 bytes that only the server interprets.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    bytes: [u8; HANDLE_BYTES_MAX],
    len: u8,
}

impl Handle {
    /// Copies the handle of a message.
    pub fn new(handle: &FileHandle<'_>) -> Self {
        let mut bytes = [0; HANDLE_BYTES_MAX];
        bytes.iter_mut().zip(handle.bytes()).for_each(|(to, from)| *to = *from);
        Self { bytes, len: handle.bytes().len() as u8 }
    }

    /// Handle for a message.
    pub fn wire(&self) -> FileHandle<'_> {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        FileHandle::new(bytes).expect("the length was checked")
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.wire().bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
