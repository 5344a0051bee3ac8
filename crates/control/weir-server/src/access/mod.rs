//! Files that callers name, their secrets, and tokens.

pub(crate) mod activity;
pub(crate) mod aside;
pub(crate) mod caller_files;
pub(crate) mod secrets;
pub(crate) mod tokens;
