//! Reply to READDIR or READDIRPLUS, encoded by a server entry by entry.
//!
//! ```text
//! u32 NFS3_OK, then at most `count` or `maxcount` bytes:
//!   post_op_attr, verifier, (TRUE, entry)*, FALSE, bool eof
//! ```
//!
//! Spec: RFC 1813 sections 3.3.16 and 3.3.17.
//!
//! Invariant: after each call there is room for the end of the list, so that the reply never
//! exceeds the limit of the client.

use weir_oncrpc::xdr::padding;
use weir_oncrpc::{Encoder, Xdr};

use super::attributes::{Fattr3, PostOpAttr, Verifier};
use super::results::{Entry, EntryPlus};

/// Length of the end of the list and of eof.
const END_BYTES: usize = 8;

/// Length of an entry without its name, as `dircount` counts it: the Boolean, the number, the
/// length of the name and the cookie.
const INFORMATION_BYTES: usize = 4 + 8 + 4 + 8;

/// Room for entries in a reply to READDIRPLUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryRoom {
    information_bytes: usize,
    bytes: usize,
}

impl DirectoryRoom {
    /// Room of an empty reply with these limits.
    pub fn new(dircount: u32, maxcount: u32) -> Self {
        Self { information_bytes: dircount as usize, bytes: maxcount as usize }
    }

    /// Number of the first entries that fit at most, if each has attributes and a handle of 32
    /// bytes or more. `name_bytes`: lengths of their names.
    pub fn entries_plus(&self, name_bytes: impl Iterator<Item = usize>) -> usize {
        const HANDLE_BYTES_MIN: usize = 4 + 4 + 32;
        let (mut information, mut bytes) = (0, 0);
        let fits = |name_bytes: &usize| {
            let of_entry = INFORMATION_BYTES + name_bytes + padding(*name_bytes);
            information += of_entry;
            bytes += of_entry + 4 + Fattr3::BYTES + HANDLE_BYTES_MIN;
            information <= self.information_bytes && bytes <= self.bytes
        };
        name_bytes.take_while(fits).count()
    }
}

/// Reply to READDIR or READDIRPLUS. A client decodes it as [`ReaddirResok`](super::ReaddirResok) or
/// [`ReaddirplusResok`](super::ReaddirplusResok).
#[derive(Debug)]
#[must_use = "without `finish` or `abandon` the list has no end"]
pub struct DirectoryReply<'e, 'b> {
    out: &'e mut Encoder<'b>,
    start: usize,
    /// Offset in the buffer that entries may not exceed.
    end_max: usize,
    /// Rest of the directory information for READDIRPLUS (`dircount`); `None` for READDIR.
    information_left: Option<usize>,
    entries: usize,
}

impl<'e, 'b> DirectoryReply<'e, 'b> {
    /// Begins a reply to READDIR. `count` is the limit of the client, or a lower one of the server.
    ///
    /// Returns `None`, and appends nothing, if even an empty list exceeds the limit: the server
    /// replies NFS3ERR_TOOSMALL.
    pub fn readdir(
        out: &'e mut Encoder<'b>,
        dir_attributes: &PostOpAttr,
        cookieverf: Verifier,
        count: u32,
    ) -> Option<Self> {
        Self::begin(out, (dir_attributes, cookieverf), count, None)
    }

    /// Begins a reply to READDIRPLUS. `dircount` and `maxcount` are limits as in
    /// [`DirectoryReply::readdir`]; the first entry may exceed `dircount`, so that a client with a
    /// low value makes progress.
    pub fn readdirplus(
        out: &'e mut Encoder<'b>,
        dir_attributes: &PostOpAttr,
        cookieverf: Verifier,
        (dircount, maxcount): (u32, u32),
    ) -> Option<Self> {
        Self::begin(out, (dir_attributes, cookieverf), maxcount, Some(dircount as usize))
    }

    fn begin(
        out: &'e mut Encoder<'b>,
        (dir_attributes, cookieverf): (&PostOpAttr, Verifier),
        bytes_max: u32,
        information_left: Option<usize>,
    ) -> Option<Self> {
        let start = out.len();
        out.u32(0);
        let limit = out.len() + bytes_max as usize;
        dir_attributes.encode(out);
        out.fixed(&cookieverf);
        if out.len() + END_BYTES > limit {
            out.truncate(start);
            return None;
        }
        Some(Self { out, start, end_max: limit - END_BYTES, information_left, entries: 0 })
    }

    /// Number of entries in the reply. If the first entry does not fit, the server abandons the
    /// reply and replies NFS3ERR_TOOSMALL.
    pub const fn entries(&self) -> usize {
        self.entries
    }

    /// Room for further entries of READDIRPLUS; `None` in a reply to READDIR.
    pub fn room(&self) -> Option<DirectoryRoom> {
        let bytes = self.end_max.saturating_sub(self.out.len());
        self.information_left.map(|left| DirectoryRoom { information_bytes: left, bytes })
    }

    /// Appends an entry of READDIR. Returns false, and appends nothing, if the entry does not fit.
    pub fn push(&mut self, entry: &Entry<'_>) -> bool {
        assert!(self.information_left.is_none(), "a reply to READDIRPLUS has entries with handles");
        self.append(entry)
    }

    /// Appends an entry of READDIRPLUS. Returns false, and appends nothing, if the entry does not
    /// fit.
    pub fn push_plus(&mut self, entry: &EntryPlus<'_>) -> bool {
        let left = self.information_left.expect("a reply to READDIR has entries without handles");
        let name_bytes = entry.name.bytes().len();
        let information = INFORMATION_BYTES + name_bytes + padding(name_bytes);
        if information > left && self.entries > 0 {
            return false;
        }
        let fits = self.append(entry);
        if fits {
            self.information_left = Some(left.saturating_sub(information));
        }
        fits
    }

    fn append<'a>(&mut self, entry: &impl Xdr<'a>) -> bool {
        let before = self.out.len();
        self.out.bool(true);
        entry.encode(self.out);
        let fits = self.out.len() <= self.end_max;
        if fits {
            self.entries += 1;
        } else {
            self.out.truncate(before);
        }
        fits
    }

    /// Completes the reply. `eof` is true if the last entry is the last of the directory.
    pub fn finish(self, eof: bool) {
        self.out.bool(false);
        self.out.bool(eof);
    }

    /// Removes the reply, so that the caller can encode an error in its place.
    pub fn abandon(self) {
        self.out.truncate(self.start);
    }
}
