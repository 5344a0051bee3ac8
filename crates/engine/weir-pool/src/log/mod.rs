//! Intent log: makes flushed writes durable before their txg is committed, and replays them.

pub(crate) mod intent_log;
pub(crate) mod replay;
