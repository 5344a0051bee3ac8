//! The uberblock: the self-checksummed root of a pool. The write of an uberblock commits a txg.
//!
//! The choice among uberblocks at import is in weir-pool.
//!
//! Invariants: an uberblock is written only after a flush made everything that it references
//! durable; a torn uberblock fails its checksum and counts as absent.

use weir_base::{Guid, Txg};
use weir_codec::checksum::xxh3_128;

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::layout::SLOT_BYTES;

const WHAT: &str = "uberblock";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRUBER");
const COPIES: usize = 3;
/// Maximum number of stale and unconfirmed legs together, limited by the slot size. The maximum
/// suffices, because a vdev needs at least one leg in four, so that at most 192 of the 256 disks of
/// a full pool can be stale.
pub const STALE_LEGS_MAX: usize = 224;
/// Maximum number of import epochs in an uberblock.
pub const LINEAGE_MAX: usize = 16;

/// Location of one copy of the bootstrap table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootstrapCopy {
    /// Number of the vdev.
    pub vdev: u16,
    /// Byte offset of the copy in the vdev's segment area.
    pub offset: u64,
}

/// A leg that missed writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleLeg {
    /// Guid of the leg.
    pub guid: Guid,
    /// Last txg whose writes the leg has.
    pub after: Txg,
}

/// One import epoch, which begins when the pool is created or imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportEpoch {
    /// Random identifier of the epoch.
    pub id: Guid,
    /// First txg that was committed in this epoch.
    pub first: Txg,
}

/// A decoded uberblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uberblock {
    /// Format version. The labels of the disk have the same or a higher version.
    pub version: u32,
    /// Guid of the pool.
    pub pool: Guid,
    /// The txg that the uberblock commits.
    pub txg: Txg,
    /// Time of the commit by the wall clock; displayed, never compared.
    pub unix_ms: u64,
    /// Epoch of the intent log that follows this txg. Replay ignores batches of other epochs.
    pub log_epoch: u64,
    /// Vdev whose legs hold the intent log.
    pub log_vdev: u16,
    /// Number of the first log batch that may have records newer than `txg`.
    pub log_batch: u64,
    /// Byte offset of the batch `log_batch` in the log region.
    pub log_offset: u64,
    /// Locations of the bootstrap table: one to three copies.
    pub bootstrap: Vec<BootstrapCopy>,
    /// Length of the bootstrap table in bytes.
    pub bootstrap_bytes: u32,
    /// XXH3-128 of the bootstrap table.
    pub bootstrap_checksum: u128,
    /// Legs that missed writes, listed by guid, because the labels may be rewritten before or after
    /// this uberblock and may assign other legs to a position. A listed leg never counts as up to
    /// date.
    pub stale_legs: Vec<StaleLeg>,
    /// The last import epochs of the pool, newest first. Import uses them to distinguish a disk
    /// that was disconnected from a disk that was written separately.
    pub lineage: Vec<ImportEpoch>,
    /// Legs whose newest own uberblock, at import, was one txg older than the pool's;
    /// [`StaleLeg::after`] is that txg. Such legs count as complete, are read after the other legs,
    /// and are resilvered.
    pub unconfirmed_legs: Vec<StaleLeg>,
}

impl Uberblock {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "magic", "\"WEIRUBER\""),
        field(4, "version", "format version"),
        field(8, "pool", "pool guid"),
        field(8, "txg", "transaction group that this uberblock commits"),
        field(8, "unix_ms", "wall clock, ms since 1970"),
        field(8, "log_epoch", "epoch of the intent log"),
        field(2, "log_vdev", "vdev whose legs hold the intent log"),
        field(8, "log_batch", "first batch to replay"),
        field(8, "log_offset", "its byte offset in the log region"),
        field(1, "copies", "bootstrap copies, 1 to 3"),
        field(30, "places", "3 x {u16 vdev, u64 byte offset in the vdev}; unused ones zero"),
        field(4, "bootstrap_bytes", "length of the bootstrap table"),
        field(16, "bootstrap_checksum", "its XXH3-128"),
        field(2, "stale_legs", "number of legs that missed writes; some may have left the pool"),
        field(0, "stale", "for each {u64 guid, u64 txg from which on it missed writes}"),
        field(1, "lineage", "number of import epochs that follow, newest first, 1 to 16"),
        field(0, "import_epochs", "for each {u64 random id, u64 first txg committed}"),
        field(1, "unconfirmed_legs", "number of legs whose newest uberblock is one txg older"),
        field(0, "unconfirmed", "for each {u64 guid, u64 newest txg of its own uberblocks}"),
        field(0, "zero", "up to byte 4080"),
        field(16, "checksum", "XXH3-128 of bytes 0 to 4080"),
    ];

    /// Encodes the uberblock as one ring slot. All formats that this Weir decodes have the same
    /// layout of an uberblock.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        assert!((1..=COPIES).contains(&self.bootstrap.len()), "{self:?}");
        let listed = self.stale_legs.len() + self.unconfirmed_legs.len();
        assert!(listed <= STALE_LEGS_MAX, "most legs of a pool are up to date");
        let mut w = Writer::default();
        assert!((1..=LINEAGE_MAX).contains(&self.lineage.len()), "{:?}", self.lineage);
        w.u64(MAGIC);
        w.u32(self.version);
        w.u64(self.pool.0);
        w.u64(self.txg.0);
        w.u64(self.unix_ms);
        w.u64(self.log_epoch);
        w.u16(self.log_vdev);
        w.u64(self.log_batch);
        w.u64(self.log_offset);
        w.u8(self.bootstrap.len() as u8);
        for index in 0..COPIES {
            let copy = self.bootstrap.get(index);
            w.u16(copy.map_or(0, |c| c.vdev));
            w.u64(copy.map_or(0, |c| c.offset));
        }
        w.u32(self.bootstrap_bytes);
        w.u128(self.bootstrap_checksum);
        w.u16(self.stale_legs.len() as u16);
        for StaleLeg { guid, after } in &self.stale_legs {
            w.u64(guid.0);
            w.u64(after.0);
        }
        w.u8(self.lineage.len() as u8);
        for ImportEpoch { id, first } in &self.lineage {
            w.u64(id.0);
            w.u64(first.0);
        }
        w.u8(self.unconfirmed_legs.len() as u8);
        for StaleLeg { guid, after } in &self.unconfirmed_legs {
            w.u64(guid.0);
            w.u64(after.0);
        }
        w.pad_to(SLOT_BYTES - 16);
        let checksum = xxh3_128(&w.0);
        w.u128(checksum);
        w.0.try_into().expect("padded to one slot")
    }

    /// Decodes one ring slot.
    ///
    /// # Errors
    /// The slot has no uberblock, a torn or damaged one, or one of another format version.
    pub fn decode(slot: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, slot);
        if r.u64()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let version = r.u32()?;
        let (body, sum) =
            slot.split_at_checked(SLOT_BYTES - 16).ok_or(FormatError::Truncated { what: WHAT })?;
        if sum != xxh3_128(body).to_le_bytes() {
            return Err(FormatError::Checksum { what: WHAT });
        }
        // Check the version first: the fields up to the pool's guid, and the checksum, have the
        // same offsets in every format.
        let pool = Guid(r.u64()?);
        FormatError::check_version(WHAT, version, pool)?;
        let (txg, unix_ms) = (Txg(r.u64()?), r.u64()?);
        let (log_epoch, log_vdev) = (r.u64()?, r.u16()?);
        let (log_batch, log_offset) = (r.u64()?, r.u64()?);
        let copies = r.u8()?;
        if !(1..=COPIES).contains(&usize::from(copies)) {
            return Err(r.bad("copies", copies));
        }
        let mut bootstrap = Vec::new();
        for index in 0..COPIES {
            let copy = BootstrapCopy { vdev: r.u16()?, offset: r.u64()? };
            if index < usize::from(copies) {
                bootstrap.push(copy);
            }
        }
        let (bootstrap_bytes, bootstrap_checksum) = (r.u32()?, r.u128()?);
        let legs = r.u16()?;
        if usize::from(legs) > STALE_LEGS_MAX {
            return Err(r.bad("stale_legs", legs));
        }
        let stale_legs = decode_legs(&mut r, usize::from(legs))?;
        let import_epochs = r.u8()?;
        if !(1..=LINEAGE_MAX).contains(&usize::from(import_epochs)) {
            return Err(r.bad("lineage", import_epochs));
        }
        let lineage = (0..import_epochs)
            .map(|_| Ok(ImportEpoch { id: Guid(r.u64()?), first: Txg(r.u64()?) }))
            .collect::<Result<_, FormatError>>()?;
        let unconfirmed = r.u8()?;
        if usize::from(unconfirmed) + stale_legs.len() > STALE_LEGS_MAX {
            return Err(r.bad("unconfirmed_legs", unconfirmed));
        }
        let unconfirmed_legs = decode_legs(&mut r, usize::from(unconfirmed))?;
        Ok(Self {
            version,
            pool,
            txg,
            unix_ms,
            log_epoch,
            log_vdev,
            log_batch,
            log_offset,
            bootstrap,
            bootstrap_bytes,
            bootstrap_checksum,
            stale_legs,
            lineage,
            unconfirmed_legs,
        })
    }
}

fn decode_legs(r: &mut Reader<'_>, count: usize) -> Result<Vec<StaleLeg>, FormatError> {
    (0..count).map(|_| Ok(StaleLeg { guid: Guid(r.u64()?), after: Txg(r.u64()?) })).collect()
}
