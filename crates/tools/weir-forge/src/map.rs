//! Map of a pool: the address of every structure, and the fields that hold the checksum of the
//! structure.
//!
//! `forgery` changes the structures.
//!
//! Invariants:
//! - the pool is intact; a structure that does not decode is an error of the caller;
//! - a structure with several references, such as a node that a snapshot shares, has one entry in
//!   the map.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use weir_base::{BLOCK_BYTES, VsegId};
use weir_codec::compress::{lz4, stored_bytes_max, unlz4};
use weir_format::layout::{
    CONFIG_BYTES, LABEL_BYTES, PACK_BYTES, RING_OFFSET, RING_SLOTS, SLOT_BYTES, label_offsets,
    segments_offset,
};
use weir_format::log::{ALIGN_BYTES, decode_header};
use weir_format::{
    BlockPtr, Bootstrap, Codec, DatasetKind, DatasetRecord, Label, NODE_FANOUT,
    OBJECT_SLOTS_PER_BLOCK, ObjectSlot, PtrKind, RemapTable, SegmentClass, SegmentEntry,
    SegmentState, TreeRoot, Uberblock, VdevKind,
};

use crate::disks::Disks;

/// Kind of an on-disk structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Config of a label.
    Label,
    /// Newest uberblock.
    Uberblock,
    /// Bootstrap table.
    Bootstrap,
    /// Node of a metadata tree.
    RootNode,
    /// Block of the segment table.
    SegmentTable,
    /// Remap table.
    Remap,
    /// Reference table.
    References,
    /// Record of a dataset, or of the pool.
    Directory,
    /// Node of a dataset's tree.
    Node,
    /// Summary of a segment.
    Summary,
    /// Batch of the intent log.
    LogBatch,
    /// Block of an object table: the slots of four objects.
    Slots,
}

impl Kind {
    /// All kinds of structure.
    pub const ALL: [Self; 12] = [
        Self::Label,
        Self::Uberblock,
        Self::Bootstrap,
        Self::RootNode,
        Self::SegmentTable,
        Self::Remap,
        Self::References,
        Self::Directory,
        Self::Node,
        Self::Summary,
        Self::LogBatch,
        Self::Slots,
    ];
}

/// Address of a structure on the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the segment area of a vdev. A structure in a root segment has a second copy.
    Area { vdev: u16, at: u64, second: Option<u64>, len: usize, codec: Codec },
    /// In every label of every disk, in a slot of the uberblock ring.
    Slot(u64),
    /// In every label of every disk, in the config, which contains the guid of the label's disk.
    Config,
    /// In the log region of every disk of vdev 0.
    Log(u64),
}

/// A field that holds the checksum of another structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seal {
    /// All 128 bits of the checksum.
    Full { part: usize, at: usize },
    /// The low 64 bits of the checksum.
    Low { part: usize, at: usize },
}

impl Seal {
    /// The structure that contains the field.
    pub(crate) const fn part(self) -> usize {
        match self {
            Self::Full { part, .. } | Self::Low { part, .. } => part,
        }
    }
}

/// A structure of the pool.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) kind: Kind,
    pub(crate) place: Place,
    /// Decoded content of the structure.
    pub(crate) content: Vec<u8>,
    pub(crate) seals: Vec<Seal>,
}

/// Unused end of an open root segment. If a forged block of a metadata tree no longer fits its
/// address, the block moves to this unused end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spare {
    pub(crate) vseg: VsegId,
    pub(crate) vdev: u16,
    /// Start of the segment in the segment area.
    pub(crate) start: u64,
    /// Start of the unused end, relative to the segment.
    pub(crate) from: u32,
    /// Start of the second copies, relative to the segment; the unused end stops there.
    pub(crate) second_at: u32,
}

/// Every structure of a pool.
#[derive(Clone)]
pub struct Map {
    pub(crate) label: Label,
    pub(crate) parts: Vec<Part>,
    pub(crate) spare: Vec<Spare>,
}

/// Offsets of the tree roots in an encoded bootstrap table. The magic number, the txg and two other
/// numbers precede the roots.
const ROOTS_AT: [usize; 4] = [32, 65, 98, 131];
/// Offset of the first root segment in an encoded bootstrap table: the number of the segment,
/// followed by its segment entry.
const ROOT_SEGMENTS_AT: usize = 176;
/// Offset of the tree root in a directory entry of format 8.
const ROOT_V8_AT: usize = 35;
/// Offset of the name in a directory entry. The next constant is the offset of the root in the
/// description of the tree.
const NAME_AT: usize = 26;
const ROOT_AT: usize = 8 + 1;
/// Offset of the root pointer in a slot. The height of the tree precedes the pointer.
const SLOT_ROOT_AT: usize = 1;
/// Offset of the summary's address in an encoded segment entry.
const SUMMARY_AT: usize = 48;
/// Offsets in an encoded summary: of the address of the preceding summary, and of the checksum of
/// the preceding summary.
const PREVIOUS_AT: usize = 20;
const PREVIOUS_CHECKSUM_AT: usize = 32;
/// Offset of `bootstrap_checksum` in an encoded uberblock.
const BOOTSTRAP_CHECKSUM_AT: usize = 97;

struct Mapper<'d> {
    disks: &'d Disks,
    label: Label,
    parts: Vec<Part>,
    entries: BTreeMap<VsegId, SegmentEntry>,
    remaps: HashMap<VsegId, RemapTable>,
    /// Index in `parts` of the structure at each address.
    known: HashMap<u64, usize>,
}

impl Map {
    /// Maps the pool on these disks.
    pub fn of(disks: &Disks) -> Self {
        let label = Label::decode(&disks.read(0, 0, CONFIG_BYTES)).expect("a label");
        let mut mapper = Mapper {
            disks,
            label,
            parts: Vec::new(),
            entries: BTreeMap::new(),
            remaps: HashMap::new(),
            known: HashMap::new(),
        };
        mapper.map();
        Self { spare: mapper.spare(), label: mapper.label, parts: mapper.parts }
    }

    /// Contents of the structures of a kind.
    pub fn contents(&self, kind: Kind) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().filter(move |part| part.kind == kind).map(|part| &*part.content)
    }

    /// Number of structures of each kind.
    pub fn counts(&self) -> BTreeMap<Kind, usize> {
        let mut counts = BTreeMap::new();
        self.parts.iter().for_each(|part| *counts.entry(part.kind).or_default() += 1);
        counts
    }
}

impl Mapper<'_> {
    fn map(&mut self) {
        let config = self.label.encode();
        self.add(Kind::Label, Place::Config, config, None);
        let slots = (0..RING_SLOTS).filter_map(|slot| {
            let at = RING_OFFSET + slot * SLOT_BYTES as u64;
            let bytes = self.disks.read(0, at, SLOT_BYTES);
            Uberblock::decode(&bytes).ok().map(|uberblock| (slot, uberblock, bytes))
        });
        let newest = slots.max_by_key(|(_, ub, _)| (ub.log_epoch, ub.txg)).expect("an uberblock");
        let (slot, uberblock, bytes) = newest;
        let top = self.add(Kind::Uberblock, Place::Slot(slot), bytes, None);
        let copy = uberblock.bootstrap[0];
        let len = uberblock.bootstrap_bytes as usize;
        let bytes = self.area(copy.vdev, copy.offset, len);
        let bootstrap = Bootstrap::decode(&bytes).expect("a bootstrap table");
        let second = uberblock.bootstrap.get(1).map(|copy| copy.offset);
        let (vdev, at, codec) = (copy.vdev, copy.offset, Codec::Raw);
        let place = Place::Area { vdev, at, second, len, codec };
        let seal = Seal::Full { part: top, at: BOOTSTRAP_CHECKSUM_AT };
        let root = self.add(Kind::Bootstrap, place, bytes, Some(seal));
        self.entries.extend(bootstrap.root_segments.iter().copied());
        let mut named = Vec::new();
        for (n, (vseg, _)) in bootstrap.root_segments.iter().enumerate() {
            named.push((*vseg, root, ROOT_SEGMENTS_AT + n * (8 + SegmentEntry::BYTES) + 8));
        }
        let kinds = [Kind::SegmentTable, Kind::Directory, Kind::Remap, Kind::References];
        let roots =
            [bootstrap.segments, bootstrap.datasets, bootstrap.remaps, bootstrap.references];
        let trees: Vec<Vec<(u64, usize)>> = roots
            .into_iter()
            .zip(ROOTS_AT)
            .zip(kinds)
            .map(|((tree, at), kind)| {
                let mut leaves = Vec::new();
                self.tree(tree, (root, at), (Kind::RootNode, kind), &mut leaves);
                if kind == Kind::SegmentTable {
                    self.take_entries(&leaves, &mut named);
                }
                if kind == Kind::Remap {
                    for (vseg, part) in &leaves {
                        let table = RemapTable::decode(&self.parts[*part].content, VsegId(*vseg));
                        self.remaps.insert(VsegId(*vseg), table.expect("a remap table"));
                    }
                }
                leaves
            })
            .collect();
        for (_, part) in &trees[1] {
            let block = self.parts[*part].content.first_chunk::<BLOCK_BYTES>().expect("a block");
            let Ok(record) = DatasetRecord::decode(block) else { continue };
            if !matches!(record.kind, DatasetKind::Bookmark(_)) {
                let above = (*part, root_at(block));
                let leaf = if record.objects.is_some() { Kind::Slots } else { Kind::Node };
                let mut leaves = Vec::new();
                self.tree(record.root, above, (Kind::Node, leaf), &mut leaves);
                leaves.into_iter().for_each(|(index, part)| self.objects(index, part));
            }
        }
        for (vseg, part, at) in named {
            self.summaries(vseg, part, at + SUMMARY_AT);
        }
        self.log(&uberblock);
    }

    fn spare(&self) -> Vec<Spare> {
        let open = self.entries.iter().filter(|(_, entry)| {
            entry.state == SegmentState::Open && entry.class == SegmentClass::Root
        });
        let spare = open.map(|(vseg, entry)| Spare {
            vseg: *vseg,
            vdev: entry.vdev,
            start: self.start(entry),
            from: entry.fill_bytes,
            second_at: entry.second_at,
        });
        spare.collect()
    }

    fn take_entries(&mut self, leaves: &[(u64, usize)], named: &mut Vec<(VsegId, usize, usize)>) {
        for (index, part) in leaves {
            let block = self.parts[*part].content.first_chunk::<BLOCK_BYTES>().expect("a block");
            let entries = SegmentEntry::decode_block(block).expect("a segment table block");
            let first = index * entries.len() as u64;
            for (n, entry) in entries.into_iter().enumerate() {
                if let Some(entry) = entry {
                    let vseg = VsegId(first + n as u64);
                    self.entries.insert(vseg, entry);
                    named.push((vseg, *part, n * SegmentEntry::BYTES));
                }
            }
        }
    }

    fn add(&mut self, kind: Kind, place: Place, content: Vec<u8>, seal: Option<Seal>) -> usize {
        self.parts.push(Part { kind, place, content, seals: seal.into_iter().collect() });
        self.parts.len() - 1
    }

    /// Adds every node of a tree to the map, and the leaves of a metadata tree.
    fn tree(
        &mut self,
        root: TreeRoot,
        (above, at): (usize, usize),
        (nodes, leaf): (Kind, Kind),
        leaves: &mut Vec<(u64, usize)>,
    ) {
        self.under(&root.ptr, root.height, 0, (above, at), (nodes, leaf), leaves);
    }

    /// Adds the trees of the objects whose slots are in a block of an object table.
    fn objects(&mut self, index: u64, part: usize) {
        let block = *self.parts[part].content.first_chunk::<BLOCK_BYTES>().expect("a block");
        for (object, slot) in ObjectSlot::used_in(index, &block) {
            let at = object.0 as usize % OBJECT_SLOTS_PER_BLOCK * ObjectSlot::BYTES + SLOT_ROOT_AT;
            self.tree(slot.root, (part, at), (Kind::Node, Kind::Node), &mut Vec::new());
        }
    }

    fn under(
        &mut self,
        ptr: &BlockPtr,
        level: u8,
        index: u64,
        (above, at): (usize, usize),
        kinds: (Kind, Kind),
        leaves: &mut Vec<(u64, usize)>,
    ) {
        if ptr.is_hole() || (level == 0 && kinds.1 == Kind::Node) {
            return;
        }
        let seal = Seal::Full { part: above, at: at + 16 };
        if let Some(part) = self.known.get(&ptr.address()) {
            self.parts[*part].seals.push(seal);
            return;
        }
        let (vdev, at, second) = self.find(ptr);
        let len = ptr.stored_bytes();
        let stored = self.area(vdev, at, len);
        let whole =
            ptr.kind == PtrKind::Node || matches!(kinds.1, Kind::SegmentTable | Kind::Directory);
        let content = match ptr.codec {
            Codec::Raw => stored,
            Codec::Lz4 => {
                let mut raw = vec![0; BLOCK_BYTES];
                unlz4(&stored, &mut raw).expect("an LZ4 block");
                raw
            }
            Codec::Zstd => return,
        };
        assert!(!whole || content.len() == BLOCK_BYTES, "nodes are blocks");
        let kind = if level == 0 { kinds.1 } else { kinds.0 };
        let place = Place::Area { vdev, at, second, len, codec: ptr.codec };
        let part = self.add(kind, place, content, Some(seal));
        self.known.insert(ptr.address(), part);
        if level == 0 {
            leaves.push((index, part));
            return;
        }
        for slot in 0..NODE_FANOUT {
            let at = slot * BlockPtr::BYTES;
            let bytes = self.parts[part].content[at..].first_chunk().expect("a pointer");
            let child = BlockPtr::decode(bytes).expect("a pointer");
            let index = index * NODE_FANOUT as u64 + slot as u64;
            self.under(&child, level - 1, index, (part, at), kinds, leaves);
        }
    }

    /// Returns the vdev of a block, and the offsets of the block's copies in the segment area.
    fn find(&self, ptr: &BlockPtr) -> (u16, u64, Option<u64>) {
        let (vseg, units) = match self.remaps.get(&ptr.vseg) {
            Some(table) => table
                .translate(ptr.offset_units, u32::from(ptr.stored_units))
                .expect("what is alive moved"),
            None => (ptr.vseg, ptr.offset_units),
        };
        let entry = self.entries.get(&vseg).expect("a segment");
        let at = self.start(entry) + u64::from(units) * PACK_BYTES as u64;
        let second = (entry.second_at > 0).then_some(at + u64::from(entry.second_at));
        (entry.vdev, at, second)
    }

    fn start(&self, entry: &SegmentEntry) -> u64 {
        let vdev = &self.label.vdevs[usize::from(entry.vdev)];
        u64::from(entry.pseg.0) * self.label.vdev_segment_bytes(vdev)
    }

    fn area(&self, vdev: u16, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for piece in pieces(&self.label, vdev, at, len) {
            let bytes = self.disks.read(piece.disk, piece.at, piece.range.len());
            out[piece.range].copy_from_slice(&bytes);
        }
        out
    }

    fn summaries(&mut self, vseg: VsegId, mut above: usize, mut at: usize) {
        let Some(entry) = self.entries.get(&vseg).copied() else { return };
        if matches!(entry.state, SegmentState::Remapped | SegmentState::Dead) {
            return;
        }
        let mut place = entry.summary;
        let mut high = usize::MAX;
        while !place.is_none() && (place.at as usize) < high {
            high = place.at as usize;
            let (start, len) = (self.start(&entry) + u64::from(place.at), place.bytes as usize);
            let content = self.area(entry.vdev, start, len);
            let word = |at: usize| u32::from_le_bytes(*content[at..].first_chunk().expect("four"));
            let checksum = content[PREVIOUS_CHECKSUM_AT..].first_chunk().expect("eight bytes");
            let checksum = u64::from_le_bytes(*checksum);
            let before = weir_format::SummaryPlace {
                at: word(PREVIOUS_AT),
                bytes: word(PREVIOUS_AT + 4),
                checksum,
            };
            let seal = Seal::Low { part: above, at: at + 8 };
            let (vdev, at_start, codec) = (entry.vdev, start, Codec::Raw);
            let place_of = Place::Area { vdev, at: at_start, second: None, len, codec };
            above = self.add(Kind::Summary, place_of, content, Some(seal));
            at = PREVIOUS_CHECKSUM_AT - 8;
            place = before;
        }
    }

    /// Adds the log batches that follow an uberblock to the map.
    fn log(&mut self, uberblock: &Uberblock) {
        let mut at = uberblock.log_offset;
        let mut batch = uberblock.log_batch;
        while at + ALIGN_BYTES as u64 <= self.label.log_bytes {
            let unit = self.disks.read(0, LABEL_BYTES + at, ALIGN_BYTES);
            let Ok(header) = decode_header(&unit) else { break };
            if (header.epoch, header.batch) != (uberblock.log_epoch, batch) {
                break;
            }
            let len = header.batch_bytes as usize;
            let content = self.disks.read(0, LABEL_BYTES + at, len);
            self.add(Kind::LogBatch, Place::Log(at), content, None);
            (at, batch) = (at + len as u64, batch + 1);
        }
    }
}

/// A range of a vdev's segment area on one disk.
pub(crate) struct Piece {
    pub(crate) disk: usize,
    pub(crate) at: u64,
    /// Range of the requested bytes that this piece contains.
    pub(crate) range: Range<usize>,
}

/// Index of a vdev's first disk in the list of all disks.
pub(crate) fn first_disk(label: &Label, vdev: u16) -> usize {
    label.vdevs[..usize::from(vdev)].iter().map(|vdev| vdev.legs.len()).sum()
}

/// Disk addresses of a range of a segment area, with one copy of each byte.
pub(crate) fn pieces(label: &Label, vdev: u16, at: u64, len: usize) -> Vec<Piece> {
    let config = &label.vdevs[usize::from(vdev)];
    let (first, base) = (first_disk(label, vdev), segments_offset(label.log_bytes));
    if !matches!(config.kind, VdevKind::Raidz1) {
        return vec![Piece { disk: first, at: base + at, range: 0..len }];
    }
    let (strip, legs) = (u64::from(label.strip_bytes), config.legs.len() as u64);
    let data = legs - 1;
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < len {
        let offset = at + done as u64;
        let (row, within) = (offset / (strip * data), offset % strip);
        let leg = (row + offset % (strip * data) / strip) % legs;
        let count = ((strip - within) as usize).min(len - done);
        let at = base + row * strip + within;
        pieces.push(Piece { disk: first + leg as usize, at, range: done..done + count });
        done += count;
    }
    pieces
}

/// Encodes changed content in its stored form; `None` if the new stored form is longer than the old
/// one.
pub(crate) fn store(content: &[u8], len: usize, codec: Codec) -> Option<Vec<u8>> {
    let mut stored = match codec {
        Codec::Raw => content.to_vec(),
        _ => {
            let mut packed = vec![0; stored_bytes_max(content.len())];
            let used = lz4(content, &mut packed)?;
            packed.truncate(used);
            packed
        }
    };
    (stored.len() <= len).then(|| {
        stored.resize(len, 0);
        stored
    })
}

/// Offset of the tree root in the directory entry of a volume or snapshot.
fn root_at(record: &[u8; BLOCK_BYTES]) -> usize {
    if record[8] < 16 { ROOT_V8_AT } else { tree_at(record) + ROOT_AT }
}

/// Offset of the tree in a directory entry of format 9. The name and the length of the body precede
/// the tree.
pub(crate) fn tree_at(record: &[u8]) -> usize {
    let name = u16::from_le_bytes([record[NAME_AT], record[NAME_AT + 1]]);
    NAME_AT + 2 + usize::from(name) + 2
}

/// Labels of all disks: index of the disk and offset of the label.
pub(crate) fn labels(label: &Label) -> Vec<(usize, u64)> {
    let mut all = Vec::new();
    for (vdev, config) in label.vdevs.iter().enumerate() {
        let first = first_disk(label, vdev as u16);
        for leg in 0..config.legs.len() {
            all.extend(label_offsets(config.disk_bytes).map(|at| (first + leg, at)));
        }
    }
    all
}
