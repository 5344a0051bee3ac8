//! Fills a block of the arena, shares it, and shows that a clone of the handle refers to the same
//! memory.
//!
//! `cargo run -p weir-block --example share_block`
//!
//! Aligned buffers for disks are `IoBuf`; the example `durable_write` of weir-device uses one.
//!
//! Invariant: a shared block is never written.

#![expect(clippy::print_stdout, reason = "the outcome is the result")]

use weir_block::{Arena, BlockMut};

fn main() {
    let mut filling = BlockMut::zeroed();
    filling.fill(7);
    let mut block = filling.freeze();
    let other = block.clone();
    println!("two handles, {} bytes in use", Arena::live_bytes());
    assert!(block.same_cell(&other), "a clone copies no bytes");
    assert!(block.get_mut().is_none(), "another handle reads the block");

    drop(other);
    block.get_mut().expect("this is the only handle now").fill(8);
    println!("one handle: the block is writable again, its bytes are {}", block[0]);
    drop(block);
    println!("{} bytes in use or spare cells of this thread", Arena::live_bytes());
}
