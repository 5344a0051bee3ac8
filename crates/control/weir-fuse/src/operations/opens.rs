//! Open files and directories of a mount.
//!
//! Invariants:
//! - each open inode is closed once: by its program, or at the end of the mount;
//! - one user has at most a quarter of the opens, except root.

use parking_lot::Mutex;
use weir_base::ObjectId;
use weir_base::hash::HashMap;

/// Number of opens of each inode.
#[derive(Default)]
pub(crate) struct Opens(Mutex<Table>);

#[derive(Default)]
struct Table {
    of: HashMap<ObjectId, usize>,
    /// Number of opens of each user.
    by: HashMap<u32, usize>,
    total: usize,
}

impl Opens {
    /// Counts an open of a user. Returns false, without a change, if `most` opens exist, or if the
    /// user has a quarter of `most`.
    pub(crate) fn add(&self, number: ObjectId, uid: u32, most: usize) -> bool {
        let mut table = self.0.lock();
        let own = table.by.get(&uid).copied().unwrap_or_default();
        if table.total >= most || (uid != 0 && own >= most / 4) {
            return false;
        }
        table.total += 1;
        table.by.insert(uid, own + 1);
        *table.of.entry(number).or_default() += 1;
        true
    }

    /// Counts a close. Returns false if the user has not opened the inode.
    pub(crate) fn remove(&self, number: ObjectId, uid: u32) -> bool {
        let mut table = self.0.lock();
        if !take_one(&mut table.of, &number) {
            return false;
        }
        table.total -= 1;
        take_one(&mut table.by, &uid)
    }

    /// Removes all opens. Returns the number of an inode once for each of its opens.
    pub(crate) fn take(&self) -> Vec<ObjectId> {
        let table = std::mem::take(&mut *self.0.lock());
        let each = |(number, count): (ObjectId, usize)| (0..count).map(move |_| number);
        table.of.into_iter().flat_map(each).collect()
    }
}

/// Takes one from a count, and removes a count of zero. Returns false if there is no count.
fn take_one<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, key: &K) -> bool {
    let Some(count) = counts.get_mut(key) else { return false };
    *count -= 1;
    if *count == 0 {
        counts.remove(key);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::OPENS_MAX;

    #[test]
    fn opens_are_bounded_and_each_is_closed_once() {
        let opens = Opens::default();
        for number in 0..OPENS_MAX as u64 {
            assert!(opens.add(ObjectId(number % 7), 0, OPENS_MAX));
        }
        assert!(!opens.add(ObjectId(1), 0, OPENS_MAX), "one too many");
        assert!(opens.remove(ObjectId(1), 0));
        assert!(!opens.remove(ObjectId(100), 0));
        assert!(opens.add(ObjectId(2), 0, OPENS_MAX), "there is room again");
        assert_eq!(opens.take().len(), OPENS_MAX);
        assert!(!opens.remove(ObjectId(2), 0), "closed by `take`");
        assert!(opens.add(ObjectId(2), 0, 1) && !opens.add(ObjectId(3), 0, 1));
    }

    #[test]
    fn opens_of_a_user_are_limited_to_a_quarter() {
        let (opens, file) = (Opens::default(), ObjectId(1));
        let most = |uid| (0..9).take_while(|_| opens.add(file, uid, 8)).count();
        assert_eq!((most(5), most(6), most(0)), (2, 2, 4));
        assert!(opens.remove(file, 5));
        assert!(!opens.add(file, 6, 8), "user 6 has its share");
        assert!(opens.add(file, 5, 8));
    }
}
