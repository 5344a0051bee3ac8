//! Errors of a pool.
//!
//! Not here: errors of volumes and names (weir-dataset).
//!
//! Invariant: a variant names the pool, disk or vdev that failed; its text names the remedy, unless
//! the error's kind makes the remedy obvious.

use std::fmt;
use std::sync::Arc;

use weir_base::{ErrorKind, Guid, Txg, VsegId};
use weir_device::DeviceError;
use weir_format::FormatError;

/// Address of a stored block, for error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAddress {
    /// Index of the vdev in the label.
    pub vdev: u16,
    /// Byte offset in the vdev's segment area.
    pub offset: u64,
}

impl fmt::Display for BlockAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vdev {} byte {}", self.vdev, self.offset)
    }
}

/// Reason why a pool operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A device operation failed.
    #[error(transparent)]
    Device(#[from] Arc<DeviceError>),
    /// An on-disk structure is damaged on every leg.
    #[error(
        "pool {pool}: {what}{} is damaged on every disk that should hold it: {source}",
        .place.map_or_else(String::new, |place| format!(" at {place}"))
    )]
    Structure {
        /// Name of the pool.
        pool: String,
        /// Name of the structure.
        what: &'static str,
        /// Address of the structure, if known.
        place: Option<BlockAddress>,
        /// Defect of the structure.
        source: FormatError,
    },
    /// A block is damaged and the redundancy cannot restore it.
    #[error(
        "pool {pool}: block at vdev {vdev} byte {offset} fails its checksum, and no other copy or \
         parity can restore it"
    )]
    Damaged {
        /// Name of the pool.
        pool: String,
        /// Index of the vdev in the label.
        vdev: u16,
        /// Byte offset in the vdev's segment area.
        offset: u64,
    },
    /// A vdev has too few readable or writable legs.
    #[error("pool {pool}: vdev {vdev} has too few working disks left")]
    VdevLost {
        /// Name of the pool.
        pool: String,
        /// Index of the vdev in the label.
        vdev: u16,
    },
    /// The pool stopped accepting writes, to keep acknowledged data safe.
    #[error(
        "pool {pool} is suspended: {why}. Flushed data is safe; repair the disks, then run: \
         weir pool clear {pool}"
    )]
    Poisoned {
        /// Name of the pool.
        pool: String,
        /// First failure, which suspended the pool.
        why: String,
    },
    /// A commit found no free segment.
    #[error("pool {pool} is out of space")]
    OutOfSpace {
        /// Name of the pool.
        pool: String,
    },
    /// A pointer refers to a segment that does not exist.
    #[error("pool {pool}: a block pointer refers to segment {vseg}, which does not exist")]
    NoSegment {
        /// Name of the pool.
        pool: String,
        /// Number of the segment.
        vseg: VsegId,
    },
    /// A block is in a segment whose segment table entry was lost.
    #[error(
        "pool {pool}: a block is in segment {vseg}, whose entry in the segment table cannot be \
         read from any disk"
    )]
    SegmentLost {
        /// Name of the pool.
        pool: String,
        /// Number of the segment.
        vseg: VsegId,
    },
    /// A block may belong to a dataset whose record was lost.
    #[error("pool {pool}: a block may belong to dataset {dataset}, whose record was lost")]
    OwnerLost {
        /// Name of the pool.
        pool: String,
        /// Number of the dataset that wrote the block.
        dataset: u64,
    },
    /// The remap table or reference table of a segment was lost.
    #[error("pool {pool}: the {what} of segment {vseg} cannot be read from any disk")]
    TableLost {
        /// Name of the pool.
        pool: String,
        /// Name of the table.
        what: &'static str,
        /// Number of the segment.
        vseg: VsegId,
    },
    /// The block is in the lost part of a partial record.
    #[error(
        "pool {pool}: a part of this record is lost: the record could not be read when a write to \
         the rest of it was replayed from the intent log"
    )]
    PartLost {
        /// Name of the pool.
        pool: String,
    },
    /// The reference count of a block is at its maximum, so the block cannot be shared again.
    #[error("pool {pool}: a block has too many references; rewrite it to store a new copy")]
    TooManyReferences {
        /// Name of the pool.
        pool: String,
    },
    /// A disk is smaller than the minimum.
    #[error("{path}: {bytes} bytes is too small; a disk needs at least {min} bytes")]
    TooSmall {
        /// Path of the disk.
        path: String,
        /// Length of the disk.
        bytes: u64,
        /// Minimum length.
        min: u64,
    },
    /// A disk already belongs to a pool.
    #[error("{path} is part of pool {pool:?}; use --force to overwrite it")]
    InPool {
        /// Path of the disk.
        path: String,
        /// Pool name on its label.
        pool: String,
    },
    /// A newer or an older version of Weir wrote the disk.
    #[error("{path}: {source}")]
    OtherFormat {
        /// Path of the disk.
        path: String,
        /// Format error, which names the version.
        source: FormatError,
    },
    /// None of the disks has a label.
    #[error("no Weir pool on {paths}")]
    NoPool {
        /// Paths of the disks that were searched.
        paths: String,
    },
    /// The given disks belong to different pools.
    #[error("{path} belongs to pool {found}, not to {wanted}")]
    OtherPool {
        /// Path of the disk.
        path: String,
        /// Guid of the pool on the disk.
        found: Guid,
        /// Guid of the wanted pool.
        wanted: Guid,
    },
    /// A vdev has too few disks.
    #[error("pool {pool} cannot be opened: missing {missing}")]
    MissingDisks {
        /// Name of the pool.
        pool: String,
        /// Missing disks of the vdev; at least one of them is needed.
        missing: String,
    },
    /// All attached legs of a vdev missed writes.
    #[error(
        "pool {pool} cannot be opened: the available disks missed writes, and the disks that have \
         them are missing ({missing}). Connect them, then import again"
    )]
    StaleDisks {
        /// Name of the pool.
        pool: String,
        /// Missing disks that hold all data.
        missing: String,
    },
    /// Some pool metadata is unreadable on the available disks, and a missing disk may have a
    /// readable copy.
    #[error(
        "pool {pool} cannot be opened without data loss: {what} cannot be read from the available \
         disks, and {missing} may have them. Connect these disks, or accept the loss: weir pool \
         import --force {pool}"
    )]
    LossWhileMissing {
        /// Name of the pool.
        pool: String,
        /// Unreadable metadata, which a forced import would abandon.
        what: String,
        /// Disks that are missing or not in use.
        missing: String,
    },
    /// The root node of the dataset directory is unreadable.
    #[error(
        "pool {pool} cannot be opened: the top node of its dataset directory, with the \
         pointers to all volumes and snapshots, cannot be read from any disk ({source}). \
         Nothing was written. Check disks and cables, then import again: weir pool import {pool}. \
         weir pool import --force {pool} opens the pool without its volumes and keeps \
         their space, so that a later import finds them if the node can be read"
    )]
    DirectoryLost {
        /// Name of the pool.
        pool: String,
        /// Error of the read.
        source: Box<Self>,
    },
    /// The intent log has flushed writes to datasets whose records are unreadable.
    #[error(
        "pool {pool} cannot be opened: the intent log has flushed writes to datasets whose \
         records cannot be read from any disk (numbers {datasets}). Nothing was written. Check \
         disks and cables, then import again: weir pool import {pool}. weir pool import --force \
         {pool} opens the pool and drops these writes"
    )]
    LoggedForLost {
        /// Name of the pool.
        pool: String,
        /// Numbers of the datasets with unreadable records.
        datasets: String,
    },
    /// All legs of a vdev missed writes, and no missing disk holds them.
    #[error(
        "pool {pool} cannot be opened: {disks}, and no other disk has the later writes. If an old \
         copy replaced a disk, connect the original disk. weir pool import --force {pool} opens \
         the pool with the data of these disks; reads of missing data fail"
    )]
    OldDisks {
        /// Name of the pool.
        pool: String,
        /// Each present disk with the newest txg that it has, and the newest txg of the pool.
        disks: String,
    },
    /// The pool committed a newer txg than these disks hold.
    #[error(
        "pool {pool} cannot be opened: the newest txg on these disks is {found}, {age} before txg \
         {seen}, which {by}. Connect the disks that have the later txgs. weir pool import --force \
         {pool} opens the pool as of txg {found} and drops later changes"
    )]
    OlderThanSeen {
        /// Name of the pool.
        pool: String,
        /// Newest txg on the disks.
        found: Txg,
        /// Newest txg that the server has seen.
        seen: Txg,
        /// Time between the two txgs, as text.
        age: String,
        /// Subject and verb of the clause of the message that names the source of `seen`.
        by: Box<str>,
    },
    /// More uberblocks are damaged than one power cut can tear.
    #[error(
        "pool {pool} cannot be opened: the {damaged} uberblocks after txg {found} are damaged in \
         every copy, and a power cut damages only one. weir pool import --force {pool} opens the \
         pool as of txg {found} and drops later changes"
    )]
    NewestDamaged {
        /// Name of the pool.
        pool: String,
        /// Newest txg on the disks.
        found: Txg,
        /// Number of consecutive damaged uberblocks.
        damaged: usize,
    },
    /// Another server has the pool open.
    #[error(
        "pool {pool} is in use by host {host} (pid {pid}), which wrote to its disks {seconds} s \
         ago. Export it there: weir pool export {pool}. Only if that server cannot be reached: \
         weir pool import --force {pool} makes that server stop using the pool, and what it has \
         not flushed is lost"
    )]
    InUse {
        /// Name of the pool.
        pool: String,
        /// The owner's machine.
        host: String,
        /// The owner's process.
        pid: u32,
        /// Wall-clock time of this machine minus the time that the owner last wrote to its slot.
        seconds: u64,
    },
    /// Another server took the pool over.
    #[error("pool {pool} was taken over by host {host} (pid {pid}); this server no longer uses it")]
    TakenOver {
        /// Name of the pool.
        pool: String,
        /// The new owner's machine.
        host: String,
        /// The new owner's process.
        pid: u32,
    },
    /// Disks committed txgs without each other.
    #[error(
        "pool {pool} cannot be opened: {diverged} diverged from the other disks, which were \
         written up to txg {newest} without them. Import with the disks of one side only and \
         replace the others, or force the import to keep txg {newest} and overwrite {diverged}"
    )]
    Diverged {
        /// Name of the pool.
        pool: String,
        /// Disks that are not part of the history of the newest disks, with their txgs.
        diverged: String,
        /// Newest txg of the other disks.
        newest: Txg,
    },
    /// A disk that is to rejoin an open pool has committed txgs that the pool lacks.
    #[error(
        "{disk} cannot join pool {pool}: it was written without the other disks up to txg {own}, \
         and the pool lacks these writes. To keep the pool's state and overwrite the disk: weir \
         pool online --force {pool} {disk}. To keep the disk's state: weir pool export {pool}, \
         then weir pool import -d {disk} {pool}"
    )]
    DivergedDisk {
        /// Name of the pool.
        pool: String,
        /// Path of the disk.
        disk: String,
        /// Newest txg of the disk.
        own: Txg,
    },
    /// Another server uses a disk that is to rejoin an open pool.
    #[error(
        "{disk} cannot join pool {pool}: host {host} (pid {pid}) has it open in a pool and wrote \
         to it {seconds} s ago. Export the pool there, or choose another disk"
    )]
    DiskInUse {
        /// Name of the pool.
        pool: String,
        /// Path of the disk.
        disk: String,
        /// The owner's machine.
        host: String,
        /// The owner's process.
        pid: u32,
        /// Wall-clock time of this machine minus the time that the owner last wrote to its slot.
        seconds: u64,
    },
    /// The disks that hold the intent log are missing.
    #[error(
        "pool {pool} cannot be opened: its log disks are missing ({missing}), and the last \
         flushed writes may exist only there. Connect them, or drop these writes: weir pool \
         import --force {pool}"
    )]
    LogMissing {
        /// Name of the pool.
        pool: String,
        /// Disks of the log vdev.
        missing: String,
    },
    /// The data of a vdev does not fit on the other vdevs.
    #[error(
        "pool {pool}: {vdev} cannot be removed: the other vdevs have space for {room_bytes} \
         bytes, and {live_bytes} are in use"
    )]
    NoRoomElsewhere {
        /// Name of the pool.
        pool: String,
        /// Name of the vdev, as shown to the user.
        vdev: String,
        /// Bytes available for data on the other vdevs.
        room_bytes: u64,
        /// Live bytes of the pool.
        live_bytes: u64,
    },
    /// The pool has no such disk.
    #[error("pool {pool} has no disk {disk}")]
    NoSuchDisk {
        /// Name of the pool.
        pool: String,
        /// Disk name in the request.
        disk: String,
    },
    /// The disk cannot be removed or taken offline: the data of its vdev would not be readable
    /// without this disk.
    #[error("{}", needed(pool, disk, vdev, *needs))]
    OnlyCopy {
        /// Name of the pool.
        pool: String,
        /// Path of the disk.
        disk: String,
        /// Name of the disk's vdev, as shown to the user.
        vdev: String,
        /// Number of up-to-date disks that the vdev needs to be readable.
        needs: usize,
    },
    /// A replacement would detach a good disk before the new disk is resilvered.
    #[error(
        "the disk that {disk} is to replace in pool {pool} is intact, and its vdev cannot contain \
         both: the old disk would be removed before {disk} is resilvered"
    )]
    StillGood {
        /// Name of the pool.
        pool: String,
        /// Path of the new disk.
        disk: String,
    },
    /// The state of the scan does not allow the change.
    #[error("pool {pool}: {why}")]
    Scan {
        /// Name of the pool.
        pool: String,
        /// Reason.
        why: &'static str,
    },
    /// No uberblock refers to readable roots.
    #[error(
        "pool {pool}: the newest uberblock (txg {newest}) refers to damaged data{}. An older one \
         may be readable; weir pool import --force {pool} tries it and drops later changes",
        .why.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
    )]
    NoUberblock {
        /// Name of the pool.
        pool: String,
        /// Newest txg that the import found.
        newest: Txg,
        /// Reason why the newest uberblock cannot be used; `None` if no disk has an uberblock.
        why: Option<Box<Self>>,
    },
    /// A log batch that may have been acknowledged is unreadable on all legs.
    #[error(
        "pool {pool}: intent log batch {batch} was written completely and is damaged on every \
         leg; importing would lose the flushed writes in it and after it. Connect missing disks \
         of the pool, or drop these writes: weir pool import --force {pool}"
    )]
    LogDamaged {
        /// Name of the pool.
        pool: String,
        /// Number of the batch.
        batch: u64,
    },
    /// The requested layout is not possible.
    #[error("{why}")]
    Layout {
        /// Reason.
        why: String,
    },
}

/// Text of `OnlyCopy`: why the vdev needs the disk.
fn needed(pool: &str, disk: &str, vdev: &str, needs: usize) -> String {
    match needs {
        1 => format!("{disk} is the only disk of {vdev} in pool {pool} with complete data"),
        _ => format!(
            "{disk} is needed: {vdev} of pool {pool} needs {needs} disks with complete data, and \
             has fewer without it"
        ),
    }
}

impl PoolError {
    /// Maps the error to its [`ErrorKind`].
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Device(error) => error.kind(),
            Self::Structure { .. }
            | Self::Damaged { .. }
            | Self::NoSegment { .. }
            | Self::SegmentLost { .. }
            | Self::TableLost { .. }
            | Self::OwnerLost { .. }
            | Self::PartLost { .. }
            | Self::NoUberblock { .. }
            | Self::NewestDamaged { .. }
            | Self::DirectoryLost { .. }
            | Self::LoggedForLost { .. }
            | Self::LogDamaged { .. } => ErrorKind::Data,
            Self::VdevLost { .. }
            | Self::MissingDisks { .. }
            | Self::StaleDisks { .. }
            | Self::OldDisks { .. }
            | Self::OlderThanSeen { .. }
            | Self::TakenOver { .. }
            | Self::LogMissing { .. }
            | Self::LossWhileMissing { .. }
            | Self::DivergedDisk { .. }
            | Self::Diverged { .. } => ErrorKind::Unavailable,
            Self::Poisoned { .. } => ErrorKind::Poisoned,
            Self::OutOfSpace { .. } | Self::NoRoomElsewhere { .. } => ErrorKind::NoSpace,
            Self::TooSmall { .. }
            | Self::TooManyReferences { .. }
            | Self::OtherFormat { .. }
            | Self::OtherPool { .. }
            | Self::Layout { .. } => ErrorKind::Invalid,
            Self::InPool { .. } => ErrorKind::Exists,
            Self::NoPool { .. } | Self::NoSuchDisk { .. } => ErrorKind::NotFound,
            Self::OnlyCopy { .. }
            | Self::StillGood { .. }
            | Self::Scan { .. }
            | Self::DiskInUse { .. }
            | Self::InUse { .. } => ErrorKind::Busy,
        }
    }
}
