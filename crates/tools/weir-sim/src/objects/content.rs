//! Content of a dataset with many objects, as the simulator's layer stores it.
//!
//! Invariant: each slot and each record shows which operation wrote it, so that a recovery can be
//! compared with every prefix of the operations. The seed in a record also identifies the record's
//! object and number.

use std::collections::BTreeMap;

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_block::Block;
use weir_dataset::{DatasetError, SlotBody, Volume};
use weir_format::ObjectSlot;

/// Numbers of the records that operations use: some in the first leaf of an object's tree, one in
/// another leaf, and one so large that the tree gets a further level.
pub(super) const RECORDS: [u64; 6] = [0, 1, 2, 5, 300, 20_000];

/// The object that counts the namespace changes.
pub(crate) const DIRECTORY: ObjectId = ObjectId(1);

/// State of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectState {
    /// Number of the namespace change that created the object; distinguishes the object from
    /// earlier objects with the same number.
    pub(crate) born: u64,
    /// Number of the last namespace change that named the object.
    pub(crate) named: u64,
    /// Number of changes of the object itself.
    pub(crate) changes: u64,
    /// True if the object lost its name and still exists.
    pub(crate) is_orphan: bool,
    /// Seed of the content of each record.
    pub(crate) records: BTreeMap<u64, u64>,
}

impl ObjectState {
    /// The state as numbers, without the records.
    pub(super) fn words(&self) -> Vec<u64> {
        vec![self.born, self.named, self.changes, u64::from(self.is_orphan)]
    }
}

/// State of a dataset: its objects and the number of its namespace changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectsState {
    /// Number of namespace changes.
    pub(crate) names: u64,
    /// The objects, without the object that stores the number of namespace changes.
    pub(crate) objects: BTreeMap<u64, ObjectState>,
}

/// Record size of the object with this number.
pub(super) fn size_of(object: u64) -> RecordSize {
    RecordSize::from_shift((object % 2) as u8).expect("one block or two")
}

/// Content of a record. Half of the seeds give content that compresses.
pub(super) fn blocks_of(seed: u64, size: RecordSize) -> Vec<Block> {
    let block = |part: u64| {
        let word = |word: u64| match word {
            0 => seed,
            _ if seed.is_multiple_of(2) => seed + part,
            word => (seed + part).wrapping_mul(word | 1),
        };
        let bytes: Vec<u8> =
            (0..BLOCK_BYTES as u64 / 8).flat_map(|at| word(at).to_le_bytes()).collect();
        Block::copy_of(bytes.first_chunk().expect("whole blocks"))
    };
    (0..size.blocks()).map(block).collect()
}

/// Returns the random seed `draw` with a mark of the record `(object, record)` in bits 32 to 47.
pub(super) fn seed_for(draw: u64, (object, record): (u64, u64)) -> u64 {
    let mark = (object.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ record.wrapping_mul(31)) >> 8;
    draw & !(0xffff << 32) | (mark & 0xffff) << 32
}

/// Seed of a record, or an error if the content was never written to this record.
pub(super) fn seed_of(blocks: &[Block], size: RecordSize, at: (u64, u64)) -> Result<u64, String> {
    let seed = blocks.first().and_then(|block| block.first_chunk().copied());
    let seed = u64::from_le_bytes(seed.ok_or("a record without blocks")?);
    let wanted = blocks_of(seed, size);
    let matches = blocks.iter().zip(&wanted).all(|(found, wanted)| found[..] == wanted[..]);
    if !matches {
        return Err(format!("the record does not have the content of {seed}"));
    }
    if seed_for(seed, at) == seed { Ok(seed) } else { Err(format!("{seed} is of another record")) }
}

/// Encodes the state of an object, except its records, as the bytes of its slot.
pub(super) fn body_of(state: &ObjectState) -> Box<SlotBody> {
    let words: Vec<u8> = state.words().into_iter().flat_map(u64::to_le_bytes).collect();
    // Fill the rest, so that a slot with parts of two versions is noticed.
    let fill = state.born.wrapping_mul(31) ^ state.named.wrapping_mul(17) ^ state.changes;
    let mut body = Box::new([fill as u8; ObjectSlot::BODY_BYTES]);
    body[..words.len()].copy_from_slice(&words);
    body
}

/// Decodes a slot, or returns an error if no operation wrote it.
pub(super) fn slot_state(body: &SlotBody) -> Result<ObjectState, String> {
    let word = |at: usize| {
        let bytes = body.get(at * 8..).and_then(|bytes| bytes.first_chunk());
        u64::from_le_bytes(*bytes.expect("a slot has more words"))
    };
    let state = ObjectState {
        born: word(0),
        named: word(1),
        changes: word(2),
        is_orphan: word(3) == 1,
        records: BTreeMap::new(),
    };
    if body_of(&state)[..] == body[..] { Ok(state) } else { Err("a slot that is torn".to_owned()) }
}

/// Reads the whole dataset; `numbers` are the objects that operations use.
///
/// # Errors
/// `Ok(Err)` describes content that no operation wrote.
pub(crate) async fn read_state(
    volume: &Volume,
    numbers: &[u64],
) -> Result<Result<ObjectsState, String>, DatasetError> {
    let mut state = ObjectsState::default();
    for number in numbers.iter().copied().chain([DIRECTORY.0]) {
        let (object, size) = (ObjectId(number), size_of(number));
        let mut records = BTreeMap::new();
        for record in RECORDS {
            if let Some(blocks) = volume.read_object(object, size, record).await? {
                match seed_of(&blocks, size, (number, record)) {
                    Ok(seed) => records.insert(record, seed),
                    Err(what) => return Ok(Err(format!("object {number}, {record}: {what}"))),
                };
            }
        }
        let Some((found, body)) = volume.object_slot(object).await? else {
            if !records.is_empty() {
                return Ok(Err(format!("object {number} has records and no slot")));
            }
            continue;
        };
        match slot_state(&body) {
            Ok(_) if found != size => return Ok(Err(format!("object {number} has {found:?}"))),
            Ok(slot) if ObjectId(number) == DIRECTORY => state.names = slot.named,
            Ok(slot) => {
                state.objects.insert(number, ObjectState { records, ..slot });
            }
            Err(what) => return Ok(Err(format!("object {number}: {what}"))),
        }
    }
    Ok(Ok(state))
}
