//! Reads and writes labels: config copies and uberblock slots.
//!
//! Not here: the choice of the uberblock that an import uses (`open_pool`), the commit that writes
//! an uberblock (`commit`).
//!
//! Invariants:
//! - an uberblock goes to both labels of every leg in use and is durable when the write returns;
//! - txg N never overwrites the slots of the 127 txgs before it;
//! - an uberblock goes only to disks whose label copies have its format version or a higher one, so
//!   that a Weir that cannot decode the uberblock refuses the label.

use std::sync::Arc;

use futures_util::future::join_all;
use weir_base::{BLOCK_BYTES, Guid, Txg};
use weir_block::IoBuf;
use weir_device::{Device, DeviceError, Durability};
use weir_format::layout::{
    CONFIG_BYTES, FORMAT_VERSION, LABEL_BYTES, OWNER_OFFSET, RING_OFFSET, RING_SLOTS, SLOT_BYTES,
    label_offsets,
};
use weir_format::{FormatError, Label, Owner, Uberblock};

use crate::disks::vdevs::Vdevs;
use crate::error::PoolError;

/// Writes both labels of a new disk: config and empty ring.
///
/// # Durability
/// Durable when this returns.
pub(crate) async fn write_labels(device: &dyn Device, label: &Label) -> Result<(), DeviceError> {
    let (_, vdev) = label
        .place()
        .map(|(vdev, _)| (vdev, &label.vdevs[vdev]))
        .expect("a label contains its own disk");
    let content = Arc::new(label_content(label));
    for offset in label_offsets(vdev.disk_bytes) {
        let range = 0..LABEL_BYTES as usize;
        device.write_at(offset, Arc::clone(&content), range, Durability::Cached).await?;
    }
    device.flush().await
}

fn label_content(label: &Label) -> IoBuf {
    let mut content = IoBuf::zeroed(LABEL_BYTES as usize);
    let config = label.encode();
    content[..CONFIG_BYTES].copy_from_slice(&config);
    content[CONFIG_BYTES..2 * CONFIG_BYTES].copy_from_slice(&config);
    content
}

/// Writes the second label of a disk, with an empty ring. A vdev will use `disk_bytes` bytes of the
/// disk. The first label is not changed.
///
/// # Durability
/// Durable when this returns.
pub(crate) async fn write_second_label(
    device: &dyn Device,
    label: &Label,
    disk_bytes: u64,
) -> Result<(), DeviceError> {
    let [_, second] = label_offsets(disk_bytes);
    let (content, range) = (Arc::new(label_content(label)), 0..LABEL_BYTES as usize);
    device.write_at(second, content, range, Durability::Cached).await?;
    device.flush().await
}

/// Rewrites the config copies of one disk that differ from `label` and nothing else. Returns the
/// number of bytes rewritten.
///
/// # Durability
/// Durable after the next flush. A crash before that flush leaves each copy old, new or torn. The
/// copies are never all torn, because the copies in the first label are flushed before the second
/// label is written.
pub(crate) async fn repair_config(
    device: &dyn Device,
    label: &Label,
    disk_bytes: u64,
) -> Result<u64, DeviceError> {
    let wanted = label.encode();
    let mut repaired = 0;
    for start in label_offsets(disk_bytes) {
        if repaired > 0 {
            device.flush().await?;
        }
        for at in [start, start + CONFIG_BYTES as u64] {
            let (done, mut copy) = device.read_at(at, IoBuf::zeroed(CONFIG_BYTES)).await;
            if done.is_ok() && copy[..] == wanted[..] {
                continue;
            }
            copy.copy_from_slice(&wanted);
            let range = 0..CONFIG_BYTES;
            device.write_at(at, Arc::new(copy), range, Durability::Cached).await?;
            repaired += CONFIG_BYTES as u64;
        }
    }
    Ok(repaired)
}

/// Overwrites both labels with zeros, including the uberblocks and the owner slot.
pub(crate) async fn erase_labels(device: &dyn Device, disk_bytes: u64) -> Result<(), DeviceError> {
    let zeros = Arc::new(IoBuf::zeroed(LABEL_BYTES as usize));
    for offset in label_offsets(disk_bytes) {
        let range = 0..LABEL_BYTES as usize;
        device.write_at(offset, Arc::clone(&zeros), range, Durability::Cached).await?;
    }
    device.flush().await
}

/// Contents of the labels of one disk.
pub(crate) struct DiskLabels {
    pub(crate) label: Label,
    /// Valid uberblocks of the pool on this disk, in no order.
    pub(crate) uberblocks: Vec<Uberblock>,
    /// Ring slots that are damaged in each readable copy of the ring, in no order.
    pub(crate) damaged_slots: Vec<u64>,
    /// Process that has the pool open, or had it open last.
    pub(crate) owner: Option<Owner>,
    /// True if a label copy has an older format version than [`FORMAT_VERSION`].
    pub(crate) is_old_format: bool,
}

/// Reads the labels of one disk. Returns `Ok(Err(reason))` if no label is usable, or if a newer
/// Weir committed a txg on the disk.
///
/// # Errors
/// The disk cannot be read at all.
pub(crate) async fn read_labels(
    device: &dyn Device,
) -> Result<Result<DiskLabels, FormatError>, DeviceError> {
    let len = device.geometry().len_bytes;
    let mut best: Result<Label, FormatError> = Err(FormatError::Magic { what: "label" });
    let mut rings = Vec::new();
    // Label B is at the end of the part of the disk that the pool uses, which may be shorter than
    // the disk.
    let mut offsets = vec![0];
    if len >= 2 * LABEL_BYTES {
        offsets.push(len - LABEL_BYTES);
    }
    let mut index = 0;
    let (mut first_error, mut is_old_format) = (None, false);
    while let Some(&offset) = offsets.get(index) {
        index += 1;
        let (done, content) = device.read_at(offset, IoBuf::zeroed(LABEL_BYTES as usize)).await;
        if let Err(error) = done {
            first_error.get_or_insert(error);
            continue;
        }
        for copy in content[..2 * CONFIG_BYTES].chunks(CONFIG_BYTES) {
            let found = Label::decode(copy);
            is_old_format |= found.as_ref().is_ok_and(|label| label.version < FORMAT_VERSION);
            keep_best(&mut best, found);
        }
        if let Ok(label) = &best {
            let used = label.place().map(|(vdev, _)| label.vdevs[vdev].disk_bytes);
            let second = used.filter(|used| *used <= len).map(|used| used - LABEL_BYTES);
            if let Some(second) = second.filter(|second| !offsets.contains(second)) {
                offsets.push(second);
            }
        }
        rings.push((offset, content));
    }
    if let (true, Some(error)) = (rings.is_empty(), first_error) {
        return Err(error);
    }
    Ok(best.and_then(|label| {
        // Use only rings at the label offsets of the part that the pool uses: on a longer disk, the
        // read at the end of the disk found no label.
        let used = label.place().map(|(vdev, _)| label_offsets(label.vdevs[vdev].disk_bytes));
        let own = rings.iter().filter(|(at, _)| used.is_some_and(|used| used.contains(at)));
        let damaged_slots = damaged_slots(
            &own.map(|(_, label)| &label[RING_OFFSET as usize..]).collect::<Vec<_>>(),
        );
        let rings: Vec<IoBuf> = rings.into_iter().map(|(_, ring)| ring).collect();
        let (uberblocks, owner) = (ring_slots(&rings, label.pool)?, owner_of(&rings, label.pool));
        Ok(DiskLabels { label, uberblocks, damaged_slots, owner, is_old_format })
    }))
}

/// Keeps the better of two results: a readable config replaces an error, a newer config replaces an
/// older one, and any other error replaces "no label".
fn keep_best(best: &mut Result<Label, FormatError>, found: Result<Label, FormatError>) {
    let better = match (&*best, &found) {
        (Ok(old), Ok(new)) => (new.txg, new.version) > (old.txg, old.version),
        (Ok(_), Err(_)) => false,
        (Err(_), Ok(_)) => true,
        (Err(old), Err(new)) => {
            matches!(old, FormatError::Magic { .. }) && !matches!(new, FormatError::Magic { .. })
        }
    };
    if better {
        *best = found;
    }
}

fn owner_of(rings: &[IoBuf], pool: Guid) -> Option<Owner> {
    let slots = rings.iter().map(|ring| &ring[OWNER_OFFSET as usize..][..SLOT_BYTES]);
    slots.filter_map(|slot| Owner::decode(slot).ok()).find(|owner| owner.pool == pool)
}

/// Uberblocks of a pool in its rings.
///
/// # Errors
/// A slot has an uberblock of a newer format: the slots that this Weir can decode hold an older
/// state of the pool.
fn ring_slots(rings: &[IoBuf], pool: Guid) -> Result<Vec<Uberblock>, FormatError> {
    let mut found: Vec<Uberblock> = Vec::new();
    for ring in rings {
        for slot in ring[RING_OFFSET as usize..].chunks(SLOT_BYTES) {
            match Uberblock::decode(slot) {
                Err(error) if error.newer_pool() == Some(pool) => return Err(error),
                Ok(ub) if ub.pool == pool && !found.contains(&ub) => found.push(ub),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Slots that are damaged in all of `rings`. A slot of zeros was never written and is not damaged.
fn damaged_slots(rings: &[&[u8]]) -> Vec<u64> {
    let is_damaged = |ring: &[u8], slot: u64| {
        let at = slot as usize * SLOT_BYTES;
        let bytes = &ring[at..at + SLOT_BYTES];
        let damaged = Uberblock::decode(bytes).is_err_and(|error| !error.is_other_version());
        damaged && bytes.iter().any(|byte| *byte != 0)
    };
    let in_each = |slot: &u64| rings.iter().all(|ring| is_damaged(ring, *slot));
    (0..RING_SLOTS).filter(|slot| !rings.is_empty() && in_each(slot)).collect()
}

/// Reads the rings of one disk. Returns the slots that are damaged in each readable copy.
pub(crate) async fn find_damaged_slots(device: &dyn Device, disk_bytes: u64) -> Vec<u64> {
    let mut rings = Vec::new();
    for label in label_offsets(disk_bytes) {
        let buf = IoBuf::zeroed(RING_SLOTS as usize * SLOT_BYTES);
        let (done, ring) = device.read_at(label + RING_OFFSET, buf).await;
        rings.extend(done.is_ok().then_some(ring));
    }
    damaged_slots(&rings.iter().map(|ring| &ring[..]).collect::<Vec<_>>())
}

/// Overwrites both copies of a ring slot of one disk with zeros.
///
/// # Durability
/// Durable after the next flush.
pub(crate) async fn zero_slot(
    device: &dyn Device,
    disk_bytes: u64,
    slot: u64,
) -> Result<(), DeviceError> {
    let zeros = Arc::new(IoBuf::zeroed(SLOT_BYTES));
    for label in label_offsets(disk_bytes) {
        let at = label + RING_OFFSET + slot * SLOT_BYTES as u64;
        device.write_at(at, Arc::clone(&zeros), 0..SLOT_BYTES, Durability::Cached).await?;
    }
    Ok(())
}

/// Writes an uberblock to both labels of every leg in use.
///
/// # Durability
/// When the call returns `Ok`, the uberblock is durable on every leg that is not faulted. A crash
/// before the return may tear both slots; the slots of earlier txgs stay intact.
///
/// # Errors
/// A vdev that holds segments has too few legs left.
pub(crate) async fn write_uberblock(vdevs: &Vdevs, uberblock: &Uberblock) -> Result<(), PoolError> {
    let mut slot = IoBuf::zeroed(SLOT_BYTES);
    slot.copy_from_slice(&uberblock.encode());
    let slot = Arc::new(slot);
    let within = RING_OFFSET + uberblock.txg.0 % RING_SLOTS * SLOT_BYTES as u64;
    let writes = vdevs.in_service().map(|vdev| {
        let slot = &slot;
        vdev.unless_dispensable(async move {
            let [first, second] = label_offsets(vdev.disk_bytes()).map(|label| label + within);
            // Issue the writes of both labels before awaiting one of them; one flush then covers
            // both writes.
            let (a, b) = futures_util::join!(
                vdev.write(first, slot, 0..SLOT_BYTES, Durability::Cached),
                vdev.write(second, slot, 0..SLOT_BYTES, Durability::Cached),
            );
            a.and(b)?;
            vdev.flush().await
        })
    });
    join_all(writes).await.into_iter().collect()
}

/// Erases the labels of a disk at the offsets for a vdev that uses `disk_bytes`, and at the offsets
/// for a vdev that uses the whole disk. Then no import finds a pool on the disk.
pub(crate) async fn erase_all_labels(
    device: &dyn Device,
    disk_bytes: u64,
) -> Result<(), PoolError> {
    let len = device.geometry().len_bytes;
    for used in [disk_bytes, len - len % BLOCK_BYTES as u64] {
        erase_labels(device, used).await.map_err(Arc::new)?;
    }
    Ok(())
}

/// Ring slot that is damaged or holds the uberblock of an abandoned txg.
pub(crate) struct DamagedSlot {
    pub(crate) leg: Guid,
    pub(crate) slot: u64,
    /// Newest txg before the damage was found.
    pub(crate) seen: Txg,
    /// True if a power cut tore the slot while another disk got the uberblock.
    pub(crate) is_torn: bool,
}
