//! Chooses the next operation of a worker and the address of the operation.
//!
//! `worker` decides when the operation is sent.
//!
//! Invariants: an operation lies inside one file of the dataset, at a file offset that is a
//! multiple of the operation's size (in a walk: of the walk's alignment); an operation lies inside
//! the byte range of its client; equal seeds and equal worker numbers give equal operations.

use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};

use super::files::{Drawn, Metadata, Outcome};
use crate::content::whole;
use crate::spec::{Access, DatasetSpec, OpKind, StreamSpec};
use crate::target::MetadataCall;

/// Multiplier that spreads neighbouring ranks over distant addresses. The multiplier is odd, so the
/// multiplication is a bijection modulo 2^64.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Operation that was chosen but not sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index of the stream in the cell.
    pub stream: usize,
    /// Kind of operation.
    pub kind: OpKind,
    /// Offset of the first byte in the dataset.
    pub offset: u64,
    /// Length in bytes.
    pub len_bytes: u32,
    /// Offset of the first byte of a copy's source; 0 for all other operations.
    pub source: u64,
    /// True for a metadata operation, which is in [`Chooser::take_call`].
    pub has_call: bool,
}

impl Choice {
    #[cold]
    fn of_call(stream: usize, kind: OpKind, call: &MetadataCall) -> Self {
        let len_bytes = call.created().map_or(0, |(_, bytes)| bytes);
        Self { stream, kind, offset: 0, len_bytes, source: 0, has_call: true }
    }
}

/// Chooser of the operations of one worker.
pub struct Chooser {
    rng: SmallRng,
    streams: Vec<Stream>,
    shares: u32,
    once: bool,
    /// Metadata operation that was chosen last. It is not a part of [`Choice`], because a larger
    /// [`Choice`] slows down loads of data operations by a tenth.
    call: Option<MetadataCall>,
}

struct Stream {
    read_pct: f64,
    op: Option<OpKind>,
    share: u32,
    /// Block sizes, each with the cumulative weight of all sizes up to it.
    sizes: Vec<(Size, u32)>,
    access: Access,
    walk: Walk,
    /// Metadata operations of the stream; `None` if it has only operations on data.
    metadata: Option<Metadata>,
}

/// Position of one worker in an [`Access::Walk`].
struct Walk {
    /// Byte range of the dataset that the walk covers.
    within: Range<u64>,
    part_bytes: u64,
    /// End of the preceding operation of this worker.
    next: u64,
}

/// Addresses that a worker uses for the operations of one block size.
struct Size {
    bytes: u32,
    /// Number of aligned positions in one file of the dataset.
    per_part: u64,
    part_bytes: u64,
    /// Number of the first aligned position in the dataset that the client uses.
    first: u64,
    /// Number of aligned positions that the client uses, from `first` on.
    places: u64,
    /// Range of the client's positions that this worker visits sequentially. `next` is the next
    /// position to visit.
    own: Range<u64>,
    next: u64,
    zipf: Option<Zipf<f64>>,
}

impl Chooser {
    /// Creates the chooser of one worker. `(worker, workers)` is the number of the worker, and the
    /// number of workers of its client; `within` is the client's byte range of the dataset; if
    /// `once` is set, sequential streams stop at their end.
    pub fn new(
        streams: &[StreamSpec],
        dataset: &DatasetSpec,
        within: &Range<u64>,
        (worker, workers): (u32, u32),
        seed: u64,
        once: bool,
    ) -> Self {
        let stream = |(index, spec)| {
            let metadata = Metadata::new(spec, index, (worker, workers), dataset.files, seed);
            Stream { metadata, ..Stream::new(spec, dataset, within, (worker, workers)) }
        };
        let streams: Vec<Stream> = streams.iter().enumerate().map(stream).collect();
        let shares = streams.iter().map(|stream| stream.share).sum();
        let rng = SmallRng::seed_from_u64(seed ^ SCATTER.wrapping_mul(u64::from(worker) + 1));
        Self { rng, streams, shares, once, call: None }
    }

    /// Chooses the next operation; returns `None` after one pass if `once` is set.
    pub fn next_op(&mut self) -> Option<Choice> {
        let Self { rng, streams, shares, once, .. } = self;
        let mut drawn = if streams.len() > 1 { rng.random_range(0..(*shares).max(1)) } else { 0 };
        let mut index = 0;
        while index + 1 < streams.len() && drawn >= streams[index].share {
            drawn -= streams[index].share;
            index += 1;
        }
        let stream = &mut streams[index];
        if let Some(own) = &mut stream.metadata {
            match own.draw(rng) {
                Drawn::Data => {}
                Drawn::End => return None,
                Drawn::Call(kind, call) => {
                    self.call = Some(call);
                    return Some(Choice::of_call(index, kind, &call));
                }
            }
        }
        let (bytes, offset) = if let Access::Walk { .. } = stream.access {
            let bytes = stream.draw_bytes(rng);
            (bytes, stream.step(bytes, rng, *once)?)
        } else {
            let size = stream.draw_size(rng);
            stream.place(size, rng, *once)?
        };
        if let Some(kind) = stream.op {
            let (len_bytes, source, has_call) = (bytes, 0, false);
            return Some(Choice { stream: index, kind, offset, len_bytes, source, has_call });
        }
        let is_read = match stream.read_pct {
            0.0 => false,
            100.0 => true,
            share => rng.random_range(0.0..100.0) < share,
        };
        let kind = if is_read { OpKind::Read } else { OpKind::Write };
        Some(Choice { stream: index, kind, offset, len_bytes: bytes, source: 0, has_call: false })
    }

    /// Returns the metadata operation of the last choice that has one.
    pub(super) fn take_call(&mut self) -> Option<MetadataCall> {
        self.call.take()
    }

    /// Sets the number of the client, among the clients that generate one load together.
    #[must_use]
    pub(super) fn for_client(mut self, client: u32) -> Self {
        let own = self.streams.iter_mut().filter_map(|stream| stream.metadata.as_mut());
        own.for_each(|own| own.for_client(client));
        self
    }

    /// Records the outcome of a metadata operation of a stream.
    pub(super) fn settle(&mut self, stream: usize, call: &MetadataCall, outcome: Outcome) {
        if let Some(own) = &mut self.streams[stream].metadata {
            own.settle(call, outcome);
        }
    }

    /// Metadata operations of all streams, with the states of their files.
    pub(super) fn into_metadata(self) -> impl Iterator<Item = Metadata> {
        self.streams.into_iter().filter_map(|stream| stream.metadata)
    }

    /// Moves an operation to another address of its stream. The operation keeps its kind and size,
    /// so that the load keeps the specified mix.
    pub(super) fn elsewhere(&mut self, choice: Choice) -> Option<Choice> {
        let Self { rng, streams, once, .. } = self;
        let stream = &mut streams[choice.stream];
        if let Access::Walk { .. } = stream.access {
            let offset = stream.step(choice.len_bytes, rng, *once)?;
            return Some(Choice { offset, ..choice });
        }
        let of_its_size = |(size, _): &(Size, u32)| size.bytes == choice.len_bytes;
        let size = stream.sizes.iter().position(of_its_size)?;
        let (_, offset) = stream.place(size, rng, *once)?;
        Some(Choice { offset, ..choice })
    }

    /// Returns a random number of this chooser's sequence.
    pub(super) fn draw(&mut self) -> u64 {
        self.rng.next_u64()
    }
}

impl Stream {
    /// Chooses the index of a block size at random, by weight.
    fn draw_size(&self, rng: &mut SmallRng) -> usize {
        let all = self.sizes.last().map_or(1, |(_, until)| *until);
        let weight = if self.sizes.len() > 1 { rng.random_range(0..all) } else { 0 };
        self.sizes.iter().position(|(_, until)| weight < *until).unwrap_or(0)
    }

    /// Chooses the size of the next operation of a walk at random: one of the stream's sizes, or a
    /// size in the stream's range.
    fn draw_bytes(&self, rng: &mut SmallRng) -> u32 {
        match (self.access, self.sizes.as_slice()) {
            (Access::Walk { between: true, .. }, [(low, _), (high, _)]) => {
                // As in fio, the last step is shorter if the length of the range is not a multiple
                // of the step.
                let drawn = low.bytes.saturating_add(rng.random_range(0..high.bytes.max(1)));
                (drawn / low.bytes.max(1) * low.bytes).clamp(low.bytes, high.bytes)
            }
            _ => self.sizes[self.draw_size(rng)].0.bytes,
        }
    }

    /// Start address of the next operation of a walk.
    fn step(&mut self, bytes: u32, rng: &mut SmallRng, once: bool) -> Option<u64> {
        let Access::Walk { random_pct, align_bytes, .. } = self.access else { return None };
        let (align, len) = (u64::from(align_bytes.max(1)), u64::from(bytes));
        let Walk { within, part_bytes, next } = &mut self.walk;
        // An operation must not cross the end of a file.
        let within_file = |offset: u64| {
            let part_end = (offset / *part_bytes + 1) * *part_bytes;
            if offset + len > part_end { part_end.next_multiple_of(align) } else { offset }
        };
        let first = within_file(within.start.next_multiple_of(align));
        let jumps = match random_pct {
            0.0 => false,
            100.0 => true,
            share => rng.random_range(0.0..100.0) < share,
        };
        let mut offset = if jumps {
            let starts = within.end.saturating_sub(first + len) / align + 1;
            first + rng.random_range(0..starts) * align
        } else {
            (*next).next_multiple_of(align)
        };
        offset = within_file(offset);
        if offset + len > within.end {
            if once {
                return None;
            }
            offset = first;
        }
        *next = offset + len;
        Some(offset)
    }

    /// Returns the length and the start address of the next operation with the size of index
    /// `size`, both in bytes.
    fn place(&mut self, size: usize, rng: &mut SmallRng, once: bool) -> Option<(u32, u64)> {
        let size = &mut self.sizes[size].0;
        let place = match self.access {
            Access::Sequential => {
                if size.next >= size.own.end {
                    if once {
                        return None;
                    }
                    size.next = size.own.start;
                }
                size.next += 1;
                size.next - 1
            }
            Access::Random => rng.random_range(0..size.places),
            Access::Zipf { .. } => {
                let zipf = size.zipf.as_ref().expect("made with the stream");
                let rank = whole(zipf.sample(rng)) - 1;
                rank.wrapping_mul(SCATTER) % size.places
            }
            Access::Hotspot { ops_pct, data_pct } => {
                let hot = whole(size.places as f64 * data_pct / 100.0).clamp(1, size.places);
                if rng.random_range(0.0..100.0) < ops_pct || hot == size.places {
                    rng.random_range(0..hot)
                } else {
                    rng.random_range(hot..size.places)
                }
            }
            // In a walk, operations of all sizes share one position: see `step`.
            Access::Walk { .. } => return None,
        };
        let place = size.first + place;
        let within = place % size.per_part * u64::from(size.bytes);
        Some((size.bytes, place / size.per_part * size.part_bytes + within))
    }

    fn new(
        spec: &StreamSpec,
        dataset: &DatasetSpec,
        within: &Range<u64>,
        (worker, workers): (u32, u32),
    ) -> Self {
        let mut until = 0;
        let within = ground(spec.op, within);
        let sizes = spec.blocks.iter().map(|share| {
            until += share.weight.max(1);
            let per_part = (dataset.file_bytes / u64::from(share.bytes)).max(1);
            let (first, places) = places(dataset, &within, share.bytes);
            let edge =
                |n: u32| (u128::from(places) * u128::from(n) / u128::from(workers.max(1))) as u64;
            let mut own = edge(worker)..edge(worker + 1);
            if own.is_empty() {
                // If there are more workers than positions, the excess workers share the first
                // position.
                own = 0..1;
            }
            let zipf = match spec.access {
                Access::Zipf { theta } => Zipf::new(places as f64, theta).ok(),
                _ => None,
            };
            let next = own.start;
            let (bytes, part_bytes) = (share.bytes, dataset.file_bytes);
            (Size { bytes, per_part, part_bytes, first, places, own, next, zipf }, until)
        });
        let sizes = sizes.collect();
        let access = match spec.access {
            // If theta gives no valid distribution, use uniform access.
            Access::Zipf { theta } if !(theta.is_finite() && theta > 0.0) => Access::Random,
            other => other,
        };
        let (part_bytes, next) = (dataset.file_bytes.max(1), within.start);
        let walk = Walk { within, part_bytes, next };
        let (read_pct, op, share, metadata) = (spec.read_pct, spec.op, spec.share, None);
        Self { read_pct, op, share, sizes, access, walk, metadata }
    }
}

/// Byte range that a stream uses. Trims, WRITE SAME and copies leave blocks with unknown contents,
/// so these operations use the last quarter of the client's range. COMPARE AND WRITE needs known
/// contents, so it uses the first three quarters.
fn ground(op: Option<OpKind>, within: &Range<u64>) -> Range<u64> {
    let quarter = (within.end - within.start) / 4;
    let border = (within.end - quarter) / super::CUT_BYTES * super::CUT_BYTES;
    let border = border.max(within.start);
    match op {
        Some(OpKind::Trim | OpKind::WriteSame | OpKind::Copy) => border..within.end,
        Some(OpKind::CompareAndWrite) => within.start..border,
        _ => within.clone(),
    }
}

/// First position at which an operation of `bytes` lies completely in the byte range `within`, and
/// the number of such positions, which is at least one.
pub(super) fn places(dataset: &DatasetSpec, within: &Range<u64>, bytes: u32) -> (u64, u64) {
    let bytes = u64::from(bytes.max(1));
    let per_part = (dataset.file_bytes / bytes).max(1);
    // Returns the number of positions that end at or before a byte of the dataset.
    let ended = |at: u64| {
        let (part, into) = (at / dataset.file_bytes.max(1), at % dataset.file_bytes.max(1));
        part * per_part + (into / bytes).min(per_part)
    };
    let starts = ended(within.start);
    let begins_there = starts % per_part * bytes + starts / per_part * dataset.file_bytes;
    let first = if begins_there < within.start { starts + 1 } else { starts };
    (first, ended(within.end).saturating_sub(first).max(1))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::spec::BlockShare;

    fn chooser(access: Access, read_pct: f64, worker: (u32, u32), once: bool) -> Chooser {
        let blocks = vec![BlockShare { bytes: 4096, weight: 1 }];
        let stream = StreamSpec {
            name: String::new(),
            access,
            blocks,
            read_pct,
            op: None,
            metadata: None,
            share: 1,
        };
        let dataset = DatasetSpec { files: 4, file_bytes: 1 << 20 };
        Chooser::new(&[stream], &dataset, &(0..4 << 20), worker, 7, once)
    }

    #[test]
    fn client_ranges_contain_whole_positions_without_overlap() {
        let dataset = DatasetSpec { files: 3, file_bytes: 96 << 10 };
        let total = dataset.total_bytes();
        assert_eq!(places(&dataset, &(0..total), 4096), (0, 72));
        // The client's range starts at 100 KiB. The second file starts at 96 KiB, so the second
        // position of 32 KiB in this file is at 128 KiB.
        assert_eq!(places(&dataset, &(100 << 10..total), 32 << 10), (4, 5));
        assert_eq!(places(&dataset, &(0..100 << 10), 32 << 10), (0, 3));
        assert_eq!(places(&dataset, &(96 << 10..total), 32 << 10), (3, 6));
    }

    #[test]
    fn sequential_workers_cover_each_block_once() {
        let mut seen: HashMap<u64, u32> = HashMap::new();
        for worker in 0..3 {
            let mut chooser = chooser(Access::Sequential, 0.0, (worker, 3), true);
            while let Some(choice) = chooser.next_op() {
                assert_eq!(choice.kind, OpKind::Write);
                *seen.entry(choice.offset).or_default() += 1;
            }
        }
        assert_eq!(seen.len(), 1024);
        assert!(seen.values().all(|count| *count == 1));
    }

    #[test]
    fn read_share_and_hot_spot_share_match_the_specification() {
        let hotspot = Access::Hotspot { ops_pct: 90.0, data_pct: 10.0 };
        let mut chooser = chooser(hotspot, 70.0, (0, 1), false);
        let choices: Vec<Choice> = (0..20_000).filter_map(|_| chooser.next_op()).collect();
        let share = |of: &dyn Fn(&&Choice) -> bool| {
            choices.iter().filter(of).count() as f64 / choices.len() as f64
        };
        assert!((share(&|c| c.kind == OpKind::Read) - 0.7).abs() < 0.02);
        let hot = 4.0 * f64::from(1 << 20) / 10.0;
        assert!((share(&|c| (c.offset as f64) < hot) - 0.9).abs() < 0.02);
    }

    // Regression: if the range of a client began shortly before the end of a file, a walk started
    // operations that crossed the end of this file.
    #[test]
    fn walk_in_the_range_of_a_client_crosses_no_end_of_a_file() {
        const PART: u64 = 1 << 20;
        let bytes = 300 << 10;
        for random_pct in [0.0, 50.0, 100.0] {
            let access = Access::Walk { random_pct, align_bytes: 4096, between: false };
            let blocks = vec![BlockShare { bytes, weight: 1 }];
            let (name, read_pct, op, share) = (String::new(), 100.0, None, 1);
            let stream = StreamSpec { name, access, blocks, read_pct, op, metadata: None, share };
            let dataset = DatasetSpec { files: 3, file_bytes: PART };
            let within = PART - 8192..2 * PART + 8192;
            let mut chooser = Chooser::new(&[stream], &dataset, &within, (0, 1), 7, false);
            for choice in (0..1000).filter_map(|_| chooser.next_op()) {
                let end = choice.offset + u64::from(choice.len_bytes);
                assert!(within.start <= choice.offset && end <= within.end, "{choice:?}");
                assert_eq!(choice.offset / PART, (end - 1) / PART, "{choice:?}");
            }
        }
    }

    fn walk(random_pct: f64, sizes: &[u32], between: bool, bytes: u64) -> Vec<Choice> {
        let access = Access::Walk { random_pct, align_bytes: sizes[0], between };
        let blocks = sizes.iter().map(|bytes| BlockShare { bytes: *bytes, weight: 1 }).collect();
        let (name, read_pct, op, share) = (String::new(), 100.0, None, 1);
        let stream = StreamSpec { name, access, blocks, read_pct, op, metadata: None, share };
        let dataset = DatasetSpec { files: 2, file_bytes: bytes / 2 };
        let mut chooser = Chooser::new(&[stream], &dataset, &(0..bytes), (1, 4), 7, false);
        (0..20_000).filter_map(|_| chooser.next_op()).collect()
    }

    #[test]
    fn sequential_walk_covers_the_dataset_without_gaps() {
        let choices = walk(0.0, &[4096, 8192], false, 1 << 20);
        assert_eq!(choices[0].offset, 0);
        for pair in choices.windows(2) {
            let end = pair[0].offset + u64::from(pair[0].len_bytes);
            // A large operation may not fit before the end of a file, or before the end of the
            // dataset.
            let follows = pair[1].offset == end || [0, 1 << 19].contains(&pair[1].offset);
            assert!(follows, "{pair:?}");
        }
        let starts: std::collections::BTreeSet<u64> = choices.iter().map(|c| c.offset).collect();
        assert_eq!(starts.len(), 256, "every multiple of 4 KiB, over and over");
    }

    #[test]
    fn walk_mixes_random_and_consecutive_operations_by_share() {
        let choices = walk(30.0, &[4096], false, 1 << 30);
        let follow = choices.windows(2).filter(|pair| pair[1].offset == pair[0].offset + 4096);
        let share = follow.count() as f64 / choices.len() as f64;
        assert!((share - 0.7).abs() < 0.02, "{share}");
    }

    #[test]
    fn block_sizes_of_a_range_match_fio() {
        let choices = walk(100.0, &[4096, 10_240], true, 40 << 20);
        let share = |bytes: u32| {
            let count = choices.iter().filter(|choice| choice.len_bytes == bytes).count();
            count as f64 / choices.len() as f64
        };
        // Expect the shares of fio 3.33: with bsrange=4k-10k, it chose these sizes 839, 766 and 395
        // times in 2000 operations.
        let shares = [(4096, 0.4), (8192, 0.4), (10_240, 0.2)];
        for (bytes, expected) in shares {
            assert!((share(bytes) - expected).abs() < 0.02, "{bytes}: {}", share(bytes));
        }
        for choice in &choices {
            let (begin, end) = (choice.offset, choice.offset + u64::from(choice.len_bytes));
            assert!(begin.is_multiple_of(4096) && end <= 40 << 20, "{choice:?}");
            assert_eq!(begin / (20 << 20), (end - 1) / (20 << 20), "within one part: {choice:?}");
        }
    }

    #[test]
    fn zipf_favours_few_blocks_at_distant_addresses() {
        let mut chooser = chooser(Access::Zipf { theta: 0.99 }, 100.0, (0, 1), false);
        let mut seen: HashMap<u64, u32> = HashMap::new();
        for _ in 0..50_000 {
            *seen.entry(chooser.next_op().expect("without end").offset).or_default() += 1;
        }
        let mut counts: Vec<(u32, u64)> = seen.iter().map(|(at, count)| (*count, *at)).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = counts.iter().take(102).map(|(count, _)| count).sum();
        assert!(f64::from(top) > 0.5 * 50_000.0, "a tenth has {top}");
        assert!(counts[0].1.abs_diff(counts[1].1) > 4096, "{counts:?}");
    }
}
