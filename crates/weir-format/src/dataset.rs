//! The record of one dataset in the dataset directory.
//!
//! Not here: names rules and properties' meaning (weir-dataset).
//!
//! Invariants: one record per block; a hole in the directory is a dataset that is no more.

use weir_base::limits::NAME_BYTES_MAX;
use weir_base::{BLOCK_BYTES, DatasetId, Txg};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::node::TreeRoot;

const WHAT: &str = "dataset record";

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Stored as they are.
    #[default]
    Off,
    /// LZ4, kept where it saves enough.
    Lz4,
}

impl Compression {
    /// Code on disk.
    pub const fn code(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Lz4 => 1,
        }
    }

    /// From the code on disk.
    ///
    /// # Errors
    /// An unknown code.
    pub const fn from_code(code: u8) -> Result<Self, FormatError> {
        match code {
            0 => Ok(Self::Off),
            1 => Ok(Self::Lz4),
            _ => Err(FormatError::Field { what: "compression", field: "code", value: code as u64 }),
        }
    }
}

/// What kind of object a dataset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// A block volume.
    Volume,
}

/// Where a dataset is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetState {
    /// In use.
    Active,
    /// Being freed over several txgs; invisible to users.
    Destroying,
}

/// A decoded dataset record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetRecord {
    /// Number, never reused.
    pub id: DatasetId,
    /// Kind.
    pub kind: DatasetKind,
    /// State.
    pub state: DatasetState,
    /// Name inside the pool, without the pool's own.
    pub name: String,
    /// Size in bytes, whole blocks.
    pub size_bytes: u64,
    /// Compression of new blocks.
    pub compression: Compression,
    /// Txg of its creation.
    pub created_txg: Txg,
    /// Wall clock of its creation.
    pub created_unix_ms: u64,
    /// Its block tree.
    pub root: TreeRoot,
    /// Blocks that are not holes.
    pub used_blocks: u64,
    /// What those occupy, in units of 64 bytes.
    pub stored_units: u64,
}

impl DatasetRecord {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "id", "dataset number"),
        field(1, "kind", "1 volume"),
        field(1, "state", "0 active, 1 being destroyed"),
        field(1, "compression", "0 off, 1 lz4"),
        field(8, "size_bytes", "volume size"),
        field(8, "created_txg", "txg of creation"),
        field(8, "created_unix_ms", "wall clock of creation"),
        field(33, "root", "tree root of its blocks"),
        field(8, "used_blocks", "blocks that are not holes"),
        field(8, "stored_units", "what they occupy, in 64 B"),
        field(0, "name", "u16 length, UTF-8"),
    ];

    /// Encodes one block of the directory.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut w = Writer::default();
        w.u64(self.id.0);
        w.u8(match self.kind {
            DatasetKind::Volume => 1,
        });
        w.u8(match self.state {
            DatasetState::Active => 0,
            DatasetState::Destroying => 1,
        });
        w.u8(self.compression.code());
        w.u64(self.size_bytes);
        w.u64(self.created_txg.0);
        w.u64(self.created_unix_ms);
        self.root.write(&mut w);
        w.u64(self.used_blocks);
        w.u64(self.stored_units);
        w.str(&self.name);
        w.pad_to(BLOCK_BYTES);
        w.0.try_into().expect("padded to one block")
    }

    /// Decodes one block of the directory.
    ///
    /// # Errors
    /// Any field that cannot be.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, block);
        let id = DatasetId(r.u64()?);
        let kind = match r.u8()? {
            1 => DatasetKind::Volume,
            other => return Err(r.bad("kind", other)),
        };
        let state = match r.u8()? {
            0 => DatasetState::Active,
            1 => DatasetState::Destroying,
            other => return Err(r.bad("state", other)),
        };
        let compression = Compression::from_code(r.u8()?)?;
        let size_bytes = r.u64()?;
        let (created_txg, created_unix_ms) = (Txg(r.u64()?), r.u64()?);
        let root = TreeRoot::read(&mut r)?;
        let (used_blocks, stored_units) = (r.u64()?, r.u64()?);
        let name = r.str("name")?;
        let blocks = size_bytes / BLOCK_BYTES as u64;
        if !size_bytes.is_multiple_of(BLOCK_BYTES as u64)
            || blocks > TreeRoot::capacity(root.height)
        {
            return Err(r.bad("size_bytes", size_bytes));
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(r.bad("name", name.len() as u64));
        }
        Ok(Self {
            id,
            kind,
            state,
            name,
            size_bytes,
            compression,
            created_txg,
            created_unix_ms,
            root,
            used_blocks,
            stored_units,
        })
    }
}
