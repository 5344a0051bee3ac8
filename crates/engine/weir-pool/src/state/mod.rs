//! The pool in RAM: `Pool`, and the types of its fields.

pub(crate) mod cleaner_statistics;
pub(crate) mod compression;
pub(crate) mod damage_list;
pub(crate) mod dedupe_index;
pub(crate) mod losses;
pub(crate) mod pool;
