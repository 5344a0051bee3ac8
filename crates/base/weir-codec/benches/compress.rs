//! Benchmark of the compressors on the blocks of files: space and speed on one core. Run `cargo
//! bench -p weir-codec --bench compress -- FILE...`.
//!
//! The figures exclude the pool's own work (checksums, packing, history). `weir volume advise`
//! gives advice for one volume.
//!
//! Invariants: blocks are 4 KiB. Each block counts with its stored size: rounded up to 64 bytes, or
//! raw if compression saves too little. Blocks of zeros are holes and do not count. The benchmark
//! reads at most 256 MiB of each file.

use std::fs::File;
use std::io::Read as _;
use std::time::Instant;

use weir_base::ZstdLevel;
use weir_codec::compress::{ZstdPacker, ZstdUnpacker, is_zero, lz4, unlz4};

const BLOCK_BYTES: usize = 4096;
const FILE_BYTES_MAX: u64 = 256 << 20;

fn main() {
    for path in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        let mut data = Vec::new();
        let read = File::open(&path).and_then(|f| f.take(FILE_BYTES_MAX).read_to_end(&mut data));
        if let Err(error) = read {
            eprintln!("{path}: {error}");
            continue;
        }
        let (blocks, _) = data.as_chunks::<BLOCK_BYTES>();
        let blocks: Vec<_> = blocks.iter().filter(|block| !is_zero(&block[..])).collect();
        eprintln!("{path}: {} blocks", blocks.len());
        measure(&blocks);
    }
}

fn measure(blocks: &[&[u8; BLOCK_BYTES]]) {
    let lz4_missed = row("lz4", blocks, &mut lz4, &mut |stored, raw| unlz4(stored, raw).is_ok());
    for level in [1, 3, 7, 19].map(|level| ZstdLevel::new(level).expect("1 to 19")) {
        let (mut packer, mut unpacker) = (ZstdPacker::new(level), ZstdUnpacker::default());
        let mut pack = |raw: &[u8], out: &mut [u8]| packer.pack(level, raw, out);
        let mut unpack = |stored: &[u8], raw: &mut [u8]| unpacker.unpack(stored, raw).is_ok();
        let missed = row(&format!("zstd-{}", level.get()), blocks, &mut pack, &mut unpack);
        // Compute the savings that the pool would lose if it did not try zstd on blocks that LZ4
        // cannot compress.
        let both: Vec<bool> = missed.iter().zip(&lz4_missed).map(|(a, b)| *a || *b).collect();
        let (mut lost, mut saved) = (0, 0);
        let mut out = vec![0; 2 * BLOCK_BYTES];
        for (block, skip) in blocks.iter().zip(both.iter().zip(&missed)) {
            let Some(len) = pack(&block[..], &mut out) else { continue };
            let saving = BLOCK_BYTES - len.next_multiple_of(64);
            saved += saving;
            lost += if *skip.0 && !*skip.1 { saving } else { 0 };
        }
        let lost = lost as f64 * 100.0 / saved.max(1) as f64;
        eprintln!(
            "           lz4 first, and nothing where it misses, loses {lost:.1} % of savings"
        );
    }
}

type Pack<'a> = &'a mut dyn FnMut(&[u8], &mut [u8]) -> Option<usize>;
type Unpack<'a> = &'a mut dyn FnMut(&[u8], &mut [u8]) -> bool;

/// Prints the figures of one compressor, and returns which blocks it leaves raw.
fn row(name: &str, blocks: &[&[u8; BLOCK_BYTES]], pack: Pack<'_>, unpack: Unpack<'_>) -> Vec<bool> {
    let mut out = vec![0; 2 * BLOCK_BYTES];
    let start = Instant::now();
    let lens: Vec<Option<usize>> = blocks.iter().map(|block| pack(&block[..], &mut out)).collect();
    let packing = start.elapsed().as_secs_f64();
    let stored: usize =
        lens.iter().map(|len| len.map_or(BLOCK_BYTES, |len| len.next_multiple_of(64))).sum();
    let kept: Vec<Vec<u8>> = blocks
        .iter()
        .filter_map(|block| pack(&block[..], &mut out).map(|len| out[..len].to_vec()))
        .collect();
    let mut raw = vec![0; BLOCK_BYTES];
    let start = Instant::now();
    let good = kept.iter().all(|stored| unpack(stored, &mut raw));
    let unpacking = start.elapsed().as_secs_f64();
    assert!(good, "{name} reads what it wrote");
    let mb = |blocks: usize, seconds: f64| (blocks * BLOCK_BYTES) as f64 / 1e6 / seconds;
    eprintln!(
        "  {name:8} saves {:5.1} %, packs {:6.0} MB/s, unpacks {:6.0} MB/s",
        100.0 - stored as f64 * 100.0 / (blocks.len() * BLOCK_BYTES) as f64,
        mb(blocks.len(), packing),
        mb(kept.len(), unpacking),
    );
    lens.iter().map(Option::is_none).collect()
}
