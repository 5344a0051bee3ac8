//! Events, and the history of calls.

pub(crate) mod call_record;
pub(crate) mod events;
pub(crate) mod history;
