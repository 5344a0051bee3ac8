//! Checks of a pool that was recovered from a power cut.
//!
//! `book` has the states of a filesystem that a crash may leave.
//!
//! Invariants:
//! - each snapshot whose creation was acknowledged exists with its exact content;
//! - a snapshot whose destruction was acknowledged is gone;
//! - a call that changes several snapshots leaves all of them changed, or none; a rollback drops
//!   the newer snapshots if and only if it changed the filesystem;
//! - the check of a recovered filesystem finds nothing, and the background freeing leaves no inode
//!   of a removed file.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_base::ObjectId;
use weir_dataset::{Engine, SnapshotId};
use weir_format::files::FileType;
use weir_fs::{Filesystem, FsError, ROOT, SetAttributes};

use super::book::Book;
use super::client::FILE;
use super::content::{Content, Data, FILE_BYTES_MAX, Inode, Names, State, inode_of, read_state};
use super::expected::{Cut, Dataset, Expected, NAMES, Snapshot};
use super::pool::{LIMITS, clock, read_snapshot};
use super::replicas::resume;
use super::sent::REPLICA;
use crate::history::Presence;
use crate::lost_nodes::run::counts;
use crate::replication::replica::FoundReplica;
use crate::rng::Rng;
use crate::world::SimWorld;

/// Inodes with a fixed number; the root directory is one of them.
const INTERNAL_INODES: u64 = 16;
/// Bytes by which a check enlarges a file: more than a record.
const GROWTH_BYTES: u64 = 20_000;

#[expect(clippy::needless_pass_by_value, reason = "map_err passes the error by value")]
fn told(error: FsError) -> String {
    error.to_string()
}

/// A recovered pool and its expected state.
pub(super) struct Recovery<'a> {
    pub(super) world: &'a SimWorld,
    pub(super) engine: Arc<Engine>,
    pub(super) expected: &'a Expected,
    /// Whether to run the checks that walk all trees, also of the snapshots.
    pub(super) checks_all: bool,
}

/// Filesystems of a recovered pool.
#[derive(Default)]
pub(super) struct Recovered {
    /// Each filesystem with its state, by index of the dataset.
    pub(super) files: Vec<(usize, Filesystem, State)>,
    /// True if the crash lost changes.
    pub(super) has_lost: bool,
    /// Number of snapshots.
    pub(super) snapshots: usize,
    /// Number of filesystems that a pending rollback had changed.
    pub(super) rolled_back: usize,
    pub(super) replica: Option<FoundReplica>,
}

impl Recovery<'_> {
    /// Compares the filesystems and snapshots with the expected state.
    ///
    /// # Errors
    /// The first difference from the allowed states.
    pub(super) async fn judge(&self) -> Result<Recovered, String> {
        let mut recovered = Recovered::default();
        for (owner, dataset) in self.expected.datasets.iter().enumerate() {
            let name = NAMES[owner];
            match (self.engine.volume(name), dataset.presence) {
                (Ok(_), Presence::Gone) => return Err(format!("{name} exists")),
                (Err(error), Presence::There) => return Err(format!("{name}: {error}")),
                (Err(_), _) => continue,
                (Ok(_), _) => {}
            }
            let judged = self.judge_dataset(owner, dataset).await;
            let (files, state, lost) = judged.map_err(|what| format!("{name}: {what}"))?;
            recovered.has_lost |= lost.unwrap_or(false);
            recovered.snapshots += self.judge_snapshots(owner).await?;
            recovered.rolled_back += usize::from(dataset.rolling.is_some() && lost.is_none());
            recovered.files.push((owner, files, state));
        }
        let replica = self.expected.replica.judge(&self.engine).await;
        recovered.replica = replica.map_err(|what| format!("{REPLICA}: {what}"))?;
        let count = self.engine.volumes().len();
        if count != recovered.files.len() + usize::from(recovered.replica.is_some()) {
            return Err(format!("{count} datasets exist"));
        }
        Ok(recovered)
    }

    /// Checks a filesystem. Returns true if the crash lost changes; `None` if the filesystem is
    /// rolled back.
    async fn judge_dataset(
        &self,
        owner: usize,
        dataset: &Dataset,
    ) -> Result<(Filesystem, State, Option<bool>), String> {
        let now = clock(self.world.executor());
        let files = Filesystem::open_with(&self.engine, NAMES[owner], LIMITS, now).await;
        let files = files.map_err(told)?;
        let state = read_state(&files).await.map_err(told)?;
        let judged = dataset.book.judge(&state);
        let lost = match &dataset.rolling {
            None => Some(judged?),
            Some(rolling) => {
                let is_rolled_back = state.compare(rolling).is_ok();
                self.judge_newer(owner, (judged.is_ok(), is_rolled_back))?;
                if is_rolled_back { None } else { Some(judged?) }
            }
        };
        Ok((files, state, lost))
    }

    /// Checks that a pending rollback dropped the newer snapshots together with the changes.
    fn judge_newer(
        &self,
        owner: usize,
        (is_before, is_rolled_back): (bool, bool),
    ) -> Result<(), String> {
        let names = self.engine.snapshot_names(NAMES[owner]).map_err(|error| error.to_string())?;
        let newer = self
            .expected
            .snapshots
            .iter()
            .filter(|book| (book.owner, book.presence) == (owner, Presence::Destroying));
        for book in newer {
            let exists = names.contains(&book.name);
            if exists && !is_before || !exists && !is_rolled_back {
                return Err(format!("a part of a rollback: {} exists: {exists}", book.name));
            }
        }
        Ok(())
    }

    /// Compares the snapshots of a filesystem. Returns their number.
    async fn judge_snapshots(&self, owner: usize) -> Result<usize, String> {
        let names = self.engine.snapshot_names(NAMES[owner]).map_err(|error| error.to_string())?;
        let own = || self.expected.snapshots.iter().filter(|book| book.owner == owner);
        for name in &names {
            let book = own().find(|book| book.name == *name && book.presence != Presence::Gone);
            let book = book.ok_or_else(|| format!("snapshot {name} exists"))?;
            self.judge_snapshot(book).await?;
        }
        let is_lost =
            |book: &&Snapshot| book.presence == Presence::There && !names.contains(&book.name);
        if let Some(book) = own().find(is_lost) {
            return Err(format!("snapshot {} is missing", book.name));
        }
        let leaving = || own().filter(|book| book.presence == Presence::Destroying);
        let left = leaving().filter(|book| names.contains(&book.name)).count();
        if left > 0 && left < leaving().count() {
            return Err(format!("{left} of the destroyed snapshots exist"));
        }
        Ok(names.len())
    }

    async fn judge_snapshot(&self, book: &Snapshot) -> Result<(), String> {
        let id = SnapshotId::new(NAMES[book.owner], &book.name);
        let state = read_snapshot(&self.engine, &id, self.checks_all).await?;
        let judged = match &book.cut {
            Cut::Known(expected) => state.compare(expected),
            Cut::After(taken) => {
                self.expected.datasets[book.owner].book.judge_cut(taken.clone(), &state)
            }
        };
        judged.map_err(|what| format!("{id:?}: {what}"))
    }

    /// Resumes the stream that the power cut interrupted, if any. Returns true if there was one.
    ///
    /// # Errors
    /// As [`resume`].
    pub(super) async fn resume(&self, recovered: &Recovered, mut rng: Rng) -> Result<bool, String> {
        let Ok(volume) = self.engine.volume(REPLICA) else { return Ok(false) };
        let Some(name) = volume.receiving() else { return Ok(false) };
        let (timer, committer) = (self.world.executor().clone(), Arc::clone(&self.engine));
        // The receive waits for commits. The power cut at the end stops the task.
        let _committer = self
            .world
            .executor()
            .spawn("committer", async move { committer.run(|time| timer.sleep(time)).await });
        let exists = |owner: &usize| {
            let names = self.engine.snapshot_names(NAMES[*owner]);
            names.is_ok_and(|names| names.contains(&name))
        };
        let source = (0..NAMES.len()).find(exists);
        let source = source.map(|owner| SnapshotId::new(NAMES[owner], &name));
        let mut replica = self.expected.replica.clone();
        replica.rebase(recovered.replica.clone());
        resume(&self.engine, self.world.executor(), &mut rng, (replica, source)).await?;
        Ok(true)
    }

    /// Checks the structures of all filesystems.
    ///
    /// # Errors
    /// The first finding.
    pub(super) async fn check_structures(&self, recovered: &Recovered) -> Result<(), String> {
        if self.checks_all {
            self.engine.sync().await.map_err(|error| error.to_string())?;
            counts(&self.engine).await?;
        }
        for (_, files, _) in &recovered.files {
            check(&self.engine, files).await?;
        }
        Ok(())
    }

    /// Changes each inode. Its change number must exceed all numbers that clients received before
    /// the crash, and a new inode must differ from all inodes that there were. Files grow: the new
    /// bytes must be zero.
    ///
    /// # Errors
    /// The first violation.
    pub(super) async fn change_all(&self, recovered: &Recovered) -> Result<(), String> {
        for (owner, files, state) in &recovered.files {
            change_all(files, &self.expected.datasets[*owner].book, state).await?;
        }
        Ok(())
    }

    /// Frees the removed files as a background task does. Nothing of them may be left.
    ///
    /// # Errors
    /// The first violation.
    pub(super) async fn free_removed(&self, recovered: &Recovered) -> Result<(), String> {
        for (_, files, state) in &recovered.files {
            free_removed(&self.engine, files, &state.names).await?;
        }
        Ok(())
    }
}

async fn check(engine: &Engine, files: &Filesystem) -> Result<(), String> {
    engine.sync().await.map_err(|error| error.to_string())?;
    let findings = files.check().await.map_err(told)?;
    if findings.is_empty() { Ok(()) } else { Err(format!("the check found {findings:?}")) }
}

async fn change_all(files: &Filesystem, book: &Book, state: &State) -> Result<(), String> {
    let made = files.create_inode(ROOT, b"probe", &FILE).await.map_err(told)?;
    if book.newest_change(&inode_of(&made)).is_some() {
        return Err(format!("the new inode {:?} existed before the crash", inode_of(&made)));
    }
    files.remove(ROOT, b"probe", false).await.map_err(told)?;
    let named: BTreeSet<Inode> = state.names.values().copied().collect();
    for inode in named {
        let number = ObjectId(inode.0);
        let content = state.files.get(&inode);
        let size = content.filter(|content| content.file_type == FileType::Regular);
        let size = size.map(|content| content.data.len() + GROWTH_BYTES);
        let permissions = size.is_none().then_some(0o755);
        let changes = SetAttributes { size, permissions, ..SetAttributes::default() };
        let found = files.set_attributes(number, &changes, false).await.map_err(told)?;
        let last = book.newest_change(&inode);
        if inode_of(&found) != inode || last.is_none_or(|last| found.change <= last) {
            return Err(format!("inode {inode:?} changed to {found:?} after change {last:?}"));
        }
        if let (Some(content), Some(size)) = (content, size) {
            grown(files, number, (content, size)).await?;
        }
    }
    Ok(())
}

/// Compares a file after it grew.
async fn grown(
    files: &Filesystem,
    number: ObjectId,
    (content, size): (&Content, u64),
) -> Result<(), String> {
    let bytes = files.read(number, 0, FILE_BYTES_MAX as usize).await.map_err(told)?;
    let (found, mut expected) = (Data::of(&bytes), content.data.clone());
    expected.resize(size);
    if found == expected {
        return Ok(());
    }
    Err(format!("file {number:?} grew to {found:?}, not {expected:?}"))
}

async fn free_removed(engine: &Engine, files: &Filesystem, names: &Names) -> Result<(), String> {
    for number in files.removed_files().await.map_err(told)? {
        while files.free_part(number).await.map_err(told)? {}
    }
    check(engine, files).await?;
    let named: BTreeSet<Inode> = names.values().copied().collect();
    let mut expected = INTERNAL_INODES + named.len() as u64;
    for (number, _) in named {
        let has_large = files.has_large_xattrs(ObjectId(number)).await;
        expected += u64::from(has_large.map_err(told)?);
    }
    let used = files.statistics().await.map_err(told)?.files;
    if used == expected { Ok(()) } else { Err(format!("{used} inodes instead of {expected}")) }
}
