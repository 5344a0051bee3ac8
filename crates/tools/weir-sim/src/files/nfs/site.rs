//! State of a run that survives crashes of the server: the model, the clients and their calls.
//!
//! `host` has the server from one start to its crash.
//!
//! Invariant: a call is identified by its client machine and its bytes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use weir_format::files::FileType;

use super::cache::{Cache, ReplyBytes};
use super::machine::Machine;
use super::op::{Choices, Op};
use super::scenario::{NfsCounts, NfsScenario};
use super::view::View;
use super::wire::Handles;
use crate::files::book::Book;
use crate::files::content::Inode;
use crate::files::expected::Expected;
use crate::rng::Rng;

/// Probabilities that a lost reply breaks the connection of a machine, as one divided by these
/// numbers. The first machine has one connection, so the server forgets its old replies.
const RECONNECTS_ONE_IN: [u64; 3] = [1_000, 4, 1];
/// User of some calls. The others are of user 0.
const OTHER_USER: u32 = 1_000;
/// Number of the last calls that a client can imitate.
const IMITATED: usize = 40;

/// A run of a call on the server.
pub(super) struct Run {
    /// Number of its change in the model.
    pub(super) changed: Option<u64>,
    pub(super) reply: Option<ReplyBytes>,
}

/// A call of a client.
pub(super) struct Call {
    pub(super) machine: usize,
    pub(super) xid: u32,
    pub(super) uid: u32,
    pub(super) op: Op,
    pub(super) record: Rc<[u8]>,
    /// Runs since the last start of the server.
    pub(super) runs: Vec<Run>,
    /// True if the call ran before the last start of the server.
    pub(super) ran_before: bool,
}

pub(super) struct State {
    pub(super) calls: Vec<Call>,
    pub(super) cache: Cache,
    pub(super) machines: Vec<Machine>,
    /// Types of all inodes that there ever were.
    pub(super) kinds: BTreeMap<Inode, FileType>,
    pub(super) counts: NfsCounts,
    /// Number of the change of the last rollback, or 0.
    pub(super) rolled_back: u64,
    /// The first violation.
    broken: Option<String>,
    next_unique: u64,
}

/// The clients and the model.
pub(super) struct Site {
    pub(super) scenario: NfsScenario,
    pub(super) expected: Rc<RefCell<Expected>>,
    pub(super) handles: Handles,
    state: RefCell<State>,
}

impl Site {
    pub(super) fn new(scenario: NfsScenario, expected: Expected, handles: Handles) -> Self {
        let address = |number| IpAddr::V4(Ipv4Addr::new(10, 0, 0, number));
        let machine = |(number, one_in)| Machine::new(address(number), scenario.steps, one_in);
        let state = State {
            calls: Vec::new(),
            cache: Cache::default(),
            machines: (1..).zip(RECONNECTS_ONE_IN).map(machine).collect(),
            kinds: BTreeMap::new(),
            counts: NfsCounts::default(),
            rolled_back: 0,
            broken: None,
            next_unique: 1,
        };
        let (expected, state) = (Rc::new(RefCell::new(expected)), RefCell::new(state));
        Self { scenario, expected, handles, state }
    }

    pub(super) fn state<T>(&self, of: impl FnOnce(&mut State) -> T) -> T {
        of(&mut self.state.borrow_mut())
    }

    pub(super) fn book<T>(&self, of: impl FnOnce(&mut Book) -> T) -> T {
        of(&mut self.expected.borrow_mut().datasets[0].book)
    }

    /// Calls a function with the state of the filesystem after a change.
    pub(super) fn view<T>(&self, seq: u64, of: impl FnOnce(View<'_>) -> T) -> T {
        self.state(|state| self.book(|book| of(View::new(book, seq, &state.kinds))))
    }

    /// Records a violation.
    pub(super) fn fail(&self, what: String) {
        self.state(|state| _ = state.broken.get_or_insert(what));
    }

    /// Returns the first violation, of the replies or of the model.
    pub(super) fn violation(&self) -> Option<String> {
        let noticed = self.book(Book::take_violation);
        self.state(|state| {
            if let Some(what) = noticed {
                state.broken.get_or_insert(what);
            }
            state.broken.clone()
        })
    }

    /// Draws a call of a machine.
    pub(super) fn draw_call(&self, machine: usize, rng: &mut Rng) -> usize {
        if rng.below(8) == 0
            && let Some(call) = self.imitate(machine, rng)
        {
            return call;
        }
        let unique = self.state(|state| {
            state.next_unique += 1;
            state.next_unique
        });
        let op = self.choices(rng).draw(rng, unique);
        let uid = if rng.below(6) == 0 { OTHER_USER } else { 0 };
        let used = self.state(|state| state.machines[machine].xid);
        if rng.below(12) == 0 && used > 1 {
            // Another call with an xid that the machine used before.
            let xid = rng.within(1..u64::from(used)) as u32;
            if let Some(call) = self.add_call(machine, op.clone(), (xid, uid)) {
                return call;
            }
        }
        self.new_call(machine, op, uid)
    }

    /// Adds a call with a new xid.
    pub(super) fn new_call(&self, machine: usize, op: Op, uid: u32) -> usize {
        let xid = self.state(|state| {
            state.machines[machine].xid += 1;
            state.machines[machine].xid - 1
        });
        self.add_call(machine, op, (xid, uid)).expect("no call has the new xid")
    }

    /// Adds a call with the xid and the arguments of a recent call: of another user of the machine,
    /// or of the same user of another machine.
    fn imitate(&self, machine: usize, rng: &mut Rng) -> Option<usize> {
        let (op, xid, uid) = self.state(|state| {
            let first = state.calls.len().saturating_sub(IMITATED);
            let recent = &state.calls[first..];
            let call = recent.get(rng.index(recent.len().max(1)))?;
            let is_own = call.machine == machine;
            let uid = if is_own { OTHER_USER - call.uid } else { call.uid };
            // The machine does not use an xid below its next one for a new call.
            let is_free = is_own || call.xid < state.machines[machine].xid;
            (is_free && call.op.is_changing()).then(|| (call.op.clone(), call.xid, uid))
        })?;
        let call = self.add_call(machine, op, (xid, uid))?;
        self.state(|state| state.counts.twins += 1);
        Some(call)
    }

    /// Adds a call; `None` if the machine has sent the same bytes before.
    fn add_call(&self, machine: usize, op: Op, (xid, uid): (u32, u32)) -> Option<usize> {
        let record = self.handles.record(&op, xid, uid);
        self.state(|state| {
            if !state.machines[machine].known.insert(record.clone()) {
                return None;
            }
            let (record, runs) = (record.into(), Vec::new());
            state.calls.push(Call { machine, xid, uid, op, record, runs, ran_before: false });
            state.counts.calls += 1;
            Some(state.calls.len() - 1)
        })
    }

    /// Inodes among which a client chooses: those with a name, and some that are gone.
    fn choices(&self, rng: &mut Rng) -> Choices {
        self.state(|state| {
            self.book(|book| {
                let is_directory = |inode: &Inode| state.kinds[inode] == FileType::Directory;
                let mut named: Vec<Inode> = book.now().values().copied().collect();
                if rng.below(10) == 0 {
                    named = state.kinds.keys().copied().collect();
                }
                let (mut directories, files): (Vec<Inode>, Vec<Inode>) =
                    named.into_iter().partition(is_directory);
                directories.push(book.root);
                Choices { directories, files }
            })
        })
    }
}
