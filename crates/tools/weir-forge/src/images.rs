//! Pools in older formats: disks that builds of an older Weir made (`images/`).
//!
//! `images/README.md` documents how the images were made.
//!
//! Invariant: an image never changes.

use std::io;

/// Length of each disk.
pub const IMAGE_BYTES: usize = 64 << 20;
const BLOCK: usize = 4096;

/// A disk of an older format.
pub struct Image {
    /// Name of the disk.
    pub name: &'static str,
    compressed: &'static [u8],
}

macro_rules! images {
    ($($name:literal)*) => {
        &[$(Image {
            name: $name,
            compressed: include_bytes!(concat!("../images/v8/", $name, ".img.zst")),
        }),*]
    };
}

/// The mirror `v8m` in format 8.
pub const MIRROR_V8: &[Image] = images!["mirror-a" "mirror-b"];
/// The raidz2 `v8z` in format 8.
pub const RAIDZ_V8: &[Image] = images!["raidz-a" "raidz-b" "raidz-c" "raidz-d"];

impl Image {
    /// Calls `put` with the offset and the content of each part of the disk that is not zero.
    pub fn parts(&self, mut put: impl FnMut(u64, &[u8])) {
        let read = zstd::stream::decode_all(io::Cursor::new(self.compressed));
        let content = read.expect("an image of this repository");
        assert_eq!(content.len(), IMAGE_BYTES, "{}", self.name);
        for (block, bytes) in content.chunks(BLOCK).enumerate() {
            if bytes.iter().any(|byte| *byte != 0) {
                put((block * BLOCK) as u64, bytes);
            }
        }
    }
}

/// Content that the builds of an older Weir wrote to a block of a volume in the images.
pub fn block_of(volume: &str, generation: u64, block: u64) -> Vec<u8> {
    let line = format!("{volume} block {block} generation {generation}\n");
    line.bytes().cycle().take(BLOCK).collect()
}
