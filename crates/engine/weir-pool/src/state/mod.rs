//! The pool in RAM: `Pool`, and the types of its fields.

pub(crate) mod claim;
pub(crate) mod cleaner_statistics;
pub(crate) mod compression;
pub(crate) mod damage;
pub(crate) mod damage_list;
pub(crate) mod dedupe_index;
pub(crate) mod live_of;
pub(crate) mod lost_nodes;
pub(crate) mod moment;
pub(crate) mod pool;
pub(crate) mod scans;
pub(crate) mod write_heads;
