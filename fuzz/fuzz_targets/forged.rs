//! Fuzzes pools and streams whose checksums are right and whose fields are wrong: import, reads,
//! writes, commits, destroys, `check`, `rescue` and receive.
//!
//! Not here: which answer is right.
//!
//! Invariants: no panic, and every call ends.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use weir_forge::{Disks, Forgery, Map, Rng, exercise, forge_stream, receive, sample, streams_of};
use weir_format::VdevKind;

struct Sample {
    disks: Disks,
    map: Map,
    streams: Vec<Vec<u8>>,
}

static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let of = |kind| {
        let disks = sample(kind);
        let (map, streams) = (Map::of(&disks), streams_of(&disks));
        Sample { disks, map, streams }
    };
    [VdevKind::Disk, VdevKind::Mirror, VdevKind::Raidz1].map(of).into()
});

fuzz_target!(|data: &[u8]| {
    let Some((choice, fields)) = data.split_first() else { return };
    let Sample { disks, map, streams } = &SAMPLES[usize::from(*choice) % SAMPLES.len()];
    let mut rng = Rng::of_bytes(fields);
    if choice % 8 == 7 {
        let mut streams = streams.clone();
        let at = rng.below(streams.len());
        streams[at] = forge_stream(&streams[at], &mut rng);
        receive(disks, &streams);
        return;
    }
    let mut forgery = Forgery::new(map);
    for _ in 0..1 + choice / 64 {
        forgery.forge(&mut rng);
    }
    let mut disks = disks.clone();
    if forgery.seal(&mut disks) {
        exercise(&disks);
        if choice % 8 == 0 {
            receive(&disks, streams);
        }
    }
});
