//! SCSI commands, each with its checks.

pub(crate) mod block;
pub(crate) mod compare;
pub(crate) mod copy;
pub(crate) mod copy_results;
pub(crate) mod copy_run;
pub(crate) mod identity;
pub(crate) mod inquiry;
pub(crate) mod log;
pub(crate) mod lost;
pub(crate) mod mode;
pub(crate) mod persistent;
pub(crate) mod provision;
pub(crate) mod report;
pub(crate) mod task;
pub(crate) mod token_copy;
pub(crate) mod transfer;
pub(crate) mod verify;
pub(crate) mod vital;
