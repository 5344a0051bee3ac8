//! Types of the calls for filesystems and their mounts.

mod filesystem;
mod mount;

pub use filesystem::*;
pub use mount::*;
