//! Fuzzes zstd compression of single blocks: decompresses any bytes as a stored block, and
//! compresses any block at every level.
//!
//! `log_batch` fuzzes LZ4. The pool verifies a block's checksum before it decompresses the block.
//!
//! Invariants: no panic; the decompressor writes only inside the block; a compressed block
//! decompresses to the original bytes.

use weir_base::ZstdLevel;
use weir_codec::compress::{ZstdPacker, ZstdUnpacker};

const BLOCK_BYTES: usize = 4096;
const GUARD: [u8; 64] = [0xa5; 64];

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let mut unpacker = ZstdUnpacker::default();
    let mut raw = [0xa5; BLOCK_BYTES + GUARD.len()];
    // Random bytes are never a zstd frame, so also try them after a magic number and a valid
    // length.
    let framed = [&0xfd2f_b528_u32.to_le_bytes(), data].concat();
    let len = u16::try_from(framed.len()).unwrap_or(u16::MAX).to_le_bytes();
    for stored in [data, &[&len, &framed[..]].concat()] {
        let done = unpacker.unpack(stored, &mut raw[..BLOCK_BYTES]);
        assert!(done.is_err() || stored.len() > 2);
        assert_eq!(raw[BLOCK_BYTES..], GUARD);
    }
    // The first byte selects the level. The other bytes, repeated, form a block that may be
    // compressible.
    let Some((level, rest)) = data.split_first().filter(|(_, rest)| !rest.is_empty()) else {
        return;
    };
    let level = ZstdLevel::new(level % 19 + 1).expect("1 to 19");
    let block: Vec<u8> = rest.iter().copied().cycle().take(BLOCK_BYTES).collect();
    let mut stored = vec![0; BLOCK_BYTES];
    if let Some(len) = ZstdPacker::new(level).pack(level, &block, &mut stored) {
        unpacker.unpack(&stored[..len], &mut raw[..BLOCK_BYTES]).expect("what was packed");
        assert_eq!(raw[..BLOCK_BYTES], block);
    }
}

/// Compressed blocks with and without length and magic number, and an uncompressed block.
pub fn seeds() -> Vec<Vec<u8>> {
    let text = b"\x02the quick brown fox jumps over the lazy dog, 0123456789 times".to_vec();
    let mut noise = text.repeat(100);
    fastrand::Rng::with_seed(1).fill(&mut noise[1000..2000]);
    let mut seeds = vec![text.clone()];
    for (level, source) in [(1, text), (9, noise.clone()), (19, noise)] {
        let block: Vec<u8> = source.iter().copied().cycle().take(BLOCK_BYTES).collect();
        let level = ZstdLevel::new(level).expect("1 to 19");
        let mut stored = vec![0; BLOCK_BYTES];
        let len = ZstdPacker::new(level).pack(level, &block, &mut stored).expect("it compresses");
        seeds.extend([stored[..len].to_vec(), stored[6..len].to_vec()]);
    }
    seeds
}
