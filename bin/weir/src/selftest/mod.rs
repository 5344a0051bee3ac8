//! `weir target selftest`: proves the SCSI primitives of any iSCSI target.

pub(crate) mod primitives;
pub(crate) mod run;
