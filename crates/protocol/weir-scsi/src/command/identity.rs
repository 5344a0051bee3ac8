//! Vendor and padded text, as INQUIRY data has them.
//!
//! Not here: INQUIRY (`inquiry`), vital product data (`vital`).
//!
//! Invariant: text is ASCII and padded with spaces.

/// Who made it (T10 vendor identification).
pub(crate) const VENDOR: &str = "WEIR";

/// ASCII of a fixed length, filled up with spaces; what is no ASCII is left out.
pub(crate) fn padded(text: &str, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = text.bytes().filter(|byte| (0x20..0x7F).contains(byte)).collect();
    bytes.resize(len, b' ');
    bytes
}
