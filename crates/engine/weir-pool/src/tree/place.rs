//! Places in a dataset: the order in which a dataset diff visits the blocks of all objects.
//!
//! The diff is in `dataset_diff`. A version that is being freed stores the place up to which it is
//! freed.
//!
//! The order is by object, then by block. A block of the object table comes after the four objects
//! whose slots it holds, and a node of the table after everything below it.
//!
//! Invariant: in each object, one block separates the blocks before a place from the other blocks.

use weir_base::ObjectId;
use weir_format::OBJECT_SLOTS_PER_BLOCK;

/// Kind of a dataset: one object, or many objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objects {
    /// One object, [`ObjectId::VOLUME`].
    #[default]
    One,
    /// Many objects, whose tree roots are in the object table.
    Many,
}

/// Block of an object of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The object.
    pub object: ObjectId,
    /// The block. For a node of the object: the first block below the node.
    pub block: u64,
}

impl Place {
    /// First block of a dataset.
    pub const START: Self = Self { object: ObjectId(0), block: 0 };
    /// Place after all blocks.
    pub const END: Self = Self { object: ObjectId(u64::MAX), block: u64::MAX };

    /// Place of a block of a volume; `u64::MAX` is the end of the volume.
    pub const fn in_volume(block: u64) -> Self {
        if block == u64::MAX {
            return Self::END;
        }
        Self { object: ObjectId::VOLUME, block }
    }

    /// First block of the objects whose slots are in a block of the object table.
    pub(crate) fn of_slots(block: u64) -> Self {
        let object = block.saturating_mul(OBJECT_SLOTS_PER_BLOCK as u64);
        Self { object: ObjectId(object), block: 0 }
    }

    /// Returns the end of the part of an object that precedes this place: the blocks and nodes of
    /// the object that end at or before the returned block precede the place. A block of the object
    /// table precedes the place only if all of its four objects do.
    pub fn within(self, object: ObjectId, objects: Objects) -> u64 {
        match (self, objects) {
            (Self::END, _) => u64::MAX,
            (place, Objects::One) => place.block,
            (place, Objects::Many) if object == ObjectId::TABLE => {
                place.object.0 / OBJECT_SLOTS_PER_BLOCK as u64
            }
            (place, Objects::Many) if place.object == object => place.block,
            (place, Objects::Many) if place.object > object => u64::MAX,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_divides_every_object() {
        let within = |place: Place, object| place.within(ObjectId(object), Objects::Many);
        let place = Place { object: ObjectId(9), block: 5 };
        assert_eq!(within(place, 8), u64::MAX);
        assert_eq!(within(place, 9), 5);
        assert_eq!(within(place, 10), 0);
        assert_eq!(within(place, 0), 2, "slots 8 to 11 are in block 2");
        assert_eq!(within(Place::of_slots(2), 0), 2);
        assert_eq!(within(Place { object: ObjectId(8), block: 1 }, 0), 2);
        assert_eq!(within(Place::START, 0), 0);
        assert_eq!(within(Place::START, 7), 0);
        assert_eq!(within(Place::END, 7), u64::MAX);
        let volume = |block| Place::in_volume(block).within(ObjectId::VOLUME, Objects::One);
        assert_eq!((volume(7), volume(u64::MAX)), (7, u64::MAX));
    }
}
