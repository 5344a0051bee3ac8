//! MOUNT version 3.
//!
//! `v1` is the older version.
//!
//! Spec: RFC 1813 section 5.2.
//!
//! Invariant: no procedure changes files, so that read-only shares can be mounted.

use weir_oncrpc::{Array, Failed, List};

use super::types::{DirPath, Export, MountEntry};
use crate::limits::FLAVORS_MAX;
use crate::nfs3::FileHandle;
use crate::procedure::{messages, procedures};

/// Version of the program (MOUNT_V3).
pub const VERSION: u32 = 3;

weir_oncrpc::xdr_enum! {
    /// Error of MNT (mountstat3). Success (MNT3_OK) is `Ok` in the result.
    pub enum Mountstat3 {
        /// MNT3ERR_PERM: the caller is not privileged.
        Perm = 1,
        /// MNT3ERR_NOENT: the path does not exist.
        Noent = 2,
        /// MNT3ERR_IO: the storage failed.
        Io = 5,
        /// MNT3ERR_ACCES: the client may not mount the path.
        Acces = 13,
        /// MNT3ERR_NOTDIR: the path is no directory.
        Notdir = 20,
        /// MNT3ERR_INVAL: an argument is invalid.
        Inval = 22,
        /// MNT3ERR_NAMETOOLONG: the path is too long.
        Nametoolong = 63,
        /// MNT3ERR_NOTSUPP: the server does not support the procedure.
        Notsupp = 10004,
        /// MNT3ERR_SERVERFAULT: an error that maps to no other status.
        Serverfault = 10006,
    }
}

weir_oncrpc::xdr_struct! {
    /// Result of MNT (mountres3_ok).
    pub struct MountResok<'a> {
        /// Handle of the directory.
        pub handle: FileHandle<'a>,
        /// Authentication flavors that the server accepts for this directory, preferred first
        /// ([`flavor`](weir_oncrpc::message::flavor); for Kerberos the pseudo flavors of RFC 2623).
        pub flavors: Array<u32, FLAVORS_MAX>,
    }
}

procedures! {
    /// Procedures of MOUNT version 3.
    pub enum Procedure {
        /// MOUNTPROC3_NULL: no operation.
        Null = 0, "null", Reads;
        /// MOUNTPROC3_MNT: handle of a path.
        Mnt = 1, "mnt", Reads;
        /// MOUNTPROC3_DUMP: list of mounts.
        Dump = 2, "dump", Reads;
        /// MOUNTPROC3_UMNT: remove an entry from the list of mounts.
        Umnt = 3, "umnt", Reads;
        /// MOUNTPROC3_UMNTALL: remove all entries of the client from the list of mounts.
        Umntall = 4, "umntall", Reads;
        /// MOUNTPROC3_EXPORT: list of exports.
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
        Mnt(Result<MountResok<'a>, Failed<Mountstat3, ()>>),
        Dump(List<MountEntry<'a>>),
        Umnt(()),
        Umntall(()),
        Export(List<Export<'a>>),
    }
}
