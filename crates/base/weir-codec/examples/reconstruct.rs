//! Computes the two parity strips of a raidz2 row with four data strips, then loses a data strip
//! and a parity strip, and reconstructs both strips.
//!
//! `cargo run -p weir-codec --example reconstruct`
//!
//! weir-pool decides which disk has which strip.
//!
//! Invariant: each reconstructed strip is equal to the lost strip, byte for byte.

#![expect(clippy::print_stdout, reason = "the outcome is the result")]

use weir_codec::parity::{Recovery, encode};

const DATA: usize = 4;
const PARITY: usize = 2;
const STRIP_BYTES: usize = 64 << 10;

fn main() {
    let strip = |number: usize| (0..STRIP_BYTES).map(|at| (at * (number + 3)) as u8).collect();
    let data: Vec<Vec<u8>> = (0..DATA).map(strip).collect();
    let (mut p, mut q) = (vec![0; STRIP_BYTES], vec![0; STRIP_BYTES]);
    let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    encode(&sources, &mut [&mut p, &mut q]);

    // Strip numbers: the data strips are 0 to 3, P is 4 and Q is 5.
    let row: Vec<&[u8]> = sources.into_iter().chain([&p[..], &q[..]]).collect();
    let lost = [1, 4];
    let left: Vec<Option<&[u8]>> =
        row.iter().enumerate().map(|(at, strip)| (!lost.contains(&at)).then_some(*strip)).collect();

    let recovery = Recovery::new(DATA, PARITY, &lost);
    let mut computed = vec![0; STRIP_BYTES];
    for strip in lost {
        recovery.strip(strip, &left, &mut computed);
        assert!(computed == row[strip], "strip {strip} differs");
        println!("strip {strip}: {STRIP_BYTES} bytes computed from the other strips");
    }
}
