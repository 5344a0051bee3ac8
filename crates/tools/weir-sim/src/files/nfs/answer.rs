//! Answers to the copies of calls, and their comparison with the model.
//!
//! `view` has the results that the model allows, `cache` the calls that the server remembers.
//!
//! Invariants:
//! - the model records a change in the step of the executor in which the server makes it;
//! - a copy of a call that the server remembers changes nothing, and gets the reply of the first
//!   copy.

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use weir_base::{ObjectId, Txg};
use weir_block::OutBuf;
use weir_format::files::FileType;
use weir_fs::{Attributes, Changed, Filesystem, RenameMode};
use weir_nfs::put_data;
use weir_nfs_wire::nfs3::{Nfsstat3, StableHow};

use super::cache::{Expect, ReplyBytes};
use super::host::{Connection, Host};
use super::op::{EXCLUSIVE_MODE, FILE_MODE, How, LINK_MODE, Op, Written};
use super::site::Run;
use super::view::View;
use super::wire::{Done, Sizes, decode};
use crate::files::access::Permit;
use crate::files::content::{Content, Data, Inode, inode_of};
use crate::files::expected::NAMES;
use crate::files::names::Place;

/// A copy of a call on the server.
struct Copy<'a> {
    host: &'a Host,
    call: usize,
    op: Op,
    xid: u32,
    uid: u32,
    /// `None` if the filesystem is closed.
    permit: Option<Permit>,
    expect: Expect,
    /// Index of the run of the copy, or of the run for which it waits.
    run: usize,
    /// Number of the newest change at the arrival of the copy.
    begun: u64,
}

/// Passes a copy of a call to the server. Returns the reply with its mark. Violations are recorded.
pub(super) async fn answer(host: &Host, connection: &Connection, call: usize) -> ReplyBytes {
    let copy = Copy::begin(host, connection.number, call);
    let record = host.site.state(|state| state.calls[call].record.clone());
    let mut out = OutBuf::default();
    let data = {
        let mut answered = pin!(host.server.answer(&connection.client, &record, &mut out));
        std::future::poll_fn(|context| {
            let polled = answered.as_mut().poll(context);
            for changed in host.recorder.take() {
                if let Err(what) = copy.record(&changed) {
                    host.site.fail(what);
                }
            }
            polled
        })
        .await
    };
    match data {
        Some(data) => put_data(&data, &mut out),
        None => host.site.fail(format!("the server takes {:?} for no call", copy.op)),
    }
    let reply = ReplyBytes::from(out.filled());
    if let Err(what) = copy.end(connection.number, &reply) {
        host.site.fail(what);
    }
    reply
}

impl<'a> Copy<'a> {
    fn begin(host: &'a Host, connection: u64, call: usize) -> Self {
        let begun = host.site.book(|book| book.seq());
        let permit = host.access.enter();
        host.site.state(|state| {
            let entry = &mut state.calls[call];
            let op = entry.op.clone();
            let expect =
                if op.is_changing() { state.cache.begin(connection, call) } else { Expect::Runs };
            let counts = &mut state.counts;
            match &expect {
                Expect::Runs => {
                    counts.forgotten += usize::from(op.is_changing() && !entry.runs.is_empty());
                    counts.suspended += usize::from(permit.is_none());
                    entry.runs.push(Run { changed: None, reply: None });
                }
                Expect::Waits => counts.waited += 1,
                Expect::Repeats(_) => counts.repeated += 1,
            }
            let (run, xid, uid) = (entry.runs.len() - 1, entry.xid, entry.uid);
            Self { host, call, op, xid, uid, permit, expect, run, begun }
        })
    }

    fn changed(&self) -> Option<u64> {
        self.host.site.state(|state| state.calls[self.call].runs[self.run].changed)
    }

    /// Records the change of the call.
    fn record(&self, changed: &Changed) -> Result<(), String> {
        let (site, op) = (&self.host.site, &self.op);
        if !matches!(self.expect, Expect::Runs) || self.changed().is_some() {
            return Err(format!("{op:?} ran again: {changed:?}"));
        }
        let Some(permit) = &self.permit else {
            return Err(format!("{op:?} changed a closed filesystem"));
        };
        let errors = site.view(site.book(|book| book.seq()), |view| view.errors(op));
        if !errors.is_empty() {
            return Err(format!("{op:?} succeeded, although it must fail with {errors:?}"));
        }
        self.apply(&permit.files, changed)?;
        let seq = site.book(|book| book.seq());
        site.state(|state| state.calls[self.call].runs[self.run].changed = Some(seq));
        Ok(())
    }

    fn apply(&self, files: &Filesystem, changed: &Changed) -> Result<(), String> {
        let (site, op) = (&self.host.site, &self.op);
        match op {
            Op::Create(place, How::Unchecked(true)) if changed.names.is_empty() => {
                let inode = self.found(place)?;
                self.change_content(files, inode, |content| {
                    content.data.resize(0);
                    content.verifier = None;
                });
            }
            Op::Create(place, _)
            | Op::Mkdir(place)
            | Op::Symlink(place, _)
            | Op::Mknod(place, _) => {
                let number = changed.inodes.last().ok_or("a change without an inode")?.number;
                self.create(files, number, place);
            }
            Op::Remove(place) | Op::Rmdir(place) => {
                let inode = self.found(place)?;
                site.book(|book| book.rename(&[inode], |names| _ = names.remove(place)));
            }
            Op::Rename((from, old), (to, new)) => {
                site.book(|book| book.renamed((*from, old), (*to, new), RenameMode::Replace));
            }
            Op::Link(inode, place) => {
                self.note(files, *inode);
                site.book(|book| {
                    book.rename(&[*inode], |names| _ = names.insert(place.clone(), *inode));
                });
            }
            Op::SetMode(inode, _) if !site.book(|book| book.is_file(inode)) => {
                self.note(files, *inode);
            }
            Op::SetMode(inode, mode) => self.change_content(files, *inode, |content| {
                content.permissions = *mode;
                content.verifier = None;
            }),
            Op::SetSize(inode, size) => self.change_content(files, *inode, |content| {
                content.data.resize(*size);
                content.verifier = None;
            }),
            Op::Write(inode, Written { offset, len, byte }, _) => {
                let range = *offset..*offset + *len;
                self.change_content(files, *inode, |content| content.data.fill(range, *byte));
            }
            Op::Commit(_) | Op::Read(_) | Op::Getattr(_) | Op::Lookup(_) | Op::List(_) => {
                return Err(format!("{op:?} changed {changed:?}"));
            }
        }
        Ok(())
    }

    fn found(&self, place: &Place) -> Result<Inode, String> {
        let site = &self.host.site;
        let found = site.view(site.book(|book| book.seq()), |view| view.find(place));
        found.ok_or_else(|| format!("{:?} changed a name without an inode", self.op))
    }

    /// Records a new inode with its name.
    fn create(&self, files: &Filesystem, number: ObjectId, place: &Place) {
        let (site, op) = (&self.host.site, &self.op);
        let file_type = op.creates().expect("the operation creates an inode");
        let made = attributes_now(files, number);
        // Another call may already wait for the lock of the inode, with a handle of an earlier
        // inode that had its number.
        let inode = made.as_ref().map_or_else(|| (number.0, self.generation()), inode_of);
        let (permissions, verifier, data) = match op {
            Op::Create(_, How::Exclusive(verifier)) => {
                (EXCLUSIVE_MODE, Some(*verifier), Data::default())
            }
            Op::Symlink(_, len) => (LINK_MODE, None, Data::of(&vec![b't'; *len])),
            _ => (FILE_MODE, None, Data::default()),
        };
        let (device, uid, xattrs) = (0, self.uid, BTreeMap::default());
        let content = Content { file_type, device, permissions, uid, verifier, data, xattrs };
        site.state(|state| _ = state.kinds.insert(inode, file_type));
        site.book(|book| {
            let content = (file_type != FileType::Directory).then_some(content);
            match &made {
                Some(made) => _ = book.create(made, content),
                None => book.create_inode(inode, content),
            }
            book.rename(&[inode], |names| _ = names.insert(place.clone(), inode));
        });
    }

    /// Generation of an inode that is created now.
    fn generation(&self) -> Txg {
        let volume = self.host.engine.volume(NAMES[0]).expect("the filesystem is open");
        volume.change_txg()
    }

    fn change_content(&self, files: &Filesystem, inode: Inode, change: impl FnOnce(&mut Content)) {
        match attributes_now(files, ObjectId(inode.0)) {
            Some(found) => self.host.site.book(|book| book.changed(&found, change)),
            None => self.host.site.book(|book| book.changed_content(inode, change)),
        }
    }

    /// Records the new change number of an inode.
    fn note(&self, files: &Filesystem, inode: Inode) {
        if let Some(found) = attributes_now(files, ObjectId(inode.0)) {
            self.host.site.book(|book| _ = book.note_link(&found));
        }
    }

    /// Compares the reply.
    fn end(&self, connection: u64, reply: &ReplyBytes) -> Result<(), String> {
        let (site, call) = (&self.host.site, self.call);
        let expected = match &self.expect {
            Expect::Repeats(expected) => Some(expected.clone()),
            Expect::Waits => site.state(|state| state.calls[call].runs[self.run].reply.clone()),
            Expect::Runs => {
                site.state(|state| {
                    if self.op.is_changing() {
                        state.cache.finish(connection, call, reply);
                    }
                    state.calls[call].runs[self.run].reply = Some(reply.clone());
                });
                return self.judge(&decode(&self.op, self.xid, reply)?);
            }
        };
        if expected.as_ref() == Some(reply) {
            return Ok(());
        }
        let op = &self.op;
        let expected = expected.map(|reply| decode(op, self.xid, &reply));
        let found = decode(op, self.xid, reply);
        Err(format!("a copy of {op:?} got {found:?}, not {expected:?}"))
    }

    /// Compares the results of a call that ran.
    fn judge(&self, done: &Done) -> Result<(), String> {
        let (site, op) = (&self.host.site, &self.op);
        let changed = self.changed();
        let wrong = || {
            let seqs = self.begun..=site.book(|book| book.seq());
            Err(format!("{op:?} of user {} got {done:?} between the changes {seqs:?}", self.uid))
        };
        let is_suspended = matches!(done, Done::Failed(Nfsstat3::Jukebox));
        if self.permit.is_none() != is_suspended {
            return wrong();
        }
        match (done, changed) {
            (Done::Failed(_), Some(_)) => wrong(),
            (Done::Failed(Nfsstat3::Jukebox), None) => Ok(()),
            (Done::Failed(status), None) => {
                let denied = [Nfsstat3::Acces, Nfsstat3::Perm];
                let is_denied = self.uid != 0 && denied.contains(status);
                site.state(|state| state.counts.stale += usize::from(*status == Nfsstat3::Stale));
                let is_allowed =
                    is_denied || self.in_any_view(|view| view.errors(op).contains(status));
                if is_allowed { Ok(()) } else { wrong() }
            }
            (_, Some(seq)) => {
                if self.has_changed(done, seq) {
                    self.set_durable(done, seq);
                    Ok(())
                } else {
                    wrong()
                }
            }
            (_, None) => {
                let is_mixed =
                    matches!(op, Op::List(_)) && self.begun != site.book(|book| book.seq());
                let handles = &site.handles;
                if !is_mixed && !self.in_any_view(|view| view.has_results(op, done, handles)) {
                    return wrong();
                }
                if let Op::Create(_, How::Exclusive(_)) = op {
                    site.state(|state| {
                        state.counts.found += 1;
                        let ran_before = state.calls[self.call].ran_before;
                        state.counts.found_after_crash += usize::from(ran_before);
                    });
                }
                self.set_durable(done, self.begun);
                Ok(())
            }
        }
    }

    /// True if this holds in a state during the call.
    fn in_any_view(&self, holds: impl Fn(View<'_>) -> bool) -> bool {
        let site = &self.host.site;
        let last = site.book(|book| book.seq());
        (self.begun..=last).any(|seq| site.view(seq, &holds))
    }

    /// True if the results describe the change of the call.
    fn has_changed(&self, done: &Done, seq: u64) -> bool {
        let site = &self.host.site;
        match (&self.op, done) {
            (
                Op::Create(place, _)
                | Op::Mkdir(place)
                | Op::Symlink(place, _)
                | Op::Mknod(place, _),
                Done::Created(handle),
            ) => {
                let made = site.view(seq, |view| view.find(place));
                made.is_some_and(|inode| site.handles.of(inode) == **handle)
            }
            (Op::Write(inode, written, stable), Done::Written { count, committed, sizes, .. }) => {
                let is_complete = u64::from(*count) == written.len && committed >= stable;
                is_complete && *sizes == self.sizes(*inode, seq)
            }
            (Op::SetMode(inode, _) | Op::SetSize(inode, _), Done::Set(sizes)) => {
                // The model has no sizes of directories.
                !site.book(|book| book.is_file(inode)) || *sizes == self.sizes(*inode, seq)
            }
            (Op::Remove(_) | Op::Rmdir(_) | Op::Rename(..) | Op::Link(..), Done::Changed) => true,
            _ => false,
        }
    }

    /// Sizes of a file before and after the change with this number.
    fn sizes(&self, inode: Inode, seq: u64) -> Sizes {
        let size = |seq| self.host.site.view(seq, |view| view.size(inode));
        (size(seq - 1), size(seq))
    }

    /// Records that no crash loses the changes that the reply acknowledges.
    fn set_durable(&self, done: &Done, seq: u64) {
        let is_unstable =
            matches!(done, Done::Written { committed, .. } if *committed == StableHow::Unstable);
        let site = &self.host.site;
        let is_synced = match self.op {
            Op::Commit(_) | Op::Write(..) => !is_unstable,
            _ => self.op.is_changing() && site.scenario.is_sync,
        };
        if !is_synced {
            return;
        }
        let made = match &self.op {
            Op::Create(place, _) | Op::Symlink(place, _) | Op::Mknod(place, _) => {
                site.view(seq, |view| view.find(place))
            }
            _ => None,
        };
        let inode = made.unwrap_or(self.op.handles().0);
        site.book(|book| book.set_durable_with(seq, &inode));
    }
}

/// Attributes of an inode in memory. `None` if another call waits for the lock of the inode.
fn attributes_now(files: &Filesystem, number: ObjectId) -> Option<Attributes> {
    let mut found = pin!(files.attributes(number));
    match found.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(found) => found.ok(),
        Poll::Pending => None,
    }
}
