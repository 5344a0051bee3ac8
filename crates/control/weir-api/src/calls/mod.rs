//! The management calls: a row of a table for each, and the places of request fields in HTTP.
//!
//! The types of requests and responses are in `types`, the handlers in the server.

pub mod call;
pub mod lookup;
pub(crate) mod path;
pub(crate) mod shape;
pub mod table;
