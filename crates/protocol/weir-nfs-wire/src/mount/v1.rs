//! MOUNT version 1, for NFSv2.
//!
//! Clients of NFSv3 also call it: showmount requests the list of exports, and umount sends UMNT.
//! Its handles belong to NFSv2, so a server of NFSv3 refuses MNT.
//!
//! Spec: RFC 1094 appendix A.
//!
//! Invariant: no procedure changes files, so that read-only shares can be mounted.

use weir_oncrpc::{Decoder, Encoder, List, Xdr, XdrError};

use super::types::{DirPath, Export, MountEntry};
use crate::limits::MOUNT1_HANDLE_BYTES;
use crate::procedure::{messages, procedures};

/// Version of the program (MOUNTVERS).
pub const VERSION: u32 = 1;

/// File handle of NFSv2 (fhandle).
pub type Handle = [u8; MOUNT1_HANDLE_BYTES];

/// Result of MNT (fhstatus).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FhStatus {
    /// Handle of the directory.
    Ok(Handle),
    /// Error number of UNIX, never 0: for example 13 (EACCES).
    Error(u32),
}

impl Xdr<'_> for FhStatus {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        match input.u32()? {
            0 => input.fixed().map(Self::Ok),
            errno => Ok(Self::Error(errno)),
        }
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        match self {
            Self::Ok(handle) => {
                out.u32(0);
                out.fixed(handle);
            }
            Self::Error(errno) => {
                assert!(*errno != 0, "0 means success");
                out.u32(*errno);
            }
        }
    }
}

procedures! {
    /// Procedures of MOUNT version 1.
    pub enum Procedure {
        /// MOUNTPROC_NULL: no operation.
        Null = 0, "null", Reads;
        /// MOUNTPROC_MNT: handle of a path.
        Mnt = 1, "mnt", Reads;
        /// MOUNTPROC_DUMP: list of mounts.
        Dump = 2, "dump", Reads;
        /// MOUNTPROC_UMNT: remove an entry from the list of mounts.
        Umnt = 3, "umnt", Reads;
        /// MOUNTPROC_UMNTALL: remove all entries of the client from the list of mounts.
        Umntall = 4, "umntall", Reads;
        /// MOUNTPROC_EXPORT: list of exports.
        Export = 5, "export", Reads;
    }
}

messages! {
    /// Arguments of a call.
    pub enum Args<'a> of Procedure {
        Null(()),
        Mnt(DirPath<'a>),
        Dump(()),
        Umnt(DirPath<'a>),
        Umntall(()),
        Export(()),
    }
}

messages! {
    /// Results of a call.
    pub enum Results<'a> of Procedure {
        Null(()),
        Mnt(FhStatus),
        Dump(List<MountEntry<'a>>),
        Umnt(()),
        Umntall(()),
        Export(List<Export<'a>>),
    }
}
