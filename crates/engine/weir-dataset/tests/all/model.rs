//! Model test of a volume against a vector of bytes: random writes, zeroes, reads, flushes,
//! commits, resizes and restarts on memory devices.
//!
//! weir-sim tests power cuts and faults.
//!
//! Invariants:
//! - after every step a read returns the bytes of the vector;
//! - a reported hole reads as zeros, and a record of zeros is a hole after a commit;
//! - flushed data is readable after a restart, also without a commit.

use std::ops::Range;
use std::sync::Arc;

use crate::common::{as_devices, import, now, options};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};
use weir_base::RecordSize;
use weir_base::property::COMPRESSION;
use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_block::Block;
use weir_dataset::{Engine, PropertyChange, Volume, VolumeSize};
use weir_device::MemoryDevice;
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, VdevSpec};

const BLOCK: usize = 4096;
const SIZE_MAX: usize = 64 * BLOCK;
const DISK_BYTES: u64 = 8 << 20;
const MEMORY_BYTES: u64 = 2 << 20;

#[derive(Clone, Debug)]
enum Step {
    Write { range: Range<usize>, seed: u8, compressible: bool },
    Zero(Range<usize>),
    Read(Range<usize>),
    Extents { range: Range<usize>, max: usize },
    Flush,
    Commit,
    Reopen,
    Resize(usize),
}

/// Returns a strategy for ranges of any alignment, of sectors only, or of blocks only.
fn range() -> impl Strategy<Value = Range<usize>> {
    let unit = prop_oneof![2 => Just(1_usize), 2 => Just(512), 3 => Just(BLOCK)];
    (unit, 0..SIZE_MAX, 0..6 * BLOCK).prop_map(|(unit, start, len)| {
        let start = start - start % unit;
        let end = (start + (len - len % unit).max(unit)).min(SIZE_MAX);
        start..end
    })
}

fn step() -> impl Strategy<Value = Step> {
    let write = (range(), any::<u8>(), any::<bool>());
    prop_oneof![
        12 => write.prop_map(|(range, seed, compressible)| {
            Step::Write { range, seed, compressible }
        }),
        5 => range().prop_map(Step::Zero),
        5 => range().prop_map(Step::Read),
        3 => (range(), 1..6_usize).prop_map(|(range, max)| Step::Extents { range, max }),
        2 => Just(Step::Flush),
        2 => Just(Step::Commit),
        2 => Just(Step::Reopen),
        2 => (1..=SIZE_MAX / BLOCK).prop_map(|blocks| Step::Resize(blocks * BLOCK)),
    ]
}

fn whole_blocks(range: &Range<usize>) -> bool {
    range.start.is_multiple_of(BLOCK_BYTES) && range.end.is_multiple_of(BLOCK_BYTES)
}

fn content(seed: u8, len: usize, compressible: bool) -> Vec<u8> {
    if compressible {
        return vec![seed; len];
    }
    let mut state = u64::from(seed) | 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(len)
    .collect()
}

struct Bench {
    disks: Vec<Arc<MemoryDevice>>,
    engine: Arc<Engine>,
    volume: Arc<Volume>,
    model: Vec<u8>,
}

impl Bench {
    fn new(record: RecordSize) -> Self {
        let disks: Vec<_> = (0..2)
            .map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), DISK_BYTES as usize)))
            .collect();
        let vdev =
            VdevSpec { kind: VdevKind::Mirror, role: VdevRole::Data, disks: as_devices(&disks) };
        let sizes = CreateOptions {
            segment_bytes: Some(128 << 10),
            strip_bytes: Some(4096),
            log_bytes: Some(512 << 10),
            disk_bytes_min: Some(DISK_BYTES),
        };
        let mut next = 0;
        let mut guid = || {
            next += 1;
            Guid(next)
        };
        let options = options(MEMORY_BYTES);
        let engine = now(Engine::create("tank", &[vdev], sizes, &options, &mut guid)).unwrap();
        let size = SIZE_MAX / 2;
        let volume_size = VolumeSize { bytes: size as u64, record };
        let lz4 = PropertyChange::set(COMPRESSION, Compression::Lz4);
        now(engine.create_volume_with("v", volume_size, &[lz4])).unwrap();
        let volume = engine.volume("v").unwrap();
        Self { disks, engine, volume, model: vec![0; size] }
    }

    /// Returns the part of a range that is inside the volume.
    fn inside(&self, range: &Range<usize>) -> Range<usize> {
        range.start.min(self.model.len())..range.end.min(self.model.len())
    }

    fn reopen(&mut self) {
        // Flush first: without a flush, the engine may lose these changes.
        now(self.engine.flush(&self.volume)).unwrap();
        let devices = as_devices(&self.disks);
        let how = import();
        self.engine = now(Engine::open(devices, how, &options(MEMORY_BYTES))).unwrap();
        self.volume = self.engine.volume("v").unwrap();
    }

    fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut blocks = Vec::new();
        if whole_blocks(&range)
            && self.volume.try_share(range.start as u64, range.len() as u64, &mut blocks).unwrap()
        {
            return blocks.iter().flat_map(|block| &block[..]).copied().collect();
        }
        let mut out = vec![0xee; range.len()];
        if !self.volume.try_read(range.start as u64, &mut out).unwrap() {
            now(self.volume.read(range.start as u64, &mut out)).unwrap();
        }
        out
    }

    fn resize(&mut self, size: usize) {
        let done = now(self.engine.resize_volume("v", size as u64));
        let cut_off = self.model.get(size..).unwrap_or_default();
        match done {
            Ok(_) => {
                assert!(cut_off.iter().all(|byte| *byte == 0), "a shrink cut data off");
                self.model.resize(size, 0);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Invalid);
                let record = self.volume.record_size().bytes();
                let is_cut = !size.is_multiple_of(record);
                assert!(is_cut || cut_off.iter().any(|byte| *byte != 0), "{error}");
            }
        }
    }

    fn apply(&mut self, step: &Step) -> Result<(), proptest::test_runner::TestCaseError> {
        match step {
            Step::Write { range, seed, compressible } => {
                let range = self.inside(range);
                let data = content(*seed, range.len(), *compressible);
                if whole_blocks(&range) && seed.is_multiple_of(2) {
                    let blocks = Block::copies_of(data.as_chunks().0);
                    now(self.volume.write_blocks(range.start as u64, blocks)).unwrap();
                } else {
                    now(self.volume.write(range.start as u64, &data)).unwrap();
                }
                self.model[range].copy_from_slice(&data);
            }
            Step::Zero(range) => {
                let range = self.inside(range);
                now(self.volume.zero(range.start as u64, range.len() as u64)).unwrap();
                self.model[range].fill(0);
            }
            Step::Read(range) => {
                let range = self.inside(range);
                prop_assert!(self.read(range.clone()) == self.model[range]);
            }
            Step::Extents { range, max } => self.check_extents(&self.inside(range), *max)?,
            Step::Flush => now(self.engine.flush(&self.volume)).unwrap(),
            Step::Commit => now(self.engine.commit()).unwrap(),
            Step::Reopen => self.reopen(),
            Step::Resize(size) => self.resize(*size),
        }
        Ok(())
    }

    fn check_extents(
        &self,
        range: &Range<usize>,
        max: usize,
    ) -> Result<(), proptest::test_runner::TestCaseError> {
        if range.is_empty() {
            return Ok(());
        }
        let (offset, len) = (range.start as u64, range.len() as u64);
        let extents = now(self.volume.extents(offset, len, max)).unwrap();
        prop_assert!(!extents.is_empty() && extents.len() <= max, "{:?}", extents);
        let mut at = range.start;
        for extent in extents {
            prop_assert!(extent.len > 0);
            let end = at + extent.len as usize;
            prop_assert!(end <= range.end);
            let zeros = self.model[at..end].iter().all(|byte| *byte == 0);
            prop_assert!(zeros || !extent.hole, "{}..{} is data", at, end);
            at = end;
        }
        Ok(())
    }

    /// Checks that exactly the records of zeros are holes after a commit, and that all space
    /// counters agree.
    fn check_all(&mut self) -> Result<(), proptest::test_runner::TestCaseError> {
        self.reopen();
        prop_assert!(self.read(0..self.model.len()) == self.model);
        prop_assert_eq!(self.volume.size_bytes(), self.model.len() as u64);
        let all = now(self.volume.extents(0, self.model.len() as u64, usize::MAX / 4)).unwrap();
        let record = self.volume.record_size().bytes();
        let flags = all
            .iter()
            .flat_map(|extent| std::iter::repeat_n(extent.hole, extent.len as usize / record));
        let zeros = self.model.chunks(record).map(|record| record.iter().all(|byte| *byte == 0));
        let zeros = zeros.collect::<Vec<_>>();
        prop_assert_eq!(flags.collect::<Vec<_>>(), &zeros[..]);
        let used = zeros.iter().filter(|is_hole| !**is_hole).count() * record;
        prop_assert_eq!(self.volume.info().used_bytes, used as u64);
        prop_assert!(now(self.engine.check_live_bytes()).unwrap().is_empty());
        prop_assert!(now(self.engine.check_accounts()).unwrap().is_empty());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn volume_behaves_like_a_vector_of_bytes(shift in 0_u8..=2, steps in vec(step(), 1..60)) {
        let mut bench = Bench::new(RecordSize::from_shift(shift).unwrap());
        for step in &steps {
            bench.apply(step)?;
        }
        bench.check_all()?;
    }
}
