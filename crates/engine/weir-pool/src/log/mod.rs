//! The intent log: flushed writes that no transaction group has yet, and their replay.

pub(crate) mod intent_log;
pub(crate) mod replay;
