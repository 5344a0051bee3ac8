//! Results of the procedures of NFSv3.
//!
//! `arguments` has the arguments. Servers encode READ, READDIR and READDIRPLUS with `read_reply`
//! and `directory_reply`, which need no list of all entries.
//!
//! Spec: RFC 1813 section 3.3.
//!
//! Invariant: an error carries the attributes that the RFC lists for it, if the server knows them.

use weir_oncrpc::xdr::UNBOUNDED;
use weir_oncrpc::{Failed, List, Opaque};

use super::attributes::{
    Fattr3, FileHandle, FileName, FilePath, Nfstime3, PostOpAttr, StableHow, Verifier, WccData,
};
use super::status::Nfsstat3;

/// Result of a procedure: `T` with NFS3_OK, or an error and the information `F` that follows it.
pub type Nfs3Result<T, F> = Result<T, Failed<Nfsstat3, F>>;

/// Bits of the properties of a file system (3.3.19).
pub mod properties {
    /// FSF3_LINK: hard links.
    pub const LINK: u32 = 0x0001;
    /// FSF3_SYMLINK: symbolic links.
    pub const SYMLINK: u32 = 0x0002;
    /// FSF3_HOMOGENEOUS: PATHCONF is the same for all files.
    pub const HOMOGENEOUS: u32 = 0x0008;
    /// FSF3_CANSETTIME: SETATTR can set times to the resolution of `time_delta`.
    pub const CANSETTIME: u32 = 0x0010;
}

weir_oncrpc::xdr_struct! {
    /// Result of GETATTR (3.3.1).
    #[derive(Copy)]
    pub struct GetattrResok {
        /// Attributes of the object.
        pub attributes: Fattr3,
    }

    /// Result of LOOKUP (3.3.3).
    #[derive(Copy)]
    pub struct LookupResok<'a> {
        /// Handle of the object.
        pub object: FileHandle<'a>,
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Attributes of the directory.
        pub dir_attributes: PostOpAttr,
    }

    /// Result of ACCESS (3.3.4).
    #[derive(Copy)]
    pub struct AccessResok {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Bits of the request that are granted ([`access`](super::access)).
        pub access: u32,
    }

    /// Result of READLINK (3.3.5).
    #[derive(Copy)]
    pub struct ReadlinkResok<'a> {
        /// Attributes of the link.
        pub attributes: PostOpAttr,
        /// Target of the link.
        pub target: FilePath<'a>,
    }

    /// Result of READ (3.3.6).
    #[derive(Copy)]
    pub struct ReadResok<'a> {
        /// Attributes of the file.
        pub attributes: PostOpAttr,
        /// Number of bytes in `data`.
        pub count: u32,
        /// True if the read ended at the end of the file.
        pub eof: bool,
        /// Data, bounded only by the record.
        pub data: Opaque<'a, UNBOUNDED>,
    }

    /// Result of WRITE (3.3.7).
    #[derive(Copy)]
    pub struct WriteResok {
        /// Attributes of the file, before and after.
        pub wcc: WccData,
        /// Number of bytes that were written.
        pub count: u32,
        /// Stability of the data: at least the requested one.
        pub committed: StableHow,
        /// Verifier of the server; it changes when the server may have lost unstable data.
        pub verifier: Verifier,
    }

    /// Result of CREATE, MKDIR, SYMLINK and MKNOD (3.3.8 to 3.3.11).
    #[derive(Copy)]
    pub struct CreateResok<'a> {
        /// Handle of the new object (post_op_fh3).
        pub object: Option<FileHandle<'a>>,
        /// Attributes of the new object.
        pub attributes: PostOpAttr,
        /// Attributes of the directory, before and after.
        pub dir_wcc: WccData,
    }

    /// Result of RENAME (3.3.14), with and without success.
    #[derive(Copy, Default)]
    pub struct RenameWcc {
        /// Attributes of the directory of the old entry, before and after.
        pub from_dir: WccData,
        /// Attributes of the directory of the new entry, before and after.
        pub to_dir: WccData,
    }

    /// Result of LINK (3.3.15), with and without success.
    #[derive(Copy, Default)]
    pub struct LinkWcc {
        /// Attributes of the file.
        pub attributes: PostOpAttr,
        /// Attributes of the directory of the new entry, before and after.
        pub dir_wcc: WccData,
    }

    /// Entry of READDIR (entry3).
    #[derive(Copy)]
    pub struct Entry<'a> {
        /// Number of the file.
        pub fileid: u64,
        /// Name of the entry.
        pub name: FileName<'a>,
        /// Cookie with which the next call continues behind this entry.
        pub cookie: u64,
    }

    /// Entry of READDIRPLUS (entryplus3).
    #[derive(Copy)]
    pub struct EntryPlus<'a> {
        /// Number of the file.
        pub fileid: u64,
        /// Name of the entry.
        pub name: FileName<'a>,
        /// Cookie with which the next call continues behind this entry.
        pub cookie: u64,
        /// Attributes of the file.
        pub attributes: PostOpAttr,
        /// Handle of the file (post_op_fh3).
        pub handle: Option<FileHandle<'a>>,
    }

    /// Result of READDIR (3.3.16).
    pub struct ReaddirResok<'a> {
        /// Attributes of the directory.
        pub dir_attributes: PostOpAttr,
        /// Verifier of the cookies.
        pub cookieverf: Verifier,
        /// Entries (entries of dirlist3).
        pub entries: List<Entry<'a>>,
        /// True if the last entry is the last of the directory (eof of dirlist3).
        pub eof: bool,
    }

    /// Result of READDIRPLUS (3.3.17).
    pub struct ReaddirplusResok<'a> {
        /// Attributes of the directory.
        pub dir_attributes: PostOpAttr,
        /// Verifier of the cookies.
        pub cookieverf: Verifier,
        /// Entries (entries of dirlistplus3).
        pub entries: List<EntryPlus<'a>>,
        /// True if the last entry is the last of the directory (eof of dirlistplus3).
        pub eof: bool,
    }

    /// Result of FSSTAT (3.3.18).
    #[derive(Copy)]
    pub struct FsstatResok {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Size of the file system in bytes (tbytes).
        pub total_bytes: u64,
        /// Free bytes (fbytes).
        pub free_bytes: u64,
        /// Free bytes that the caller may use (abytes).
        pub available_bytes: u64,
        /// Maximum number of files (tfiles).
        pub total_files: u64,
        /// Number of files that can still be created (ffiles).
        pub free_files: u64,
        /// Number of files that the caller can still create (afiles).
        pub available_files: u64,
        /// Time in seconds for which the numbers are not expected to change (invarsec).
        pub invariant_seconds: u32,
    }

    /// Result of FSINFO (3.3.19). All lengths are in bytes.
    #[derive(Copy)]
    pub struct FsinfoResok {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Maximum length of a read.
        pub rtmax: u32,
        /// Preferred length of a read.
        pub rtpref: u32,
        /// Suggested multiple of the length of a read.
        pub rtmult: u32,
        /// Maximum length of a write.
        pub wtmax: u32,
        /// Preferred length of a write.
        pub wtpref: u32,
        /// Suggested multiple of the length of a write.
        pub wtmult: u32,
        /// Preferred count of READDIR.
        pub dtpref: u32,
        /// Maximum size of a file.
        pub maxfilesize: u64,
        /// Resolution of times.
        pub time_delta: Nfstime3,
        /// Features of the file system ([`properties`]).
        pub properties: u32,
    }

    /// Result of PATHCONF (3.3.20).
    #[derive(Copy)]
    pub struct PathconfResok {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Maximum number of hard links to a file.
        pub linkmax: u32,
        /// Maximum length of a name in bytes.
        pub name_max: u32,
        /// True if the server rejects names that are too long; false if it truncates them.
        pub no_trunc: bool,
        /// True if only a privileged user may change the owner of a file.
        pub chown_restricted: bool,
        /// True if names are compared without case.
        pub case_insensitive: bool,
        /// True if the server preserves the case of names.
        pub case_preserving: bool,
    }

    /// Result of COMMIT (3.3.21).
    #[derive(Copy)]
    pub struct CommitResok {
        /// Attributes of the file, before and after.
        pub wcc: WccData,
        /// Verifier of the server, as in [`WriteResok`].
        pub verifier: Verifier,
    }
}
