//! Pools with valid checksums and invalid fields, as a bug, bad memory or an attacker can leave
//! them. The simulator covers bytes with wrong checksums; the fuzz targets cover single decoders.
//!
//! A [`Map`] has every structure of a pool, and the fields that hold the structure's checksum. A
//! [`Forgery`] changes fields of some structures and seals the path up to the uberblock.
//! [`exercise`] then runs the operations of a server, `weir check` and `weir rescue` on the disks.
//! [`forge_stream`] changes a send stream in the same way, and [`receive`] receives it into a pool.
//!
//! Invariants:
//! - a seed determines the pool, the forgery and the exercise;
//! - a structure keeps its address and its stored length, so only the forged fields change; only a
//!   block of the metadata trees that compresses worse than before moves to unused space.

mod bench;
mod disks;
mod exercise;
mod filesystem;
mod forgery;
pub mod images;
mod map;
mod objects;
mod rng;
mod sample;
mod stream;

pub use disks::Disks;
pub use exercise::{exercise, open, receive};
pub use filesystem::{
    Editor, FILESYSTEM_FORGERIES, FilesystemForgery, Rescuable, Suspect, Tree, check_filesystem,
    create_filesystem, filesystem_pool, forged_pool, list_filesystem, use_filesystem,
};
pub use forgery::{Forged, Forgery};
pub use map::{Kind, Map};
pub use objects::FILES;
pub use rng::Rng;
pub use sample::{object_sample, sample, streams_of};
pub use stream::forge_stream;
