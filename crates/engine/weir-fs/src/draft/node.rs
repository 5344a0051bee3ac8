//! A draft: the inodes that an operation changes, with the new content of their records.
//!
//! `data` changes files, `entries` changes directories, `apply` applies log records. A draft
//! changes nothing in the dataset; its holder passes the changes to the engine in one call.
//!
//! Invariants:
//! - reads of a draft return the changes that the draft already has;
//! - a record of zeros is a hole.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize, Txg};
use weir_block::Block;
use weir_codec::compress::is_zero;
use weir_dataset::ObjectChange;
use weir_format::TreeRoot;
use weir_format::files::{Area, FileType, Inode, InodeState, Layout, Stamp};
use weir_pool::PlantedBug;

use crate::directory::{Blocks, NameHash};
use crate::draft::charge::Charge;
use crate::draft::reads::Reads;
use crate::error::FsError;
use crate::inodes::LockedInode;
use crate::layout::{BITMAP, NUMBERS_PER_BLOCK, mark_number};

/// Change numbers of a txg. An inode that changes more often takes numbers of the next txg.
const CHANGES_PER_TXG: u64 = 1 << 18;

/// Records of an inode before the changes of `DraftNode::records`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Base {
    /// The records in the dataset.
    Dataset,
    /// None: the draft makes all records holes, because the record size changes.
    Emptied,
    /// None: the draft creates the inode.
    New,
}

/// An inode in a draft.
pub(crate) struct DraftNode {
    pub(crate) size: RecordSize,
    pub(crate) inode: Inode,
    /// Charge of the inode before the draft; `None` for a new inode.
    pub(crate) before: Option<Charge>,
    /// True if the inode or its record size changed.
    is_changed: bool,
    /// True if the number becomes unused.
    is_freed: bool,
    base: Base,
    /// Ranges that become holes before the changes of `records`.
    holes: Vec<Range<u64>>,
    /// New content of records; `None` is a hole.
    records: BTreeMap<u64, Option<Vec<Block>>>,
    /// Records with data that become references after all other changes.
    references: BTreeSet<u64>,
}

impl DraftNode {
    /// True if the number becomes unused.
    pub(crate) fn is_freed(&self) -> bool {
        self.is_freed
    }

    /// Changed records, each with true if it has data.
    pub(crate) fn changed_records(&self) -> impl Iterator<Item = (u64, bool)> {
        let written = self.records.iter().map(|(record, content)| (*record, content.is_some()));
        written.chain(self.references.iter().map(|record| (*record, true)))
    }

    /// Changed records with data and their content.
    pub(crate) fn changed_contents(&self) -> impl Iterator<Item = (u64, &[Block])> {
        let contents = self.records.iter();
        contents.filter_map(|(record, content)| Some((*record, content.as_deref()?)))
    }

    /// Notes the records with data that become references.
    pub(crate) fn set_references(&mut self, records: BTreeSet<u64>) {
        self.references = records;
    }

    /// True if the draft made a range with this record a hole. `records` has later writes of it.
    pub(crate) fn is_punched(&self, record: u64) -> bool {
        self.holes.iter().any(|hole| hole.contains(&record))
    }
}

/// Changes of one operation.
pub(crate) struct Draft<'a> {
    pub(crate) reads: Reads<'a>,
    pub(crate) hash: &'a NameHash,
    pub(crate) layout: Layout,
    pub(crate) stamp: Stamp,
    nodes: BTreeMap<ObjectId, DraftNode>,
    /// Blocks of directories that a search read, without the changes of the draft.
    pub(crate) directories: BTreeMap<ObjectId, Blocks>,
    /// Inode numbers that become used (true) or unused, in the order of the changes.
    numbers: Vec<(ObjectId, bool)>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        reads: Reads<'a>,
        (hash, layout): (&'a NameHash, Layout),
        stamp: Stamp,
    ) -> Self {
        let (nodes, directories) = (BTreeMap::new(), BTreeMap::new());
        Self { reads, hash, layout, stamp, nodes, directories, numbers: Vec::new() }
    }

    /// Adds an inode that the caller has read and locked.
    pub(crate) fn add(&mut self, number: ObjectId, size: RecordSize, inode: Inode) {
        let node = DraftNode {
            size,
            before: Charge::of(number, &inode),
            inode,
            is_changed: false,
            is_freed: false,
            base: Base::Dataset,
            holes: Vec::new(),
            records: BTreeMap::new(),
            references: BTreeSet::new(),
        };
        self.nodes.entry(number).or_insert(node);
    }

    /// Adds an inode that a client may change, with its newest atime.
    ///
    /// # Errors
    /// As [`LockedInode::inode`].
    pub(crate) fn add_locked(&mut self, locked: &LockedInode) -> Result<(), FsError> {
        let (size, inode) = locked.inode()?;
        self.add(locked.number(), size, locked.cached.with_read_time(inode));
        Ok(())
    }

    /// Adds an inode that the draft creates. It has no records.
    pub(crate) fn create(&mut self, number: ObjectId, inode: Inode) {
        self.add(number, RecordSize::BLOCK, inode);
        let node = self.nodes.get_mut(&number).expect("just added");
        (node.base, node.is_changed, node.before) = (Base::New, true, None);
    }

    /// Drops an inode with its changes from the draft.
    pub(crate) fn drop_node(&mut self, number: ObjectId) {
        self.nodes.remove(&number);
    }

    /// The inodes that the draft has read, with their changes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&ObjectId, &DraftNode)> {
        self.nodes.iter()
    }

    /// Returns an inode. Reads it if the draft lacks it.
    ///
    /// # Errors
    /// `Stale` if the number is unused.
    pub(crate) async fn node(&mut self, number: ObjectId) -> Result<&mut DraftNode, FsError> {
        if !self.nodes.contains_key(&number) {
            let (size, inode) = self.reads.inode(number).await?.ok_or(FsError::Stale)?;
            self.add(number, size, inode);
        }
        let node = self.nodes.get_mut(&number).expect("just added");
        if node.is_freed { Err(FsError::Stale) } else { Ok(node) }
    }

    /// True if an inode has this number.
    pub(crate) async fn is_used(&mut self, number: ObjectId) -> Result<bool, FsError> {
        match self.node(number).await {
            Ok(_) => Ok(true),
            Err(FsError::Stale) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns an inode to change it: sets its ctime and its change number.
    pub(crate) async fn change(&mut self, number: ObjectId) -> Result<&mut Inode, FsError> {
        let (stamp, bug) = (self.stamp, self.reads.bug());
        let first = first_change(stamp.txg);
        let node = self.node(number).await?;
        node.is_changed = true;
        node.inode.ctime = stamp.time;
        let next = node.inode.change.saturating_add(1);
        node.inode.change = if bug == PlantedBug::ChangesRepeat { next } else { next.max(first) };
        Ok(&mut node.inode)
    }

    /// Returns an inode to change a field whose change clients do not see, such as the atime. Sets
    /// neither the ctime nor the change number.
    pub(crate) async fn change_silently(
        &mut self,
        number: ObjectId,
    ) -> Result<&mut Inode, FsError> {
        let node = self.node(number).await?;
        node.is_changed = true;
        Ok(&mut node.inode)
    }

    /// Frees an inode with its large attributes: makes its number unused and all records holes.
    pub(crate) async fn free(&mut self, number: ObjectId) -> Result<(), FsError> {
        let attributes = self.node(number).await?.inode.attributes;
        if attributes.0 > 0 && self.reads.bug() != PlantedBug::AttributesLeaked {
            self.free_attributes(number, attributes).await?;
        }
        self.free_number(number).await
    }

    /// Makes a number unused and all records holes.
    pub(crate) async fn free_number(&mut self, number: ObjectId) -> Result<(), FsError> {
        let node = self.node(number).await?;
        (node.is_freed, node.is_changed) = (true, true);
        self.set_number(number, false).await
    }

    /// Marks a number as used or unused in the bitmap.
    pub(crate) async fn set_number(
        &mut self,
        number: ObjectId,
        is_used: bool,
    ) -> Result<(), FsError> {
        let record = number.0 / NUMBERS_PER_BLOCK;
        let old = self.record(BITMAP, record).await?;
        let mut block = [0; BLOCK_BYTES];
        if let Some([old]) = old.as_deref() {
            block = **old;
        }
        mark_number(&mut block, number, is_used);
        self.numbers.push((number, is_used));
        self.set_record(BITMAP, record, vec![Block::copy_of(&block)]).await
    }

    /// Inode numbers that become used (true) or unused.
    pub(crate) fn number_changes(&self) -> &[(ObjectId, bool)] {
        &self.numbers
    }

    /// Reads a record of an inode; `None` is a hole.
    pub(crate) async fn record(
        &mut self,
        number: ObjectId,
        record: u64,
    ) -> Result<Option<Vec<Block>>, FsError> {
        let reads = self.reads;
        let node = self.node(number).await?;
        if let Some(changed) = node.records.get(&record) {
            return Ok(changed.clone());
        }
        if node.base != Base::Dataset || node.is_punched(record) {
            return Ok(None);
        }
        Ok(reads.record(number, node.size, record).await?)
    }

    /// Numbers of the records with data in a range.
    pub(crate) async fn data_records(
        &mut self,
        number: ObjectId,
        records: Range<u64>,
    ) -> Result<BTreeSet<u64>, FsError> {
        let mut found = BTreeSet::new();
        self.visit_data(number, records, |record| _ = found.insert(record)).await?;
        Ok(found)
    }

    /// Visits the numbers of the records with data in a range, in no order.
    pub(crate) async fn visit_data(
        &mut self,
        number: ObjectId,
        records: Range<u64>,
        mut visit: impl FnMut(u64),
    ) -> Result<(), FsError> {
        if records.is_empty() {
            return Ok(());
        }
        let reads = self.reads;
        let node = self.node(number).await?;
        let is_kept =
            |record: &u64| !node.is_punched(*record) && !node.records.contains_key(record);
        let mut next = (node.base == Base::Dataset).then_some(records.start);
        while let Some(start) = next.filter(|start| *start < records.end) {
            let part = reads.data_records(number, node.size, start..records.end).await?;
            part.records.into_iter().filter(is_kept).for_each(&mut visit);
            next = part.next;
        }
        let changed = node.records.range(records);
        changed.filter(|(_, content)| content.is_some()).for_each(|(record, _)| visit(*record));
        Ok(())
    }

    /// Replaces a record in the draft. `blocks`: as many blocks as a record has. A record of zeros
    /// becomes a hole.
    pub(crate) async fn set_record(
        &mut self,
        number: ObjectId,
        record: u64,
        blocks: Vec<Block>,
    ) -> Result<(), FsError> {
        let is_data = blocks.iter().any(|block| !is_zero(&block[..]));
        self.put_record(number, record, blocks, is_data).await
    }

    /// As [`Self::set_record`]. `is_data`: `blocks` are not all zeros.
    pub(crate) async fn put_record(
        &mut self,
        number: ObjectId,
        record: u64,
        blocks: Vec<Block>,
        is_data: bool,
    ) -> Result<(), FsError> {
        let node = self.node(number).await?;
        assert_eq!(blocks.len() as u64, node.size.blocks(), "records are whole");
        node.records.insert(record, is_data.then_some(blocks));
        Ok(())
    }

    /// Makes a range of records holes.
    pub(crate) async fn punch_records(
        &mut self,
        number: ObjectId,
        records: Range<u64>,
    ) -> Result<(), FsError> {
        let node = self.node(number).await?;
        node.records.retain(|record, _| !records.contains(record));
        node.holes.push(records);
        Ok(())
    }

    /// Makes all records holes and sets the record size.
    pub(crate) async fn empty(
        &mut self,
        number: ObjectId,
        size: RecordSize,
    ) -> Result<(), FsError> {
        let node = self.node(number).await?;
        node.records.clear();
        node.holes.clear();
        if node.base == Base::Dataset {
            node.base = Base::Emptied;
        }
        (node.is_changed, node.size) = (true, size);
        Ok(())
    }

    /// Takes the changed inodes out of the draft, with their new content; `None` for a number that
    /// became unused.
    pub(crate) fn take_inodes(
        &mut self,
    ) -> impl Iterator<Item = (ObjectId, Option<(RecordSize, Inode)>)> {
        let nodes = std::mem::take(&mut self.nodes).into_iter();
        let changed = nodes.filter(|(_, node)| node.is_changed);
        changed.map(|(number, node)| (number, (!node.is_freed).then_some((node.size, node.inode))))
    }

    /// Takes the changes for the engine out of the draft. The inodes stay in the draft.
    pub(crate) fn take_changes(&mut self) -> Vec<ObjectChange> {
        let mut changes = Vec::new();
        for (number, node) in &mut self.nodes {
            let (object, size) = (*number, node.size);
            if node.is_freed {
                if node.base != Base::New {
                    changes.push(ObjectChange::Remove { object });
                }
                continue;
            }
            if node.base == Base::Emptied {
                changes.push(ObjectChange::Remove { object });
            }
            if node.is_changed {
                let body = node.inode.encode();
                changes.push(ObjectChange::SetSlot { object, size, body });
            }
            let holes = node.holes.iter().cloned();
            changes.extend(holes.map(|records| ObjectChange::Zero { object, size, records }));
            changes.extend(node.records.iter_mut().map(|(record, content)| match content {
                Some(blocks) => {
                    let (record, blocks) = (*record, std::mem::take(blocks));
                    ObjectChange::Write { object, size, record, blocks }
                }
                None => ObjectChange::Zero { object, size, records: *record..*record + 1 },
            }));
        }
        changes
    }

    /// Puts changes that the engine did not accept back into the draft.
    pub(crate) fn restore_changes(&mut self, changes: Vec<ObjectChange>) {
        for change in changes {
            if let ObjectChange::Write { object, record, blocks, .. } = change
                && let Some(node) = self.nodes.get_mut(&object)
            {
                node.records.insert(record, Some(blocks));
            }
        }
    }

    /// True if the draft has new data for each block of a range of a file: no record of the range
    /// is a hole.
    pub(crate) fn has_data(&self, number: ObjectId, range: &Range<u64>) -> bool {
        let Some(node) = self.nodes.get(&number) else { return false };
        let is_data = |record| matches!(node.records.get(&record), Some(Some(_)));
        node.size.touched(range).all(is_data)
    }
}

/// First change number of a txg. Each txg has its own numbers, so that no number repeats after a
/// crash that loses txgs.
pub(crate) fn first_change(txg: Txg) -> u64 {
    txg.0.saturating_mul(CHANGES_PER_TXG)
}

/// Number of records of a file of `bytes` bytes.
pub(crate) fn records_in(size: RecordSize, bytes: u64) -> u64 {
    bytes.div_ceil(size.bytes() as u64).min(TreeRoot::BLOCKS_MAX)
}

/// Returns an empty inode with one name.
pub(crate) fn new_inode(file_type: FileType, parent: ObjectId, stamp: Stamp) -> Inode {
    let Stamp { txg, time } = stamp;
    Inode {
        state: InodeState::Named,
        created_txg: txg,
        size: 0,
        blocks: 0,
        file_type,
        permissions: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        project: 0,
        flags: 0,
        change: first_change(txg),
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        parent,
        attributes: ObjectId(0),
        device_or_entries: 0,
        area: Area::default(),
    }
}
