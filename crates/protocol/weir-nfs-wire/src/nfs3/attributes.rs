//! Basic data types of NFSv3: handles, names, times and attributes.
//!
//! `arguments` and `results` compose them.
//!
//! Spec: RFC 1813 sections 2.5 and 2.6.
//!
//! Invariant: encoded attributes (fattr3) always have [`Fattr3::BYTES`] bytes.

use weir_oncrpc::{Decoder, Encoder, Opaque, Xdr, XdrError};

use crate::limits::{HANDLE_BYTES_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX};

/// File handle (nfs_fh3): 0 to 64 bytes that only the server interprets.
pub type FileHandle<'a> = Opaque<'a, HANDLE_BYTES_MAX>;

/// Name in a directory (filename3): any bytes; the server checks for `/`, NUL and length.
pub type FileName<'a> = Opaque<'a, NAME_BYTES_MAX>;

/// Target of a symbolic link (nfspath3).
pub type FilePath<'a> = Opaque<'a, PATH_BYTES_MAX>;

/// Verifier of 8 bytes (cookieverf3, createverf3, writeverf3).
pub type Verifier = [u8; 8];

/// Attributes after an operation, if the server knows them (post_op_attr).
pub type PostOpAttr = Option<Fattr3>;

weir_oncrpc::xdr_enum! {
    /// Type of a file (ftype3).
    pub enum Ftype3 {
        /// NF3REG: regular file.
        Reg = 1,
        /// NF3DIR: directory.
        Dir = 2,
        /// NF3BLK: block device.
        Blk = 3,
        /// NF3CHR: character device.
        Chr = 4,
        /// NF3LNK: symbolic link.
        Lnk = 5,
        /// NF3SOCK: socket.
        Sock = 6,
        /// NF3FIFO: named pipe.
        Fifo = 7,
    }

    /// Stability of written data (stable_how).
    #[derive(PartialOrd, Ord)]
    pub enum StableHow {
        /// UNSTABLE: the server may lose the data in a crash, until a COMMIT.
        Unstable = 0,
        /// DATA_SYNC: the data is durable, and the metadata that is needed to read it.
        DataSync = 1,
        /// FILE_SYNC: the data and all metadata are durable.
        FileSync = 2,
    }
}

weir_oncrpc::xdr_struct! {
    /// Device numbers (specdata3).
    #[derive(Copy, Default)]
    pub struct Specdata3 {
        /// Major number (specdata1).
        pub major: u32,
        /// Minor number (specdata2).
        pub minor: u32,
    }

    /// Time since 1970-01-01 00:00 UTC (nfstime3). Times before 1970 and after 2106 cannot be
    /// expressed.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct Nfstime3 {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds; below 10^9 in a valid time. A server checks the times of clients
        /// ([`Nfstime3::is_valid`]).
        pub nanos: u32,
    }

    /// File attributes (fattr3).
    #[derive(Copy)]
    pub struct Fattr3 {
        /// Type of the file.
        pub kind: Ftype3,
        /// Permission bits, without the type: at most `0o7777`.
        pub mode: u32,
        /// Number of hard links.
        pub nlink: u32,
        /// User id of the owner.
        pub uid: u32,
        /// Group id of the owner.
        pub gid: u32,
        /// Size in bytes.
        pub size: u64,
        /// Bytes of storage that the file uses.
        pub used: u64,
        /// Device numbers, of block and character devices.
        pub rdev: Specdata3,
        /// Identifier of the file system.
        pub fsid: u64,
        /// Number of the file, unique in its file system.
        pub fileid: u64,
        /// Time of the last access.
        pub atime: Nfstime3,
        /// Time of the last change of the data.
        pub mtime: Nfstime3,
        /// Time of the last change of the attributes.
        pub ctime: Nfstime3,
    }

    /// Attributes before an operation that changed the file (wcc_attr).
    #[derive(Copy)]
    pub struct WccAttr {
        /// Size in bytes.
        pub size: u64,
        /// Time of the last change of the data.
        pub mtime: Nfstime3,
        /// Time of the last change of the attributes.
        pub ctime: Nfstime3,
    }

    /// Weak cache consistency data (wcc_data). A client keeps its cache if `before` matches its
    /// cached attributes; so the server reads both parts atomically with the change.
    #[derive(Copy, Default)]
    pub struct WccData {
        /// Attributes before the operation (pre_op_attr).
        pub before: Option<WccAttr>,
        /// Attributes after the operation.
        pub after: PostOpAttr,
    }

    /// Attributes to set (sattr3). `None` leaves an attribute unchanged.
    #[derive(Copy, Default)]
    pub struct Sattr3 {
        /// Permission bits.
        pub mode: Option<u32>,
        /// User id of the owner.
        pub uid: Option<u32>,
        /// Group id of the owner.
        pub gid: Option<u32>,
        /// Size in bytes; the server truncates or extends the file.
        pub size: Option<u64>,
        /// Time of the last access.
        pub atime: SetTime,
        /// Time of the last change of the data.
        pub mtime: SetTime,
    }
}

impl Fattr3 {
    /// Encoded length in bytes.
    pub const BYTES: usize = 84;
}

impl Nfstime3 {
    /// Latest time.
    pub const MAX: Self = Self { seconds: u32::MAX, nanos: 999_999_999 };

    /// Converts a time in seconds since 1970 and nanoseconds (below 10^9). An earlier time becomes
    /// 1970, and a later one [`Nfstime3::MAX`].
    pub fn saturating_from(seconds: i64, nanos: u32) -> Self {
        match u32::try_from(seconds) {
            Ok(seconds) => Self { seconds, nanos: nanos.min(999_999_999) },
            Err(_) if seconds < 0 => Self::default(),
            Err(_) => Self::MAX,
        }
    }

    /// True if the nanoseconds are below 10^9.
    pub const fn is_valid(&self) -> bool {
        self.nanos < 1_000_000_000
    }
}

/// Change of a time (set_atime, set_mtime).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// DONT_CHANGE.
    #[default]
    DontChange,
    /// SET_TO_SERVER_TIME: the clock of the server.
    ServerTime,
    /// SET_TO_CLIENT_TIME: this time.
    ClientTime(Nfstime3),
}

impl Xdr<'_> for SetTime {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        match input.u32()? {
            0 => Ok(Self::DontChange),
            1 => Ok(Self::ServerTime),
            2 => Nfstime3::decode(input).map(Self::ClientTime),
            value => Err(XdrError::UnknownValue { name: "time_how", value }),
        }
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        match self {
            Self::DontChange => out.u32(0),
            Self::ServerTime => out.u32(1),
            Self::ClientTime(time) => {
                out.u32(2);
                time.encode(out);
            }
        }
    }
}

impl Fattr3 {
    /// Attributes for a reply to an operation on the file before its change.
    pub const fn wcc(&self) -> WccAttr {
        WccAttr { size: self.size, mtime: self.mtime, ctime: self.ctime }
    }
}
