//! Events, and the history of calls.

pub(crate) mod call_record;
mod event_file;
pub(crate) mod events;
pub(crate) mod history;
mod json_lines;
