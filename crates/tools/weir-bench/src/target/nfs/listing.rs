//! Listings of a directory by repeated READDIR or READDIRPLUS calls.
//!
//! `metadata` has the operations of one call.
//!
//! Spec: RFC 1813 sections 3.3.16 (READDIR) and 3.3.17 (READDIRPLUS).
//!
//! Invariant: a listing ends at the end of the directory, or with an error at a reply without
//! entries.

use std::io;

use weir_nfs_client::Handle;
use weir_nfs_wire::nfs3::{Args, FileName, ReaddirArgs, ReaddirplusArgs, Results, Verifier};

use super::channel::Channel;
use super::mount::Mount;
use crate::target::metadata::MetadataCall;

/// A listing of a directory that waits for a reply.
pub(super) struct Listing {
    dir: Handle,
    is_plus: bool,
    /// Length of a reply in bytes.
    reply_bytes: u32,
    cookie: u64,
    cookieverf: Verifier,
    /// Number of names so far, without `.` and `..`.
    names: u32,
    /// Number of names without attributes in the replies to READDIRPLUS.
    without_attributes: u32,
    /// Number of names that the directory must have.
    expected: Option<u32>,
}

impl Listing {
    /// Listing for a metadata operation; `None` if the operation is no listing.
    ///
    /// # Errors
    /// The run did not create the directory.
    pub(super) fn new(mount: &Mount, call: MetadataCall) -> io::Result<Option<Self>> {
        let (dir, is_plus, expected) = match call {
            MetadataCall::Readdir => (mount.next_root(), false, None),
            MetadataCall::Readdirplus => (mount.next_root(), true, None),
            MetadataCall::List { directory, files }
            | MetadataCall::ListPlus { directory, files } => {
                let dir = mount.directory(&directory.to_string());
                let is_plus = matches!(call, MetadataCall::ListPlus { .. });
                (dir.ok_or(io::ErrorKind::NotFound)?, is_plus, Some(files))
            }
            _ => return Ok(None),
        };
        let (reply_bytes, cookieverf) = (mount.directory_bytes, [0; 8]);
        let (cookie, names, without_attributes) = (0, 0, 0);
        Ok(Some(Self {
            dir,
            is_plus,
            reply_bytes,
            cookie,
            cookieverf,
            names,
            without_attributes,
            expected,
        }))
    }

    /// Submits the next call.
    pub(super) fn send(&self, channel: &mut Channel, slot: usize) {
        let Self { cookie, cookieverf, reply_bytes, .. } = *self;
        let dir = self.dir.wire();
        let args = if self.is_plus {
            // The names of a full reply need less than half of its length.
            let (dircount, maxcount) = (reply_bytes / 2, reply_bytes);
            Args::Readdirplus(ReaddirplusArgs { dir, cookie, cookieverf, dircount, maxcount })
        } else {
            Args::Readdir(ReaddirArgs { dir, cookie, cookieverf, count: reply_bytes })
        };
        channel.call(slot, 0, &args);
    }

    /// Processes a reply. Returns the result of the operation, or `None` if another call must be
    /// sent.
    pub(super) fn take(&mut self, results: &Results<'_>) -> Option<io::Result<()>> {
        let is_dot = |name: &FileName<'_>| [&b"."[..], b".."].contains(&name.bytes());
        let (names, last, eof) = match results {
            Results::Readdir(Ok(page)) => {
                self.cookieverf = page.cookieverf;
                let entries = &page.entries.0;
                let names = entries.iter().filter(|entry| !is_dot(&entry.name)).count();
                (names, entries.last().map(|entry| entry.cookie), page.eof)
            }
            Results::Readdirplus(Ok(page)) => {
                self.cookieverf = page.cookieverf;
                let entries = &page.entries.0;
                let names = entries.iter().filter(|entry| !is_dot(&entry.name));
                let without = names.clone().filter(|entry| entry.attributes.is_none()).count();
                self.without_attributes = self.without_attributes.saturating_add(without as u32);
                (names.count(), entries.last().map(|entry| entry.cookie), page.eof)
            }
            _ => return Some(Err(io::Error::other("READDIR: results of another procedure"))),
        };
        self.names = self.names.saturating_add(names as u32);
        if eof {
            let found = self.names;
            return Some(match self.expected {
                Some(files) if files != found => Err(io::Error::other(format!(
                    "the directory lists {found} files instead of {files}"
                ))),
                Some(_) if self.without_attributes > 0 => Err(io::Error::other(format!(
                    "READDIRPLUS: {} of {found} files have no attributes",
                    self.without_attributes
                ))),
                _ => Ok(()),
            });
        }
        let Some(last) = last else {
            let why = "READDIR: an empty reply before the end of the directory";
            return Some(Err(io::Error::other(why)));
        };
        self.cookie = last;
        None
    }
}
