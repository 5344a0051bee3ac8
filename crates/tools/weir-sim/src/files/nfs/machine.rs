//! State of a client machine, which survives crashes of the server.
//!
//! `client` sends its calls.
//!
//! Invariants:
//! - a program of the machine has at most one call without a reply;
//! - the machine remembers each unstable write until a COMMIT returned the verifier of the write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use weir_nfs_wire::nfs3::Verifier;

use super::op::Written;
use crate::files::content::Inode;

/// Number of programs of a machine, which share its connection.
pub(super) const PROGRAMS: usize = 2;

/// An unstable write that the server acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unstable {
    pub(super) number: u64,
    pub(super) inode: Inode,
    pub(super) written: Written,
    pub(super) verifier: Verifier,
    /// Number of its change in the model.
    seq: u64,
    /// True if a crash lost the write.
    is_lost: bool,
}

/// A call without a reply.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) call: usize,
    /// Unstable writes that a COMMIT covers.
    pub(super) covered: Vec<u64>,
}

/// A client machine.
pub(super) struct Machine {
    pub(super) address: IpAddr,
    /// Next new xid.
    pub(super) xid: u32,
    /// Records of all calls so far.
    pub(super) known: BTreeSet<Vec<u8>>,
    pub(super) unstable: Vec<Unstable>,
    /// Writes that the machine must send again.
    pub(super) rewrites: VecDeque<(Inode, Written)>,
    /// Call of each program without a reply.
    pub(super) pending: [Option<Pending>; PROGRAMS],
    /// Number of operations that each program still starts.
    pub(super) steps: [usize; PROGRAMS],
    /// Probability, as one divided by this number, that a lost reply breaks the connection.
    pub(super) reconnects_one_in: u64,
    next_write: u64,
}

impl Machine {
    pub(super) fn new(address: IpAddr, steps: usize, reconnects_one_in: u64) -> Self {
        Self {
            address,
            xid: 1,
            known: BTreeSet::new(),
            unstable: Vec::new(),
            rewrites: VecDeque::new(),
            pending: [const { None }; PROGRAMS],
            steps: [steps; PROGRAMS],
            reconnects_one_in,
            next_write: 0,
        }
    }

    /// Remembers an unstable write.
    pub(super) fn note_write(&mut self, inode: Inode, written: Written, of: (Verifier, u64)) {
        let (verifier, seq) = of;
        let number = self.next_write;
        self.next_write += 1;
        self.unstable.push(Unstable { number, inode, written, verifier, seq, is_lost: false });
    }

    /// Handles the reply to a COMMIT. `rolled_back`: number of the change of the last rollback.
    /// Returns the number of writes that the machine sends again.
    ///
    /// # Errors
    /// The verifier promises that a lost write is durable.
    pub(super) fn note_commit(
        &mut self,
        covered: &[u64],
        verifier: Verifier,
        rolled_back: u64,
    ) -> Result<usize, String> {
        let mut rewrites = 0;
        for number in covered {
            let Some(at) = self.unstable.iter().position(|write| write.number == *number) else {
                continue;
            };
            let write = self.unstable.remove(at);
            if write.verifier != verifier {
                self.rewrites.push_back((write.inode, write.written));
                rewrites += 1;
            } else if write.is_lost || write.seq < rolled_back {
                return Err(format!("a COMMIT with the verifier of a lost write: {write:?}"));
            }
        }
        Ok(rewrites)
    }

    /// Forgets the writes to a file that is gone.
    pub(super) fn drop_writes(&mut self, inode: Inode) {
        self.unstable.retain(|write| write.inode != inode);
        self.rewrites.retain(|(of, _)| *of != inode);
    }

    /// Marks the writes that a crash lost. `survived`: newest change of each file that is left.
    /// Returns the number of lost writes.
    pub(super) fn crash(&mut self, survived: &BTreeMap<Inode, u64>) -> usize {
        let mut lost = 0;
        for write in &mut self.unstable {
            let is_there = survived.get(&write.inode).is_some_and(|newest| write.seq <= *newest);
            lost += usize::from(!is_there && !write.is_lost);
            write.is_lost |= !is_there;
        }
        lost
    }
}
