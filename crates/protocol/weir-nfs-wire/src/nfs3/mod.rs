//! NFS version 3 (RFC 1813): 22 procedures, their arguments and results.

mod attributes;
mod status;

mod arguments;
mod results;

mod directory_reply;
mod read_reply;

mod procedures;

pub use arguments::{
    AccessArgs, CommitArgs, CreateArgs, CreateHow, DirOpArgs, FileArgs, LinkArgs, MkdirArgs,
    MknodArgs, MknodData, OtherType, ReadArgs, ReaddirArgs, ReaddirplusArgs, RenameArgs,
    SetattrArgs, SymlinkArgs, WriteArgs, WriteHead, access,
};
pub use attributes::{
    Fattr3, FileHandle, FileName, FilePath, Ftype3, Nfstime3, PostOpAttr, Sattr3, SetTime,
    Specdata3, StableHow, Verifier, WccAttr, WccData,
};
pub use directory_reply::{DirectoryReply, DirectoryRoom};
pub use procedures::{Args, PROGRAM, Procedure, Results, VERSION};
pub use read_reply::{ReadReply, encode_read_head};
pub use results::{
    AccessResok, CommitResok, CreateResok, Entry, EntryPlus, FsinfoResok, FsstatResok,
    GetattrResok, LinkWcc, LookupResok, Nfs3Result, PathconfResok, ReadResok, ReaddirResok,
    ReaddirplusResok, ReadlinkResok, RenameWcc, WriteResok, properties,
};
pub use status::Nfsstat3;
