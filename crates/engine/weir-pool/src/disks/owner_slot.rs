//! Owner slot of a disk: the process that has the pool open.
//!
//! Not here: the rules for taking a pool (`claim`).
//!
//! Invariant: a slot is written as a whole; a slot that cannot be decoded names no owner.

use std::sync::Arc;

use weir_block::IoBuf;
use weir_device::{Device, DeviceError, Durability};
use weir_format::Owner;
use weir_format::layout::{OWNER_OFFSET, SLOT_BYTES, label_offsets};

pub(crate) async fn read_slot(disk: &dyn Device) -> Option<Owner> {
    let (done, slot) = disk.read_at(OWNER_OFFSET, IoBuf::zeroed(SLOT_BYTES)).await;
    done.ok()?;
    Owner::decode(&slot).ok()
}

pub(crate) async fn write_slot(
    disk: &dyn Device,
    owner: &Owner,
    disk_bytes: u64,
) -> Result<(), DeviceError> {
    let mut slot = IoBuf::zeroed(SLOT_BYTES);
    slot.copy_from_slice(&owner.encode());
    let slot = Arc::new(slot);
    for label in label_offsets(disk_bytes) {
        let at = label + OWNER_OFFSET;
        disk.write_at(at, Arc::clone(&slot), 0..SLOT_BYTES, Durability::Cached).await?;
    }
    Ok(())
}
