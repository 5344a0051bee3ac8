//! Reply to READ, encoded by a server around its data.
//!
//! A client decodes the reply as [`ReadResok`](super::ReadResok).
//!
//! ```text
//! u32 NFS3_OK, post_op_attr, u32 count, bool eof, u32 length of the data, data, padding
//! ```
//!
//! Spec: RFC 1813 section 3.3.6.
//!
//! Invariant: `count` is the length of the data.

use weir_oncrpc::xdr::padding;
use weir_oncrpc::{Encoder, Xdr};

use super::attributes::{Fattr3, PostOpAttr};

/// Length of the result of READ before its data, if it has attributes.
const HEAD_BYTES: usize = 4 + 4 + Fattr3::BYTES + 4 + 4 + 4;

/// Appends the successful result of READ up to its data. The caller sends `data_bytes` bytes behind
/// it, and then the returned number of zeros as padding (0 to 3). `data_bytes` is below 4 GiB.
#[must_use = "the padding belongs to the reply"]
pub fn encode_read_head(
    out: &mut Encoder<'_>,
    attributes: &PostOpAttr,
    data_bytes: usize,
    eof: bool,
) -> usize {
    let count = u32::try_from(data_bytes).expect("the data is shorter than 4 GiB");
    out.u32(0);
    attributes.encode(out);
    out.u32(count);
    out.bool(eof);
    out.u32(count);
    padding(data_bytes)
}

/// Reply to READ whose data is read directly into the buffer of the encoder.
///
/// Attributes and end of file are known only after the read, so [`ReadReply::finish`] fills in the
/// head.
#[derive(Debug)]
#[must_use = "without `finish` or `abandon` the reply has no head"]
pub struct ReadReply {
    start: usize,
}

impl ReadReply {
    /// Reserves space for the head. The caller then appends the data ([`Encoder::space`]).
    pub fn begin(out: &mut Encoder<'_>) -> Self {
        let start = out.len();
        out.space(HEAD_BYTES).fill(0);
        Self { start }
    }

    /// Completes the reply. The data is the first `data_bytes` bytes behind the head; removes the
    /// bytes behind the data. Panics if there are fewer bytes.
    pub fn finish(self, out: &mut Encoder<'_>, attributes: Fattr3, data_bytes: usize, eof: bool) {
        let end = self.start + HEAD_BYTES + data_bytes;
        assert!(end <= out.len(), "data ends at {end}, the buffer at {}", out.len());
        out.truncate(end);
        out.pad(data_bytes);
        out.rewrite(self.start, |out| {
            // The padding is already in the buffer.
            let _padding = encode_read_head(out, &Some(attributes), data_bytes, eof);
        });
    }

    /// Removes the reply, so that the caller can encode an error in its place.
    pub fn abandon(self, out: &mut Encoder<'_>) {
        out.truncate(self.start);
    }
}
