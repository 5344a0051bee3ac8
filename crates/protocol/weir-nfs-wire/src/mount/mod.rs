//! MOUNT version 3 (RFC 1813 section 5.1) and version 1 (RFC 1094 appendix A).

mod types;

pub mod v1;
pub mod v3;

pub use types::{DirPath, Export, MountEntry, MountName, PROGRAM};
