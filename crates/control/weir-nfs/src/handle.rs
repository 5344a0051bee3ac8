//! File handles.
//!
//! ```text
//! u8 version = 1, 3 bytes 0, u64 share, u64 file system, u48 inode, u48 generation,
//! u64 snapshot (0: none, 2^64 - 1: above the snapshots), u64 tag: 48 bytes, little-endian
//! ```
//!
//! Invariants:
//! - a handle stays valid over restarts, imports on other machines and renames of the file: it has
//!   nothing that these change;
//! - a client cannot make a handle of a file that the server did not offer it: the tag is a keyed
//!   hash of the other bytes.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use weir_base::{ObjectId, Txg};
use weir_fs::InodeRef;

const VERSION: u8 = 1;
const BODY_BYTES: usize = 40;
const NUMBER_MAX: u64 = (1 << 48) - 1;

/// Identifier of a share in handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShareId(pub u64);

impl ShareId {
    /// Identifier of a share: a hash of its name and of the directory that it offers. A share that
    /// is created again with the same name accepts old handles only if it offers the same
    /// directory.
    pub fn of(name: &str, fsid: u64, root: InodeRef) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(&(name.len() as u64).to_le_bytes());
        hasher.write(name.as_bytes());
        for number in [fsid, root.number.0, root.generation.0] {
            hasher.write(&number.to_le_bytes());
        }
        Self(hasher.finish())
    }
}

/// Content of a file handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// Share through which the client got the handle.
    pub share: ShareId,
    /// Number of the filesystem.
    pub fsid: u64,
    /// The inode, with a number and a generation below 2^48.
    pub inode: InodeRef,
    /// Number of a snapshot of the filesystem; 0 for the filesystem itself.
    pub snapshot: u64,
}

/// Secret of a share that signs its handles.
#[derive(Clone, Copy)]
pub struct HandleKey(SipHasher24);

impl HandleKey {
    /// Creates the key from a secret of the filesystem, which no client knows.
    pub fn new(secret: u128) -> Self {
        Self(SipHasher24::new_with_key(&secret.to_le_bytes()))
    }

    fn tag(&self, body: &[u8]) -> u64 {
        let mut hasher = self.0;
        hasher.write(body);
        hasher.finish()
    }

    /// Encodes a handle for a client.
    ///
    /// # Panics
    /// The inode number or the generation has more than 48 bits; weir-fs has no such inode.
    pub fn encode(&self, handle: &Handle) -> [u8; Handle::BYTES] {
        let Handle { share, fsid, inode, snapshot } = *handle;
        let (number, generation) = (inode.number.0, inode.generation.0);
        assert!(number <= NUMBER_MAX && generation <= NUMBER_MAX, "numbers have 48 bits");
        let mut bytes = Vec::with_capacity(Handle::BYTES);
        bytes.extend([VERSION, 0, 0, 0]);
        bytes.extend(share.0.to_le_bytes());
        bytes.extend(fsid.to_le_bytes());
        for number in [number, generation] {
            bytes.extend(number.to_le_bytes().into_iter().take(6));
        }
        bytes.extend(snapshot.to_le_bytes());
        let tag = self.tag(&bytes);
        bytes.extend(tag.to_le_bytes());
        bytes.try_into().expect("the fields have 48 bytes")
    }

    /// Decodes the handle of a client. `None` if no server made it for this share: the server
    /// replies NFS3ERR_BADHANDLE.
    pub fn decode(&self, bytes: &[u8]) -> Option<Handle> {
        let (body, tag) = bytes.split_at_checked(BODY_BYTES)?;
        if tag != self.tag(body).to_le_bytes() {
            return None;
        }
        let (head, rest) = body.split_first_chunk::<4>()?;
        if *head != [VERSION, 0, 0, 0] {
            return None;
        }
        let (share, rest) = rest.split_first_chunk::<8>()?;
        let (fsid, rest) = rest.split_first_chunk::<8>()?;
        let (number, rest) = rest.split_first_chunk::<6>()?;
        let (generation, rest) = rest.split_first_chunk::<6>()?;
        let snapshot: [u8; 8] = rest.try_into().ok()?;
        let inode = InodeRef { number: ObjectId(u48(*number)), generation: Txg(u48(*generation)) };
        Some(Handle {
            share: ShareId(u64::from_le_bytes(*share)),
            fsid: u64::from_le_bytes(*fsid),
            inode,
            snapshot: u64::from_le_bytes(snapshot),
        })
    }
}

fn u48(bytes: [u8; 6]) -> u64 {
    bytes.into_iter().rev().fold(0, |number, byte| number << 8 | u64::from(byte))
}

impl Handle {
    /// Value of `snapshot` for an inode of the filesystem itself.
    pub const OF_FILESYSTEM: u64 = 0;
    /// Value of `snapshot` for `.weir` (inode 1) and `.weir/snapshot` (inode 2), which belong to no
    /// filesystem. No dataset has this number.
    pub const ABOVE_SNAPSHOTS: u64 = u64::MAX;

    /// Length of an encoded handle; NFSv3 allows 64 bytes.
    pub const BYTES: usize = BODY_BYTES + 8;

    /// Reads the share of an encoded handle without a key. The caller then checks the handle with
    /// the key of this share. `None` if the handle has another length or version.
    pub fn share_of(bytes: &[u8]) -> Option<ShareId> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let (share, _) = rest.split_first_chunk::<8>()?;
        let is_ours = bytes.len() == Self::BYTES && *head == [VERSION, 0, 0, 0];
        is_ours.then_some(ShareId(u64::from_le_bytes(*share)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLE: Handle = Handle {
        share: ShareId(1),
        fsid: 0x1122_3344_5566_7788,
        inode: InodeRef { number: ObjectId(NUMBER_MAX), generation: Txg(77) },
        snapshot: 5,
    };

    #[test]
    fn handle_survives_a_restart_with_the_same_secret() {
        let bytes = HandleKey::new(7).encode(&HANDLE);
        assert_eq!(HandleKey::new(7).decode(&bytes), Some(HANDLE));
        assert_eq!(HandleKey::new(8).decode(&bytes), None, "handle of another filesystem");
    }

    #[test]
    fn changed_and_cut_handles_are_rejected() {
        let key = HandleKey::new(7);
        let bytes = key.encode(&HANDLE);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes;
                changed[at] ^= 1 << bit;
                assert_eq!(key.decode(&changed), None, "byte {at}, bit {bit}");
            }
            assert_eq!(key.decode(&bytes[..at]), None);
        }
        let longer: Vec<u8> = bytes.into_iter().chain([0]).collect();
        assert_eq!(key.decode(&longer), None);
    }

    #[test]
    fn share_with_another_directory_has_another_identifier() {
        let root = InodeRef { number: ObjectId(1), generation: Txg(4) };
        let id = ShareId::of("home", 9, root);
        assert_eq!(ShareId::of("home", 9, root), id);
        let newer = InodeRef { generation: Txg(5), ..root };
        let below = InodeRef { number: ObjectId(16), ..root };
        let others = [
            ShareId::of("work", 9, root),
            ShareId::of("home", 8, root),
            ShareId::of("home", 9, newer),
            ShareId::of("home", 9, below),
        ];
        assert!(others.iter().all(|other| *other != id));
    }
}
