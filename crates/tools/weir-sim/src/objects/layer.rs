//! The simulator's layer above a dataset with many objects: operations, their log records and their
//! replay.
//!
//! The slot of object [`DIRECTORY`] counts the namespace changes. Each namespace change writes this
//! slot, as a namespace change of a filesystem writes a directory.
//!
//! Invariants:
//! - a namespace change never changes the records of objects, and a change of an object never
//!   changes names;
//! - the replay fails if a log record does not directly follow the state of the dataset, so that
//!   tests notice lost and repeated log records.

use futures_util::future::LocalBoxFuture;
use weir_base::ObjectId;
use weir_dataset::{
    DatasetError, LogOrder, LoggedObjectRecord, ObjectChange, ObjectLayer, ObjectRecord,
    ReplayTarget, Volume,
};
use weir_format::ObjectTable;

use super::content::{DIRECTORY, ObjectState, blocks_of, body_of, size_of, slot_state};
use crate::coverage::{CoveragePoint, note};

/// Bytes with which the layer marks the directory entry of each of its datasets.
pub(crate) const LAYER: [u8; ObjectTable::LAYER_BYTES] = [0x5a; ObjectTable::LAYER_BYTES];

/// An operation of the layer. `seq` numbers namespace changes from 1, `change` the changes of one
/// object from 1. `born` is the `seq` of the operation that created the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectOp {
    /// Creates an object.
    Create { object: u64, seq: u64 },
    /// Names one or two objects in one namespace change, as a rename does. No object is removed.
    Name { object: u64, other: u64, seq: u64 },
    /// Removes the last name of the object, which becomes an orphan.
    Unlink { object: u64, seq: u64 },
    /// Removes the object with its records.
    Remove { object: u64, seq: u64 },
    /// Writes a record with the content of a seed.
    Write { object: u64, born: u64, change: u64, record: u64, seed: u64 },
    /// Replaces a record and all later ones by holes.
    Truncate { object: u64, born: u64, change: u64, record: u64 },
}

impl ObjectOp {
    /// The changed object.
    pub(crate) fn object(&self) -> u64 {
        match self {
            Self::Create { object, .. }
            | Self::Name { object, .. }
            | Self::Unlink { object, .. }
            | Self::Remove { object, .. }
            | Self::Write { object, .. }
            | Self::Truncate { object, .. } => *object,
        }
    }

    /// Number of the namespace change; `None` for a change of an object.
    pub(crate) fn seq(&self) -> Option<u64> {
        match self {
            Self::Create { seq, .. }
            | Self::Name { seq, .. }
            | Self::Unlink { seq, .. }
            | Self::Remove { seq, .. } => Some(*seq),
            Self::Write { .. } | Self::Truncate { .. } => None,
        }
    }

    /// Objects whose slots the operation needs, except [`DIRECTORY`].
    fn objects(&self) -> Vec<u64> {
        match self {
            Self::Name { object, other, .. } if object != other => vec![*object, *other],
            op => vec![op.object()],
        }
    }

    fn code(&self) -> (u8, [u64; 5]) {
        match *self {
            Self::Create { object, seq } => (16, [object, seq, 0, 0, 0]),
            Self::Name { object, other, seq } => (17, [object, seq, other, 0, 0]),
            Self::Unlink { object, seq } => (18, [object, seq, 0, 0, 0]),
            Self::Remove { object, seq } => (19, [object, seq, 0, 0, 0]),
            Self::Write { object, born, change, record, seed } => {
                (20, [object, born, change, record, seed])
            }
            Self::Truncate { object, born, change, record } => {
                (21, [object, born, change, record, 0])
            }
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Option<Self> {
        let (words, _) = payload.as_chunks();
        let words: Vec<u64> = words.iter().take(5).map(|word| u64::from_le_bytes(*word)).collect();
        let [object, a, b, record, seed] = words.try_into().ok()?;
        Some(match kind {
            16 => Self::Create { object, seq: a },
            17 => Self::Name { object, other: b, seq: a },
            18 => Self::Unlink { object, seq: a },
            19 => Self::Remove { object, seq: a },
            20 => Self::Write { object, born: a, change: b, record, seed },
            21 => Self::Truncate { object, born: a, change: b, record },
            _ => return None,
        })
    }

    /// Returns the log record of the operation. The log record of a write includes the blocks.
    fn record(&self) -> ObjectRecord {
        let (kind, words) = self.code();
        let blocks = match self {
            Self::Write { object, seed, .. } => blocks_of(*seed, size_of(*object)),
            _ => Vec::new(),
        };
        let object = ObjectId(self.object());
        let order = match self {
            Self::Create { .. } => LogOrder::Namespace { names: vec![object], ends: Vec::new() },
            Self::Name { other, .. } => {
                LogOrder::Namespace { names: vec![object, ObjectId(*other)], ends: Vec::new() }
            }
            Self::Unlink { .. } | Self::Remove { .. } => {
                LogOrder::Namespace { names: Vec::new(), ends: vec![object] }
            }
            Self::Write { .. } | Self::Truncate { .. } => LogOrder::Object,
        };
        let payload = words.map(u64::to_le_bytes).as_flattened().to_vec();
        ObjectRecord { object, kind, order, payload, blocks, frees: false }
    }

    /// Returns the object changes that perform the operation. `slots`: the states of
    /// [`Self::objects`], in this order; the last element is the state of [`DIRECTORY`].
    ///
    /// # Errors
    /// The operation is not possible in this state, or does not directly follow this state.
    fn changes(&self, slots: &[Option<ObjectState>]) -> Result<Vec<ObjectChange>, String> {
        let gap = || format!("{self:?} does not follow {slots:?}");
        let set = |number: u64, state: &ObjectState| ObjectChange::SetSlot {
            object: ObjectId(number),
            size: size_of(number),
            body: body_of(state),
        };
        let (directory, of) = slots.split_last().ok_or_else(gap)?;
        let mut changes = Vec::new();
        if let Some(seq) = self.seq() {
            let directory = directory.clone().unwrap_or_default();
            if directory.named + 1 != seq {
                return Err(gap());
            }
            changes.push(set(DIRECTORY.0, &ObjectState { named: seq, ..directory }));
        }
        let (object, size) = (ObjectId(self.object()), size_of(self.object()));
        // Builds the slot of the object after the object's own change with the number `change`.
        let counted = |born: u64, change: u64| {
            let follows = |state: &ObjectState| state.born == born && state.changes + 1 == change;
            let state = of[0].clone().filter(follows).ok_or_else(gap)?;
            Ok::<_, String>(set(object.0, &ObjectState { changes: change, ..state }))
        };
        match *self {
            Self::Create { object: number, seq } => {
                if of[0].is_some() {
                    return Err(gap());
                }
                let new = ObjectState { born: seq, named: seq, ..ObjectState::default() };
                changes.push(set(number, &new));
            }
            Self::Name { seq, .. } => {
                for (number, state) in self.objects().into_iter().zip(of) {
                    let state = state.clone().filter(|state| !state.is_orphan).ok_or_else(gap)?;
                    changes.push(set(number, &ObjectState { named: seq, ..state }));
                }
            }
            Self::Unlink { object: number, seq } => {
                let state = of[0].clone().filter(|state| !state.is_orphan).ok_or_else(gap)?;
                changes.push(set(number, &ObjectState { is_orphan: true, named: seq, ..state }));
            }
            Self::Remove { .. } => {
                of[0].as_ref().ok_or_else(gap)?;
                changes.push(ObjectChange::Remove { object });
            }
            Self::Write { born, change, record, seed, .. } => {
                let blocks = blocks_of(seed, size);
                let write = ObjectChange::Write { object, size, record, blocks };
                changes.extend([counted(born, change)?, write]);
            }
            Self::Truncate { born, change, record, .. } => {
                let records = record..u64::MAX >> 20;
                let truncate = ObjectChange::Zero { object, size, records };
                changes.extend([counted(born, change)?, truncate]);
            }
        }
        Ok(changes)
    }
}

/// Performs an operation and queues its log record.
///
/// # Errors
/// `Ok(Err)`: the operation is not possible in the state of the dataset, or does not directly
/// follow this state.
pub(crate) async fn apply(
    volume: &Volume,
    op: ObjectOp,
) -> Result<Result<(), String>, DatasetError> {
    let mut slots = Vec::new();
    for number in op.objects().into_iter().chain([DIRECTORY.0]) {
        slots.push(volume.object_slot(ObjectId(number)).await?);
    }
    let states =
        slots.iter().map(|slot| slot.as_ref().map(|(_, body)| slot_state(body)).transpose());
    let changes = states.collect::<Result<Vec<_>, _>>().and_then(|states| op.changes(&states));
    match changes {
        Ok(changes) => volume.change_logged_objects(changes, op.record()).await.map(Ok),
        Err(what) => Ok(Err(what)),
    }
}

/// Replays the log records of [`ObjectOp`].
pub(crate) struct SimLayer;

impl SimLayer {
    async fn replay_op(
        dataset: ReplayTarget<'_>,
        record: LoggedObjectRecord<'_>,
    ) -> Result<(), DatasetError> {
        let refuse = |why: String| DatasetError::Unfit { name: "simulated log".to_owned(), why };
        let Some(op) = ObjectOp::decode(record.kind, record.payload) else {
            return Err(refuse(format!("record of type {}", record.kind)));
        };
        if op.record().payload[..] != record.payload[..40.min(record.payload.len())]
            || op.object() != record.object.0
            || !op.record().blocks.iter().flat_map(|block| block.iter()).eq(&record.payload[40..])
        {
            return Err(refuse(format!("{op:?} with another payload")));
        }
        let mut slots = Vec::new();
        for number in op.objects().into_iter().chain([DIRECTORY.0]) {
            let slot = dataset.slot(ObjectId(number)).await?;
            slots.push(slot.map(|(_, body)| slot_state(&body)).transpose().map_err(refuse)?);
        }
        // Ignore changes of an object that is an orphan after the crash: its content no longer
        // matters, because it has no name.
        let is_orphan = slots[0].as_ref().is_some_and(|state| state.is_orphan);
        if is_orphan && op.seq().is_none() {
            return Ok(());
        }
        dataset.change(op.changes(&slots).map_err(refuse)?).await?;
        note(CoveragePoint::ObjectsReplayed);
        Ok(())
    }
}

impl ObjectLayer for SimLayer {
    fn handles(&self, layer: &[u8; ObjectTable::LAYER_BYTES]) -> bool {
        *layer == LAYER
    }

    fn replay<'a>(
        &'a self,
        dataset: ReplayTarget<'a>,
        record: LoggedObjectRecord<'a>,
    ) -> LocalBoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(Self::replay_op(dataset, record))
    }
}
