//! Filesystems with valid checksums and invalid structures.
//!
//! Invariant: each forgery violates one rule of `weir check`.

mod editor;
mod exercise;
mod forgeries;
mod pool;
mod sample;

pub use editor::Editor;
pub use exercise::{Rescuable, check_filesystem, list_filesystem, use_filesystem};
pub use forgeries::{FILESYSTEM_FORGERIES, FilesystemForgery, Suspect};
pub use pool::{create_filesystem, filesystem_pool, forged_pool};
pub use sample::Tree;
