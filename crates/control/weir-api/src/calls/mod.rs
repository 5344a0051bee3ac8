//! The management calls: a row for each, and the places of its fields in an HTTP request.
//!
//! Not here: the types of requests and answers (`types`), the handlers (the server).

pub mod call;
pub mod looked;
pub(crate) mod path;
pub(crate) mod shape;
pub mod table;
