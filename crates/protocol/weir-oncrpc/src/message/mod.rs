//! RPC messages: headers of calls and replies, credentials (RFC 5531 sections 8 to 10).

mod auth;
mod message_type;

mod call;
mod reply;

pub use auth::{AuthStat, AuthSys, Credential, Gids, OpaqueAuth, flavor};
pub use call::{Call, CallError};
pub use message_type::RPC_VERSION;
pub use reply::{AcceptStat, Rejected, Reply, ReplyBody};

#[cfg(test)]
mod tests;
