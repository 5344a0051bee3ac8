//! Finds the live blocks of a segment, from its summaries and the trees of the blocks' owners. Root
//! segments have no summaries; their blocks are found through the metadata trees.
//!
//! The cleaner moves live blocks, `scan::copies` verifies them.
//!
//! Invariants:
//! - a block that was ever shared is live while the reference table counts it
//!   ([`Pool::part_shared`]);
//! - any other block is live if the index that its summary names references it, in the first
//!   version of the volume that ended after the block's birth (see `snapshot_chain`);
//! - the live bytes found must equal the segment's counter ([`Pool::live_in`]);
//! - a block with an unreadable owner may be live, and is verified and repaired like a live block.

use async_recursion::async_recursion as boxed;
use futures_util::StreamExt as _;
use weir_base::hash::HashMap;
use weir_base::limits::NODE_READS_IN_FLIGHT;
use weir_base::{ErrorKind, ObjectId, Txg, VsegId};
use weir_block::Block;
use weir_format::layout::PACK_BYTES;
use weir_format::{
    BlockOwner, BlockPtr, FormatError, NODE_FANOUT, NODE_SHIFT, ObjectSlot, PoolPart, PtrKind,
    SEGMENT_ENTRIES_PER_BLOCK, SegmentEntry, SegmentState, Summary, SummaryEntry, SummaryPlace,
    TreeRoot, node_pointer,
};

use crate::error::{BlockAddress, PoolError};
use crate::planted_bugs::PlantedBug;
use crate::segments::sanity::{self, Visited};
use crate::segments::segment_table::Segments;
use crate::state::live_of::LiveOf;
use crate::state::lost_nodes::{Marker, Unreadable};
use crate::state::pool::Pool;
use crate::tree::place::Objects;
use crate::tree::radix_tree::Tree;
use crate::tree::snapshot_chain::{Roots, node_above};

/// Maximum number of attempts to read a segment that write-outs change at the same time. After the
/// last attempt the segment's counter stays unchecked.
const READS_MAX: usize = 4;

const SEGMENT: &str = "segment";

/// A block or summary of a segment that must be readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    /// Byte offset in the segment.
    pub(crate) at: u64,
    pub(crate) len: usize,
    pub(crate) proof: Proof,
    pub(crate) of: LiveOf,
    /// Byte offset of another copy in the same segment.
    pub(crate) other: Option<u64>,
    /// Address in the block's pointers; `None` for a summary.
    pub(crate) address: Option<(VsegId, u32)>,
}

impl Live {
    pub(crate) fn end(&self) -> u64 {
        self.at + self.len as u64
    }
}

/// Checksum against which the bytes of a block or summary are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Block with one pointer: the checksum in that pointer.
    Checksum(u128),
    /// Shared block: the half of its checksum that the segment summary holds.
    Half(u64),
    /// Summary of this segment: its own checksum; the low half must equal the value in the
    /// reference to the summary.
    Summary(VsegId, u64),
}

/// Result of a search for the live blocks of a segment.
#[derive(Debug, Default)]
pub(crate) struct LiveSet {
    /// Live blocks in the order of their offsets.
    pub(crate) live: Vec<Live>,
    /// Number of unreadable owners and summaries. A block whose owner is unreadable may be live and
    /// is in `live`; a block in an unreadable summary is not in `live`.
    pub(crate) lost: u64,
    /// True if `live` may lack live blocks: a resilver that copies only `live` is then incomplete.
    pub(crate) is_partial: bool,
}

impl LiveSet {
    /// Result for a segment with unknown contents.
    fn unknown() -> Self {
        Self { live: Vec::new(), lost: 1, is_partial: true }
    }

    /// Removes entries that extend beyond the segment or overlap the preceding entry, and counts
    /// them as lost. Such an entry is corrupt, because no writer appends such a block.
    fn part_overlaps(&mut self, room: u64) {
        let (before, mut end) = (self.live.len(), 0);
        self.live.retain(|live| {
            let fits = live.at >= end && live.end() <= room;
            end = if fits { live.end() } else { end };
            fits
        });
        self.lost += (before - self.live.len()) as u64;
    }
}

/// Live blocks with their summary entries, and the blocks for which the lookup failed.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) live: Vec<FoundLive>,
    /// Blocks that may be live, because their owner is unreadable.
    pub(crate) unknown: Vec<FoundLive>,
    pub(crate) failed: Vec<PoolError>,
    /// True if reference counts are missing, so that blocks counted as live may be dead.
    pub(crate) uncounted: bool,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundLive {
    pub(crate) entry: SummaryEntry,
    pub(crate) proof: Proof,
    pub(crate) of: LiveOf,
}

/// Result of looking up a block in its owner's tree.
enum Verdict {
    Alive(Proof),
    Dead,
}

/// Returns a block to verify against the half of its checksum that the summary holds.
fn unproved(entry: &SummaryEntry, of: LiveOf) -> FoundLive {
    FoundLive { entry: *entry, proof: Proof::Half(entry.checksum), of }
}

impl Found {
    /// Adds a block that no readable dataset references to `unknown`, if the block may belong to an
    /// unreadable dataset.
    fn note_dead(&mut self, pool: &Pool, roots: &Roots, entry: &SummaryEntry) {
        if roots.may_be_lost(&entry.owner, entry.birth) {
            let (pool, dataset) = (pool.name().to_owned(), entry.owner.dataset.0);
            self.failed.push(PoolError::OwnerLost { pool, dataset });
            self.unknown.push(shared_block(entry));
        }
    }

    /// Drops `unknown`, the blocks of unreadable datasets, if the segment's counter proves that
    /// they are dead. The counter, `counted`, includes the live blocks of every dataset. If a block
    /// of `unknown` were live, `counted` would exceed the sum of `live`.
    pub(crate) fn judge_by_counter(&mut self, counted: u64) {
        let is_owner = |error: &PoolError| matches!(error, PoolError::OwnerLost { .. });
        if !self.uncounted && self.bytes() == counted && self.failed.iter().all(is_owner) {
            self.failed.clear();
            self.unknown.clear();
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.live.iter().map(|found| stored_bytes(&found.entry)).sum()
    }
}

/// Returns a block that has, or may have, several references.
fn shared_block(entry: &SummaryEntry) -> FoundLive {
    let of = LiveOf::Shared(address_of(entry).address());
    FoundLive { entry: *entry, proof: Proof::Half(entry.checksum), of }
}

fn stored_bytes(entry: &SummaryEntry) -> u64 {
    u64::from(entry.stored_units) * PACK_BYTES as u64
}

/// Returns a pointer that only locates the block. The pointer cannot verify the block, because a
/// summary lacks some fields of a pointer.
pub(crate) fn address_of(entry: &SummaryEntry) -> BlockPtr {
    BlockPtr {
        kind: PtrKind::Data,
        vseg: entry.vseg,
        offset_units: entry.offset_units,
        stored_units: entry.stored_units,
        birth: entry.birth,
        checksum: u128::from(entry.checksum),
        ..BlockPtr::default()
    }
}

/// A summary entry, the tree in which to look up its block, and the owner of the block. If the tree
/// references the block and the block is unreadable, this owner loses data.
type Asked = (SummaryEntry, TreeRoot, LiveOf);

/// Selects the version in which to look up a block. The returned root belongs to the tree of a
/// volume or, for a dataset with many objects, to its object table.
fn asked(roots: &Roots, entry: SummaryEntry) -> Option<Asked> {
    let (chain, version) = roots.version_of(&entry.owner, entry.birth)?;
    let BlockOwner { object, level, index, .. } = entry.owner;
    if chain.objects == Objects::One && object != ObjectId::VOLUME {
        return None;
    }
    let (volume, birth, version_txg) = (chain.volume, entry.birth, version.txg);
    let of = LiveOf::Volume { volume, object, level, index, birth, version: version_txg };
    Some((entry, version.root, of))
}

/// Returns the owner of the block of the object table in which the entry's object has its slot.
fn in_table(entry: &SummaryEntry, of: LiveOf) -> LiveOf {
    let LiveOf::Volume { volume, birth, version, .. } = of else { return of };
    let (object, index) = (ObjectId::TABLE, ObjectSlot::block_of(entry.owner.object));
    LiveOf::Volume { volume, object, level: 0, index, birth, version }
}

/// The node or root that holds the pointers to a group of neighbouring blocks.
enum Above {
    Node(BlockPtr, Block),
    /// The root pointer itself: no node is above the block.
    Root(BlockPtr),
    Nothing,
}

async fn pointers_above(tree: Tree<'_>, owner: BlockOwner) -> Result<Above, PoolError> {
    if owner.level >= tree.height() {
        return tree.pointer_at(owner.level, owner.index).await.map(Above::Root);
    }
    let node = tree.node_above(owner.level, owner.index).await?;
    Ok(node.map_or(Above::Nothing, |(ptr, node)| Above::Node(ptr, node)))
}

/// True if a pointer, found at the index that the entry gives, references the entry's block.
fn names(ptr: &BlockPtr, entry: &SummaryEntry) -> bool {
    !ptr.is_hole()
        && (ptr.vseg, ptr.offset_units) == (entry.vseg, entry.offset_units)
        && (ptr.stored_units, ptr.checksum as u64) == (entry.stored_units, entry.checksum)
        && ptr.birth == entry.birth
}

impl Pool {
    pub(crate) fn bad_segment(&self, field: &'static str, value: u64) -> PoolError {
        let source = FormatError::Field { what: SEGMENT, field, value };
        PoolError::Structure { pool: self.label.name.clone(), what: SEGMENT, place: None, source }
    }

    /// Reads all summaries of a segment. Returns the entries of every block ever appended to the
    /// segment, and the locations of the summaries. An unreadable summary counts as lost.
    pub(crate) async fn read_summaries(
        &self,
        vseg: VsegId,
        last: SummaryPlace,
    ) -> Result<(Vec<SummaryEntry>, Vec<SummaryPlace>), PoolError> {
        let read = self.read_summaries_back(vseg, last).await;
        if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Data) {
            self.note_lost(&LiveOf::Part(PoolPart::Summary, vseg.0));
        }
        read
    }

    /// Reads summaries from the `last` one back to the first.
    async fn read_summaries_back(
        &self,
        vseg: VsegId,
        last: SummaryPlace,
    ) -> Result<(Vec<SummaryEntry>, Vec<SummaryPlace>), PoolError> {
        let (mut entries, mut places, mut place) = (Vec::new(), Vec::new(), last);
        let Some(pinned) = self.segments.pin(vseg) else { return Ok((entries, places)) };
        let vdev = &self.vdevs[usize::from(pinned.vdev)];
        while !place.is_none() {
            let (at, len) = (pinned.at + u64::from(place.at), place.bytes as usize);
            let decode = |bytes: &[u8]| Summary::decode(bytes, vseg, place.checksum);
            let (buf, start) =
                vdev.read_verified(vdev.next_leg(), at, len, |bytes| decode(bytes).is_ok()).await?;
            let summary = decode(&buf[start..start + len]).map_err(|source| {
                let place = Some(BlockAddress { vdev: pinned.vdev, offset: at });
                let pool = self.label.name.clone();
                PoolError::Structure { pool, what: SEGMENT, place, source }
            })?;
            let before = summary.previous.at.checked_add(summary.previous.bytes);
            let Some(before) = before.filter(|end| *end <= place.at) else {
                return Err(self.bad_segment("previous_at", u64::from(summary.previous.at)));
            };
            if let Some(at) = sanity::overlap(&summary.entries, before..place.at) {
                return Err(self.bad_segment("place of a block in a summary", at));
            }
            entries.extend(summary.entries);
            places.push(place);
            place = summary.previous;
        }
        Ok((entries, places))
    }

    /// Finds the entries whose blocks are still referenced and are now in segment `vseg`.
    pub(crate) async fn find_live(
        &self,
        roots: &Roots,
        vseg: VsegId,
        entries: Vec<SummaryEntry>,
    ) -> Found {
        let mut found = Found::default();
        let (mut led_to, others) = self.part_shared(entries, &mut found).await;
        let mut entries: Vec<Asked> = Vec::with_capacity(others.len());
        for entry in others {
            match asked(roots, entry) {
                Some(asked) => entries.push(asked),
                None => found.note_dead(self, roots, &entry),
            }
        }
        entries = self.find_object_roots(entries, &mut found).await;
        // Neighbouring blocks have the same parent nodes, so look them up together in their lowest
        // common node.
        entries.sort_unstable_by_key(|(entry, root, _)| (root.ptr.address(), entry.owner));
        let near = |(a, a_root, _): &Asked, (b, b_root, _): &Asked| {
            let node = |owner: &BlockOwner| (owner.level, node_above(owner));
            a_root == b_root && node(&a.owner) == node(&b.owner)
        };
        let lookups = entries.chunk_by(near).map(|near| async move {
            let (first, root, _) = near[0];
            let tree = Tree::new(self, root);
            (near, tree, pointers_above(tree, first.owner).await)
        });
        let mut unreadable = Unreadable::default();
        let mut lookups = futures_util::stream::iter(lookups).buffered(NODE_READS_IN_FLIGHT);
        while let Some((near, tree, above)) = lookups.next().await {
            let above = match above {
                Ok(above) => above,
                Err(error) => {
                    self.note_unreachable(&error, near[0].1, &near[0].2).await;
                    found.unknown.extend(near.iter().map(|(entry, _, of)| unproved(entry, *of)));
                    found.failed.push(error);
                    continue;
                }
            };
            for (entry, root, of) in near {
                match self.ask(tree, &above, entry, &mut unreadable).await {
                    Ok(Verdict::Alive(proof)) => {
                        led_to.push(FoundLive { entry: *entry, proof, of: *of });
                    }
                    Ok(Verdict::Dead) => found.note_dead(self, roots, entry),
                    Err(error) => {
                        self.note_unreachable(&error, *root, of).await;
                        found.unknown.push(unproved(entry, *of));
                        found.failed.push(error);
                    }
                }
            }
        }
        // Group blocks of one remap table, so that the table is read at most once.
        led_to.sort_unstable_by_key(|found| (found.entry.vseg, found.entry.offset_units));
        for led in led_to {
            let entry = &led.entry;
            let ptr = address_of(entry);
            let stands = |segments: &Segments| segments.stands_at(&ptr, vseg, entry.at_units);
            match self.translated(stands).await {
                Ok(true) => found.live.push(led),
                Ok(false) => {}
                Err(error) => {
                    found.unknown.push(led);
                    found.failed.push(error);
                }
            }
        }
        found.unknown = self.standing_in(vseg, std::mem::take(&mut found.unknown)).await;
        found
    }

    /// In each entry of an object other than the object table, replaces the root of the table with
    /// the root of the object. Reads each slot once.
    async fn find_object_roots(&self, entries: Vec<Asked>, found: &mut Found) -> Vec<Asked> {
        let is_of_table = |(entry, ..): &Asked| entry.owner.object == ObjectId::TABLE;
        if entries.iter().all(is_of_table) {
            return entries;
        }
        let (mut resolved, mut others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(is_of_table);
        let of = |(entry, table, _): &Asked| (table.ptr.address(), entry.owner.object);
        others.sort_unstable_by_key(of);
        let lookups = others.chunk_by(|a, b| a.1 == b.1 && of(a) == of(b)).map(|same| async move {
            let (entry, table, _) = same[0];
            (same, self.object_root(table, entry.owner.object).await)
        });
        let mut lookups = futures_util::stream::iter(lookups).buffered(NODE_READS_IN_FLIGHT);
        while let Some((same, root)) = lookups.next().await {
            match root {
                Ok(root) => resolved.extend(same.iter().map(|(entry, _, of)| (*entry, root, *of))),
                Err(error) => {
                    let (entry, table, of) = same[0];
                    self.note_unreachable(&error, table, &in_table(&entry, of)).await;
                    found.unknown.extend(same.iter().map(|(entry, _, of)| unproved(entry, *of)));
                    found.failed.push(error);
                }
            }
        }
        resolved
    }

    /// Keeps the blocks whose current segment is `vseg` or unknown.
    async fn standing_in(&self, vseg: VsegId, mut blocks: Vec<FoundLive>) -> Vec<FoundLive> {
        blocks.sort_unstable_by_key(|found| (found.entry.vseg, found.entry.offset_units));
        let mut standing = Vec::with_capacity(blocks.len());
        for block in blocks {
            let (ptr, at) = (address_of(&block.entry), block.entry.at_units);
            let stands = |segments: &Segments| segments.stands_at(&ptr, vseg, at);
            // If the current segment of the block is unknown, the block may be here.
            if !matches!(self.translated(stands).await, Ok(false)) {
                standing.push(block);
            }
        }
        standing
    }

    /// Looks up an entry's block in its owner's tree.
    async fn ask(
        &self,
        tree: Tree<'_>,
        above: &Above,
        entry: &SummaryEntry,
        unreadable: &mut Unreadable,
    ) -> Result<Verdict, PoolError> {
        let BlockOwner { level, index, .. } = entry.owner;
        let ptr = match above {
            Above::Node(of, node) => {
                let ptr = tree.pointer_below((of, level + 1), node, index)?;
                tree.resolve_known(ptr, (level, index), unreadable).await?
            }
            Above::Root(ptr) => *ptr,
            Above::Nothing => return Ok(Verdict::Dead),
        };
        if names(&ptr, entry) {
            return Ok(Verdict::Alive(Proof::Checksum(ptr.checksum)));
        }
        if level == 0 && ptr.is_partial() {
            let replaced = self.find_replaced(&ptr, &|rest| names(rest, entry)).await?;
            let proof = replaced.map(|rest| Proof::Checksum(rest.checksum));
            return Ok(proof.map_or(Verdict::Dead, Verdict::Alive));
        }
        if level > 0 && self.damaged_since().is_some() {
            // Damage markers may still name an unreadable node; while one does, the node is live.
            let of = Some((address_of(entry), level));
            match tree.marker_below(of, ptr, level).await? {
                Marker::Names => return Ok(Verdict::Alive(Proof::Half(entry.checksum))),
                Marker::Unknown => return Err(self.bad_marker()),
                Marker::None => {}
            }
        }
        Ok(Verdict::Dead)
    }

    /// Separates blocks with reference counts, which are live, from blocks to look up in their
    /// owners' trees. The reference table is checked first, because the index that the summary
    /// names may have dropped the block while other indexes reference it.
    async fn part_shared(
        &self,
        mut entries: Vec<SummaryEntry>,
        Found { failed, uncounted, .. }: &mut Found,
    ) -> (Vec<FoundLive>, Vec<SummaryEntry>) {
        if self.bug == PlantedBug::SharedNotAsked {
            return (Vec::new(), entries);
        }
        entries.sort_unstable_by_key(|entry| (entry.vseg, entry.offset_units));
        let (mut shared, mut others) = (Vec::new(), Vec::new());
        let tables = entries.chunk_by(|a, b| a.vseg == b.vseg).map(|same| async move {
            let vseg = same[0].vseg;
            (same, self.translated(|segments| segments.references_of(vseg)).await)
        });
        let mut tables = futures_util::stream::iter(tables).buffered(NODE_READS_IN_FLIGHT);
        while let Some((same, table)) = tables.next().await {
            let table = match table {
                Ok(table) if table.as_ref().is_none_or(|table| !table.is_unknown()) => table,
                unknown => {
                    // The reference counts are unknown, so any block of these segments may be
                    // shared. A scan verifies and copies these blocks; the cleaner moves none.
                    failed.extend(unknown.err());
                    *uncounted = true;
                    shared.extend(same.iter().map(shared_block));
                    continue;
                }
            };
            for entry in same {
                let counted = table.as_ref().and_then(|table| table.count(entry.offset_units));
                match counted {
                    Some(_) => shared.push(shared_block(entry)),
                    None => others.push(*entry),
                }
            }
        }
        (shared, others)
    }

    /// Returns the live blocks of a segment and its summaries; an empty set for a segment that is
    /// free. `roots` returns the newest trees of all datasets.
    ///
    /// The live bytes found must equal the segment's counter, unless a write-out ran during the
    /// search. In a damaged pool the live bytes may be fewer than the counter, and a recount
    /// corrects the counter.
    ///
    /// # Errors
    /// The pool is suspended. The result counts unreadable owners and summaries.
    #[boxed(?Send)]
    pub(crate) async fn live_in(
        &self,
        vseg: VsegId,
        roots: &(dyn Fn() -> Roots + Sync),
    ) -> Result<LiveSet, PoolError> {
        let mut found = LiveSet::unknown();
        for _ in 0..READS_MAX {
            self.check_alive()?;
            let Some((entry, before)) = self.look(vseg) else { return Ok(LiveSet::default()) };
            let (entries, places) = match self.read_summaries(vseg, entry.summary).await {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Data => {
                    tracing::error!(vseg = vseg.0, %error, "segment's summary cannot be read");
                    return Ok(LiveSet::unknown());
                }
                Err(error) => return Err(error),
            };
            let mut blocks = self.find_live(&roots(), vseg, entries).await;
            let quiet = before.filter(|_| self.look(vseg).is_some_and(|(_, now)| now == before));
            if quiet.is_some() {
                blocks.judge_by_counter(u64::from(entry.live_bytes));
            }
            if self.bug == PlantedBug::UnknownTakenForDead {
                blocks.failed.clear();
            }
            let outlived = |error: &PoolError| matches!(error, PoolError::NoSegment { .. });
            if blocks.failed.iter().any(outlived) {
                continue;
            }
            (found.lost, found.is_partial) = (blocks.failed.len() as u64, false);
            let summaries = places.iter().map(|place| Live {
                at: u64::from(place.at),
                len: place.bytes as usize,
                proof: Proof::Summary(vseg, place.checksum),
                of: LiveOf::Part(PoolPart::Summary, vseg.0),
                other: None,
                address: None,
            });
            let live = blocks.live.iter().chain(&blocks.unknown).map(|found| Live {
                at: u64::from(found.entry.at_units) * PACK_BYTES as u64,
                len: stored_bytes(&found.entry) as usize,
                proof: found.proof,
                of: found.of,
                other: None,
                address: Some((found.entry.vseg, found.entry.offset_units)),
            });
            found.live = live.chain(summaries).collect();
            found.live.sort_unstable_by_key(|live| live.at);
            if let Some(txg) = quiet
                && found.lost == 0
                && !blocks.uncounted
                && !self.agrees(vseg, u64::from(entry.live_bytes), blocks.bytes(), txg)
            {
                (found.lost, found.is_partial) = (1, true);
            }
            let quiet = quiet.is_some();
            if quiet {
                break;
            }
        }
        Ok(found)
    }

    /// Returns a segment's entry if the segment is open or sealed, and the committed txg. The txg
    /// is `None` during a write-out, so two equal txgs mean that no write-out ran between the
    /// calls.
    pub(crate) fn look(&self, vseg: VsegId) -> Option<(SegmentEntry, Option<Txg>)> {
        let resting = self.streams.lock().is_some();
        let entry = self.segments.entry(vseg)?;
        let lives = matches!(entry.state, SegmentState::Open | SegmentState::Sealed);
        lives.then_some((entry, resting.then(|| self.committed_txg())))
    }

    /// Returns the live blocks of the root segments, by segment: all blocks of the committed
    /// metadata trees.
    ///
    /// # Errors
    /// `NoSegment` if a commit replaced these trees during the call. The caller retries.
    #[boxed(?Send)]
    pub(crate) async fn live_roots(&self) -> Result<HashMap<VsegId, LiveSet>, PoolError> {
        let trees = {
            let committed = self.committed.lock();
            [
                (PoolPart::SegmentTable, committed.segments),
                (PoolPart::Directory, committed.datasets),
                (PoolPart::RemapTable, committed.remaps),
                (PoolPart::ReferenceTable, committed.references),
            ]
        };
        let mut sets = HashMap::<VsegId, LiveSet>::default();
        for (part, tree) in trees {
            let (mut level, mut here) = (tree.height, vec![(tree.ptr, 0)]);
            let mut met = Visited::default();
            loop {
                here.retain(|(ptr, _)| !ptr.is_hole() && met.note_any(ptr).is_ok());
                for (ptr, index) in &here {
                    let of = LiveOf::Part(part, first_number(part, level, *index));
                    for (vseg, copy) in self.copies_of_root(ptr, of) {
                        sets.entry(vseg).or_default().live.push(copy);
                    }
                }
                if level == 0 || here.is_empty() {
                    break;
                }
                level -= 1;
                here.retain(|(ptr, _)| !ptr.is_damaged());
                here = self.children(&here, &mut sets).await?;
            }
        }
        for (vseg, set) in &mut sets {
            set.live.sort_unstable_by_key(|live| live.at);
            let room = self.segments.entry(*vseg).map_or(0, |e| self.segments.bytes_on(e.vdev));
            set.part_overlaps(room);
        }
        Ok(sets)
    }

    /// Returns the copies of a block of a root segment, each with its segment.
    fn copies_of_root(
        &self,
        ptr: &BlockPtr,
        of: LiveOf,
    ) -> impl Iterator<Item = (VsegId, Live)> + use<> {
        let second_at = self.segments.entry(ptr.vseg).map_or(0, |entry| entry.second_at);
        let (at, len, proof) =
            (ptr.offset_bytes(), ptr.stored_bytes(), Proof::Checksum(ptr.checksum));
        let second = (second_at > 0).then_some(at + u64::from(second_at));
        let address = Some((ptr.vseg, ptr.offset_units));
        let first = Live { at, len, proof, of, other: second, address };
        let second = second.map(|second| Live { at: second, other: Some(at), ..first });
        let third = self.segments.third_copy(ptr.vseg);
        let third = third.map(|copy| (copy, Live { other: None, ..first }));
        let here = [Some(first), second].into_iter().flatten().map(|live| (ptr.vseg, live));
        let here: Vec<_> = here.chain(third).collect();
        here.into_iter()
    }

    async fn children(
        &self,
        nodes: &[(BlockPtr, u64)],
        sets: &mut HashMap<VsegId, LiveSet>,
    ) -> Result<Vec<(BlockPtr, u64)>, PoolError> {
        let mut children = Vec::new();
        for (ptr, above) in nodes {
            match self.read_block(ptr).await {
                Ok(node) => {
                    let child = |slot| {
                        let index = above * NODE_FANOUT as u64 + slot as u64;
                        node_pointer(&node, slot).ok().map(|ptr| (ptr, index))
                    };
                    children.extend((0..NODE_FANOUT).filter_map(child));
                }
                Err(error) if error.kind() == ErrorKind::Data => {
                    sets.entry(ptr.vseg).or_default().lost += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(children)
    }
}

/// Number of the first dataset or segment whose directory or table entry is in the given block, or
/// below the given node, of a metadata tree.
fn first_number(part: PoolPart, level: u8, index: u64) -> u64 {
    let block = index << (NODE_SHIFT * u32::from(level));
    match part {
        PoolPart::SegmentTable => block * SEGMENT_ENTRIES_PER_BLOCK as u64,
        _ => block,
    }
}
