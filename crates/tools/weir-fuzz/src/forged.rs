//! Fuzzes pools and streams whose checksums are valid and whose fields are invalid: import, reads,
//! writes, commits, destroys, `check`, `rescue` and receive.
//!
//! The fuzz target does not check the results of these operations.
//!
//! Invariants: no panic; every call returns.

use std::sync::LazyLock;

use weir_forge::{
    Disks, FILES, Forgery, Map, Rng, exercise, forge_stream, object_sample, receive, sample,
    streams_of,
};
use weir_format::VdevKind;

struct Sample {
    disks: Disks,
    map: Map,
    streams: Vec<Vec<u8>>,
}

static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let of = |disks: Disks, volume| {
        let (map, streams) = (Map::of(&disks), streams_of(&disks, volume));
        Sample { disks, map, streams }
    };
    let kinds = [VdevKind::Disk, VdevKind::Mirror, VdevKind::Raidz1];
    let volumes = kinds.map(|kind| of(sample(kind), "plain"));
    volumes.into_iter().chain([of(object_sample(), FILES)]).collect()
});

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let samples = &*SAMPLES;
    let Some((choice, fields)) = data.split_first() else { return };
    let Sample { disks, map, streams } = &samples[usize::from(*choice) % samples.len()];
    let mut rng = Rng::of_bytes(fields);
    if choice % 8 == 7 {
        let mut streams = streams.clone();
        let at = rng.below(streams.len());
        streams[at] = forge_stream(&streams[at], &mut rng);
        receive(disks, &streams);
        return;
    }
    let mut forgery = Forgery::new(map);
    for _ in 0..=choice / 64 {
        forgery.forge(&mut rng);
    }
    let mut disks = disks.clone();
    if forgery.seal(&mut disks) {
        exercise(&disks);
        if choice % 8 == 0 {
            receive(&disks, streams);
        }
    }
}

/// Random fields for each kind of pool and for streams.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut rng = fastrand::Rng::with_seed(1);
    let seed = |choice: u8| {
        let mut input = vec![0; 64];
        rng.fill(&mut input);
        input[0] = choice;
        input
    };
    [0, 1, 2, 3, 7, 8, 15, 65, 130, 194].map(seed).into()
}
