//! Addresses of the clients that rules name by host name or netgroup.

mod lookup;
mod resolver;
mod slot;

pub use lookup::{FindHosts, FoundHost};
pub use resolver::{NameState, Names};
pub use slot::NameWaits;
pub(super) use slot::{Member, Slot};
