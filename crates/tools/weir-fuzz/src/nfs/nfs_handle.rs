//! Fuzzes file handles: the input is the handle of a client, and its first 40 bytes are also signed
//! with the key of the share.
//!
//! A signed input passes the check of the tag, which no random input passes.
//!
//! Invariants: no panic; a handle that decodes encodes to the same bytes; a change of one bit,
//! another length or another key invalidates a handle.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;
use weir_base::{ObjectId, Txg};
use weir_fs::InodeRef;
use weir_nfs::{Handle, HandleKey, ShareId};

const SECRET: u128 = 0x0123_4567_89ab_cdef;
/// Length of a handle without its tag.
const BODY_BYTES: usize = Handle::BYTES - 8;
/// Version and reserved bytes of a valid handle.
const HEAD: [u8; 4] = [1, 0, 0, 0];

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let key = HandleKey::new(SECRET);
    check_arbitrary(&key, data);
    if let Some(body) = data.first_chunk::<BODY_BYTES>() {
        check_signed(&key, body);
    }
}

/// Decodes bytes that may be no handle.
fn check_arbitrary(key: &HandleKey, data: &[u8]) {
    let share = Handle::share_of(data);
    let has_form = data.len() == Handle::BYTES && data.starts_with(&HEAD);
    assert_eq!(share.is_some(), has_form);
    if let Some(handle) = key.decode(data) {
        assert_eq!(key.encode(&handle)[..], *data);
        assert_eq!(share, Some(handle.share));
    }
}

/// Decodes a body with a valid tag, and then variants of this handle.
fn check_signed(key: &HandleKey, body: &[u8; BODY_BYTES]) {
    let mut hasher = SipHasher24::new_with_key(&SECRET.to_le_bytes());
    hasher.write(body);
    let signed = [&body[..], &hasher.finish().to_le_bytes()].concat();
    check_arbitrary(key, &signed);
    let is_valid = key.decode(&signed).is_some();
    assert_eq!(is_valid, body.starts_with(&HEAD), "only the head can be wrong");
    assert_eq!(HandleKey::new(SECRET + 1).decode(&signed), None, "another key");
    let mut changed = signed.clone();
    for bit in 0..signed.len() * 8 {
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(key.decode(&changed), None, "bit {bit}");
        changed[bit / 8] ^= 1 << (bit % 8);
    }
    for len in 0..signed.len() {
        assert_eq!(key.decode(&signed[..len]), None, "{len} bytes");
    }
    let longer = [&signed[..], &[0]].concat();
    assert_eq!(key.decode(&longer), None);
}

/// Encoded handles, with the smallest and largest numbers.
pub fn seeds() -> Vec<Vec<u8>> {
    let key = HandleKey::new(SECRET);
    let largest = (1 << 48) - 1;
    let handle = |share, fsid, (number, generation), snapshot| {
        let inode = InodeRef { number: ObjectId(number), generation: Txg(generation) };
        key.encode(&Handle { share: ShareId(share), fsid, inode, snapshot }).to_vec()
    };
    vec![
        handle(1, 11, (1, 4), 0),
        handle(0, 0, (0, 0), 0),
        handle(u64::MAX, u64::MAX, (largest, largest), u64::MAX),
    ]
}
