//! Arguments of the procedures of NFSv3.
//!
//! `results` has the results, `procedures` the numbers.
//!
//! Spec: RFC 1813 section 3.3.
//!
//! Invariant: a decoded argument is within the bounds of its types; the server checks its meaning,
//! such as the length of a name or the count of a read.

use weir_oncrpc::xdr::UNBOUNDED;
use weir_oncrpc::{Decoder, Encoder, Opaque, Xdr, XdrError};

use super::attributes::{
    FileHandle, FileName, FilePath, Ftype3, Nfstime3, Sattr3, Specdata3, StableHow, Verifier,
};

/// Bits of the access that ACCESS checks (3.3.4).
pub mod access {
    /// ACCESS3_READ: read data of a file, or list a directory.
    pub const READ: u32 = 0x0001;
    /// ACCESS3_LOOKUP: look up a name in a directory.
    pub const LOOKUP: u32 = 0x0002;
    /// ACCESS3_MODIFY: change existing data or entries.
    pub const MODIFY: u32 = 0x0004;
    /// ACCESS3_EXTEND: write new data or add entries.
    pub const EXTEND: u32 = 0x0008;
    /// ACCESS3_DELETE: delete an entry of the directory.
    pub const DELETE: u32 = 0x0010;
    /// ACCESS3_EXECUTE: execute a file.
    pub const EXECUTE: u32 = 0x0020;
    /// All bits.
    pub const ALL: u32 = 0x003f;
}

weir_oncrpc::xdr_struct! {
    /// Argument of GETATTR, READLINK, FSSTAT, FSINFO and PATHCONF: one handle.
    #[derive(Copy)]
    pub struct FileArgs<'a> {
        /// Handle of the object; for FSSTAT and FSINFO of any object of the file system.
        pub object: FileHandle<'a>,
    }

    /// A name in a directory (diropargs3): arguments of LOOKUP, REMOVE and RMDIR.
    #[derive(Copy)]
    pub struct DirOpArgs<'a> {
        /// Handle of the directory.
        pub dir: FileHandle<'a>,
        /// Name of the entry.
        pub name: FileName<'a>,
    }

    /// Arguments of SETATTR (3.3.2).
    #[derive(Copy)]
    pub struct SetattrArgs<'a> {
        /// Handle of the object.
        pub object: FileHandle<'a>,
        /// Attributes to set.
        pub new_attributes: Sattr3,
        /// Guard (sattrguard3): if the ctime of the object differs, the server changes nothing and
        /// replies NFS3ERR_NOT_SYNC.
        pub guard: Option<Nfstime3>,
    }

    /// Arguments of ACCESS (3.3.4).
    #[derive(Copy)]
    pub struct AccessArgs<'a> {
        /// Handle of the object.
        pub object: FileHandle<'a>,
        /// Bits to check ([`access`]).
        pub access: u32,
    }

    /// Arguments of READ (3.3.6).
    #[derive(Copy)]
    pub struct ReadArgs<'a> {
        /// Handle of the file.
        pub file: FileHandle<'a>,
        /// Position of the first byte.
        pub offset: u64,
        /// Number of bytes; the server may return fewer.
        pub count: u32,
    }

    /// Arguments of WRITE (3.3.7).
    #[derive(Copy)]
    pub struct WriteArgs<'a> {
        /// Handle of the file.
        pub file: FileHandle<'a>,
        /// Position of the first byte.
        pub offset: u64,
        /// Number of bytes to write; a client sets it to the length of `data`.
        pub count: u32,
        /// Stability that the client requests.
        pub stable: StableHow,
        /// Data, bounded only by the record.
        pub data: Opaque<'a, UNBOUNDED>,
    }

    /// Arguments of CREATE (3.3.8).
    #[derive(Copy)]
    pub struct CreateArgs<'a> {
        /// Directory and name of the file.
        pub place: DirOpArgs<'a>,
        /// Mode of creation.
        pub how: CreateHow,
    }

    /// Arguments of MKDIR (3.3.9).
    #[derive(Copy)]
    pub struct MkdirArgs<'a> {
        /// Directory and name of the new directory.
        pub place: DirOpArgs<'a>,
        /// Attributes to set.
        pub attributes: Sattr3,
    }

    /// Arguments of SYMLINK (3.3.10).
    #[derive(Copy)]
    pub struct SymlinkArgs<'a> {
        /// Directory and name of the link.
        pub place: DirOpArgs<'a>,
        /// Attributes to set.
        pub attributes: Sattr3,
        /// Target of the link.
        pub target: FilePath<'a>,
    }

    /// Arguments of MKNOD (3.3.11).
    #[derive(Copy)]
    pub struct MknodArgs<'a> {
        /// Directory and name of the file.
        pub place: DirOpArgs<'a>,
        /// Type and attributes of the file.
        pub what: MknodData,
    }

    /// Arguments of RENAME (3.3.14).
    #[derive(Copy)]
    pub struct RenameArgs<'a> {
        /// Directory and name of the existing entry.
        pub from: DirOpArgs<'a>,
        /// Directory and name of the new entry.
        pub to: DirOpArgs<'a>,
    }

    /// Arguments of LINK (3.3.15).
    #[derive(Copy)]
    pub struct LinkArgs<'a> {
        /// Handle of the existing file.
        pub file: FileHandle<'a>,
        /// Directory and name of the new entry.
        pub link: DirOpArgs<'a>,
    }

    /// Arguments of READDIR (3.3.16).
    #[derive(Copy)]
    pub struct ReaddirArgs<'a> {
        /// Handle of the directory.
        pub dir: FileHandle<'a>,
        /// Cookie of the last entry that the client received; 0 at the start.
        pub cookie: u64,
        /// Verifier that came with the cookie; zeros at the start.
        pub cookieverf: Verifier,
        /// Maximum length of the encoded [`ReaddirResok`](super::ReaddirResok) in bytes.
        pub count: u32,
    }

    /// Arguments of READDIRPLUS (3.3.17).
    #[derive(Copy)]
    pub struct ReaddirplusArgs<'a> {
        /// Handle of the directory.
        pub dir: FileHandle<'a>,
        /// Cookie of the last entry that the client received; 0 at the start.
        pub cookie: u64,
        /// Verifier that came with the cookie; zeros at the start.
        pub cookieverf: Verifier,
        /// Maximum number of bytes of directory information: numbers, names and cookies, without
        /// attributes and handles.
        pub dircount: u32,
        /// Maximum length of the encoded [`ReaddirplusResok`](super::ReaddirplusResok) in bytes.
        pub maxcount: u32,
    }

    /// Arguments of COMMIT (3.3.21).
    #[derive(Copy)]
    pub struct CommitArgs<'a> {
        /// Handle of the file.
        pub file: FileHandle<'a>,
        /// Position of the first byte.
        pub offset: u64,
        /// Number of bytes; 0 means up to the end of the file.
        pub count: u32,
    }
}

/// Arguments of WRITE before its data. A server decodes them from the received part of a record and
/// then receives the data directly to its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHead<'a> {
    /// Handle of the file.
    pub file: FileHandle<'a>,
    /// Position of the first byte.
    pub offset: u64,
    /// Number of bytes to write, as the client states it.
    pub count: u32,
    /// Stability that the client requests.
    pub stable: StableHow,
    /// Length of the data that follows, without its padding. A server compares it with `count`, and
    /// with the length of the record before it receives the data.
    pub data_bytes: usize,
}

impl<'a> WriteHead<'a> {
    /// Decodes the arguments before the data. The decoder is then at the first byte of the data.
    ///
    /// # Errors
    /// [`XdrError::Truncated`] if the input ends inside the head; other errors as for
    /// [`WriteArgs`].
    pub fn decode(input: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            file: Xdr::decode(input)?,
            offset: input.u64()?,
            count: input.u32()?,
            stable: Xdr::decode(input)?,
            data_bytes: input.length(UNBOUNDED)?,
        })
    }
}

/// Mode of creation (createhow3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// UNCHECKED: an existing file is no error.
    Unchecked(Sattr3),
    /// GUARDED: the file must not exist.
    Guarded(Sattr3),
    /// EXCLUSIVE: as GUARDED, but a file that was created with the same verifier is the result of
    /// an earlier transmission of the call.
    Exclusive(Verifier),
}

impl Xdr<'_> for CreateHow {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        match input.u32()? {
            0 => Sattr3::decode(input).map(Self::Unchecked),
            1 => Sattr3::decode(input).map(Self::Guarded),
            2 => input.fixed().map(Self::Exclusive),
            value => Err(XdrError::UnknownValue { name: "createmode3", value }),
        }
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        match self {
            Self::Unchecked(attributes) => {
                out.u32(0);
                attributes.encode(out);
            }
            Self::Guarded(attributes) => {
                out.u32(1);
                attributes.encode(out);
            }
            Self::Exclusive(verifier) => {
                out.u32(2);
                out.fixed(verifier);
            }
        }
    }
}

/// Type and attributes of a special file (mknoddata3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MknodData {
    /// NF3CHR: character device.
    CharacterDevice(Sattr3, Specdata3),
    /// NF3BLK: block device.
    BlockDevice(Sattr3, Specdata3),
    /// NF3SOCK: socket.
    Socket(Sattr3),
    /// NF3FIFO: named pipe.
    Fifo(Sattr3),
    /// NF3REG, NF3DIR or NF3LNK, which MKNOD cannot create: the server replies NFS3ERR_BADTYPE.
    Other(OtherType),
}

weir_oncrpc::xdr_enum! {
    /// Type of a file that MKNOD cannot create.
    pub enum OtherType {
        /// NF3REG: regular file.
        Reg = 1,
        /// NF3DIR: directory.
        Dir = 2,
        /// NF3LNK: symbolic link.
        Lnk = 5,
    }
}

impl Xdr<'_> for MknodData {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(match Ftype3::decode(input)? {
            Ftype3::Chr => Self::CharacterDevice(Xdr::decode(input)?, Xdr::decode(input)?),
            Ftype3::Blk => Self::BlockDevice(Xdr::decode(input)?, Xdr::decode(input)?),
            Ftype3::Sock => Self::Socket(Xdr::decode(input)?),
            Ftype3::Fifo => Self::Fifo(Xdr::decode(input)?),
            Ftype3::Reg => Self::Other(OtherType::Reg),
            Ftype3::Dir => Self::Other(OtherType::Dir),
            Ftype3::Lnk => Self::Other(OtherType::Lnk),
        })
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        let (kind, attributes, device) = match self {
            Self::CharacterDevice(attributes, device) => (Ftype3::Chr, attributes, Some(device)),
            Self::BlockDevice(attributes, device) => (Ftype3::Blk, attributes, Some(device)),
            Self::Socket(attributes) => (Ftype3::Sock, attributes, None),
            Self::Fifo(attributes) => (Ftype3::Fifo, attributes, None),
            Self::Other(kind) => return kind.encode(out),
        };
        kind.encode(out);
        attributes.encode(out);
        if let Some(device) = device {
            device.encode(out);
        }
    }
}
