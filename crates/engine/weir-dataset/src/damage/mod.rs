//! Damage of a pool: the list of permanent errors (`find`), its description for users (`named`),
//! checks of the space counters against the trees (`check`), and the recovery of space that damage
//! keeps allocated (`recount`).

pub(crate) mod check;
pub(crate) mod find;
pub(crate) mod named;
pub(crate) mod recount;
