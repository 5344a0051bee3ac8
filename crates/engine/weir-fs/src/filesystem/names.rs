//! Removes and renames inodes.
//!
//! Invariant: a directory is never below itself: a rename between directories holds the rename lock
//! while it follows the parents of the destination.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::ObjectId;
use weir_format::files::{EntryKey, Fate, FileRecord, FileType};
use weir_pool::PlantedBug;

use crate::directory::{Entry, Probe};
use crate::draft::apply::named;
use crate::draft::entries::check_name;
use crate::draft::node::{Draft, DraftNode};
use crate::error::FsError;
use crate::filesystem::commit::Change;
use crate::filesystem::create::check_parent;
use crate::filesystem::quotas::check_project;
use crate::filesystem::state::Filesystem;
use crate::inodes::{CachedInode, LockedInode};
use crate::layout::ROOT;
use crate::numbers::Numbers;
use crate::rights::Access;
use crate::user::call::Call;

/// Maximum number of directories above an inode. It only limits the work on a damaged filesystem.
const DEPTH_MAX: usize = 1 << 20;

/// Action of a rename if the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces the inode with the new name.
    Replace,
    /// Fails with `Exists` (RENAME_NOREPLACE).
    Keep,
    /// Exchanges the two inodes (RENAME_EXCHANGE).
    Exchange,
}

/// Refuses an entry of a damaged directory that names a directory whose lock the operation holds:
/// the operation would wait for itself.
fn refuse_own_directory(number: ObjectId, held: &[ObjectId]) -> Result<(), FsError> {
    if held.contains(&number) {
        return Err(FsError::damaged(number, "an entry below the directory names it"));
    }
    Ok(())
}

/// Inodes that lose their last name.
fn ends(number: ObjectId, fate: Fate) -> Vec<ObjectId> {
    if fate == Fate::Freed { vec![number] } else { Vec::new() }
}

/// True if a rename changes only the spelling of an entry, so that the new name is no other entry.
/// `key`: key of the new name.
fn is_respelled(
    (from, source): (ObjectId, &Entry),
    (to, key): (ObjectId, EntryKey),
    new_name: &[u8],
) -> bool {
    (from, source.key) == (to, key) && *source.name != *new_name
}

/// Checks that each inode may move to its new directory.
async fn check_projects(
    draft: &mut Draft<'_>,
    moves: [(ObjectId, Option<ObjectId>); 2],
) -> Result<(), FsError> {
    for (directory, inode) in moves {
        if let Some(inode) = inode {
            let directory = draft.node(directory).await?.inode.clone();
            check_project(&directory, &draft.node(inode).await?.inode)?;
        }
    }
    Ok(())
}

/// Checks that the user of a call may remove the old name and the inode that a rename replaces or
/// exchanges, and may move directories. `locked` has all these inodes.
fn check_renamed(
    call: &Call<'_>,
    locked: &[LockedInode],
    (from, moved): (ObjectId, ObjectId),
    (to, target): (ObjectId, Option<ObjectId>),
) -> Result<(), FsError> {
    let inode = |number: ObjectId| {
        let found = locked.iter().find(|locked| locked.number() == number);
        Ok::<_, FsError>((number, found.expect("the caller locked it").inode()?.1))
    };
    call.check_removal(inode(from)?, inode(moved)?)?;
    if let Some(target) = target {
        call.check_removal(inode(to)?, inode(target)?)?;
    }
    if from == to {
        return Ok(());
    }
    let (number, moved) = inode(moved)?;
    call.check_move(number, moved)
}

/// Spelling of the new name after a rename: an exchange keeps both names.
fn spelling<'n>(found: &'n Probe, new_name: &'n [u8], mode: RenameMode) -> &'n [u8] {
    match (mode, found) {
        (RenameMode::Exchange, Probe::Found(entry)) => &entry.name,
        _ => new_name,
    }
}

impl Filesystem {
    /// State of an inode after `moved` replaces it. The caller holds the locks of both inodes.
    async fn replaced_fate(
        &self,
        draft: &mut Draft<'_>,
        moved: ObjectId,
        replaced: &CachedInode,
    ) -> Result<Fate, FsError> {
        let is_directory = draft.node(moved).await?.inode.file_type == FileType::Directory;
        let DraftNode { size, inode, .. } = draft.node(replaced.number).await?;
        match (is_directory, inode.file_type == FileType::Directory) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            (true, true) if inode.device_or_entries > 0 => Err(FsError::NotEmpty),
            _ => Ok(self.fate_of(*size, inode, replaced)),
        }
    }

    /// Removes a name, and the inode with its last name. `is_directory`: removes an empty directory
    /// (rmdir) instead of another inode (unlink).
    ///
    /// # Durability
    /// None until a sync of any inode.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `NotDirectory`, `NotEmpty`.
    #[boxed(?Send)]
    pub async fn remove(
        &self,
        directory: ObjectId,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), FsError> {
        self.remove_for(&Call::TRUSTED, directory, name, is_directory).await.map(drop)
    }

    /// Does the same as [`Self::remove`], with the checks of a call. Returns the inode that lost
    /// the name.
    #[boxed(?Send)]
    pub(crate) async fn remove_for(
        &self,
        call: &Call<'_>,
        directory: ObjectId,
        name: &[u8],
        is_directory: bool,
    ) -> Result<ObjectId, FsError> {
        check_name(name)?;
        let mut draft = self.draft();
        let mut parent = self.lock_for(&mut draft, directory).await?;
        call.check(directory, parent.inode()?.1, Access::CHANGE_ENTRIES)?;
        let Probe::Found(Entry { inode: number, key, .. }) = draft.find(directory, name).await?
        else {
            return Err(FsError::NotFound);
        };
        refuse_own_directory(number, &[directory])?;
        let mut locked = self.lock_for(&mut draft, number).await?;
        let (size, inode) = locked.inode()?;
        call.check_removal((directory, parent.inode()?.1), (number, inode))?;
        match (inode.file_type, is_directory) {
            (FileType::Directory, false) => return Err(FsError::IsDirectory),
            (FileType::Directory, true) if inode.device_or_entries > 0 => {
                return Err(FsError::NotEmpty);
            }
            (FileType::Directory, true) | (_, false) => {}
            (_, true) => return Err(FsError::NotDirectory),
        }
        let fate = self.fate_of(size, inode, &locked.cached);
        let mut numbers = self.numbers.lock().await;
        let record = FileRecord::Remove { entry: named(directory, key, name), fate };
        draft.apply(number, &record).await?;
        let names = vec![number, directory];
        let change = Change::namespace(number, &record, names, ends(number, fate));
        self.commit(&mut draft, change, &mut [&mut parent, &mut locked]).await?;
        call.note_changed(directory, parent.inode()?.1);
        self.note_freed(&mut numbers, &draft, fate);
        Ok(number)
    }

    /// Renames an inode. If the new name exists and `mode` is [`RenameMode::Replace`], the inode
    /// with the new name loses this name. In a case-insensitive filesystem the new name gets the
    /// given spelling, also if it is another spelling of the old name.
    ///
    /// # Durability
    /// None until a sync of any inode. After a crash the rename has happened or not. If it has
    /// happened, the inode with the new name has at least the content from before the rename.
    ///
    /// # Errors
    /// `NotFound`, also if the new directory was removed; `Exists`, `NotEmpty`, `IsDirectory`,
    /// `NotDirectory`; `Invalid` if a directory would move below itself.
    #[boxed(?Send)]
    pub async fn rename(
        &self,
        (from, old_name): (ObjectId, &[u8]),
        (to, new_name): (ObjectId, &[u8]),
        mode: RenameMode,
    ) -> Result<(), FsError> {
        self.rename_for(&Call::TRUSTED, (from, old_name), (to, new_name), mode).await.map(drop)
    }

    /// Does the same as [`Self::rename`], with the checks of a call. Returns the renamed inode, and
    /// the inode that had the new name; `None` if nothing happened.
    #[boxed(?Send)]
    pub(crate) async fn rename_for(
        &self,
        call: &Call<'_>,
        (from, old_name): (ObjectId, &[u8]),
        (to, new_name): (ObjectId, &[u8]),
        mode: RenameMode,
    ) -> Result<Option<(ObjectId, Option<ObjectId>)>, FsError> {
        check_name(old_name)?;
        check_name(new_name)?;
        let _renames = if from == to { None } else { Some(self.renames.lock().await) };
        let (first, second) = self.lock_order(from, to).await?;
        let mut draft = self.draft();
        let mut locked = vec![self.lock_for(&mut draft, first).await?];
        if first != second {
            locked.push(self.lock_for(&mut draft, second).await?);
        }
        for directory in &locked {
            call.check(directory.number(), directory.inode()?.1, Access::CHANGE_ENTRIES)?;
        }
        let Probe::Found(source) = draft.find(from, old_name).await? else {
            return Err(FsError::NotFound);
        };
        check_parent(&draft.node(to).await?.inode)?;
        let found = self.find_place(&mut draft, to, new_name).await?;
        let (target, key) = match &found {
            Probe::Found(entry) => (Some(entry.inode), entry.key),
            Probe::Free(key) => (None, *key),
        };
        let moved = source.inode;
        let is_respelled = old_name != new_name
            && is_respelled((from, &source), (to, key), new_name)
            && self.volume.bug() != PlantedBug::OldSpellingKept;
        let target = target.filter(|_| !is_respelled || mode == RenameMode::Exchange);
        match (mode, target) {
            (RenameMode::Keep, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            // Two names of one inode: POSIX demands that nothing happens.
            (_, Some(target)) if target == moved => return Ok(None),
            _ => {}
        }
        self.refuse_cycles((from, &source), (to, &found), mode).await?;
        // Lock the renamed inodes in the order of their numbers.
        let mut renamed: Vec<ObjectId> = std::iter::once(moved).chain(target).collect();
        renamed.sort_unstable();
        for number in renamed {
            refuse_own_directory(number, &[from, to])?;
            locked.push(self.lock_for(&mut draft, number).await?);
        }
        let moves = [(to, Some(moved)), (from, target.filter(|_| mode == RenameMode::Exchange))];
        check_projects(&mut draft, moves).await?;
        check_renamed(call, &locked, (from, moved), (to, target))?;
        let old_entry = named(from, source.key, &source.name);
        let new_entry = named(to, key, spelling(&found, new_name, mode));
        let mut numbers = self.numbers.lock().await;
        let mut replaced = None;
        let record = match (mode, target) {
            (RenameMode::Exchange, Some(other)) => {
                FileRecord::Exchange { from: old_entry, to: new_entry, other }
            }
            (_, Some(target)) => {
                let cached = locked.iter().find(|inode| inode.number() == target);
                let cached = Arc::clone(&cached.expect("just locked").cached);
                replaced = Some((target, self.replaced_fate(&mut draft, moved, &cached).await?));
                FileRecord::Rename { from: old_entry, to: new_entry, replaced }
            }
            (_, None) => FileRecord::Rename { from: old_entry, to: new_entry, replaced },
        };
        draft.apply(moved, &record).await?;
        let names = [moved, from, to].into_iter().chain(target).collect();
        let ended = replaced.map_or_else(Vec::new, |(number, fate)| ends(number, fate));
        let change = Change::namespace(moved, &record, names, ended);
        self.commit(&mut draft, change, &mut locked.iter_mut().collect::<Vec<_>>()).await?;
        for directory in locked.iter().filter(|inode| [from, to].contains(&inode.number())) {
            call.note_changed(directory.number(), directory.inode()?.1);
        }
        self.note_freed(&mut numbers, &draft, replaced.map_or(Fate::Named, |(_, fate)| fate));
        Ok(Some((moved, target)))
    }

    /// Updates the allocation of numbers after a change. Wakes the background task if necessary.
    fn note_freed(&self, numbers: &mut Numbers, draft: &Draft<'_>, fate: Fate) {
        numbers.note(draft.number_changes(), self.volume.open_txg());
        if fate == Fate::Freeing {
            self.freeing_wanted.notify_one();
        }
    }

    /// Refuses a rename after which a directory would be below itself. The caller holds the rename
    /// lock if the directories differ.
    async fn refuse_cycles(
        &self,
        (from, source): (ObjectId, &Entry),
        (to, target): (ObjectId, &Probe),
        mode: RenameMode,
    ) -> Result<(), FsError> {
        if from == to {
            return Ok(());
        }
        let is_above = |entry: &Entry, other: ObjectId| {
            let (number, is_directory) = (entry.inode, entry.file_type == FileType::Directory);
            async move { Ok::<_, FsError>(is_directory && self.is_below(other, number).await?) }
        };
        let below_itself = FsError::Invalid("a directory cannot move below itself");
        if is_above(source, to).await? {
            return Err(below_itself);
        }
        match target {
            Probe::Found(target) if is_above(target, from).await? => match mode {
                RenameMode::Exchange => Err(below_itself),
                RenameMode::Replace | RenameMode::Keep => Err(FsError::NotEmpty),
            },
            _ => Ok(()),
        }
    }

    /// Order in which to lock two directories: an ancestor first. If they differ, the caller holds
    /// the rename lock.
    async fn lock_order(
        &self,
        one: ObjectId,
        two: ObjectId,
    ) -> Result<(ObjectId, ObjectId), FsError> {
        if one == two {
            return Ok((one, two));
        }
        let is_below = async |one, two| match self.is_below(one, two).await {
            // The number belongs to a newer inode: the caller checks it under its lock.
            Err(FsError::NotDirectory) => Ok(false),
            found => found,
        };
        let two_is_above = is_below(one, two).await?;
        let swap = two_is_above || two < one && !is_below(two, one).await?;
        Ok(if swap { (two, one) } else { (one, two) })
    }

    /// True if `directory` is `ancestor` or below it. The caller holds the rename lock, so that no
    /// parent changes. Reads the parents from the dataset, because the caller may hold locks of
    /// inodes.
    async fn is_below(&self, directory: ObjectId, ancestor: ObjectId) -> Result<bool, FsError> {
        let (mut number, mut earlier) = (directory, directory);
        for step in 0..DEPTH_MAX {
            if number == ancestor {
                return Ok(true);
            }
            if number == ROOT {
                return Ok(false);
            }
            // In a cycle, the steps reach the remembered directory again (Brent).
            if step > 0 && number == earlier {
                return Err(FsError::damaged(directory, "it is not below the root"));
            }
            if step.is_power_of_two() {
                earlier = number;
            }
            let (_, inode) = self.reads().inode(number).await?.ok_or(FsError::Stale)?;
            if inode.file_type != FileType::Directory {
                return Err(FsError::NotDirectory);
            }
            number = inode.parent;
        }
        Err(FsError::damaged(directory, "it has too many directories above it"))
    }
}
