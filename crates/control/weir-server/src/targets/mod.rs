//! iSCSI targets and logical units, and the calls that change them.

pub(crate) mod target_calls;
