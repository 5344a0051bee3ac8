//! Object slot: the entry of one object in the object table of a dataset.
//!
//! The object table is object 0 of a dataset with many objects: a tree whose blocks hold four slots
//! each. Slot n has the tree root of object n, and bytes that belong to the layer above the engine,
//! such as an inode.
//!
//! Invariants:
//! - slot 0 is unused, because object 0 is the table itself;
//! - a change of an object's tree rewrites the slot, so no block below a slot is younger than the
//!   block with the slot.

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::node::TreeRoot;

const WHAT: &str = "object slot";

/// Number of slots in a block of the object table.
pub const OBJECT_SLOTS_PER_BLOCK: usize = BLOCK_BYTES / ObjectSlot::BYTES;
/// Maximum number of slots of an object table: its tree has at most 128^6 blocks.
pub const OBJECTS_MAX: u64 = TreeRoot::BLOCKS_MAX * OBJECT_SLOTS_PER_BLOCK as u64;

/// A decoded slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSlot {
    /// Root of the object's tree.
    pub root: TreeRoot,
    /// Record size of the object.
    pub record_size: RecordSize,
    /// Bytes that the layer above the engine stores with the object, such as an inode.
    pub body: [u8; Self::BODY_BYTES],
}

impl Default for ObjectSlot {
    /// An unused slot.
    fn default() -> Self {
        Self { root: TreeRoot::EMPTY, record_size: RecordSize::BLOCK, body: [0; Self::BODY_BYTES] }
    }
}

impl ObjectSlot {
    /// Encoded size.
    pub const BYTES: usize = 1024;
    /// Size of [`Self::body`].
    pub const BODY_BYTES: usize = Self::BYTES - TreeRoot::BYTES - 1;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(TreeRoot::BYTES, "root", "tree root of the object's blocks"),
        field(1, "record_size", "log2 of a record's blocks, 0 to 8"),
        field(Self::BODY_BYTES, "body", "bytes of the layer above the engine"),
    ];

    /// Block of the object table that holds the slot of an object.
    pub const fn block_of(object: ObjectId) -> u64 {
        object.0 / OBJECT_SLOTS_PER_BLOCK as u64
    }

    /// Objects whose slots are in a block of the object table.
    pub fn objects_in(block: u64) -> impl Iterator<Item = ObjectId> {
        let first = block * OBJECT_SLOTS_PER_BLOCK as u64;
        let unused = u64::from(block == 0);
        (first + unused..first + OBJECT_SLOTS_PER_BLOCK as u64).map(ObjectId)
    }

    /// True if the slot belongs to an object.
    pub fn is_used(&self) -> bool {
        *self != Self::default()
    }

    /// Objects in use whose slots are in a block of the object table, with their slots. `index`:
    /// number of the block, whose slots the caller has checked.
    pub fn used_in(
        index: u64,
        block: &[u8; BLOCK_BYTES],
    ) -> impl Iterator<Item = (ObjectId, Self)> {
        let slot = |object| Self::read(block, object).expect("the caller checked the slots");
        let slots = Self::objects_in(index).map(move |object| (object, slot(object)));
        slots.filter(|(_, slot)| slot.is_used())
    }

    /// Encodes the slot into the block of the object table that holds it.
    pub fn write(&self, block: &mut [u8; BLOCK_BYTES], object: ObjectId) {
        let mut w = Writer::default();
        self.root.write(&mut w);
        w.u8(self.record_size.shift());
        w.bytes(&self.body);
        let (slots, _) = block.as_chunks_mut::<{ Self::BYTES }>();
        slots.get_mut(place_of(object)).expect("a block has four slots").copy_from_slice(&w.0);
    }

    /// Decodes the slot of an object from the block of the object table that holds it.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn read(block: &[u8; BLOCK_BYTES], object: ObjectId) -> Result<Self, FormatError> {
        let (mut r, root, record_size) = read_head(block, object)?;
        let body = r.take(Self::BODY_BYTES)?.first_chunk().expect("took exactly one body");
        Ok(Self { root, record_size, body: *body })
    }

    /// Decodes only the tree root from a slot.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_root(block: &[u8; BLOCK_BYTES], object: ObjectId) -> Result<TreeRoot, FormatError> {
        read_head(block, object).map(|(_, root, _)| root)
    }
}

/// Index of an object's slot in its block of the object table.
fn place_of(object: ObjectId) -> usize {
    (object.0 % OBJECT_SLOTS_PER_BLOCK as u64) as usize
}

fn read_head(
    block: &[u8; BLOCK_BYTES],
    object: ObjectId,
) -> Result<(Reader<'_>, TreeRoot, RecordSize), FormatError> {
    let (slots, _) = block.as_chunks::<{ ObjectSlot::BYTES }>();
    let mut r = Reader::new(WHAT, slots.get(place_of(object)).expect("a block has four slots"));
    let root = TreeRoot::read(&mut r)?;
    let shift = r.u8()?;
    let record_size = RecordSize::from_shift(shift).ok_or_else(|| r.bad("record_size", shift))?;
    Ok((r, root, record_size))
}

#[cfg(test)]
mod tests {
    use weir_base::{Txg, VsegId};

    use super::*;
    use crate::pointer::{BlockPtr, PtrKind};

    fn slot(n: u8) -> ObjectSlot {
        let ptr = BlockPtr {
            kind: PtrKind::Node,
            vseg: VsegId(u64::from(n)),
            birth: Txg(7),
            stored_units: 3,
            ..BlockPtr::default()
        };
        ObjectSlot {
            root: TreeRoot { ptr, height: 2 },
            record_size: RecordSize::from_shift(5).unwrap(),
            body: [n; ObjectSlot::BODY_BYTES],
        }
    }

    #[test]
    fn slots_of_a_block_do_not_change_one_another() {
        let mut block = [0; BLOCK_BYTES];
        for object in (20..24).map(ObjectId) {
            assert_eq!(ObjectSlot::block_of(object), 5);
            assert_eq!(ObjectSlot::read(&block, object), Ok(ObjectSlot::default()));
            slot(object.0 as u8).write(&mut block, object);
        }
        for object in ObjectSlot::objects_in(5) {
            let wanted = slot(object.0 as u8);
            assert_eq!(ObjectSlot::read_root(&block, object), Ok(wanted.root));
            assert_eq!(ObjectSlot::read(&block, object), Ok(wanted));
        }
        assert_eq!(ObjectSlot::objects_in(0).map(|object| object.0).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn slot_with_an_impossible_field_is_refused() {
        let mut block = [0; BLOCK_BYTES];
        slot(1).write(&mut block, ObjectId(21));
        for (at, value) in [(32, 7), (33, 9)] {
            let mut bad = block;
            bad[ObjectSlot::BYTES + at] = value;
            assert!(ObjectSlot::read(&bad, ObjectId(21)).is_err());
            assert!(ObjectSlot::read_root(&bad, ObjectId(21)).is_err());
            assert!(ObjectSlot::read(&bad, ObjectId(22)).is_ok());
        }
    }
}
