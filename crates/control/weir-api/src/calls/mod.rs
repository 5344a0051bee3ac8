//! The management calls: one row each, and how requests and answers travel.
//!
//! Not here: the types of requests and answers (`types`), what the calls do (the server).

pub mod call;
pub mod looked;
pub(crate) mod path;
pub(crate) mod shape;
pub mod table;
