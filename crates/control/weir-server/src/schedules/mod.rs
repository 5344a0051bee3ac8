//! Snapshot schedules: planning, and the calls that change them.

pub(crate) mod plan;
pub(crate) mod schedule_calls;
