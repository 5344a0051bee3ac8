//! Moves the live blocks of the cleaner's victims: finds and reads them ahead, and appends them in
//! order.
//!
//! Not here: the choice and number of victims (`run`), the search for live blocks (`live`),
//! redirecting readers to the moved blocks (`victims`).
//!
//! Invariants:
//! - if a block of a victim cannot be read or the victim's live bytes do not match its counter, the
//!   victim is left unchanged. Copies that were already appended stay without a pointer;
//! - at most [`CLEAN_BYTES_IN_FLIGHT`] bytes are read at the same time, for the present victim and
//!   the next ones.

use async_recursion::async_recursion as boxed;
use futures_util::future::try_join_all;
use futures_util::{StreamExt as _, stream};
use weir_base::limits::{CLEAN_BYTES_IN_FLIGHT, SEGMENTS_READ_AHEAD};
use weir_base::{ErrorKind, VsegId};
use weir_block::IoBuf;
use weir_format::{BlockOwner, ReferenceTable, SEGMENT_BLOCKS_MAX, SegmentEntry};

use crate::error::PoolError;
use crate::planted_bugs::PlantedBug;
use crate::read::records::{RUN_BYTES_MAX, Wanted, split_runs};
use crate::scan::copies::proves;
use crate::segments::tables::Table;
use crate::segments::victims::Moved;
use crate::state::live_of::LiveOf;
use crate::state::pool::Pool;
use crate::tree::live::{FoundLive, Proof, address_of};
use crate::tree::snapshot_chain::Roots;
use crate::txg::write_out::WriteOut;

/// Segment that the cleaner empties, with its segment table entry.
pub(crate) type Victim = (VsegId, SegmentEntry);

/// Live block of a victim.
struct Living<'a> {
    owner: BlockOwner,
    proof: Proof,
    of: LiveOf,
    wanted: Wanted<'a>,
}

/// Runs of neighbouring blocks. All runs of a batch are read concurrently.
type Batch<'a> = Vec<Vec<Living<'a>>>;

/// Some blocks of a victim, as the result of the step that found or read them. The parts of one
/// victim follow one another.
struct Part<T> {
    victim: Victim,
    is_last: bool,
    found: Result<T, PoolError>,
}

/// Verified stored bytes of the blocks of a run.
struct Stored {
    bufs: Vec<IoBuf>,
    /// For each block: index of its buffer, and its start in that buffer.
    places: Vec<(usize, usize)>,
}

impl Stored {
    fn block(&self, index: usize, len: usize) -> &[u8] {
        let (buf, start) = self.places[index];
        &self.bufs[buf][start..start + len]
    }
}

impl Pool {
    /// Appends the live blocks of each victim to the cleaner's write head, while more than `floor`
    /// segments are free. Returns the emptied victims, with the new addresses of their blocks.
    ///
    /// # Errors
    /// A write failed. A victim that cannot be read or is inconsistent is left unchanged, without
    /// an error.
    #[boxed(?Send)]
    pub(crate) async fn move_victims(
        &self,
        out: &mut WriteOut<'_>,
        roots: &Roots,
        victims: Vec<Victim>,
        floor: u64,
    ) -> Result<Vec<(Victim, Vec<Moved>)>, PoolError> {
        let finds = victims.into_iter().map(|victim| self.find_batches(roots, victim));
        let batches = stream::iter(finds).buffered(SEGMENTS_READ_AHEAD).flat_map(stream::iter);
        let batches_in_flight = CLEAN_BYTES_IN_FLIGHT / RUN_BYTES_MAX as usize;
        let reads = batches.map(|part| self.read_batch(part)).buffered(batches_in_flight);
        let mut reads = std::pin::pin!(reads);
        let mut done: Vec<(Victim, Vec<Moved>)> = Vec::new();
        let mut moved = Some(Vec::new());
        while let Some(Part { victim, is_last, found }) = reads.next().await {
            match found {
                Ok(_) if moved.is_none() => {}
                Ok(runs) => {
                    let moved = moved.as_mut().expect("checked above");
                    if moved.is_empty() && !self.has_free_above(floor) {
                        break;
                    }
                    append(out, &runs, moved).await?;
                }
                Err(error) => {
                    if moved.take().is_some() {
                        self.segments.set_unclean(victim.0);
                        tracing::error!(vseg = victim.0.0, %error, "segment cannot be cleaned");
                    }
                }
            }
            if is_last && let Some(moved) = moved.replace(Vec::new()) {
                done.push((victim, moved));
            }
        }
        Ok(done)
    }

    /// Finds the live blocks of a victim, in batches sorted by address; returns at least one batch,
    /// even if no block is live.
    async fn find_batches(&self, roots: &Roots, victim: Victim) -> Vec<Part<Batch<'_>>> {
        let batches = match self.find_living(roots, &victim).await {
            Ok(living) => in_batches(living),
            Err(error) => return vec![Part { victim, is_last: true, found: Err(error) }],
        };
        let last = batches.len() - 1;
        let part = |(index, batch)| Part { victim, is_last: index == last, found: Ok(batch) };
        batches.into_iter().enumerate().map(part).collect()
    }

    async fn find_living(
        &self,
        roots: &Roots,
        (vseg, entry): &Victim,
    ) -> Result<Vec<Living<'_>>, PoolError> {
        let (entries, _) = self.read_summaries(*vseg, entry.summary).await?;
        let mut found = self.find_live(roots, *vseg, entries).await;
        found.judge_by_counter(u64::from(entry.live_bytes));
        let bytes = found.bytes();
        if let Some(error) = found.failed.into_iter().next() {
            return Err(error);
        }
        if found.uncounted {
            let (pool, what) = (self.label.name.clone(), ReferenceTable::WHAT);
            return Err(PoolError::TableLost { pool, what, vseg: *vseg });
        }
        let live = found.live;
        if bytes != u64::from(entry.live_bytes) || live.len() > SEGMENT_BLOCKS_MAX as usize {
            return Err(self.bad_segment("live_bytes", bytes));
        }
        let mut living = Vec::with_capacity(live.len());
        for (index, FoundLive { entry, proof, of }) in live.into_iter().enumerate() {
            let ptr = address_of(&entry);
            let place = self.locate(&ptr).await?;
            let wanted = Wanted { index, ptr, place };
            living.push(Living { owner: entry.owner, proof, of, wanted });
        }
        Ok(living)
    }

    async fn read_batch<'a>(
        &'a self,
        part: Part<Batch<'a>>,
    ) -> Part<Vec<(Vec<Living<'a>>, Stored)>> {
        let Part { victim, is_last, found } = part;
        let read = |run: Vec<Living<'a>>| async move {
            let stored = self.read_living(&run).await?;
            Ok((run, stored))
        };
        let found = match found {
            Ok(batch) => try_join_all(batch.into_iter().map(read)).await,
            Err(error) => Err(error),
        };
        Part { victim, is_last, found }
    }

    /// Reads a run of neighbouring blocks with one device read. A block that fails its checksum is
    /// read again alone, from every leg if necessary.
    async fn read_living(&self, run: &[Living<'_>]) -> Result<Stored, PoolError> {
        let (mut bufs, mut places) = (Vec::with_capacity(1), Vec::with_capacity(run.len()));
        let span = if run.len() > 1 {
            self.read_span(&run[0].wanted, &run[run.len() - 1].wanted).await
        } else {
            None
        };
        let leg = span.as_ref().map(|(leg, ..)| *leg);
        let start = span.map(|(_, buf, start)| {
            bufs.push(buf);
            start
        });
        for Living { proof, of, wanted: Wanted { ptr, place, .. }, .. } in run {
            let is_whole =
                |bytes: &[u8]| self.bug == PlantedBug::SkipChecksum || proves(*proof, bytes);
            let len = ptr.stored_bytes();
            let in_span = start.map(|start| start + (place.at - run[0].wanted.place.at) as usize);
            let is_right = |at: &usize| bufs[0].get(*at..*at + len).is_some_and(is_whole);
            if let Some(at) = in_span.filter(is_right) {
                places.push((0, at));
            } else {
                let vdev = &self.vdevs[usize::from(place.vdev)];
                let leg = leg.unwrap_or_else(|| vdev.next_leg());
                let read = vdev.read_verified(leg, place.at, len, is_whole).await;
                if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Data) {
                    self.distrust(ptr.address());
                    self.note_lost(of);
                }
                let (buf, at) = read?;
                places.push((bufs.len(), at));
                bufs.push(buf);
            }
        }
        Ok(Stored { bufs, places })
    }
}

/// Sorts blocks by address, and groups runs of neighbours up to the length of one device read.
fn in_batches(living: Vec<Living<'_>>) -> Vec<Batch<'_>> {
    let mut batches = vec![Batch::new()];
    let mut bytes = 0;
    for run in split_runs(living, |living| &living.wanted) {
        let len = run[run.len() - 1].wanted.end() - run[0].wanted.place.at;
        if bytes + len > RUN_BYTES_MAX && bytes > 0 {
            batches.push(Batch::new());
            bytes = 0;
        }
        bytes += len;
        batches.last_mut().expect("at least one").push(run);
    }
    batches
}

async fn append(
    out: &mut WriteOut<'_>,
    runs: &[(Vec<Living<'_>>, Stored)],
    moved: &mut Vec<Moved>,
) -> Result<(), PoolError> {
    for (run, stored) in runs {
        for (index, Living { owner, wanted: Wanted { ptr, .. }, .. }) in run.iter().enumerate() {
            let bytes = stored.block(index, ptr.stored_bytes());
            let (host, new) = out.append_moved(ptr, *owner, bytes).await?;
            moved.push(Moved { ptr: *ptr, host, new });
        }
    }
    Ok(())
}
