//! Inode: the bytes of an object slot that belong to the filesystem.
//!
//! The first bytes of the slot, a tree root and a record size, belong to the engine
//! (`object_slot`). The fields have the meaning of the same fields of `struct stat` (POSIX.1-2017,
//! sys/stat.h).
//!
//! Invariants:
//! - the items of the area are in ascending order, so an inode has one encoding;
//! - a slot whose state is 0 is unused, and all its bytes are zero.

use weir_base::{ObjectId, Txg};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::files::directory::{FileType, NAME_BYTES_MAX};
use crate::object_slot::ObjectSlot;

const WHAT: &str = "inode";
const TYPE_SHIFT: u32 = 12;
const NANOS: u32 = 1_000_000_000;

/// State of an inode: named, without a name, being freed, or an object of extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeState {
    /// At least one directory entry names the inode.
    Named,
    /// No directory entry names the inode, and a client may have the file open.
    Orphan,
    /// No client has the file open. A background task frees its blocks.
    Freeing,
    /// The object has the large extended attributes of the inode `parent`.
    Attributes,
}

impl InodeState {
    const ALL: [Self; 4] = [Self::Named, Self::Orphan, Self::Freeing, Self::Attributes];

    fn code(self) -> u8 {
        match self {
            Self::Named => 1,
            Self::Orphan => 2,
            Self::Freeing => 3,
            Self::Attributes => 4,
        }
    }
}

/// Time since 1970-01-01 UTC without leap seconds; negative seconds are before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeStamp {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, below 10^9.
    pub nanos: u32,
}

impl TimeStamp {
    pub(crate) fn write(self, w: &mut Writer) {
        w.bytes(&self.seconds.to_le_bytes());
        w.u32(self.nanos);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let time = Self { seconds: r.u64()?.cast_signed(), nanos: r.u32()? };
        if time.nanos >= NANOS { Err(r.bad("nanoseconds", time.nanos)) } else { Ok(time) }
    }
}

/// An extended attribute with a short value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Name with its namespace, such as `user.comment`: 1 to 255 bytes without NUL.
    pub name: Box<[u8]>,
    /// Value; may be empty.
    pub value: Box<[u8]>,
}

/// Variable part of an inode. Each item that does not fit is in blocks of an object instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Target of a symbolic link.
    pub target: Option<Box<[u8]>>,
    /// Whole content of a small file.
    pub data: Option<Box<[u8]>>,
    /// Entries of a small directory, as an [`EntryList`](super::EntryList).
    pub entries: Option<Box<[u8]>>,
    /// Access ACL (acl(5)).
    pub access_acl: Option<Box<[u8]>>,
    /// ACL that new entries of a directory inherit.
    pub default_acl: Option<Box<[u8]>>,
    /// Extended attributes in ascending order of their names.
    pub xattrs: Vec<Xattr>,
}

/// Codes of the items of an area. Each item has its code, a length of two bytes, and its bytes.
const TARGET: u8 = 1;
const DATA: u8 = 2;
const ENTRIES: u8 = 3;
const ACCESS_ACL: u8 = 4;
const DEFAULT_ACL: u8 = 5;
const XATTR: u8 = 6;
/// Bytes of an item before its content.
const ITEM_HEAD_BYTES: usize = 3;

impl Area {
    /// Maximum encoded size.
    pub const BYTES: usize = ObjectSlot::BODY_BYTES - Inode::FIXED_BYTES;

    fn single(&self) -> [(u8, Option<&[u8]>); 5] {
        [
            (TARGET, self.target.as_deref()),
            (DATA, self.data.as_deref()),
            (ENTRIES, self.entries.as_deref()),
            (ACCESS_ACL, self.access_acl.as_deref()),
            (DEFAULT_ACL, self.default_acl.as_deref()),
        ]
    }

    fn single_mut(&mut self, code: u8) -> Option<&mut Option<Box<[u8]>>> {
        match code {
            TARGET => Some(&mut self.target),
            DATA => Some(&mut self.data),
            ENTRIES => Some(&mut self.entries),
            ACCESS_ACL => Some(&mut self.access_acl),
            DEFAULT_ACL => Some(&mut self.default_acl),
            _ => None,
        }
    }

    /// Encoded size in bytes. The area fits into an inode if its size is at most [`Self::BYTES`].
    pub fn encoded_bytes(&self) -> usize {
        let single = self.single().into_iter().filter_map(|(_, item)| item).map(<[u8]>::len);
        let xattrs = self.xattrs.iter().map(|xattr| 1 + xattr.name.len() + xattr.value.len());
        single.chain(xattrs).map(|bytes| ITEM_HEAD_BYTES + bytes).sum()
    }

    fn write(&self, w: &mut Writer) {
        for (code, item) in self.single() {
            let Some(item) = item else { continue };
            w.u8(code);
            w.sized(|w| w.bytes(item));
        }
        for Xattr { name, value } in &self.xattrs {
            w.u8(XATTR);
            w.sized(|w| {
                w.u8(u8::try_from(name.len()).expect("the name of an attribute has 255 bytes"));
                w.bytes(name);
                w.bytes(value);
            });
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let mut area = Self::default();
        let mut before = 0;
        while r.left() >= ITEM_HEAD_BYTES {
            let code = r.u8()?;
            let mut item = r.sized()?;
            if code == 0 {
                // The rest of the area is unused.
                if item.left() > 0 {
                    return Err(r.bad("unused", item.left() as u64));
                }
                break;
            }
            if code < before || (code == before && code != XATTR) {
                return Err(r.bad("item", code));
            }
            before = code;
            if code == XATTR {
                let xattr = Xattr::read(&mut item)?;
                if area.xattrs.last().is_some_and(|last| last.name >= xattr.name) {
                    return Err(r.bad("xattr", area.xattrs.len() as u64));
                }
                area.xattrs.push(xattr);
                continue;
            }
            let place = area.single_mut(code).ok_or_else(|| r.bad("item", code))?;
            *place = Some(item.take(item.left())?.into());
        }
        r.zeros()?;
        Ok(area)
    }
}

impl Xattr {
    fn read(item: &mut Reader<'_>) -> Result<Self, FormatError> {
        let len = item.u8()?;
        let name = item.take(usize::from(len))?;
        if name.is_empty() || name.contains(&0) {
            return Err(item.bad("xattr name", len));
        }
        Ok(Self { name: name.into(), value: item.take(item.left())?.into() })
    }
}

/// A decoded inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// State of the inode.
    pub state: InodeState,
    /// Txg that created the inode, below 2^48. The txg and the inode number identify the file
    /// permanently: a reused number gets a newer txg.
    pub created_txg: Txg,
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 4 KiB, before compression.
    pub blocks: u64,
    /// Type of the file.
    pub file_type: FileType,
    /// Permission bits, set-id bits and sticky bit: at most 0o7777.
    pub permissions: u32,
    /// Number of directory entries that name the inode; for a directory, the number of its
    /// subdirectories plus 2.
    pub nlink: u32,
    /// User that owns the file.
    pub uid: u32,
    /// Group of the file.
    pub gid: u32,
    /// Project whose quota the file counts against; 0: none.
    pub project: u32,
    /// Bits such as [`Self::INHERITS_PROJECT`].
    pub flags: u32,
    /// Number that grows with each change of data or attributes.
    pub change: u64,
    /// Time of the last read.
    pub atime: TimeStamp,
    /// Time of the last change of data.
    pub mtime: TimeStamp,
    /// Time of the last change of data or attributes.
    pub ctime: TimeStamp,
    /// Time of creation.
    pub btime: TimeStamp,
    /// Directory that contains this directory; for other files, the directory in which the file was
    /// last named, which may be out of date.
    pub parent: ObjectId,
    /// Object with the extended attributes that do not fit into the area; 0: none.
    pub attributes: ObjectId,
    /// Number of a device file, number of entries of a directory, or verifier of a file with
    /// [`Self::HAS_VERIFIER`].
    pub device_or_entries: u64,
    /// Variable part.
    pub area: Area,
}

impl Inode {
    /// Permission bits of a mode, with the set-id bits and the sticky bit.
    pub const PERMISSIONS: u32 = 0o7777;
    /// Bit of `flags`: new entries of the directory get its project and this bit.
    pub const INHERITS_PROJECT: u32 = 4;
    /// Bit of `flags`: an exclusive create of NFSv3 made the file, and `device_or_entries` is its
    /// verifier (RFC 1813 section 3.3.8). The first change of attributes removes both.
    pub const HAS_VERIFIER: u32 = 8;
    /// Size of the fields before the area.
    pub const FIXED_BYTES: usize = 134;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(1, "state", "0 unused, 1 named, 2 orphan, 3 freeing, 4 large attributes of `parent`"),
        field(6, "created_txg", "txg of the creation: the generation of the inode"),
        field(7, "zero", "unused"),
        field(8, "size", "bytes"),
        field(8, "blocks", "allocated blocks of 4 KiB, before compression"),
        field(4, "mode", "type and permission bits, as st_mode"),
        field(4, "nlink", "number of names; of a directory, its subdirectories and 2"),
        field(4, "uid", "owner"),
        field(4, "gid", "group"),
        field(4, "project", "project of the quota, 0: none"),
        field(
            4,
            "flags",
            "4: new entries of the directory inherit its project; 8: the file has a verifier",
        ),
        field(8, "change", "grows with each change"),
        field(12, "atime", "last read: seconds (i64), nanoseconds (u32)"),
        field(12, "mtime", "last change of data"),
        field(12, "ctime", "last change of data or attributes"),
        field(12, "btime", "creation"),
        field(8, "parent", "inode number of the directory"),
        field(8, "attributes", "object with large extended attributes, 0: none"),
        field(
            8,
            "device_or_entries",
            "number of a device file; entries of a directory; verifier of an exclusive create",
        ),
        field(
            Area::BYTES,
            "area",
            "items, each with a code (u8), a length (u16) and its bytes: 1 target of a symbolic \
             link, 2 data, 3 directory entries, 4 access ACL, 5 default ACL, 6 extended attribute \
             (length of the name (u8), name, value)",
        ),
    ];

    /// Encodes the inode.
    ///
    /// # Panics
    /// The area is larger than [`Area::BYTES`], or a field is larger than its documentation says.
    pub fn encode(&self) -> Box<[u8; ObjectSlot::BODY_BYTES]> {
        let mut w = Writer::with_capacity(ObjectSlot::BODY_BYTES);
        w.u8(self.state.code());
        w.u48(self.created_txg.0);
        w.bytes(&[0; 7]);
        w.u64(self.size);
        w.u64(self.blocks);
        assert!(self.permissions <= Self::PERMISSIONS, "permissions are the low 12 bits of a mode");
        w.u32(self.file_type.mode() << TYPE_SHIFT | self.permissions);
        for field in [self.nlink, self.uid, self.gid, self.project, self.flags] {
            w.u32(field);
        }
        w.u64(self.change);
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            time.write(&mut w);
        }
        w.u64(self.parent.0);
        w.u64(self.attributes.0);
        w.u64(self.device_or_entries);
        self.area.write(&mut w);
        w.pad_to(ObjectSlot::BODY_BYTES);
        w.0.into_boxed_slice().try_into().expect("padded to the size of a body")
    }

    /// Decodes the inode of a slot; `None` for an unused slot.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn decode(body: &[u8; ObjectSlot::BODY_BYTES]) -> Result<Option<Self>, FormatError> {
        let mut r = Reader::new(WHAT, body);
        let code = r.u8()?;
        if code == 0 {
            r.zeros()?;
            return Ok(None);
        }
        let state = InodeState::ALL.into_iter().find(|state| state.code() == code);
        let state = state.ok_or_else(|| r.bad("state", code))?;
        let created_txg = Txg(r.u48()?);
        r.skip_zeros(7)?;
        let (size, blocks) = (r.u64()?, r.u64()?);
        let mode = r.u32()?;
        let file_type = FileType::of_mode(mode >> TYPE_SHIFT);
        let file_type = file_type.ok_or_else(|| r.bad("mode", mode))?;
        let mut numbers = [0; 5];
        for number in &mut numbers {
            *number = r.u32()?;
        }
        let [nlink, uid, gid, project, flags] = numbers;
        let change = r.u64()?;
        let mut times = [TimeStamp::default(); 4];
        for time in &mut times {
            *time = TimeStamp::read(&mut r)?;
        }
        let [atime, mtime, ctime, btime] = times;
        let (parent, attributes) = (r.u64()?, r.u64()?);
        if parent.max(attributes) >= crate::OBJECTS_MAX {
            return Err(r.bad("inode number", parent.max(attributes)));
        }
        Ok(Some(Self {
            state,
            created_txg,
            size,
            blocks,
            file_type,
            permissions: mode & Self::PERMISSIONS,
            nlink,
            uid,
            gid,
            project,
            flags,
            change,
            atime,
            mtime,
            ctime,
            btime,
            parent: ObjectId(parent),
            attributes: ObjectId(attributes),
            device_or_entries: r.u64()?,
            area: Area::read(&mut r)?,
        }))
    }
}

const _: () = assert!(NAME_BYTES_MAX == u8::MAX as usize, "lengths of names are one byte");
