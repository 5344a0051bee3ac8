//! Operations of clients.

pub(crate) mod atime;
pub(crate) mod attributes;
pub(crate) mod commit;
pub(crate) mod content;
pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod freeing;
pub(crate) mod list;
pub(crate) mod mount;
pub(crate) mod names;
pub(crate) mod quotas;
pub(crate) mod set_id;
pub(crate) mod state;
pub(crate) mod statistics;
pub(crate) mod xattrs;
