//! Bounds of the wire types.
//!
//! Invariant: the comment of each limit contains its reason.

/// Maximum length of an NFSv3 file handle (NFS3_FHSIZE, RFC 1813 section 2.4).
pub const HANDLE_BYTES_MAX: usize = 64;

/// Maximum length of a name in a directory. RFC 1813 has no bound (filename3). File systems stop at
/// 255 bytes; longer names decode, so that the server can reply NFS3ERR_NAMETOOLONG.
pub const NAME_BYTES_MAX: usize = 1024;

/// Maximum length of the target of a symbolic link. RFC 1813 has no bound (nfspath3). Linux stops
/// at 4,095 bytes; a target of 4,096 decodes, so that the server can reply NFS3ERR_NAMETOOLONG.
pub const PATH_BYTES_MAX: usize = 4096;

/// Maximum length of a path in MOUNT (MNTPATHLEN, RFC 1813 section 5.1.2).
pub const MOUNT_PATH_BYTES_MAX: usize = 1024;

/// Maximum length of a host or group name in MOUNT (MNTNAMLEN, RFC 1813 section 5.1.2).
pub const MOUNT_NAME_BYTES_MAX: usize = 255;

/// Length of a MOUNT version 1 handle (FHSIZE, RFC 1094 section 2.3.3).
pub const MOUNT1_HANDLE_BYTES: usize = 32;

/// Maximum number of flavors in the reply to MNT. RFC 1813 has no bound; the Linux client accepts
/// 12.
pub const FLAVORS_MAX: usize = 32;

/// Maximum number of entries of an ACL: the limit of Linux (NFS_ACL_MAX_ENTRIES).
pub const ACL_ENTRIES_MAX: usize = 1024;

/// Maximum length of a path in rquota (RQ_PATHLEN).
pub const QUOTA_PATH_BYTES_MAX: usize = 1024;

/// Maximum length of a cookie or handle in NLM (netobj, MAXNETOBJ_SZ in RFC 1813 section 6.1.4).
pub const NETOBJ_BYTES_MAX: usize = 1024;
