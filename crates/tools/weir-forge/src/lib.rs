//! Pools whose checksums are right and whose fields are wrong: what a bug of another version, bad
//! memory of a server, or an attacker leaves on disks.
//!
//! Not here: bytes that fail their checksum (the simulator), single decoders (fuzz targets).
//!
//! A [`Map`] finds every structure of a pool on its disks and what names each by checksum. A
//! [`Forgery`] changes fields of some, and seals the way up to the uberblock. [`exercise`] then
//! does with the disks what a server, `weir check` and `weir rescue` do. [`forge_stream`] changes a
//! send stream in the same way, and [`receive`] takes it into a pool.
//!
//! Invariants:
//! - a seed decides everything: the pool, the forgery, the exercise;
//! - a structure keeps its place and its stored length, so nothing but the forged fields changes;
//!   a block of the pool's own trees that compresses worse than before moves to unused space.

mod exercise;
mod forgery;
mod map;
mod sample;
mod stream;

pub use exercise::{exercise, open, receive};
pub use forgery::{Forged, Forgery, Rng};
pub use map::{Kind, Map};
pub use sample::{Disks, sample, streams_of};
pub use stream::forge_stream;
