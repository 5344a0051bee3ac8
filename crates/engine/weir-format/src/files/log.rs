//! Log records of a filesystem. Each record has all results of its operation, such as inode
//! numbers, keys and times, so that a replay decides nothing.
//!
//! The engine stores the records in the intent log (`log`) without interpreting them. weir-fs
//! applies a record with the same code in operations and in replays.
//!
//! Invariants: a record has one encoding; a decoded record has valid fields. weir-fs checks whether
//! the record fits the filesystem.

use weir_base::{BLOCK_BYTES, ObjectId, Txg};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::files::directory::{DirectoryEntry, EntryKey};
use crate::files::inode::{Inode, TimeStamp};
use crate::files::usage::{Limits, OwnerId, OwnerKind};
use crate::log::OBJECT_TYPE_MIN;
use crate::object_slot::ObjectSlot;

const WHAT: &str = "filesystem log record";

/// Maximum length of a value of an extended attribute (Linux, `XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// Maximum length of the target of a symbolic link (Linux, `PATH_MAX` without the NUL).
pub const TARGET_BYTES_MAX: usize = 4095;

/// Txg and time of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Txg that was open when the client changed the filesystem. The txg sets a lower bound for the
    /// new change number of each changed inode.
    pub txg: Txg,
    /// New ctime of each changed inode.
    pub time: TimeStamp,
}

/// A directory entry that a record adds or removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedEntry<'a> {
    /// The directory.
    pub directory: ObjectId,
    /// Key of the entry.
    pub key: EntryKey,
    /// Name of the entry.
    pub name: &'a [u8],
}

/// State of an inode after a record removed one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The inode has other names.
    Named,
    /// The inode has no name, but a client has the file open.
    Orphan,
    /// The inode is unused.
    Freed,
    /// The inode has no name, and a background task frees its blocks.
    Freeing,
}

/// New values of attributes. `None`: the attribute does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    /// Permission bits, set-id bits and sticky bit.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Project.
    pub project: Option<u32>,
    /// Bits such as *immutable*.
    pub flags: Option<u32>,
    /// Size of a file in bytes. A smaller size drops the bytes after the new end.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<TimeStamp>,
    /// Time of the last change of data.
    pub mtime: Option<TimeStamp>,
}

/// A change of a filesystem in the intent log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRecord<'a> {
    /// Writes data to the file.
    Write {
        /// First byte of the file that changes.
        offset: u64,
        /// Data before the whole blocks.
        head: &'a [u8],
        /// Data in whole blocks. It follows the encoded record.
        blocks: &'a [u8],
        /// Data after the whole blocks.
        tail: &'a [u8],
        /// Permission bits after the write: a write by a client clears the set-id bits.
        permissions: u32,
    },
    /// Makes a range of the file a hole. The size does not change.
    Zero {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Permission bits after the change.
        permissions: u32,
    },
    /// Changes attributes of the inode.
    SetAttributes(AttributeChanges),
    /// Sets or removes an extended attribute. ACLs are extended attributes, too.
    SetXattr {
        /// Name with its namespace.
        name: &'a [u8],
        /// New value; `None` removes the attribute.
        value: Option<&'a [u8]>,
        /// Number for the object of large attributes, if the change creates this object.
        object: Option<ObjectId>,
    },
    /// Creates an inode and its first name.
    Create {
        /// The name; `None` for a file without a name (O_TMPFILE).
        entry: Option<NamedEntry<'a>>,
        /// The inode.
        inode: Box<Inode>,
        /// Target of a symbolic link, if the target is too long for the inode; otherwise empty.
        target: &'a [u8],
    },
    /// Adds a name to the inode.
    Link {
        /// The name.
        entry: NamedEntry<'a>,
    },
    /// Removes a name of the inode.
    Remove {
        /// The name.
        entry: NamedEntry<'a>,
        /// State of the inode after the removal.
        fate: Fate,
    },
    /// Moves the inode from one name to another.
    Rename {
        /// The old name.
        from: NamedEntry<'a>,
        /// The new name.
        to: NamedEntry<'a>,
        /// Inode that had the new name, with its state after the rename.
        replaced: Option<(ObjectId, Fate)>,
    },
    /// Exchanges the inodes of two names.
    Exchange {
        /// Name of the inode before the exchange.
        from: NamedEntry<'a>,
        /// Name of the inode after the exchange.
        to: NamedEntry<'a>,
        /// The other inode.
        other: ObjectId,
    },
    /// Frees an inode without a name.
    Release,
    /// Begins to free the blocks of an inode without a name, which no client has open.
    BeginFreeing,
    /// Stores the time of the last read of the inode.
    Access {
        /// The time.
        atime: TimeStamp,
    },
    /// Sets the limits of a user, group or project.
    SetLimits {
        /// The owner of files to whom the limits apply.
        owner: OwnerId,
        /// The limits.
        limits: Limits,
    },
}

impl Fate {
    const ALL: [Self; 4] = [Self::Named, Self::Orphan, Self::Freed, Self::Freeing];

    fn code(self) -> u8 {
        match self {
            Self::Named => 0,
            Self::Orphan => 1,
            Self::Freed => 2,
            Self::Freeing => 3,
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let code = r.u8()?;
        Self::ALL.into_iter().find(|fate| fate.code() == code).ok_or_else(|| r.bad("fate", code))
    }
}

impl Stamp {
    fn write(self, w: &mut Writer) {
        w.u48(self.txg.0);
        self.time.write(w);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        Ok(Self { txg: Txg(r.u48()?), time: TimeStamp::read(r)? })
    }
}

impl<'a> NamedEntry<'a> {
    fn write(&self, w: &mut Writer) {
        w.u64(self.directory.0);
        w.u64(self.key.number());
        w.sized(|w| w.bytes(self.name));
    }

    fn read(r: &mut Reader<'a>) -> Result<Self, FormatError> {
        let directory = read_inode_number(r)?;
        let key = r.u64()?;
        let key = EntryKey::new(key).ok_or_else(|| r.bad("key", key))?;
        let mut name = r.sized()?;
        let name = name.take(name.left())?;
        if !DirectoryEntry::is_name(name) {
            return Err(r.bad("name", name.len() as u64));
        }
        Ok(Self { directory, key, name })
    }
}

fn read_inode_number(r: &mut Reader<'_>) -> Result<ObjectId, FormatError> {
    let number = r.u64()?;
    let is_valid = (1..crate::OBJECTS_MAX).contains(&number);
    if is_valid { Ok(ObjectId(number)) } else { Err(r.bad("inode number", number)) }
}

fn read_permissions(r: &mut Reader<'_>) -> Result<u32, FormatError> {
    let bits = r.u32()?;
    if bits > Inode::PERMISSIONS { Err(r.bad("permissions", bits)) } else { Ok(bits) }
}

/// Bits of the mask of [`AttributeChanges`].
const PERMISSIONS: u8 = 1;
const UID: u8 = 2;
const GID: u8 = 4;
const PROJECT: u8 = 8;
const FLAGS: u8 = 16;
const SIZE: u8 = 32;
const ATIME: u8 = 64;
const MTIME: u8 = 128;

impl AttributeChanges {
    fn write(&self, w: &mut Writer) {
        let bits = [
            (PERMISSIONS, self.permissions.is_some()),
            (UID, self.uid.is_some()),
            (GID, self.gid.is_some()),
            (PROJECT, self.project.is_some()),
            (FLAGS, self.flags.is_some()),
            (SIZE, self.size.is_some()),
            (ATIME, self.atime.is_some()),
            (MTIME, self.mtime.is_some()),
        ];
        w.u8(bits.into_iter().filter(|(_, is_set)| *is_set).map(|(bit, _)| bit).sum());
        let numbers = [self.permissions, self.uid, self.gid, self.project, self.flags];
        numbers.into_iter().flatten().for_each(|number| w.u32(number));
        self.size.into_iter().for_each(|size| w.u64(size));
        [self.atime, self.mtime].into_iter().flatten().for_each(|time| time.write(w));
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let mask = r.u8()?;
        let permissions = (mask & PERMISSIONS != 0).then(|| read_permissions(r)).transpose()?;
        let mut number = |bit| (mask & bit != 0).then(|| r.u32()).transpose();
        let [uid, gid, project, flags] =
            [number(UID)?, number(GID)?, number(PROJECT)?, number(FLAGS)?];
        let size = (mask & SIZE != 0).then(|| r.u64()).transpose()?;
        let mut time = |bit| (mask & bit != 0).then(|| TimeStamp::read(r)).transpose();
        let (atime, mtime) = (time(ATIME)?, time(MTIME)?);
        Ok(Self { permissions, uid, gid, project, flags, size, atime, mtime })
    }
}

impl<'a> FileRecord<'a> {
    /// Types of records in the log. The codes are in the order of the variants.
    const WRITE: u8 = OBJECT_TYPE_MIN;
    const ZERO: u8 = OBJECT_TYPE_MIN + 1;
    const SET_ATTRIBUTES: u8 = OBJECT_TYPE_MIN + 2;
    const SET_XATTR: u8 = OBJECT_TYPE_MIN + 3;
    const CREATE: u8 = OBJECT_TYPE_MIN + 4;
    const LINK: u8 = OBJECT_TYPE_MIN + 5;
    const REMOVE: u8 = OBJECT_TYPE_MIN + 6;
    const RENAME: u8 = OBJECT_TYPE_MIN + 7;
    const EXCHANGE: u8 = OBJECT_TYPE_MIN + 8;
    const RELEASE: u8 = OBJECT_TYPE_MIN + 9;
    const BEGIN_FREEING: u8 = OBJECT_TYPE_MIN + 10;
    const ACCESS: u8 = OBJECT_TYPE_MIN + 11;
    const SET_LIMITS: u8 = OBJECT_TYPE_MIN + 12;

    /// Layout of the records, for the format documentation.
    pub const FIELDS: &'static [Field] = &[
        field(6, "txg", "txg that was open at the change"),
        field(12, "time", "seconds (i64), nanoseconds (u32)"),
        field(
            0,
            "fields",
            "by type. 16 write: offset, permissions (u32), lengths of head and tail (u32 each), \
             head, tail; whole blocks follow. 17 zero: offset, bytes, permissions (u32). 18 \
             attributes: mask (u8), changed values. 19 xattr: is set (u8), new object of large \
             attributes (0: none), name, value. 20 create: has a name (u8), entry, long target, \
             inode without the zeros at its end. 21 link: entry. 22 remove: entry, fate. 23 \
             rename: old entry, new entry, replaced inode (0: none), fate. 24 exchange: both \
             entries, other inode. 25 release: nothing. 26 begin freeing: nothing. 27 access: \
             atime. 28 limits: kind (u8: 0 user, 1 group, 2 project), number (u32), blocks, \
             inodes. An entry has directory, key and name; a name or target has its length (u16)",
        ),
    ];

    /// True if the change removes a name or frees an inode without a name.
    pub const fn removes(&self) -> bool {
        matches!(self, Self::Remove { .. } | Self::Release | Self::BeginFreeing)
    }

    /// Type of the record in the log.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Write { .. } => Self::WRITE,
            Self::Zero { .. } => Self::ZERO,
            Self::SetAttributes(_) => Self::SET_ATTRIBUTES,
            Self::SetXattr { .. } => Self::SET_XATTR,
            Self::Create { .. } => Self::CREATE,
            Self::Link { .. } => Self::LINK,
            Self::Remove { .. } => Self::REMOVE,
            Self::Rename { .. } => Self::RENAME,
            Self::Exchange { .. } => Self::EXCHANGE,
            Self::Release => Self::RELEASE,
            Self::BeginFreeing => Self::BEGIN_FREEING,
            Self::Access { .. } => Self::ACCESS,
            Self::SetLimits { .. } => Self::SET_LIMITS,
        }
    }

    /// Encodes the record, without the whole blocks of a write.
    pub fn encode(&self, stamp: Stamp) -> Vec<u8> {
        let mut w = Writer::default();
        stamp.write(&mut w);
        match self {
            Self::Write { offset, head, tail, permissions, .. } => {
                w.u64(*offset);
                w.u32(*permissions);
                for part in [head, tail] {
                    w.u32(u32::try_from(part.len()).expect("a write has less than 4 GiB"));
                }
                w.bytes(head);
                w.bytes(tail);
            }
            Self::Zero { offset, bytes, permissions } => {
                w.u64(*offset);
                w.u64(*bytes);
                w.u32(*permissions);
            }
            Self::SetAttributes(changes) => changes.write(&mut w),
            Self::SetXattr { name, value, object } => {
                w.u8(u8::from(value.is_some()));
                w.u64(object.map_or(0, |object| object.0));
                w.sized(|w| w.bytes(name));
                w.bytes(value.unwrap_or_default());
            }
            Self::Create { entry, inode, target } => {
                w.u8(u8::from(entry.is_some()));
                entry.iter().for_each(|entry| entry.write(&mut w));
                w.sized(|w| w.bytes(target));
                let body = inode.encode();
                let used = body.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                w.bytes(body.get(..used).unwrap_or_default());
            }
            Self::Link { entry } => entry.write(&mut w),
            Self::Remove { entry, fate } => {
                entry.write(&mut w);
                w.u8(fate.code());
            }
            Self::Rename { from, to, replaced } => {
                from.write(&mut w);
                to.write(&mut w);
                let (inode, fate) = replaced.unwrap_or((ObjectId(0), Fate::Freed));
                w.u64(inode.0);
                w.u8(fate.code());
            }
            Self::Exchange { from, to, other } => {
                from.write(&mut w);
                to.write(&mut w);
                w.u64(other.0);
            }
            Self::Release | Self::BeginFreeing => {}
            Self::Access { atime } => atime.write(&mut w),
            Self::SetLimits { owner, limits } => {
                w.u8(owner.kind.code());
                w.u32(owner.id);
                w.u64(limits.blocks);
                w.u64(limits.inodes);
            }
        }
        w.0
    }

    /// Decodes a record of this type. `payload` contains the whole blocks of a write.
    ///
    /// # Errors
    /// The type is unknown, or a field has an invalid value.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<(Stamp, Self), FormatError> {
        let mut r = Reader::new(WHAT, payload);
        let stamp = Stamp::read(&mut r)?;
        let record = match kind {
            Self::WRITE => Self::read_write(&mut r)?,
            Self::ZERO => {
                let (offset, bytes) = (r.u64()?, r.u64()?);
                Self::Zero { offset, bytes, permissions: read_permissions(&mut r)? }
            }
            Self::SET_ATTRIBUTES => Self::SetAttributes(AttributeChanges::read(&mut r)?),
            Self::SET_XATTR => Self::read_xattr(&mut r)?,
            Self::CREATE => Self::read_create(&mut r)?,
            Self::LINK => Self::Link { entry: NamedEntry::read(&mut r)? },
            Self::REMOVE => {
                Self::Remove { entry: NamedEntry::read(&mut r)?, fate: Fate::read(&mut r)? }
            }
            Self::RENAME => {
                let (from, to) = (NamedEntry::read(&mut r)?, NamedEntry::read(&mut r)?);
                let (inode, fate) = (r.u64()?, Fate::read(&mut r)?);
                if inode >= crate::OBJECTS_MAX {
                    return Err(r.bad("inode number", inode));
                }
                if inode == 0 && fate != Fate::Freed {
                    return Err(r.bad("fate", fate.code()));
                }
                let replaced = (inode > 0).then_some((ObjectId(inode), fate));
                Self::Rename { from, to, replaced }
            }
            Self::EXCHANGE => Self::Exchange {
                from: NamedEntry::read(&mut r)?,
                to: NamedEntry::read(&mut r)?,
                other: read_inode_number(&mut r)?,
            },
            Self::RELEASE => Self::Release,
            Self::BEGIN_FREEING => Self::BeginFreeing,
            Self::ACCESS => Self::Access { atime: TimeStamp::read(&mut r)? },
            Self::SET_LIMITS => {
                let (code, id) = (r.u8()?, r.u32()?);
                let kind = OwnerKind::of_code(code).ok_or_else(|| r.bad("kind", code))?;
                let limits = Limits { blocks: r.u64()?, inodes: r.u64()? };
                Self::SetLimits { owner: OwnerId { kind, id }, limits }
            }
            _ => return Err(r.bad("type", kind)),
        };
        r.end("length")?;
        Ok((stamp, record))
    }

    fn read_write(r: &mut Reader<'a>) -> Result<Self, FormatError> {
        let (offset, permissions) = (r.u64()?, read_permissions(r)?);
        let (head, tail) = (r.u32()?, r.u32()?);
        let (head, tail) = (r.take(head as usize)?, r.take(tail as usize)?);
        let blocks = r.take(r.left())?;
        let bytes = (head.len() + blocks.len() + tail.len()) as u64;
        if bytes == 0 || offset.checked_add(bytes).is_none() {
            return Err(r.bad("offset", offset));
        }
        let first_block = offset + head.len() as u64;
        let is_aligned = blocks.is_empty() || first_block.is_multiple_of(BLOCK_BYTES as u64);
        if !blocks.len().is_multiple_of(BLOCK_BYTES) || !is_aligned {
            return Err(r.bad("blocks", blocks.len() as u64));
        }
        Ok(Self::Write { offset, head, blocks, tail, permissions })
    }

    fn read_xattr(r: &mut Reader<'a>) -> Result<Self, FormatError> {
        let is_set = r.u8()?;
        let object = r.u64()?;
        if object >= crate::OBJECTS_MAX {
            return Err(r.bad("object", object));
        }
        let object = (object > 0).then_some(ObjectId(object));
        let mut name = r.sized()?;
        let name = name.take(name.left())?;
        if name.is_empty() || name.len() > usize::from(u8::MAX) || name.contains(&0) {
            return Err(r.bad("xattr name", name.len() as u64));
        }
        let value = r.take(r.left())?;
        match is_set {
            0 if value.is_empty() && object.is_none() => {
                Ok(Self::SetXattr { name, value: None, object })
            }
            1 if value.len() <= XATTR_VALUE_BYTES_MAX => {
                Ok(Self::SetXattr { name, value: Some(value), object })
            }
            other => Err(r.bad("xattr value", other)),
        }
    }

    fn read_create(r: &mut Reader<'a>) -> Result<Self, FormatError> {
        let entry = match r.u8()? {
            0 => None,
            1 => Some(NamedEntry::read(r)?),
            other => return Err(r.bad("has a name", other)),
        };
        let mut target = r.sized()?;
        let target = target.take(target.left())?;
        if target.len() > TARGET_BYTES_MAX || target.contains(&0) {
            return Err(r.bad("target", target.len() as u64));
        }
        let used = r.take(r.left())?;
        if used.last() == Some(&0) {
            return Err(r.bad("inode length", used.len() as u64));
        }
        let mut body = [0; ObjectSlot::BODY_BYTES];
        let Some(start) = body.get_mut(..used.len()) else {
            return Err(r.bad("inode length", used.len() as u64));
        };
        start.copy_from_slice(used);
        let inode = Inode::decode(&body)?.ok_or_else(|| r.bad("inode state", 0u8))?;
        Ok(Self::Create { entry, inode: Box::new(inode), target })
    }
}
