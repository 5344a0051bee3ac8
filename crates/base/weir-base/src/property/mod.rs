//! Table of the properties of pools, volumes and snapshots, with the types of their values.

mod table;
mod value;

pub use table::*;
pub use value::*;
