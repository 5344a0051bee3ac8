//! Tests that blocks have the specified compressibility and duplicates, and that faults are found.
//!
//! `load` and `selftest` test targets that cause such faults.

use super::*;

fn spec(compress: f64, dedupe_pct: f64, unit_bytes: u32) -> ContentSpec {
    ContentSpec { compress, dedupe_pct, unit_bytes, seed: 42 }
}

const TOTAL: usize = 8 << 20;

fn dataset(spec: &ContentSpec) -> Vec<u8> {
    let mut bytes = vec![0; TOTAL];
    Content::new(spec, 4096, TOTAL as u64).fill(&mut bytes, 0, 1);
    bytes
}

#[test]
fn data_has_the_specified_compression_ratio_at_any_unit_size() {
    for ratio in [1.0, 1.5, 2.0, 3.99, 8.0] {
        let data = dataset(&spec(ratio, 0.0, 4096));
        assert!(!data.chunks(64).any(|run| run.iter().all(|byte| *byte == 0)), "zeros");
        for chunk in [4 << 10, 8 << 10, 32 << 10, 128 << 10] {
            let lz4: usize =
                data.chunks(chunk).map(|c| lz4_flex::block::compress(c).len().min(c.len())).sum();
            let zstd = data.chunks(chunk).map(|c| {
                zstd::bulk::compress(c, 3).map_or(c.len(), |packed| packed.len().min(c.len()))
            });
            let zstd: usize = zstd.sum();
            for (name, packed) in [("lz4", lz4), ("zstd", zstd)] {
                let found = TOTAL as f64 / packed as f64;
                let off = (found / ratio - 1.0).abs();
                assert!(off < 0.05, "{name} at {chunk}: {found:.3} instead of {ratio}");
            }
        }
    }
}

#[test]
fn share_of_duplicate_units_matches_the_specification() {
    for (share, unit) in [(0.0, 4096), (40.0, 32 << 10), (75.0, 4096)] {
        let data = dataset(&spec(1.0, share, unit));
        let units: std::collections::HashSet<&[u8]> = data.chunks(unit as usize).collect();
        let found = 100.0 * (1.0 - units.len() as f64 / (TOTAL / unit as usize) as f64);
        assert!((found - share).abs() < 5.0, "{found:.1} % instead of {share} %");
    }
}

#[test]
fn each_fault_of_a_block_is_detected() {
    let content = Content::new(&spec(2.0, 0.0, 4096), 4096, TOTAL as u64);
    let (mut block, mut scratch) = (vec![0; 4096], vec![0; 4096]);
    let mut check =
        |block: &[u8], address, wanted| content.check(block, address, Some(wanted), &mut scratch);
    assert_eq!(check(&block, 8192, 1..=1), Err(Mismatch::Zeros));
    content.fill(&mut block, 8192, 2);
    assert_eq!(check(&block, 8192, 1..=2), Ok(()));
    assert_eq!(check(&block, 8192, 3..=3), Err(Mismatch::OtherGeneration(2)));
    assert_eq!(check(&block, 4096, 2..=2), Err(Mismatch::Misplaced(8192)));
    for at in [0, 20, 31, 32, 2000, 4095] {
        block[at] ^= 4;
        assert_eq!(check(&block, 8192, 2..=2), Err(Mismatch::Damaged), "byte {at}");
        block[at] ^= 4;
    }
    assert_eq!(content.check_stamp(&block, 8192, None), Ok(2));
    assert_eq!(what_is_in(&block), Holds::Ours);
    assert_eq!(what_is_in(&[0; 4096]), Holds::Nothing);
    assert_eq!(what_is_in(b"PK and the rest"), Holds::Data);
}

#[test]
fn block_of_another_run_differs_from_a_damaged_block() {
    let of_run =
        |number| Content::new(&spec(1.0, 0.0, 4096), 4096, TOTAL as u64).of_run(RunId(number));
    let (ours, theirs) = (of_run(1), of_run(2));
    let mut block = vec![0; 4096];
    theirs.fill(&mut block, 8192, 2);
    assert_eq!(ours.check_stamp(&block, 8192, Some(2..=2)), Err(Mismatch::OtherRun));
    assert_eq!(ours.check_stamp(&block, 0, None), Err(Mismatch::OtherRun));
    for at in 0..STAMP_BYTES {
        block[at] ^= 4;
        assert_eq!(ours.check_stamp(&block, 8192, None), Err(Mismatch::Damaged), "byte {at}");
        block[at] ^= 4;
    }
    assert_eq!(what_is_in(&block), Holds::Ours);
    assert!(RunId::random() != RunId::random(), "this fails once in 2^30 runs");
}

#[test]
fn contents_depend_on_the_seed() {
    let of = |seed| dataset(&ContentSpec { seed, ..spec(1.0, 0.0, 4096) });
    assert!(of(1) == of(1) && of(1) != of(2));
}
