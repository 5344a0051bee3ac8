//! Procedures of NFSv3: numbers, names, effects, arguments and results.
//!
//! Spec: RFC 1813 section 3.3.
//!
//! Invariant: each procedure has one value in [`Procedure`], [`Args`] and [`Results`].

use super::arguments::{
    AccessArgs, CommitArgs, CreateArgs, DirOpArgs, FileArgs, LinkArgs, MkdirArgs, MknodArgs,
    ReadArgs, ReaddirArgs, ReaddirplusArgs, RenameArgs, SetattrArgs, SymlinkArgs, WriteArgs,
};
use super::attributes::{PostOpAttr, WccData};
use super::results::{
    AccessResok, CommitResok, CreateResok, FsinfoResok, FsstatResok, GetattrResok, LinkWcc,
    LookupResok, Nfs3Result, PathconfResok, ReadResok, ReaddirResok, ReaddirplusResok,
    ReadlinkResok, RenameWcc, WriteResok,
};
use crate::procedure::{messages, procedures};

/// Number of the program (NFS_PROGRAM).
pub const PROGRAM: u32 = 100_003;

/// Version of the program (NFS_V3).
pub const VERSION: u32 = 3;

procedures! {
    /// Procedures of NFSv3.
    pub enum Procedure {
        /// NULL: no operation.
        Null = 0, "null", Reads;
        /// GETATTR: attributes of a file.
        Getattr = 1, "getattr", Reads;
        /// SETATTR: set attributes, which includes the size.
        Setattr = 2, "setattr", Changes;
        /// LOOKUP: handle of a name.
        Lookup = 3, "lookup", Reads;
        /// ACCESS: permissions of the caller.
        Access = 4, "access", Reads;
        /// READLINK: target of a symbolic link.
        Readlink = 5, "readlink", Reads;
        /// READ: data of a file.
        Read = 6, "read", Reads;
        /// WRITE: write data to a file.
        Write = 7, "write", Changes;
        /// CREATE: create a regular file.
        Create = 8, "create", Changes;
        /// MKDIR: create a directory.
        Mkdir = 9, "mkdir", Changes;
        /// SYMLINK: create a symbolic link.
        Symlink = 10, "symlink", Changes;
        /// MKNOD: create a special file.
        Mknod = 11, "mknod", Changes;
        /// REMOVE: remove a name that is no directory.
        Remove = 12, "remove", Changes;
        /// RMDIR: remove a directory.
        Rmdir = 13, "rmdir", Changes;
        /// RENAME: rename a file or directory.
        Rename = 14, "rename", Changes;
        /// LINK: create a hard link.
        Link = 15, "link", Changes;
        /// READDIR: entries of a directory.
        Readdir = 16, "readdir", Reads;
        /// READDIRPLUS: entries of a directory with attributes and handles.
        Readdirplus = 17, "readdirplus", Reads;
        /// FSSTAT: space of the file system.
        Fsstat = 18, "fsstat", Reads;
        /// FSINFO: limits of the server.
        Fsinfo = 19, "fsinfo", Reads;
        /// PATHCONF: properties of names.
        Pathconf = 20, "pathconf", Reads;
        /// COMMIT: make unstable writes durable. It changes no content, so a read-only share allows
        /// it, and a client may repeat it.
        Commit = 21, "commit", Reads;
    }
}

messages! {
    /// Arguments of a call.
    pub enum Args<'a> of Procedure {
        Null(()),
        Getattr(FileArgs<'a>),
        Setattr(SetattrArgs<'a>),
        Lookup(DirOpArgs<'a>),
        Access(AccessArgs<'a>),
        Readlink(FileArgs<'a>),
        Read(ReadArgs<'a>),
        Write(WriteArgs<'a>),
        Create(CreateArgs<'a>),
        Mkdir(MkdirArgs<'a>),
        Symlink(SymlinkArgs<'a>),
        Mknod(MknodArgs<'a>),
        Remove(DirOpArgs<'a>),
        Rmdir(DirOpArgs<'a>),
        Rename(RenameArgs<'a>),
        Link(LinkArgs<'a>),
        Readdir(ReaddirArgs<'a>),
        Readdirplus(ReaddirplusArgs<'a>),
        Fsstat(FileArgs<'a>),
        Fsinfo(FileArgs<'a>),
        Pathconf(FileArgs<'a>),
        Commit(CommitArgs<'a>),
    }
}

messages! {
    /// Results of a call.
    pub enum Results<'a> of Procedure {
        Null(()),
        Getattr(Nfs3Result<GetattrResok, ()>),
        Setattr(Nfs3Result<WccData, WccData>),
        Lookup(Nfs3Result<LookupResok<'a>, PostOpAttr>),
        Access(Nfs3Result<AccessResok, PostOpAttr>),
        Readlink(Nfs3Result<ReadlinkResok<'a>, PostOpAttr>),
        Read(Nfs3Result<ReadResok<'a>, PostOpAttr>),
        Write(Nfs3Result<WriteResok, WccData>),
        Create(Nfs3Result<CreateResok<'a>, WccData>),
        Mkdir(Nfs3Result<CreateResok<'a>, WccData>),
        Symlink(Nfs3Result<CreateResok<'a>, WccData>),
        Mknod(Nfs3Result<CreateResok<'a>, WccData>),
        Remove(Nfs3Result<WccData, WccData>),
        Rmdir(Nfs3Result<WccData, WccData>),
        Rename(Nfs3Result<RenameWcc, RenameWcc>),
        Link(Nfs3Result<LinkWcc, LinkWcc>),
        Readdir(Nfs3Result<ReaddirResok<'a>, PostOpAttr>),
        Readdirplus(Nfs3Result<ReaddirplusResok<'a>, PostOpAttr>),
        Fsstat(Nfs3Result<FsstatResok, PostOpAttr>),
        Fsinfo(Nfs3Result<FsinfoResok, PostOpAttr>),
        Pathconf(Nfs3Result<PathconfResok, PostOpAttr>),
        Commit(Nfs3Result<CommitResok, WccData>),
    }
}
