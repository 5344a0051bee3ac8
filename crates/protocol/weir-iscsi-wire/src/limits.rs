//! Limits of login and text that both sides hold to.
//!
//! Invariant: each limit has its reason.

/// Data segment of a login PDU: what RFC 7143 13.12 sets until something else is declared.
pub const LOGIN_DATA_BYTES_MAX: usize = 8192;

/// Text of one negotiation over all of its PDUs: all keys there are fit four times.
pub const TEXT_BYTES_MAX: usize = 16 << 10;

/// Keys in one text: twice as many as are defined; as many answers of `NotUnderstood` still fit
/// into the data segment of one login PDU.
pub const KEYS_MAX: usize = 96;

/// Login PDUs of one connection: security and operational stage take six.
pub const LOGIN_PDUS_MAX: u32 = 32;

/// Longest iSCSI name (RFC 7143 4.2.7.1).
pub const NAME_BYTES_MAX: usize = 223;
