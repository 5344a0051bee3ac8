//! What a caller may name, and the secrets and tokens that the server keeps.

pub(crate) mod activity;
pub(crate) mod aside;
pub(crate) mod caller_files;
pub(crate) mod secrets;
pub(crate) mod tokens;
