//! Types that both versions of MOUNT share.
//!
//! `v1` and `v3` have the procedures.
//!
//! Spec: RFC 1813 sections 5.1.2, 5.2.2 and 5.2.5; RFC 1094 sections A.4 and A.5.
//!
//! Invariant: paths and names are bytes; the server compares them exactly.

use weir_oncrpc::{List, Opaque};

use crate::limits::{MOUNT_NAME_BYTES_MAX, MOUNT_PATH_BYTES_MAX};

/// Number of the program (MOUNT_PROGRAM).
pub const PROGRAM: u32 = 100_005;

/// Path of a directory of the server (dirpath).
pub type DirPath<'a> = Opaque<'a, MOUNT_PATH_BYTES_MAX>;

/// Name of a host or group (name).
pub type MountName<'a> = Opaque<'a, MOUNT_NAME_BYTES_MAX>;

weir_oncrpc::xdr_struct! {
    /// Entry of the list of mounts (mountbody).
    #[derive(Copy)]
    pub struct MountEntry<'a> {
        /// Name or address of the client.
        pub hostname: MountName<'a>,
        /// Path that the client mounted.
        pub directory: DirPath<'a>,
    }

    /// Entry of the list of exports (exportnode).
    pub struct Export<'a> {
        /// Path of the export.
        pub directory: DirPath<'a>,
        /// Clients that may mount it (groups); empty if all may.
        pub groups: List<MountName<'a>>,
    }
}
