//! Programs of client machines, and the network between them and the server.
//!
//! `answer` compares each reply, also a lost one.
//!
//! Invariants:
//! - a program sends a call again until it has a reply, also to the server after a crash;
//! - a program ends only when its machine has no unstable write left.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use weir_nfs_wire::nfs3::{Nfsstat3, StableHow};

use super::answer::answer;
use super::cache::ReplyBytes;
use super::host::{Connection, Host};
use super::machine::Pending;
use super::op::Op;
use super::wire::{Done, decode};
use crate::executor::JoinHandle;
use crate::rng::Rng;

/// Maximum delay of most copies, in microseconds: several syncs of the simulated disks.
const DELAY_US_MAX: u64 = 3_000;
/// Maximum delay of a late copy, in milliseconds. Many newer calls overtake it.
const LATE_MS_MAX: u64 = 400;
/// Delay after which the server has forgotten all closed connections.
const FORGOTTEN: Duration = Duration::from_secs(130);
/// Pause before a call is sent to a filesystem that was closed.
const CLOSED_PAUSE: Duration = Duration::from_millis(10);

/// A program of a machine.
pub(super) struct Program {
    pub(super) host: Rc<Host>,
    pub(super) machine: usize,
    /// Index of the program.
    pub(super) index: usize,
    pub(super) rng: Rng,
}

impl Program {
    /// Sends calls until the program has finished.
    ///
    /// # Errors
    /// The first violation.
    pub(super) async fn run(mut self) -> Result<(), String> {
        let site = Rc::clone(&self.host.site);
        if let Some(pending) = self.pending() {
            site.state(|state| state.counts.resent += 1);
            self.call(pending).await?;
        }
        while let Some(pending) = self.next() {
            self.call(pending).await?;
        }
        Ok(())
    }

    fn pending(&self) -> Option<Pending> {
        let site = &self.host.site;
        site.state(|state| state.machines[self.machine].pending[self.index].clone())
    }

    /// Chooses the next call; `None` if the program has finished.
    fn next(&mut self) -> Option<Pending> {
        let site = Rc::clone(&self.host.site);
        let (rewrite, has_steps, unstable) = site.state(|state| {
            let machine = &mut state.machines[self.machine];
            let rewrite = machine.rewrites.pop_front();
            let steps = &mut machine.steps[self.index];
            let has_steps = *steps > 0;
            *steps = steps.saturating_sub(usize::from(rewrite.is_none()));
            (rewrite, has_steps, machine.unstable.first().map(|write| write.inode))
        });
        let call = if let Some((inode, written)) = rewrite {
            site.new_call(self.machine, Op::Write(inode, written, StableHow::Unstable), 0)
        } else if has_steps {
            site.draw_call(self.machine, &mut self.rng)
        } else {
            site.new_call(self.machine, Op::Commit(unstable?), 0)
        };
        site.state(|state| {
            let machine = &mut state.machines[self.machine];
            let inode = match &state.calls[call].op {
                Op::Commit(inode) => Some(*inode),
                _ => None,
            };
            let covered = machine.unstable.iter().filter(|write| Some(write.inode) == inode);
            let pending = Pending { call, covered: covered.map(|write| write.number).collect() };
            machine.pending[self.index] = Some(pending.clone());
            Some(pending)
        })
    }

    async fn call(&mut self, pending: Pending) -> Result<(), String> {
        let reply = self.send(pending.call).await;
        let site = Rc::clone(&self.host.site);
        if let Some(what) = site.violation() {
            return Err(what);
        }
        let (op, xid) = site.state(|state| {
            let call = &state.calls[pending.call];
            (call.op.clone(), call.xid)
        });
        let done = decode(&op, xid, &reply)?;
        let is_suspended = done == Done::Failed(Nfsstat3::Jukebox);
        self.note(&pending, &op, (&reply, done))?;
        site.state(|state| state.machines[self.machine].pending[self.index] = None);
        if is_suspended {
            self.host.executor.sleep(CLOSED_PAUSE).await;
        }
        self.host.executor.yield_now().await;
        Ok(())
    }

    /// Handles a reply.
    fn note(
        &self,
        pending: &Pending,
        op: &Op,
        (reply, done): (&ReplyBytes, Done),
    ) -> Result<(), String> {
        self.host.site.state(|state| {
            let machine = &mut state.machines[self.machine];
            match (op, done) {
                (
                    Op::Write(inode, written, _),
                    Done::Written { committed: StableHow::Unstable, verifier, .. },
                ) => {
                    let runs = &state.calls[pending.call].runs;
                    let run = runs.iter().rev().find(|run| run.reply.as_ref() == Some(reply));
                    let seq = run.and_then(|run| run.changed).ok_or("a reply without a run")?;
                    machine.note_write(*inode, *written, (verifier, seq));
                }
                (Op::Write(inode, written, _), Done::Failed(Nfsstat3::Jukebox)) => {
                    machine.rewrites.push_back((*inode, *written));
                }
                (Op::Commit(_), Done::Committed(verifier)) => {
                    let rewrites =
                        machine.note_commit(&pending.covered, verifier, state.rolled_back)?;
                    state.counts.rewritten += rewrites;
                }
                (Op::Write(inode, ..) | Op::Commit(inode), Done::Failed(Nfsstat3::Stale)) => {
                    machine.drop_writes(*inode);
                }
                _ => {}
            }
            Ok(())
        })
    }

    /// Sends a call until a reply arrives.
    async fn send(&mut self, call: usize) -> ReplyBytes {
        let one_in = self.host.site.state(|state| state.machines[self.machine].reconnects_one_in);
        let breaks = self.rng.below(one_in) == 0;
        if self.rng.below(6) == 0 {
            self.send_late(call);
        }
        let first = self.host.connection(self.machine);
        match self.rng.below(12) {
            // The reply is lost.
            0..2 => {
                drop(self.send_copy(&first, call).await);
                drop(first);
                if breaks {
                    self.host.reconnect(self.machine);
                }
                self.pause().await;
                let second = self.host.connection(self.machine);
                self.send_copy(&second, call).await
            }
            // The machine does not wait for the first reply.
            2..4 => {
                let earlier = self.send_copy(&first, call);
                if breaks {
                    self.host.reconnect(self.machine);
                }
                let later = self.send_copy(&self.host.connection(self.machine), call);
                match select(earlier, later).await {
                    Either::Left((reply, _)) | Either::Right((reply, _)) => reply,
                }
            }
            4 => {
                let copies = [(); 3].map(|()| self.send_copy(&first, call));
                let [one, two, three] = copies;
                match select(select(one, two), three).await {
                    Either::Left((Either::Left((reply, _)) | Either::Right((reply, _)), _))
                    | Either::Right((reply, _)) => reply,
                }
            }
            _ => self.send_copy(&first, call).await,
        }
    }

    async fn pause(&mut self) {
        let pause = Duration::from_micros(self.rng.below(DELAY_US_MAX));
        self.host.executor.sleep(pause).await;
    }

    /// Sends a copy of a call. The copy and its reply arrive after some time.
    fn send_copy(&mut self, connection: &Rc<Connection>, call: usize) -> JoinHandle<ReplyBytes> {
        let mut delay = || {
            let micros = if self.rng.coin() { 0 } else { self.rng.below(DELAY_US_MAX) };
            Duration::from_micros(micros)
        };
        let delays = (delay(), delay());
        deliver(&self.host, Some(Rc::clone(connection)), (self.machine, call), delays)
    }

    /// Sends a copy of a call that arrives after newer calls. The machine ignores its reply.
    fn send_late(&mut self, call: usize) {
        let delay = match self.rng.below(20) {
            0 => FORGOTTEN,
            _ => Duration::from_millis(self.rng.below(LATE_MS_MAX)),
        };
        let delays = (delay, Duration::ZERO);
        drop(deliver(&self.host, None, (self.machine, call), delays));
    }
}

/// Delivers a copy of a call. `connection`: `None` for the connection that the machine has at the
/// arrival of the copy.
fn deliver(
    host: &Rc<Host>,
    connection: Option<Rc<Connection>>,
    (machine, call): (usize, usize),
    (to, from): (Duration, Duration),
) -> JoinHandle<ReplyBytes> {
    let host = Rc::clone(host);
    host.in_flight.update(|count| count + 1);
    let executor = host.executor.clone();
    executor.clone().spawn(format!("copy of call {call}"), async move {
        executor.sleep(to).await;
        let connection = connection.unwrap_or_else(|| host.connection(machine));
        let reply = answer(&host, &connection, call).await;
        drop(connection);
        executor.sleep(from).await;
        host.in_flight.update(|count| count - 1);
        reply
    })
}
