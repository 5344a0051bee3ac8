//! Limits of RPC messages.
//!
//! Invariant: the comment of each limit contains its reason.

/// Maximum length of the body of a credential or verifier (RFC 5531 section 8.2).
pub const AUTH_BODY_BYTES_MAX: usize = 400;

/// Maximum length of the machine name in an AUTH_SYS credential (RFC 5531 appendix A).
pub const MACHINE_NAME_BYTES_MAX: usize = 255;

/// Maximum number of supplementary groups in an AUTH_SYS credential (RFC 5531 appendix A).
pub const GIDS_MAX: usize = 16;

/// Maximum number of fragments of a record. Linux and libnfs send one fragment. libtirpc sends
/// fragments of at least 4,000 bytes, so 1 MiB and its headers need 279 fragments at most. The
/// limit also bounds empty fragments, which add no bytes to the record.
pub const FRAGMENTS_MAX: usize = 512;

/// Maximum length of a string in rpcbind messages. RFC 1833 states no limit; network identifiers
/// and universal addresses have at most 54 bytes, and owners are user names.
pub const RPCBIND_STRING_BYTES_MAX: usize = 256;
