//! Allowed states of a dataset with many objects after a crash, computed from its operations.
//!
//! Invariants (docs/decisions/0028). A crash leaves:
//! - a prefix of the namespace changes with all synced ones;
//! - of each object a prefix of its own changes, with all synced ones and with all changes that
//!   were made before the last surviving namespace change that names the object.

use std::collections::BTreeMap;

use weir_dataset::SyncOf;

use super::content::{ObjectState, ObjectsState};
use super::layer::ObjectOp;

/// Changes that syncs have made durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Synced {
    /// Number of namespace changes.
    names: u64,
    /// Number of changes of each object, by number and [`ObjectState::born`].
    changes: BTreeMap<(u64, u64), u64>,
}

impl Synced {
    /// All changes in a state.
    pub(crate) fn all(state: &ObjectsState) -> Self {
        let of = |(number, object): (&u64, &ObjectState)| ((*number, object.born), object.changes);
        Self { names: state.names, changes: state.objects.iter().map(of).collect() }
    }

    /// The namespace changes of a state.
    fn namespace(state: &ObjectsState) -> Self {
        Self { names: state.names, changes: BTreeMap::new() }
    }

    /// The namespace changes of a state and the changes of one object.
    fn object(state: &ObjectsState, number: u64) -> Self {
        let object =
            state.objects.get(&number).map(|object| ((number, object.born), object.changes));
        Self { names: state.names, changes: object.into_iter().collect() }
    }

    fn add(&mut self, other: Self) {
        self.names = self.names.max(other.names);
        for (object, changes) in other.changes {
            let known = self.changes.entry(object).or_default();
            *known = changes.max(*known);
        }
    }
}

/// Operations on a dataset since a known state.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectsHistory {
    base: ObjectsState,
    ops: Vec<ObjectOp>,
    /// State after all operations.
    now: ObjectsState,
    /// The newest operation, if it is not acknowledged yet.
    pending: Option<ObjectOp>,
    synced: Synced,
}

/// Expected state of an object after a recovery.
#[derive(Default)]
struct Wanted {
    state: ObjectState,
    /// The object's own changes after the base, in order.
    own: Vec<ObjectOp>,
    /// Number of own changes before the last surviving namespace change that names the object. All
    /// of them must survive.
    least: u64,
}

impl ObjectsHistory {
    /// History of a dataset that has exactly this state.
    pub(crate) fn of_state(base: ObjectsState) -> Self {
        let synced = Synced::all(&base);
        Self { synced, now: base.clone(), pending: None, base, ops: Vec::new() }
    }

    /// State after all operations.
    pub(crate) fn now(&self) -> &ObjectsState {
        &self.now
    }

    /// Records an operation before it starts.
    pub(crate) fn push(&mut self, op: ObjectOp) {
        apply(&mut self.now, &op);
        self.ops.push(op);
        self.pending = Some(op);
    }

    /// Records that the newest operation was acknowledged.
    pub(crate) fn acknowledge(&mut self) {
        self.pending = None;
    }

    /// Returns the changes that a sync makes durable if the sync starts now: the acknowledged
    /// changes.
    pub(crate) fn syncing(&self, of: SyncOf) -> Synced {
        let mut synced = match of {
            SyncOf::All => Synced::all(&self.now),
            SyncOf::Namespace => Synced::namespace(&self.now),
            SyncOf::Object(object) => Synced::object(&self.now, object.0),
        };
        match self.pending {
            Some(
                ObjectOp::Write { object, born, change, .. }
                | ObjectOp::Truncate { object, born, change, .. },
            ) => {
                synced.changes.entry((object, born)).and_modify(|changes| *changes = change - 1);
            }
            Some(op) => synced.names = op.seq().map_or(synced.names, |seq| seq - 1),
            None => {}
        }
        synced
    }

    /// Removes the newest operation, which the engine refused.
    pub(crate) fn undo(&mut self) {
        self.ops.pop();
        self.pending = None;
        self.now = self.base.clone();
        self.ops.iter().for_each(|op| apply(&mut self.now, op));
    }

    /// Records the changes that a sync made durable.
    pub(crate) fn add_synced(&mut self, synced: Synced) {
        self.synced.add(synced);
    }

    /// Checks a recovered state.
    ///
    /// # Errors
    /// The first difference from every allowed state.
    pub(crate) fn judge(&self, found: &ObjectsState) -> Result<(), String> {
        if !(self.synced.names..=self.now.names).contains(&found.names) {
            let (synced, all) = (self.synced.names, self.now.names);
            return Err(format!("{} of {synced} to {all} namespace changes", found.names));
        }
        let mut wanted = self.wanted(found.names);
        for (number, object) in &found.objects {
            let Some(wanted) = wanted.remove(number) else {
                return Err(format!(
                    "object {number} exists after {} namespace changes",
                    found.names
                ));
            };
            let synced = self.synced.changes.get(&(*number, object.born)).copied();
            wanted
                .judge(object, synced.unwrap_or_default())
                .map_err(|what| format!("object {number}: {what}; found {object:?}"))?;
        }
        match wanted.first_key_value() {
            None => Ok(()),
            Some((number, _)) => Err(format!("object {number} is missing")),
        }
    }

    /// Returns the expected objects after a crash that left the first `names` namespace changes.
    fn wanted(&self, names: u64) -> BTreeMap<u64, Wanted> {
        let of_base = |(number, state): (&u64, &ObjectState)| {
            let (state, least) = (state.clone(), state.changes);
            (*number, Wanted { state, own: Vec::new(), least })
        };
        let mut wanted: BTreeMap<u64, Wanted> = self.base.objects.iter().map(of_base).collect();
        // The last creation of each object number so far, even if the crash lost this creation. A
        // later write or truncate changes the object of this creation, so it must not count as a
        // change of an earlier object with the same number.
        let mut born: BTreeMap<u64, u64> =
            self.base.objects.iter().map(|(number, object)| (*number, object.born)).collect();
        for op in &self.ops {
            let number = op.object();
            match *op {
                ObjectOp::Create { seq, .. } => {
                    born.insert(number, seq);
                    if seq <= names {
                        let state = ObjectState { born: seq, named: seq, ..ObjectState::default() };
                        wanted.insert(number, Wanted { state, ..Wanted::default() });
                    }
                }
                ObjectOp::Name { other, seq, .. } if seq <= names => {
                    for number in [number, other] {
                        if let Some(object) = wanted.get_mut(&number) {
                            object.state.named = seq;
                            object.least = object.made();
                        }
                    }
                }
                ObjectOp::Unlink { seq, .. } if seq <= names => {
                    if let Some(object) = wanted.get_mut(&number) {
                        (object.state.named, object.state.is_orphan) = (seq, true);
                    }
                }
                ObjectOp::Remove { seq, .. } if seq <= names => {
                    wanted.remove(&number);
                }
                ObjectOp::Write { born: of, .. } | ObjectOp::Truncate { born: of, .. } => {
                    let is_current = born.get(&number) == Some(&of);
                    let object = wanted.get_mut(&number).filter(|object| object.state.born == of);
                    if let Some(object) = object.filter(|_| is_current) {
                        object.own.push(*op);
                    }
                }
                _ => {}
            }
        }
        wanted
    }
}

impl Wanted {
    /// Number of own changes so far.
    fn made(&self) -> u64 {
        self.state.changes + self.own.len() as u64
    }

    fn judge(mut self, found: &ObjectState, synced: u64) -> Result<(), String> {
        let same = (found.born, found.named, found.is_orphan)
            == (self.state.born, self.state.named, self.state.is_orphan);
        if !same {
            return Err(format!("differs from {:?}", self.state));
        }
        if found.is_orphan {
            // Changes of an object without a name are not logged, so a crash may lose any of them.
            return Ok(());
        }
        let least = self.least.max(synced);
        if !(least..=self.made()).contains(&found.changes) {
            return Err(format!("has no {least} to {} own changes", self.made()));
        }
        let survive = found.changes - self.state.changes;
        for op in self.own.drain(..).take(survive as usize) {
            change(&mut self.state, &op);
        }
        if self.state == *found { Ok(()) } else { Err(format!("differs from {:?}", self.state)) }
    }
}

/// Applies a change of an object to its state.
fn change(state: &mut ObjectState, op: &ObjectOp) {
    match *op {
        ObjectOp::Write { record, seed, change, .. } => {
            state.records.insert(record, seed);
            state.changes = change;
        }
        ObjectOp::Truncate { record, change, .. } => {
            state.records.retain(|at, _| *at < record);
            state.changes = change;
        }
        _ => {}
    }
}

fn apply(state: &mut ObjectsState, op: &ObjectOp) {
    let number = op.object();
    state.names = op.seq().unwrap_or(state.names);
    match *op {
        ObjectOp::Create { seq, .. } => {
            let new = ObjectState { born: seq, named: seq, ..ObjectState::default() };
            state.objects.insert(number, new);
        }
        ObjectOp::Name { other, seq, .. } => {
            for number in [number, other] {
                state.objects.entry(number).or_default().named = seq;
            }
        }
        ObjectOp::Unlink { seq, .. } => {
            let object = state.objects.entry(number).or_default();
            (object.named, object.is_orphan) = (seq, true);
        }
        ObjectOp::Remove { .. } => {
            state.objects.remove(&number);
        }
        ObjectOp::Write { .. } | ObjectOp::Truncate { .. } => {
            change(state.objects.entry(number).or_default(), op);
        }
    }
}
