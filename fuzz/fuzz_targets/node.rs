//! Fuzzes tree nodes: any block, each slot.
//!
//! Not here: checksums; a node is only decoded once its bytes match its pointer, but a pointer may
//! have been written by a broken or hostile machine.
//!
//! Invariants: no panic; what is accepted is written back byte for byte.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_base::BLOCK_BYTES;
use weir_format::{NODE_FANOUT, node_pointer, set_node_pointer};

fuzz_target!(|data: &[u8]| {
    let mut node = [0; BLOCK_BYTES];
    let len = data.len().min(BLOCK_BYTES);
    node[..len].copy_from_slice(&data[..len]);
    for index in 0..NODE_FANOUT {
        if let Ok(pointer) = node_pointer(&node, index) {
            let mut again = node;
            set_node_pointer(&mut again, index, &pointer);
            assert_eq!(again, node, "slot {index}");
        }
    }
});
