//! READDIR and READDIRPLUS.
//!
//! Spec: RFC 1813 sections 3.3.16 and 3.3.17.
//!
//! Invariants:
//! - a cookie stays valid whatever happens to other entries, so the cookie verifier is always 0;
//! - a reply without entries says that the list ends, or that the buffer is too small.

use weir_fs::{Attributes, FsError, InodeRef};
use weir_nfs_wire::nfs3::{
    DirectoryReply, Entry, EntryPlus, Nfsstat3, ReaddirArgs, ReaddirplusArgs, Verifier,
};
use weir_oncrpc::{Encoder, Opaque};

use crate::limits::{DIRECTORY_BYTES_MAX, ENTRIES_MAX};
use crate::procedures::at::{At, as_handle, put_error, put_status};

const NO_VERIFIER: Verifier = [0; 8];
/// Cookies of the entries `.` and `..`. Other entries have larger cookies.
const SELF_COOKIE: u64 = 1;
const PARENT_COOKIE: u64 = 2;

/// An entry of the list, also `.` and `..`.
struct Item {
    number: u64,
    name: Box<[u8]>,
    cookie: u64,
}

/// A part of the list of a directory.
struct Part {
    directory: Attributes,
    items: Vec<Item>,
    /// True if the list ends with the part.
    is_last: bool,
}

/// Lists the entries after a cookie.
async fn part(at: &At, cookie: u64) -> Result<Part, FsError> {
    let after = if cookie <= PARENT_COOKIE { 0 } else { cookie };
    let listed = at.files().list_for(&at.user.credentials(), at.inode, after).await?;
    let mut items = Vec::with_capacity(listed.entries.len() + 2);
    if cookie < SELF_COOKIE {
        let number = at.inode.number.0;
        items.push(Item { number, name: b".".as_slice().into(), cookie: SELF_COOKIE });
    }
    if cookie < PARENT_COOKIE {
        let parent = at.files().parent_of(at.inode).await?;
        let number = if at.is_root() { at.inode.number.0 } else { parent.0 };
        items.push(Item { number, name: b"..".as_slice().into(), cookie: PARENT_COOKIE });
    }
    let is_last = listed.entries.is_empty();
    for entry in listed.entries {
        let cookie = entry.key.number();
        items.push(Item { number: entry.inode.0, name: entry.name, cookie });
    }
    Ok(Part { directory: listed.directory, items, is_last })
}

pub(super) async fn readdir(at: &At, args: &ReaddirArgs<'_>, out: &mut Encoder<'_>) {
    let limits = (None, args.count.min(DIRECTORY_BYTES_MAX));
    list(at, (args.cookie, args.cookieverf), limits, out).await;
}

pub(super) async fn readdirplus(at: &At, args: &ReaddirplusArgs<'_>, out: &mut Encoder<'_>) {
    let limits = (Some(args.dircount), args.maxcount.min(DIRECTORY_BYTES_MAX));
    list(at, (args.cookie, args.cookieverf), limits, out).await;
}

/// Appends a list. `dircount` is set for READDIRPLUS.
async fn list(
    at: &At,
    (cookie, verifier): (u64, Verifier),
    (dircount, bytes_max): (Option<u32>, u32),
    out: &mut Encoder<'_>,
) {
    if cookie != 0 && verifier != NO_VERIFIER {
        return put_status(out, Nfsstat3::BadCookie, at.known().await);
    }
    let mut next = match part(at, cookie).await {
        Ok(part) => part,
        Err(error) => return put_error(out, &error, at.known().await),
    };
    let start = out.len();
    let attributes = Some(at.fattr(&next.directory));
    let begun = match dircount {
        None => DirectoryReply::readdir(out, &attributes, NO_VERIFIER, bytes_max),
        Some(dircount) => {
            DirectoryReply::readdirplus(out, &attributes, NO_VERIFIER, (dircount, bytes_max))
        }
    };
    let Some(mut reply) = begun else {
        return put_status(out, Nfsstat3::Toosmall, attributes);
    };
    let mut fits = true;
    let failed = 'parts: loop {
        let Some(last) = next.items.last().map(|item| item.cookie) else { break None };
        for item in &next.items {
            fits = reply.entries() < ENTRIES_MAX && push(at, &mut reply, item, dircount).await;
            if !fits {
                break 'parts None;
            }
        }
        if next.is_last {
            break None;
        }
        match part(at, last).await {
            Ok(more) => next = more,
            Err(error) => break Some(error),
        }
    };
    match failed {
        // The client gets the entries so far; its next call gets the error.
        Some(_) if reply.entries() > 0 => reply.finish(false),
        Some(error) => {
            reply.abandon();
            put_error(out, &error, attributes);
        }
        None if !fits && reply.entries() == 0 => {
            reply.abandon();
            debug_assert_eq!(out.len(), start);
            put_status(out, Nfsstat3::Toosmall, attributes);
        }
        None => reply.finish(fits),
    }
}

/// Appends an entry. Returns false if it does not fit.
async fn push(
    at: &At,
    reply: &mut DirectoryReply<'_, '_>,
    item: &Item,
    dircount: Option<u32>,
) -> bool {
    let Ok(name) = Opaque::new(&item.name) else { return true };
    let (fileid, cookie) = (item.number, item.cookie);
    if dircount.is_none() {
        return reply.push(&Entry { fileid, name, cookie });
    }
    // The parent of the root is outside of the share.
    let is_parent = cookie == PARENT_COOKIE;
    let found = if is_parent {
        None
    } else {
        at.files().attributes(weir_base::ObjectId(item.number)).await.ok()
    };
    let bytes = found.as_ref().map(|found| at.handle(InodeRef::from(found)));
    let handle = bytes.as_ref().map(as_handle);
    let attributes = found.map(|found| at.fattr(&found));
    reply.push_plus(&EntryPlus { fileid, name, cookie, attributes, handle })
}
