//! Vendor identification and padded text of INQUIRY data.
//!
//! INQUIRY is in `inquiry`, vital product data in `vital`.
//!
//! Invariant: text is ASCII and padded with spaces.

/// T10 vendor identification.
pub(crate) const VENDOR: &str = "WEIR";

/// Text padded with spaces to a fixed length. Omits characters that are not printable ASCII.
pub(crate) fn padded(text: &str, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = text.bytes().filter(|byte| (0x20..0x7F).contains(byte)).collect();
    bytes.resize(len, b' ');
    bytes
}
