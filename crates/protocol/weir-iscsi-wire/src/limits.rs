//! Limits of login and text negotiation, for targets and initiators.
//!
//! Invariant: the comment of each limit contains its reason.

/// Maximum data segment of a login PDU: the default of RFC 7143 13.12, which applies until the peer
/// declares another maximum.
pub const LOGIN_DATA_BYTES_MAX: usize = 8192;

/// Maximum length of the text of one negotiation, over all PDUs of the negotiation: four times the
/// length of all defined keys.
pub const TEXT_BYTES_MAX: usize = 16 << 10;

/// Maximum number of keys in one text: twice the number of defined keys. If all of them are
/// unknown, the `NotUnderstood` responses still fit into the data segment of one login PDU.
pub const KEYS_MAX: usize = 96;

/// Maximum number of login PDUs of one connection. A login with both stages (security and
/// operational) needs only six.
pub const LOGIN_PDUS_MAX: u32 = 32;

/// Longest iSCSI name (RFC 7143 4.2.7.1).
pub const NAME_BYTES_MAX: usize = 223;
