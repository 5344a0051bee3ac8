//! The management calls: a table with one row for each call, and the location of each request field
//! in the HTTP request.
//!
//! The types of requests and responses are in `types`, the handlers in the server.

pub mod call;
pub mod lookup;
pub(crate) mod path;
pub(crate) mod shape;
pub mod table;
