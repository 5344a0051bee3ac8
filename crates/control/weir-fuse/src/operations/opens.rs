//! Open files and directories of a mount.
//!
//! Invariant: each open inode is closed once: by its program, or at the end of the mount.

use parking_lot::Mutex;
use weir_base::ObjectId;
use weir_base::hash::HashMap;

/// Number of opens of each inode.
#[derive(Default)]
pub(crate) struct Opens(Mutex<Table>);

#[derive(Default)]
struct Table {
    of: HashMap<ObjectId, u32>,
    total: usize,
}

impl Opens {
    /// Counts an open. Returns false, without a change, if `most` opens exist.
    pub(crate) fn add(&self, number: ObjectId, most: usize) -> bool {
        let mut table = self.0.lock();
        if table.total >= most {
            return false;
        }
        table.total += 1;
        *table.of.entry(number).or_default() += 1;
        true
    }

    /// Counts a close. Returns false if the inode is not open.
    pub(crate) fn remove(&self, number: ObjectId) -> bool {
        let mut table = self.0.lock();
        let Some(count) = table.of.get_mut(&number) else { return false };
        *count -= 1;
        if *count == 0 {
            table.of.remove(&number);
        }
        table.total -= 1;
        true
    }

    /// Removes all opens. Returns the number of an inode once for each of its opens.
    pub(crate) fn take(&self) -> Vec<ObjectId> {
        let table = std::mem::take(&mut *self.0.lock());
        let each = |(number, count): (ObjectId, u32)| (0..count).map(move |_| number);
        table.of.into_iter().flat_map(each).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::OPENS_MAX;

    #[test]
    fn opens_are_bounded_and_each_is_closed_once() {
        let opens = Opens::default();
        for number in 0..OPENS_MAX as u64 {
            assert!(opens.add(ObjectId(number % 7), OPENS_MAX));
        }
        assert!(!opens.add(ObjectId(1), OPENS_MAX), "one too many");
        assert!(opens.remove(ObjectId(1)));
        assert!(!opens.remove(ObjectId(100)));
        assert!(opens.add(ObjectId(2), OPENS_MAX), "there is room again");
        assert_eq!(opens.take().len(), OPENS_MAX);
        assert!(!opens.remove(ObjectId(2)), "closed by `take`");
        assert!(opens.add(ObjectId(2), 1) && !opens.add(ObjectId(3), 1));
    }
}
