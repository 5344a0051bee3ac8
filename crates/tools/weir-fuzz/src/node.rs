//! Fuzzes tree nodes: decodes every slot of any block.
//!
//! The fuzz target adds no checksums, because a node contains none: before the pool decodes a node,
//! it compares the node with the checksum in the pointer to the node. A faulty or hostile machine
//! can write any node together with a matching pointer.
//!
//! Invariants: no panic; encoding the accepted pointers reproduces the node byte for byte.

use weir_base::BLOCK_BYTES;
use weir_format::{BlockPtr, Codec, NODE_FANOUT, PtrKind, node_pointer, set_node_pointer};

use crate::valid::{padded, pointer, trimmed};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let node = padded(data);
    for index in 0..NODE_FANOUT {
        if let Ok(pointer) = node_pointer(&node, index) {
            let mut again = node;
            set_node_pointer(&mut again, index, &pointer);
            assert_eq!(again, node, "slot {index}");
        }
    }
}

/// Node with pointers of all kinds.
pub fn seeds() -> Vec<Vec<u8>> {
    let data = BlockPtr { kind: PtrKind::Data, ..pointer() };
    let pointers = [
        data,
        BlockPtr { shared: true, stored_units: 10, codec: Codec::Lz4, ..data },
        BlockPtr { kind: PtrKind::Node, codec: Codec::Zstd, stored_units: 9, ..data },
        BlockPtr { kind: PtrKind::Node, ..data }.damage_marker_of(1),
        BlockPtr::HOLE,
    ];
    let mut node = [0; BLOCK_BYTES];
    for (index, pointer) in pointers.iter().enumerate() {
        set_node_pointer(&mut node, index, pointer);
    }
    vec![trimmed(&node), node.to_vec()]
}
