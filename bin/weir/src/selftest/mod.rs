//! `weir target selftest`: tests the SCSI offload primitives of any iSCSI target.

pub(crate) mod primitives;
pub(crate) mod run;
