//! Changes fields of a mapped pool and updates the checksums.
//!
//! `map` finds the structures.
//!
//! Invariants:
//! - after [`Forgery::seal`] every checksum from the forged structures up to the uberblock is
//!   valid;
//! - all legs of a mirror are equal, and the parity of raidz1 is correct.

use std::collections::BTreeSet;

use weir_base::BLOCK_BYTES;
use weir_codec::checksum::xxh3_128;
use weir_format::label::checksum_of;
use weir_format::layout::{CONFIG_BYTES, LABEL_BYTES, RING_OFFSET, SLOT_BYTES};
use weir_format::log::{HEADER_BYTES, RECORD_BYTES, decode_header};
use weir_format::{
    BlockPtr, Codec, DatasetKind, DatasetRecord, Descent, Label, ObjectSlot, Origin, PtrKind,
    VdevKind,
};

use crate::disks::Disks;
use crate::map::{Kind, Map, Part, Place, Seal, first_disk, labels, pieces, store, tree_at};
use crate::rng::Rng;

/// Offset of the version in an encoded label; the length of the body follows the version. The next
/// two constants are the offsets of the body and of the body's checksum.
const LABEL_VERSION_AT: usize = 8;
const LABEL_BODY_AT: usize = 32;
const LABEL_CHECKSUM_AT: usize = 16;
/// Offset of the disk's own guid in an encoded label.
const LABEL_DISK_AT: usize = 40;
/// Offset of the checksum in an encoded summary.
const SUMMARY_CHECKSUM_AT: usize = 48;

/// Description of one change, for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forged {
    /// Kind of the changed structure.
    pub kind: Kind,
    /// Index of the changed structure in the map.
    pub part: usize,
    /// Offset of the change in the structure.
    pub at: usize,
    /// The bytes before and after the change.
    pub bytes: (Vec<u8>, Vec<u8>),
}

/// A forgery in progress.
pub struct Forgery {
    map: Map,
    dirty: BTreeSet<usize>,
    /// The only disk whose labels and log are forged; `None`: the labels and logs of all disks.
    only: Option<usize>,
}

impl Forgery {
    /// Starts a forgery of an intact pool.
    pub fn new(map: &Map) -> Self {
        Self { map: map.clone(), dirty: BTreeSet::new(), only: None }
    }

    /// Changes one random field of one random structure.
    pub fn forge(&mut self, rng: &mut Rng) -> Forged {
        // Draw the kind first, because a pool has many nodes and one uberblock.
        let kind = loop {
            let kind = Kind::ALL[rng.below(Kind::ALL.len())];
            if self.map.parts.iter().any(|part| part.kind == kind) {
                break kind;
            }
        };
        let of_kind = |part: &&(usize, &Part)| part.1.kind == kind;
        let all: Vec<(usize, &Part)> = self.map.parts.iter().enumerate().collect();
        let some: Vec<usize> = all.iter().filter(of_kind).map(|(n, _)| *n).collect();
        let part = some[rng.below(some.len())];
        let at = field(&self.map.parts[part], rng);
        if rng.below(4) == 0 {
            self.only = Some(rng.below(labels(&self.map.label).len() / 2));
        }
        let content = &mut self.map.parts[part].content;
        let before = content.clone();
        change(content, at, rng);
        self.dirty.insert(part);
        let differs = |n: &usize| before[*n] != content[*n];
        let first = (0..content.len()).find(differs).unwrap_or(at);
        let last = (0..content.len()).rfind(differs).unwrap_or(at);
        let bytes = (before[first..=last].to_vec(), content[first..=last].to_vec());
        Forged { kind, part, at: first, bytes }
    }

    /// Overwrites bytes at offset `at` of structure number `n` of a kind. In a directory entry,
    /// `at` counts from the description of the tree: size, record size, root, counts.
    pub fn put(&mut self, kind: Kind, n: usize, at: usize, bytes: &[u8]) {
        let of_kind = self.map.parts.iter().enumerate().filter(|(_, part)| part.kind == kind);
        let part = of_kind.map(|(part, _)| part).nth(n).expect("as many as the map counts");
        let content = &mut self.map.parts[part].content;
        let at = if kind == Kind::Directory { at + tree_at(content) } else { at };
        content[at..at + bytes.len()].copy_from_slice(bytes);
        self.dirty.insert(part);
    }

    /// Overwrites all slots of every inner node of the datasets' trees with the node's first child
    /// pointer; returns the number of changed nodes.
    pub fn fill_nodes(&mut self) -> usize {
        let leads = |slot: &[u8; BlockPtr::BYTES]| {
            BlockPtr::decode(slot).is_ok_and(|ptr| ptr.kind == PtrKind::Node)
        };
        let mut filled = Vec::new();
        for (part, Part { kind, content, .. }) in self.map.parts.iter_mut().enumerate() {
            let (slots, _) = content.as_chunks_mut::<{ BlockPtr::BYTES }>();
            let first = slots.iter().position(leads).filter(|_| *kind == Kind::Node);
            if let Some(first) = first {
                let slot = slots[first];
                slots.fill(slot);
                filled.push((part, first * BlockPtr::BYTES + 16));
            }
        }
        for &(above, checksum) in &filled {
            let is_child = |seal: &Seal| *seal == Seal::Full { part: above, at: checksum };
            for part in &mut self.map.parts {
                let is_the_child = part.seals.iter().any(is_child);
                part.seals.retain(|seal| seal.part() != above);
                if is_the_child {
                    let all = (0..BLOCK_BYTES).step_by(BlockPtr::BYTES);
                    part.seals.extend(all.map(|at| Seal::Full { part: above, at: at + 16 }));
                }
            }
            self.dirty.insert(above);
        }
        filled.len()
    }

    /// Makes the origin of a clone descend from a snapshot of that clone; returns false if no clone
    /// has a snapshot.
    pub fn turn_origin(&mut self) -> bool {
        let records: Vec<(usize, DatasetRecord)> = self
            .map
            .parts
            .iter()
            .enumerate()
            .filter(|(_, part)| part.kind == Kind::Directory)
            .filter_map(|(n, part)| {
                Some((n, DatasetRecord::decode(part.content.first_chunk()?).ok()?))
            })
            .collect();
        let snapshot_of = |volume| {
            records.iter().find_map(|(_, record)| match &record.kind {
                DatasetKind::Snapshot(moment) if moment.of == volume => {
                    Some((record.id, moment.txg))
                }
                _ => None,
            })
        };
        let owner_of = |snapshot| {
            records.iter().find_map(|(_, record)| match &record.kind {
                DatasetKind::Snapshot(moment) if record.id == snapshot => Some(moment.of),
                _ => None,
            })
        };
        let turned = records.iter().find_map(|(_, clone)| {
            let DatasetKind::Volume(Descent { origin: Some(origin), .. }) = &clone.kind else {
                return None;
            };
            let (parent, (snapshot, txg)) = (owner_of(origin.snapshot)?, snapshot_of(clone.id)?);
            let mut of = records.iter().find(|(_, record)| record.id == parent)?.clone();
            if let DatasetKind::Volume(descent) = &mut of.1.kind {
                descent.origin = Some(Origin { snapshot, txg });
            }
            Some(of)
        });
        let Some((part, record)) = turned else { return false };
        self.map.parts[part].content = record.encode().to_vec();
        self.dirty.insert(part);
        true
    }

    /// Updates all checksums and writes the changes to the disks; returns false if a changed node
    /// compresses too badly to fit its address.
    pub fn seal(mut self, disks: &mut Disks) -> bool {
        // A child has a higher index than its first parent, so seal the highest index first. A
        // shared child can also have a parent with a higher index than its own, so repeat until no
        // structure changes.
        let mut all = BTreeSet::new();
        while let Some(part) = self.dirty.pop_last() {
            let stored = match self.sealed(part) {
                Some(stored) => stored,
                None if self.move_out(part) => self.map.parts[part].content.clone(),
                None => return false,
            };
            all.insert(part);
            let named = match self.map.parts[part].kind {
                Kind::Summary => checksum_at(&stored, SUMMARY_CHECKSUM_AT),
                _ => xxh3_128(&stored),
            };
            for seal in self.map.parts[part].seals.clone() {
                let (above, at, bytes) = match seal {
                    Seal::Full { part, at } => (part, at, named.to_le_bytes().to_vec()),
                    Seal::Low { part, at } => (part, at, (named as u64).to_le_bytes().to_vec()),
                };
                let place = &mut self.map.parts[above].content[at..at + bytes.len()];
                if place != &bytes[..] {
                    place.copy_from_slice(&bytes);
                    self.dirty.insert(above);
                }
            }
        }
        for part in all {
            let Some(stored) = self.sealed(part) else { return false };
            write(&self.map.label, disks, (self.map.parts[part].place, self.only), &stored);
        }
        true
    }

    /// Moves a structure that no longer fits its address to another address, and stores it there
    /// uncompressed. Returns false if it is no block of a metadata tree, or if there is no space.
    fn move_out(&mut self, part: usize) -> bool {
        let is_own = matches!(
            self.map.parts[part].kind,
            Kind::Directory | Kind::RootNode | Kind::SegmentTable
        );
        let len = BLOCK_BYTES as u32;
        let mut spare = self.map.spare.iter_mut();
        let Some(spare) = spare.find(|s| is_own && s.from + len <= s.second_at) else {
            return false;
        };
        let (vseg, vdev, at) = (spare.vseg, spare.vdev, spare.start + u64::from(spare.from));
        let (offset_units, second) = (spare.from / 64, Some(at + u64::from(spare.second_at)));
        spare.from += len;
        let codec = Codec::Raw;
        self.map.parts[part].place = Place::Area { vdev, at, second, len: BLOCK_BYTES, codec };
        for seal in self.map.parts[part].seals.clone() {
            let Seal::Full { part: above, at } = seal else { continue };
            let content = &mut self.map.parts[above].content;
            let place = content[at - 16..].first_chunk_mut().expect("a pointer");
            let Ok(ptr) = BlockPtr::decode(place) else { continue };
            let stored_units = (len / 64) as u16;
            *place = BlockPtr { vseg, offset_units, stored_units, codec, ..ptr }.encode();
            self.dirty.insert(above);
        }
        true
    }

    /// Encodes a structure in its stored form, with a checksum that matches the forged fields.
    fn sealed(&mut self, part: usize) -> Option<Vec<u8>> {
        let Part { kind, place, content, .. } = &mut self.map.parts[part];
        match kind {
            Kind::Label => {
                seal_label(content);
            }
            Kind::Uberblock => {
                let (body, checksum) = content.split_at_mut(SLOT_BYTES - 16);
                checksum.copy_from_slice(&xxh3_128(body).to_le_bytes());
            }
            Kind::Summary => {
                content[SUMMARY_CHECKSUM_AT..SUMMARY_CHECKSUM_AT + 16].fill(0);
                let checksum = xxh3_128(content).to_le_bytes();
                content[SUMMARY_CHECKSUM_AT..SUMMARY_CHECKSUM_AT + 16].copy_from_slice(&checksum);
            }
            Kind::LogBatch => stamp(content, *place),
            _ => {}
        }
        match *place {
            Place::Area { len, codec, .. } => store(content, len, codec),
            _ => Some(content.clone()),
        }
    }
}

/// Updates the checksum of an encoded label.
fn seal_label(label: &mut [u8]) {
    let number = |at: usize| u32::from_le_bytes(*label[at..].first_chunk().expect("four bytes"));
    let (version, body) = (number(LABEL_VERSION_AT), number(LABEL_VERSION_AT + 4) as usize);
    let end = LABEL_BODY_AT.saturating_add(body).min(label.len());
    let checksum = checksum_of(version, &label[LABEL_BODY_AT..end]);
    label[LABEL_CHECKSUM_AT..LABEL_BODY_AT].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(*bytes[at..].first_chunk().expect("a checksum"))
}

/// Stamps every sector of a batch with the identity in its header.
fn stamp(content: &mut [u8], place: Place) {
    if let (Place::Log(offset), Ok(header)) = (place, decode_header(content)) {
        header.id().stamp(offset, content);
    }
}

/// Draws the offset of a field: nodes have pointers at multiples of 32, and most other structures
/// have little-endian words at any offset.
fn field(part: &Part, rng: &mut Rng) -> usize {
    let len = part.content.len();
    let used = part.content.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
    match part.kind {
        Kind::Label => 8 + rng.below(used.min(len) - 8),
        Kind::Node | Kind::RootNode => {
            // In three of four cases, choose a slot that contains a pointer; otherwise any slot.
            let slots: Vec<usize> =
                (0..len / 32).filter(|slot| part.content[slot * 32..][..32] != [0; 32]).collect();
            let any = rng.below(4) == 0 || slots.is_empty();
            let slot = if any { rng.below(len / 32) } else { slots[rng.below(slots.len())] };
            slot * 32 + [0, 0, 8, 8, 5, 13, 16][rng.below(7)]
        }
        Kind::LogBatch if rng.below(4) > 0 => rng.below(HEADER_BYTES + RECORD_BYTES),
        // In three of four cases, choose the root or the record size in one of the four slots.
        Kind::Slots if rng.below(4) > 0 => rng.below(4) * ObjectSlot::BYTES + rng.below(34),
        Kind::SegmentTable => rng.below(used.div_ceil(64)) * 64 + rng.below(64),
        _ => rng.below((used + 8).min(len)),
    }
}

/// Values at which arithmetic overflows or wraps.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    (1 << 44) - 1,
    i64::MAX as u64,
    u64::MAX,
];

pub(crate) fn change(content: &mut [u8], at: usize, rng: &mut Rng) {
    let len = content.len();
    let width = [1, 2, 4, 8][rng.below(4)].min(len - at);
    let mut word = [0; 8];
    word[..width].copy_from_slice(&content[at..at + width]);
    let old = u64::from_le_bytes(word);
    let new = match rng.below(8) {
        0 => old ^ 1 << rng.below(8 * width),
        1 => old.wrapping_add(1),
        2 => old.wrapping_sub(1),
        3 => rng.number(),
        4 => old.wrapping_add(rng.number() % 4096),
        5 if at.is_multiple_of(128) && len == BLOCK_BYTES => {
            // Point every slot of the node to one block: a few such nodes make a walk endless.
            let slot: [u8; 32] = *content[at / 32 * 32..].first_chunk().expect("a slot");
            content.as_chunks_mut().0.iter_mut().for_each(|place| *place = slot);
            return;
        }
        5 if len >= 64 => {
            // Copy a pointer, an entry or some bytes of a record over another, so that two pointers
            // or entries name one address.
            let unit = [32, 64, 40, 8][rng.below(4)].min(len);
            let (from, to) = (rng.below(len / unit) * unit, at / unit * unit);
            if to + unit <= len && from + unit <= len {
                content.copy_within(from..from + unit, to);
            }
            return;
        }
        _ => EDGES[rng.below(EDGES.len())],
    };
    content[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
}

fn write(label: &Label, disks: &mut Disks, (place, only): (Place, Option<usize>), bytes: &[u8]) {
    let is_meant = |disk: usize| only.is_none_or(|only| only == disk);
    match place {
        Place::Config => {
            for (disk, at) in labels(label).into_iter().filter(|(disk, _)| is_meant(*disk)) {
                let mut own = bytes.to_vec();
                // Each disk has its own guid, unless the guid is the forged field.
                if own[LABEL_DISK_AT..LABEL_DISK_AT + 8] == label.disk.0.to_le_bytes() {
                    let guid = guid_of(label, disk);
                    own[LABEL_DISK_AT..LABEL_DISK_AT + 8].copy_from_slice(&guid.to_le_bytes());
                    seal_label(&mut own);
                }
                disks.write(disk, at, &own);
                disks.write(disk, at + CONFIG_BYTES as u64, &own);
            }
        }
        Place::Slot(slot) => {
            let within = RING_OFFSET + slot * SLOT_BYTES as u64;
            let labels = labels(label).into_iter().filter(|(disk, _)| is_meant(*disk));
            labels.for_each(|(disk, at)| disks.write(disk, at + within, bytes));
        }
        Place::Log(at) => {
            let legs = label.vdevs[0].legs.len();
            let legs = (0..legs).filter(|disk| is_meant(*disk));
            legs.for_each(|disk| disks.write(disk, LABEL_BYTES + at, bytes));
        }
        Place::Area { vdev, at, second, len, .. } => {
            for at in [Some(at), second].into_iter().flatten() {
                write_area(label, disks, vdev, at, &bytes[..len]);
            }
        }
    }
}

fn guid_of(label: &Label, disk: usize) -> u64 {
    let legs = label.vdevs.iter().flat_map(|vdev| &vdev.legs);
    legs.map(|leg| leg.guid.0).nth(disk).expect("as many legs as disks")
}

fn write_area(label: &Label, disks: &mut Disks, vdev: u16, at: u64, bytes: &[u8]) {
    let config = &label.vdevs[usize::from(vdev)];
    let (first, legs) = (first_disk(label, vdev), config.legs.len());
    for piece in pieces(label, vdev, at, bytes.len()) {
        let part = &bytes[piece.range.clone()];
        if config.kind == VdevKind::Raidz1 {
            // The parity is the XOR of the strips, so the parity changes by the same bits as this
            // strip.
            let offset = at + piece.range.start as u64;
            let (strip, data) = (u64::from(label.strip_bytes), legs as u64 - 1);
            let row = offset / (strip * data);
            let parity = first + ((row + data) % legs as u64) as usize;
            let old = disks.read(piece.disk, piece.at, part.len());
            let mut sum = disks.read(parity, piece.at, part.len());
            sum.iter_mut().zip(old.iter().zip(part)).for_each(|(sum, (a, b))| *sum ^= a ^ b);
            disks.write(parity, piece.at, &sum);
            disks.write(piece.disk, piece.at, part);
        } else {
            (first..first + legs).for_each(|disk| disks.write(disk, piece.at, part));
        }
    }
}
