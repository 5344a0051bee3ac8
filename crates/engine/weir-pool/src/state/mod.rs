//! The pool in RAM: `Pool`, and what it keeps of each subject.

pub(crate) mod cleaner_statistics;
pub(crate) mod compression;
pub(crate) mod damage_list;
pub(crate) mod dedupe_index;
pub(crate) mod losses;
pub(crate) mod pool;
