//! Types of the calls for filesystems, their mounts and their shares.

mod filesystem;
mod mount;
mod share;
mod usage;

pub use filesystem::*;
pub use mount::*;
pub use share::*;
pub use usage::*;
