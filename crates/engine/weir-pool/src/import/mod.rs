//! Pool creation and import.

pub(crate) mod answer;
pub(crate) mod confirm;
pub(crate) mod create;
pub(crate) mod entries;
pub(crate) mod found;
pub(crate) mod found_disk;
pub(crate) mod late_disks;
pub(crate) mod open_pool;
pub(crate) mod options;
pub(crate) mod reads;
