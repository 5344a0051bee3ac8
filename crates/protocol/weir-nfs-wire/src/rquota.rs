//! rquota: quotas of users and groups, which the command `quota` of clients requests.
//!
//! No RFC describes the protocol. Version 2 adds the kind of the quota.
//!
//! Spec: `rquota.x` of SunOS 4 (version 1) and of quota-tools for Linux (version 2).
//!
//! Invariant: no procedure here changes a quota; the setting procedures of version 2 are unknown.

use weir_oncrpc::{Decoder, Encoder, Opaque, Xdr, XdrError};

use crate::limits::QUOTA_PATH_BYTES_MAX;
use crate::procedure::procedures;

/// Number of the program (RQUOTAPROG).
pub const PROGRAM: u32 = 100_011;

/// Version with quotas of users (RQUOTAVERS).
pub const VERSION_1: u32 = 1;

/// Version with quotas of users and groups (EXT_RQUOTAVERS).
pub const VERSION_2: u32 = 2;

/// Path of a file system of the server.
pub type QuotaPath<'a> = Opaque<'a, QUOTA_PATH_BYTES_MAX>;

procedures! {
    /// Procedures of both versions. GETACTIVEQUOTA has the arguments and results of GETQUOTA.
    pub enum Procedure {
        /// RQUOTAPROC_NULL: no operation.
        Null = 0, "null", Reads;
        /// RQUOTAPROC_GETQUOTA: quota of a user or group.
        Getquota = 1, "getquota", Reads;
        /// RQUOTAPROC_GETACTIVEQUOTA: the same, if the quota is enforced.
        Getactivequota = 2, "getactivequota", Reads;
    }
}

/// Kinds of quotas in version 2.
pub mod kind {
    /// Quota of a user.
    pub const USER: i32 = 0;
    /// Quota of a group.
    pub const GROUP: i32 = 1;
}

weir_oncrpc::xdr_struct! {
    /// Arguments of version 1 (getquota_args).
    #[derive(Copy)]
    pub struct GetquotaArgs<'a> {
        /// Path of the file system.
        pub path: QuotaPath<'a>,
        /// User id.
        pub uid: i32,
    }

    /// Arguments of version 2 (ext_getquota_args).
    #[derive(Copy)]
    pub struct ExtGetquotaArgs<'a> {
        /// Path of the file system.
        pub path: QuotaPath<'a>,
        /// Kind of the quota ([`kind`]); a server replies Q_NOQUOTA to other kinds.
        pub kind: i32,
        /// User or group id.
        pub id: i32,
    }

    /// Limits and use (rquota). A limit of 0 means no limit.
    #[derive(Copy, Default)]
    pub struct Rquota {
        /// Unit of the numbers of blocks, in bytes.
        pub block_bytes: i32,
        /// True if the quota is enforced.
        pub active: bool,
        /// Hard limit of blocks.
        pub block_hard_limit: u32,
        /// Soft limit of blocks.
        pub block_soft_limit: u32,
        /// Blocks in use.
        pub blocks: u32,
        /// Hard limit of files.
        pub file_hard_limit: u32,
        /// Soft limit of files.
        pub file_soft_limit: u32,
        /// Files in use.
        pub files: u32,
        /// Seconds until the soft limit of blocks becomes a hard limit.
        pub block_seconds_left: u32,
        /// Seconds until the soft limit of files becomes a hard limit.
        pub file_seconds_left: u32,
    }
}

/// Result of GETQUOTA and GETACTIVEQUOTA (getquota_rslt).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetquotaResult {
    /// Q_OK: the quota.
    Ok(Rquota),
    /// Q_NOQUOTA: the user or group has no quota.
    NoQuota,
    /// Q_EPERM: the caller may not read the quota.
    Perm,
}

impl Xdr<'_> for GetquotaResult {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        match input.u32()? {
            1 => Rquota::decode(input).map(Self::Ok),
            2 => Ok(Self::NoQuota),
            3 => Ok(Self::Perm),
            value => Err(XdrError::UnknownValue { name: "gqr_status", value }),
        }
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        match self {
            Self::Ok(quota) => {
                out.u32(1);
                quota.encode(out);
            }
            Self::NoQuota => out.u32(2),
            Self::Perm => out.u32(3),
        }
    }
}
