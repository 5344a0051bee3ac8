//! Parses sizes as the command line does, and prints the corrected form of an invalid size.
//!
//! `cargo run -p weir-base --example parse_size`
//!
//! Invariant: `GiB` is 2^30 bytes and `GB` is 10^9 bytes.

#![expect(clippy::print_stdout, reason = "the sizes are the result")]

use weir_base::size::{Human, SizeError, parse};

fn main() -> Result<(), SizeError> {
    for text in ["10GiB", "10GB", "1.5M", "4096"] {
        let bytes = parse(text)?;
        println!("{text} is {bytes} bytes, or {}", Human(bytes));
    }
    assert_eq!(parse("10GiB")?, 10 << 30);
    assert_eq!(parse("10GB")?, 10_000_000_000);
    for text in ["1,5G", "10 XB", "-3GiB"] {
        let error = parse(text).expect_err("not a size");
        println!("{error}; the user may have meant {:?}", error.meant());
    }
    Ok(())
}
