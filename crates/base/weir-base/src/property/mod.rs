//! Properties of pools, volumes and snapshots: one typed table.

mod table;
mod value;

pub use table::*;
pub use value::*;
