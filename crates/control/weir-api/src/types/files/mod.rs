//! Types of the calls for filesystems and their mounts.

mod filesystem;
mod mount;
mod usage;

pub use filesystem::*;
pub use mount::*;
pub use usage::*;
