//! Creation, resizing and destruction of volumes.

pub(crate) mod create;
pub(crate) mod destroy;
pub(crate) mod resize;
