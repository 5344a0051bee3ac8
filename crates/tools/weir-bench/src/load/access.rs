//! Which operation comes next, and where.
//!
//! Not here: when (worker).
//!
//! Invariants: an operation is within one part of the dataset and starts at a multiple of its size
//! there (of a walk: at a multiple of its alignment); it is wholly within its client's bytes; the
//! same seed and worker give the same operations.

use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};

use crate::content::whole;
use crate::spec::{Access, DatasetSpec, OpKind, StreamSpec};

/// Makes neighbours in popularity no neighbours in place; odd, so a bijection modulo 2^64.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// An operation to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index of the stream.
    pub stream: usize,
    /// Kind.
    pub kind: OpKind,
    /// First byte.
    pub offset: u64,
    /// Length.
    pub len_bytes: u32,
    /// Of a copy: the first byte that is copied; 0 for all others.
    pub source: u64,
}

/// Chooses the operations of one worker.
pub struct Chooser {
    rng: SmallRng,
    streams: Vec<Stream>,
    shares: u32,
    once: bool,
}

struct Stream {
    read_pct: f64,
    op: Option<OpKind>,
    share: u32,
    /// Each size, and the weights up to it.
    sizes: Vec<(Size, u32)>,
    access: Access,
    walk: Walk,
}

/// The way of one worker under [`Access::Walk`].
struct Walk {
    /// Bytes of the dataset that it stays in.
    within: Range<u64>,
    part_bytes: u64,
    /// End of the operation before.
    next: u64,
}

/// What is known of one size of operations.
struct Size {
    bytes: u32,
    /// Operations that fit into a part of the dataset.
    per_part: u64,
    part_bytes: u64,
    /// The client's first place in the dataset ...
    first: u64,
    /// ... and how many it has.
    places: u64,
    /// This worker's run of the client's places, for sequential access, and the next of them.
    own: Range<u64>,
    next: u64,
    zipf: Option<Zipf<f64>>,
}

impl Chooser {
    /// Of a worker: its number and how many its client has; `within`: the client's bytes of the
    /// dataset. `once`: sequential streams end at their end.
    pub fn new(
        streams: &[StreamSpec],
        dataset: &DatasetSpec,
        within: &Range<u64>,
        (worker, workers): (u32, u32),
        seed: u64,
        once: bool,
    ) -> Self {
        let stream = |spec| Stream::new(spec, dataset, within, (worker, workers));
        let streams: Vec<Stream> = streams.iter().map(stream).collect();
        let shares = streams.iter().map(|stream| stream.share).sum();
        let rng = SmallRng::seed_from_u64(seed ^ SCATTER.wrapping_mul(u64::from(worker) + 1));
        Self { rng, streams, shares, once }
    }

    /// The next operation; `None` when everything was gone through once.
    pub fn next_op(&mut self) -> Option<Choice> {
        let Self { rng, streams, shares, once } = self;
        let mut drawn = if streams.len() > 1 { rng.random_range(0..(*shares).max(1)) } else { 0 };
        let mut index = 0;
        while index + 1 < streams.len() && drawn >= streams[index].share {
            drawn -= streams[index].share;
            index += 1;
        }
        let stream = &mut streams[index];
        let (bytes, offset) = if let Access::Walk { .. } = stream.access {
            let bytes = stream.draw_bytes(rng);
            (bytes, stream.step(bytes, rng, *once)?)
        } else {
            let size = stream.draw_size(rng);
            stream.place(size, rng, *once)?
        };
        if let Some(kind) = stream.op {
            let (len_bytes, source) = (bytes, 0);
            return Some(Choice { stream: index, kind, offset, len_bytes, source });
        }
        let is_read = match stream.read_pct {
            0.0 => false,
            100.0 => true,
            share => rng.random_range(0.0..100.0) < share,
        };
        let kind = if is_read { OpKind::Read } else { OpKind::Write };
        Some(Choice { stream: index, kind, offset, len_bytes: bytes, source: 0 })
    }

    /// The same at another place, as its stream goes on: so the shares stay as they were asked for.
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

    /// A random number, for those who need one beside.
    pub(super) fn draw(&mut self) -> u64 {
        self.rng.next_u64()
    }
}

impl Stream {
    /// Index of a size, by the weights.
    fn draw_size(&self, rng: &mut SmallRng) -> usize {
        let all = self.sizes.last().map_or(1, |(_, until)| *until);
        let weight = if self.sizes.len() > 1 { rng.random_range(0..all) } else { 0 };
        self.sizes.iter().position(|(_, until)| weight < *until).unwrap_or(0)
    }

    /// Bytes of the next operation of a walk: one of the sizes, or one between the two.
    fn draw_bytes(&self, rng: &mut SmallRng) -> u32 {
        match (self.access, self.sizes.as_slice()) {
            (Access::Walk { between: true, .. }, [(low, _), (high, _)]) => {
                // As fio draws it: the last step is shorter where the range is no whole steps.
                let drawn = low.bytes.saturating_add(rng.random_range(0..high.bytes.max(1)));
                (drawn / low.bytes.max(1) * low.bytes).clamp(low.bytes, high.bytes)
            }
            _ => self.sizes[self.draw_size(rng)].0.bytes,
        }
    }

    /// Where the next operation of a walk begins.
    fn step(&mut self, bytes: u32, rng: &mut SmallRng, once: bool) -> Option<u64> {
        let Access::Walk { random_pct, align_bytes, .. } = self.access else { return None };
        let (align, len) = (u64::from(align_bytes.max(1)), u64::from(bytes));
        let Walk { within, part_bytes, next } = &mut self.walk;
        let first = within.start.next_multiple_of(align);
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
        // An operation lies in one part of the dataset.
        let part_end = (offset / *part_bytes + 1) * *part_bytes;
        if offset + len > part_end {
            offset = part_end.next_multiple_of(align);
        }
        if offset + len > within.end {
            if once {
                return None;
            }
            offset = first;
        }
        *next = offset + len;
        Some(offset)
    }

    /// Bytes of operations of a size, and where the next of them begins.
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
            // A walk has one place for all sizes: `step`.
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
                // More workers than places: they share the first.
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
            // A theta that makes no distribution is none.
            Access::Zipf { theta } if !(theta.is_finite() && theta > 0.0) => Access::Random,
            other => other,
        };
        let (part_bytes, next) = (dataset.file_bytes.max(1), within.start);
        let walk = Walk { within, part_bytes, next };
        Self { read_pct: spec.read_pct, op: spec.op, share: spec.share, sizes, access, walk }
    }
}

/// The part of its client's bytes that a stream goes to: what leaves blocks that are not judged has
/// the last quarter to itself among the target's own operations, so that COMPARE AND WRITE, which
/// must know what is there, always has blocks.
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

/// The first place for operations of `bytes` that is wholly `within` those bytes of the dataset,
/// and how many there are; at least one.
pub(super) fn places(dataset: &DatasetSpec, within: &Range<u64>, bytes: u32) -> (u64, u64) {
    let bytes = u64::from(bytes.max(1));
    let per_part = (dataset.file_bytes / bytes).max(1);
    // Of the places before a byte of the dataset, those that end by then.
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
        let stream =
            StreamSpec { name: String::new(), access, blocks, read_pct, op: None, share: 1 };
        let dataset = DatasetSpec { files: 4, file_bytes: 1 << 20 };
        Chooser::new(&[stream], &dataset, &(0..4 << 20), worker, 7, once)
    }

    #[test]
    fn places_of_clients_do_not_overlap_and_are_whole() {
        let dataset = DatasetSpec { files: 3, file_bytes: 96 << 10 };
        let total = dataset.total_bytes();
        assert_eq!(places(&dataset, &(0..total), 4096), (0, 72));
        // 100 KiB on: the second file begins at 96 KiB, so its second place of 32 KiB at 128.
        assert_eq!(places(&dataset, &(100 << 10..total), 32 << 10), (4, 5));
        assert_eq!(places(&dataset, &(0..100 << 10), 32 << 10), (0, 3));
        assert_eq!(places(&dataset, &(96 << 10..total), 32 << 10), (3, 6));
    }

    #[test]
    fn sequential_workers_cover_everything_once() {
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
    fn mixes_and_hot_spots_come_in_the_shares_asked_for() {
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

    fn walk(random_pct: f64, sizes: &[u32], between: bool, bytes: u64) -> Vec<Choice> {
        let access = Access::Walk { random_pct, align_bytes: sizes[0], between };
        let blocks = sizes.iter().map(|bytes| BlockShare { bytes: *bytes, weight: 1 }).collect();
        let (name, read_pct, op, share) = (String::new(), 100.0, None, 1);
        let stream = StreamSpec { name, access, blocks, read_pct, op, share };
        let dataset = DatasetSpec { files: 2, file_bytes: bytes / 2 };
        let mut chooser = Chooser::new(&[stream], &dataset, &(0..bytes), (1, 4), 7, false);
        (0..20_000).filter_map(|_| chooser.next_op()).collect()
    }

    #[test]
    fn every_worker_of_a_sequential_walk_goes_over_everything_without_gaps() {
        let choices = walk(0.0, &[4096, 8192], false, 1 << 20);
        assert_eq!(choices[0].offset, 0);
        for pair in choices.windows(2) {
            let end = pair[0].offset + u64::from(pair[0].len_bytes);
            // At the end of a part or of all a large operation may not fit.
            let follows = pair[1].offset == end || [0, 1 << 19].contains(&pair[1].offset);
            assert!(follows, "{pair:?}");
        }
        let starts: std::collections::BTreeSet<u64> = choices.iter().map(|c| c.offset).collect();
        assert_eq!(starts.len(), 256, "every multiple of 4 KiB, over and over");
    }

    #[test]
    fn share_of_a_walk_begins_anywhere_and_the_rest_where_the_last_operation_ended() {
        let choices = walk(30.0, &[4096], false, 1 << 30);
        let follow = choices.windows(2).filter(|pair| pair[1].offset == pair[0].offset + 4096);
        let share = follow.count() as f64 / choices.len() as f64;
        assert!((share - 0.7).abs() < 0.02, "{share}");
    }

    #[test]
    fn sizes_of_a_range_are_as_fio_draws_them() {
        let choices = walk(100.0, &[4096, 10_240], true, 40 << 20);
        let share = |bytes: u32| {
            let count = choices.iter().filter(|choice| choice.len_bytes == bytes).count();
            count as f64 / choices.len() as f64
        };
        // fio 3.33 with bsrange=4k-10k: 839, 766 and 395 of 2000.
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
    fn zipf_favours_few_blocks_that_are_not_neighbours() {
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
