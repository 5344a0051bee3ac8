//! Replication to other servers.

pub(crate) mod advice;
pub(crate) mod delete;
pub(crate) mod replication_calls;
pub(crate) mod run;
pub(crate) mod verify;
