//! Space and inodes that users, groups and projects use, with their limits: the blocks of one
//! internal object.
//!
//! Invariants: each user, group and project has one place in the object; an entry of zeros has
//! neither usage nor limits.

use weir_base::BLOCK_BYTES;

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;

const WHAT: &str = "usage of users, groups and projects";

/// Kind of a file owner to whom limits can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnerKind {
    /// User.
    User,
    /// Group.
    Group,
    /// Project: the files below directories that an administrator chose.
    Project,
}

/// User, group or project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerId {
    /// Kind.
    pub kind: OwnerKind,
    /// Number.
    pub id: u32,
}

/// Maximum usage of an owner. 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Blocks of 4 KiB, before compression.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Usage and limits of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks of 4 KiB, before compression.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Limits.
    pub limits: Limits,
}

impl OwnerKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::User => 0,
            Self::Group => 1,
            Self::Project => 2,
        }
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

impl OwnerId {
    /// Places of one number in the object: one for each kind, and an unused one.
    const KINDS: u64 = 4;

    fn place(self) -> u64 {
        u64::from(self.id) * Self::KINDS + u64::from(self.kind.code())
    }

    fn of_place(place: u64) -> Option<Self> {
        let kind = OwnerKind::of_code((place % Self::KINDS) as u8)?;
        let id = u32::try_from(place / Self::KINDS).ok()?;
        Some(Self { kind, id })
    }

    /// Block of the object with the usage of this owner, and the place in the block.
    pub fn block(self) -> (u64, usize) {
        let entries = UsageBlock::ENTRIES as u64;
        (self.place() / entries, (self.place() % entries) as usize)
    }
}

/// Block of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageBlock(pub [Usage; Self::ENTRIES]);

impl Usage {
    fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (blocks, inodes) = (r.u64()?, r.u64()?);
        Ok(Self { blocks, inodes, limits: Limits { blocks: r.u64()?, inodes: r.u64()? } })
    }

    fn write(&self, w: &mut Writer) {
        let Self { blocks, inodes, limits } = *self;
        for number in [blocks, inodes, limits.blocks, limits.inodes] {
            w.u64(number);
        }
    }
}

impl UsageBlock {
    const ENTRY_BYTES: usize = 32;
    /// Number of entries in a block.
    pub const ENTRIES: usize = BLOCK_BYTES / Self::ENTRY_BYTES;
    /// Number of blocks of the object.
    pub const BLOCKS_MAX: u64 = (1 << 32) * OwnerId::KINDS / Self::ENTRIES as u64;

    /// Fields of an entry, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "blocks", "blocks of 4 KiB, before compression"),
        field(8, "inodes", "number of inodes"),
        field(8, "blocks_limit", "0: no limit"),
        field(8, "inodes_limit", "0: no limit"),
    ];

    /// A block without usage.
    pub fn empty() -> Self {
        Self([Usage::default(); Self::ENTRIES])
    }

    /// Decodes a block.
    ///
    /// # Errors
    /// The unused place of a number is not zero.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Self, FormatError> {
        Self::check(block)?;
        let mut r = Reader::new(WHAT, block);
        let mut entries = [Usage::default(); Self::ENTRIES];
        for entry in &mut entries {
            *entry = Usage::read(&mut r)?;
        }
        Ok(Self(entries))
    }

    /// Checks a block without decoding its entries.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn check(block: &[u8; BLOCK_BYTES]) -> Result<(), FormatError> {
        for (place, entry) in (0..).zip(block.as_chunks::<{ Self::ENTRY_BYTES }>().0) {
            if OwnerId::of_place(place).is_none() && *entry != [0; Self::ENTRY_BYTES] {
                return Err(FormatError::Field { what: WHAT, field: "unused", value: place });
            }
        }
        Ok(())
    }

    /// Decodes one entry of an encoded block.
    ///
    /// # Panics
    /// `place` is [`Self::ENTRIES`] or more.
    pub fn entry(block: &[u8; BLOCK_BYTES], place: usize) -> Usage {
        let bytes = block.get(place * Self::ENTRY_BYTES..).unwrap_or_default();
        Usage::read(&mut Reader::new(WHAT, bytes)).expect("the place is in the block")
    }

    /// Replaces one entry of an encoded block.
    ///
    /// # Panics
    /// As [`Self::entry`].
    pub fn set_entry(block: &mut [u8; BLOCK_BYTES], place: usize, usage: &Usage) {
        let mut w = Writer::with_capacity(Self::ENTRY_BYTES);
        usage.write(&mut w);
        let start = place * Self::ENTRY_BYTES;
        let bytes = block.get_mut(start..start + Self::ENTRY_BYTES);
        bytes.expect("the place is in the block").copy_from_slice(&w.0);
    }

    /// Encodes the block.
    pub fn encode(&self) -> Box<[u8; BLOCK_BYTES]> {
        let mut w = Writer::with_capacity(BLOCK_BYTES);
        self.0.iter().for_each(|usage| usage.write(&mut w));
        w.0.into_boxed_slice().try_into().expect("entries fill a block")
    }

    /// Owners in this block of the object that have usage or limits.
    pub fn owners(&self, block: u64) -> impl Iterator<Item = (OwnerId, Usage)> {
        let first = block.saturating_mul(Self::ENTRIES as u64);
        let used = (first..).zip(self.0).filter(|(_, usage)| *usage != Usage::default());
        used.filter_map(|(place, usage)| Some((OwnerId::of_place(place)?, usage)))
    }
}
