//! Creating and importing pools.

pub(crate) mod confirm;
pub(crate) mod create;
pub(crate) mod entries;
pub(crate) mod found;
pub(crate) mod late_disks;
pub(crate) mod moment;
pub(crate) mod open_pool;
pub(crate) mod reads;
