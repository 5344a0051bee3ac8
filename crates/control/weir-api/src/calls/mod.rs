//! The management calls: a row for each, and the places of its fields in an HTTP request.
//!
//! The types of requests and responses are in `types`, the handlers in the server.

pub mod call;
pub mod lookup;
pub(crate) mod path;
pub(crate) mod shape;
pub mod table;
