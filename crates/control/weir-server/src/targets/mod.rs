//! Calls about iSCSI targets and logical units.

pub(crate) mod target_calls;
