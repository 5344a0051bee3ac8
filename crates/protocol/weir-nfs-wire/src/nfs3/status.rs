//! Status codes of NFSv3.
//!
//! Success is `Ok` in the results; the number 0 (NFS3_OK) therefore has no value here.
//!
//! Spec: RFC 1813 section 2.6.
//!
//! Invariant: the list is complete: RFC 1813 allows no other status.

weir_oncrpc::xdr_enum! {
    /// Error of a procedure (nfsstat3). `results` lists which information follows.
    pub enum Nfsstat3 {
        /// NFS3ERR_PERM: the caller is neither privileged nor the owner.
        Perm = 1,
        /// NFS3ERR_NOENT: the name does not exist.
        Noent = 2,
        /// NFS3ERR_IO: the storage failed.
        Io = 5,
        /// NFS3ERR_NXIO: no such device.
        Nxio = 6,
        /// NFS3ERR_ACCES: the caller lacks the permission.
        Acces = 13,
        /// NFS3ERR_EXIST: the name exists.
        Exist = 17,
        /// NFS3ERR_XDEV: a link or rename between file systems.
        Xdev = 18,
        /// NFS3ERR_NODEV: no such device.
        Nodev = 19,
        /// NFS3ERR_NOTDIR: the object is no directory.
        Notdir = 20,
        /// NFS3ERR_ISDIR: the object is a directory.
        Isdir = 21,
        /// NFS3ERR_INVAL: an argument is invalid or unsupported.
        Inval = 22,
        /// NFS3ERR_FBIG: the file would exceed the maximum size.
        Fbig = 27,
        /// NFS3ERR_NOSPC: no space is left.
        Nospc = 28,
        /// NFS3ERR_ROFS: the file system or the share is read-only.
        Rofs = 30,
        /// NFS3ERR_MLINK: too many hard links.
        Mlink = 31,
        /// NFS3ERR_NAMETOOLONG: the name or path is too long.
        Nametoolong = 63,
        /// NFS3ERR_NOTEMPTY: the directory is not empty.
        Notempty = 66,
        /// NFS3ERR_DQUOT: the quota of the user or group is exhausted.
        Dquot = 69,
        /// NFS3ERR_STALE: the file of the handle does not exist any more.
        Stale = 70,
        /// NFS3ERR_REMOTE: too many levels of remote in path.
        Remote = 71,
        /// NFS3ERR_BADHANDLE: the handle is malformed.
        Badhandle = 10001,
        /// NFS3ERR_NOT_SYNC: the guard of SETATTR does not match the ctime.
        NotSync = 10002,
        /// NFS3ERR_BAD_COOKIE: the cookie of READDIR or READDIRPLUS is stale.
        BadCookie = 10003,
        /// NFS3ERR_NOTSUPP: the server does not support the procedure.
        Notsupp = 10004,
        /// NFS3ERR_TOOSMALL: the buffer or request is too small.
        Toosmall = 10005,
        /// NFS3ERR_SERVERFAULT: an error that maps to no other status.
        Serverfault = 10006,
        /// NFS3ERR_BADTYPE: the server does not support this type of file.
        Badtype = 10007,
        /// NFS3ERR_JUKEBOX: the server needs more time; the client repeats the call later.
        Jukebox = 10008,
    }
}
