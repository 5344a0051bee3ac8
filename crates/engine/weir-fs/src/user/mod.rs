//! Operations on behalf of the users of network clients.

pub(crate) mod call;
mod changes;
mod reads;
mod types;

pub use types::{Allowed, BeforeAfter, Created, InodeRef, Listed, Looked, Removed, Renamed};
