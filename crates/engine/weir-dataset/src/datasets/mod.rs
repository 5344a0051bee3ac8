//! Volumes are created, resized and destroyed.

pub(crate) mod create;
pub(crate) mod destroy;
pub(crate) mod resize;
