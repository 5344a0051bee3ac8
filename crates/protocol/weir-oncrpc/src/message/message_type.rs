//! Numbers that calls and replies share.
//!
//! `call` and `reply` contain the layouts of the messages.
//!
//! Spec: RFC 5531 section 9 (msg_type, rpc_msg).
//!
//! Invariant: no number depends on a program.

/// The only version of RPC that RFC 5531 defines.
pub const RPC_VERSION: u32 = 2;

/// Message type of a call.
pub(crate) const CALL: u32 = 0;

/// Message type of a reply.
pub(crate) const REPLY: u32 = 1;
