//! READDIR and READDIRPLUS.
//!
//! Spec: RFC 1813 sections 3.3.16 and 3.3.17.
//!
//! Invariants:
//! - a cookie stays valid whatever happens to other entries, so the cookie verifier is always 0;
//! - a reply without entries says that the list ends, or that the buffer is too small.

use weir_base::{DatasetId, ObjectId};
use weir_fs::{
    Attributes, FsError, InodeRef, ROOT, SNAPSHOTS_NAME, Snapshots, VirtualDirectory, WEIR_NAME,
};
use weir_nfs_wire::nfs3::{
    DirectoryReply, DirectoryRoom, Entry, EntryPlus, Nfsstat3, ReaddirArgs, ReaddirplusArgs,
    Verifier,
};
use weir_oncrpc::{Encoder, Opaque};

use crate::limits::{DIRECTORY_BYTES_MAX, ENTRIES_MAX};
use crate::procedures::at::{At, as_handle, put_error, put_status};
use crate::procedures::view::View;

const NO_VERIFIER: Verifier = [0; 8];
/// Cookies of the entries `.` and `..`. Other entries have larger cookies.
const SELF_COOKIE: u64 = 1;
const PARENT_COOKIE: u64 = 2;
/// Cookie of `.weir` in a root, and of `snapshot` in `.weir`.
const WEIR_COOKIE: u64 = 3;

/// Maximum number of snapshots in a part of a list.
const SNAPSHOTS_MAX: usize = 256;

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
    if let View::Virtual(directory, all) = &at.view {
        return Ok(part_of_virtual((*directory, &**all), cookie));
    }
    let after = if cookie <= PARENT_COOKIE { 0 } else { cookie };
    let listed = at.files().list_for(&at.user.credentials(), at.inode, after).await?;
    let mut items = Vec::with_capacity(listed.entries.len() + 2);
    if cookie < SELF_COOKIE {
        let number = at.inode.number.0;
        items.push(Item { number, name: b".".as_slice().into(), cookie: SELF_COOKIE });
    }
    if cookie < PARENT_COOKIE {
        let parent = at.files().parent_of(at.inode).await?;
        let number = match parent {
            _ if at.is_root() => at.inode.number.0,
            _ if at.is_snapshot_root() => VirtualDirectory::Snapshots.number().0,
            parent => parent.0,
        };
        items.push(Item { number, name: b"..".as_slice().into(), cookie: PARENT_COOKIE });
    }
    if cookie < WEIR_COOKIE && at.lists_weir().await? {
        let number = VirtualDirectory::Weir.number().0;
        items.push(Item { number, name: WEIR_NAME.into(), cookie: WEIR_COOKIE });
    }
    let is_last = listed.entries.is_empty();
    for entry in listed.entries {
        let cookie = entry.key.number();
        items.push(Item { number: entry.inode.0, name: entry.name, cookie });
    }
    Ok(Part { directory: listed.directory, items, is_last })
}

/// Lists a directory above the snapshots after a cookie. The cookie of a snapshot is its number
/// plus [`PARENT_COOKIE`]. The entries have no handles in READDIRPLUS, so a list opens no snapshot.
fn part_of_virtual((directory, all): (VirtualDirectory, &dyn Snapshots), cookie: u64) -> Part {
    let (above, number) = match directory {
        VirtualDirectory::Weir => (ROOT, directory.number()),
        VirtualDirectory::Snapshots => (VirtualDirectory::Weir.number(), directory.number()),
    };
    let specials = [(number, &b"."[..], SELF_COOKIE), (above, b"..", PARENT_COOKIE)];
    let special = |(number, name, cookie): (ObjectId, &[u8], u64)| Item {
        number: number.0,
        name: name.into(),
        cookie,
    };
    let mut items: Vec<Item> = specials.map(special).into_iter().collect();
    let mut is_last = true;
    match directory {
        VirtualDirectory::Weir => {
            let number = VirtualDirectory::Snapshots.number();
            items.push(special((number, SNAPSHOTS_NAME, WEIR_COOKIE)));
        }
        VirtualDirectory::Snapshots => {
            let listed = all.list(DatasetId(cookie.saturating_sub(PARENT_COOKIE)));
            is_last = listed.len() <= SNAPSHOTS_MAX;
            // Clients see the number of the root of the snapshot as soon as they enter it.
            let number =
                |dataset: DatasetId| VirtualDirectory::NUMBERS.wrapping_add(dataset.0 << 2);
            items.extend(listed.into_iter().take(SNAPSHOTS_MAX).map(|found| Item {
                number: number(found.dataset),
                name: found.name,
                cookie: found.dataset.0.saturating_add(PARENT_COOKIE),
            }));
        }
    }
    items.retain(|item| item.cookie > cookie);
    Part { directory: directory.attributes(all), items, is_last }
}

pub(super) async fn readdir(at: &At, args: &ReaddirArgs<'_>, out: &mut Encoder<'_>) {
    let limits = (None, args.count.min(DIRECTORY_BYTES_MAX));
    list(at, (args.cookie, args.cookieverf), limits, out).await;
}

pub(super) async fn readdirplus(at: &At, args: &ReaddirplusArgs<'_>, out: &mut Encoder<'_>) {
    let limits = (Some(args.dircount), args.maxcount.min(DIRECTORY_BYTES_MAX));
    list(at, (args.cookie, args.cookieverf), limits, out).await;
}

/// Lists the entries after a cookie that can fit in a reply of READDIRPLUS with this much room, and
/// one more that does not fit. At an error, returns the entries before it.
async fn parts(at: &At, cookie: u64, room: DirectoryRoom) -> Result<Part, FsError> {
    let mut all = part(at, cookie).await?;
    let count = |items: &[Item]| room.entries_plus(items.iter().map(|item| item.name.len()));
    while !all.is_last && count(&all.items) == all.items.len() && all.items.len() < ENTRIES_MAX {
        let Some(last) = all.items.last() else { break };
        let Ok(more) = part(at, last.cookie).await else { break };
        all.items.extend(more.items);
        all.is_last = more.is_last;
    }
    let wanted = count(&all.items) + 1;
    if all.items.len() > wanted {
        all.items.truncate(wanted);
        all.is_last = false;
    }
    Ok(all)
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
    let room = dircount.map(|dircount| DirectoryRoom::new(dircount, bytes_max));
    let listed = match room {
        None => part(at, cookie).await,
        Some(room) => parts(at, cookie, room).await,
    };
    let mut next = match listed {
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
    let failed = loop {
        let Some(last) = next.items.last().map(|item| item.cookie) else { break None };
        fits = push_all(at, &mut reply, &next.items).await;
        if !fits || next.is_last {
            break None;
        }
        let listed = match reply.room() {
            None => part(at, last).await,
            Some(room) => parts(at, last, room).await,
        };
        match listed {
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

/// Appends entries. Returns false if one does not fit.
async fn push_all(at: &At, reply: &mut DirectoryReply<'_, '_>, items: &[Item]) -> bool {
    if reply.room().is_none() {
        return items.iter().all(|item| {
            let Ok(name) = Opaque::new(&item.name) else { return true };
            let (fileid, cookie) = (item.number, item.cookie);
            reply.entries() < ENTRIES_MAX && reply.push(&Entry { fileid, name, cookie })
        });
    }
    let numbers: Vec<ObjectId> = items.iter().map(|item| ObjectId(item.number)).collect();
    let found = at.files().attributes_of_all(&numbers).await;
    items.iter().zip(found).all(|(item, found)| {
        let Ok(name) = Opaque::new(&item.name) else { return true };
        let (fileid, cookie) = (item.number, item.cookie);
        // The parent of the root is outside of the share.
        let found = found.ok().filter(|_| cookie != PARENT_COOKIE);
        let bytes = found.as_ref().map(|found| at.handle(InodeRef::from(found)));
        let handle = bytes.as_ref().map(as_handle);
        let attributes = found.map(|found| at.fattr(&found));
        let entry = EntryPlus { fileid, name, cookie, attributes, handle };
        reply.entries() < ENTRIES_MAX && reply.push_plus(&entry)
    })
}
