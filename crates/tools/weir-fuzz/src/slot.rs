//! Fuzzes slots of objects: decodes every slot of any block of an object table.
//!
//! The fuzz target adds no checksums, for the same reason as `node`.
//!
//! Invariants: no panic; encoding the accepted slots reproduces the block byte for byte; decoding a
//! whole slot and decoding only its root give the same root or error.

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_format::{BlockPtr, OBJECT_SLOTS_PER_BLOCK, ObjectSlot, PtrKind, TreeRoot};

use crate::valid::{padded, pointer, trimmed};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let block = padded(data);
    for object in (0..OBJECT_SLOTS_PER_BLOCK as u64).map(ObjectId) {
        let (slot, root) =
            (ObjectSlot::read(&block, object), ObjectSlot::read_root(&block, object));
        assert_eq!(slot.as_ref().map(|slot| slot.root), root.as_ref().copied(), "{object:?}");
        if let Ok(slot) = slot {
            let mut again = block;
            slot.write(&mut again, object);
            assert_eq!(again, block, "{object:?}");
        }
    }
}

/// Block with slots in use, with and without a tree, and with an unused slot.
pub fn seeds() -> Vec<Vec<u8>> {
    let ptr = BlockPtr { kind: PtrKind::Node, ..pointer() };
    let size = RecordSize::from_shift(5).expect("32 blocks");
    let body = [7; ObjectSlot::BODY_BYTES];
    let with_tree = ObjectSlot { root: TreeRoot { height: 2, ptr }, record_size: size, body };
    let empty = ObjectSlot { body, ..ObjectSlot::default() };
    let mut block = [0; BLOCK_BYTES];
    for (object, slot) in [(1, &with_tree), (2, &empty), (3, &ObjectSlot::default())] {
        slot.write(&mut block, ObjectId(object));
    }
    vec![trimmed(&block), block.to_vec()]
}
