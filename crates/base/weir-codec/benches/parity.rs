//! Benchmark of the parity kernels on one core: `cargo bench -p weir-codec`.
//!
//! The figures exclude the pool's own work (copies, device writes).
//!
//! Invariant: figures count only data bytes, not parity. The best of several rounds counts, because
//! other load can only make a round slower.

use std::hint::black_box;
use std::time::Instant;

use weir_codec::parity::{Recovery, encode};

const STRIP_BYTES: usize = 64 << 10;
const DATA_STRIPS: usize = 4;
const ROUNDS: usize = 20;
const ROWS_PER_ROUND: usize = 400;

/// Highest throughput of `work` in bytes per nanosecond, if one call processes `bytes` bytes.
fn best(bytes: usize, mut work: impl FnMut()) -> f64 {
    (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..ROWS_PER_ROUND).for_each(|_| work());
            (bytes * ROWS_PER_ROUND) as f64 / start.elapsed().as_nanos() as f64
        })
        .fold(0.0, f64::max)
}

fn main() {
    let strips: Vec<Vec<u8>> = (0..DATA_STRIPS as u8 + 3)
        .map(|n| (0..STRIP_BYTES).map(|at| (at as u8).wrapping_mul(n + 3)).collect())
        .collect();
    let data: Vec<&[u8]> = strips[..DATA_STRIPS].iter().map(Vec::as_slice).collect();
    for (name, parity) in [("P", 1), ("P+Q", 2), ("P+Q+R", 3)] {
        let mut out = vec![vec![0_u8; STRIP_BYTES]; parity];
        let speed = best(DATA_STRIPS * STRIP_BYTES, || {
            let mut out: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
            encode(black_box(&data), &mut out);
        });
        eprintln!("encode {name:6} {speed:6.1} GB/s of data, {DATA_STRIPS} strips of 64 KiB");
    }
    let mut out = vec![0_u8; STRIP_BYTES];
    for (parity, lost) in [(1, &[1][..]), (2, &[0, 1]), (3, &[0, 1, 2])] {
        let there: Vec<Option<&[u8]>> = (0..DATA_STRIPS + parity)
            .map(|strip| (!lost.contains(&strip)).then_some(&strips[strip][..]))
            .collect();
        let speed = best(STRIP_BYTES, || {
            Recovery::new(DATA_STRIPS, parity, lost).strip(1, black_box(&there), &mut out);
        });
        eprintln!("reconstruct with {} lost {speed:6.1} GB/s of the strip", lost.len());
    }
}
