//! Dispatch: the target device with its nexuses, and the admission of commands.

pub(crate) mod run;
pub(crate) mod target;
