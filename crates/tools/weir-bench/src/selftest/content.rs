//! Checks that blocks compress at the specified ratio, in units of the sizes that storage
//! compresses as one.
//!
//! The module `content` of the crate makes the blocks.
//!
//! Invariant: the check reports the compressor and the unit size with the largest deviation.

use super::kit::{BLOCK_BYTES, content};
use super::{Item, Scale, Seen};
use crate::content::Content;
use crate::run::RunError;
use crate::words;

const RATIOS: [f64; 3] = [1.0, 2.0, 4.0];
const UNITS_KIB: [usize; 4] = [4, 8, 32, 128];
const OFF_PCT: f64 = 5.0;
/// Level of zstd that most storage systems use.
const ZSTD_LEVEL: i32 = 3;

pub(super) fn items() -> Vec<Item> {
    let item = |ratio: f64| {
        let wanted = "by lz4 and by zstd, in units of 4, 8, 32 and 128 KiB, within 5 %";
        Item::new(&format!("content that compresses {ratio}:1"), wanted, move |scale| {
            Ok::<_, RunError>(look(ratio, scale))
        })
    };
    RATIOS.map(item).into()
}

fn look(ratio: f64, scale: Scale) -> Seen {
    let mut data = vec![0; scale.pick(2 << 20, 64 << 20)];
    let made = Content::new(&content(ratio), BLOCK_BYTES, data.len() as u64);
    made.fill(&mut data, 0, 1);
    let mut worst: Option<(f64, String)> = None;
    for kib in UNITS_KIB {
        // If compression does not make a unit smaller, storage keeps the unit uncompressed.
        let packed = |pack: &dyn Fn(&[u8]) -> usize| -> f64 {
            let units = data.chunks(kib << 10);
            units.map(|unit| pack(unit).min(unit.len())).sum::<usize>() as f64
        };
        let lz4 = packed(&|unit| lz4_flex::block::compress(unit).len());
        let zstd = packed(&|unit| {
            zstd::bulk::compress(unit, ZSTD_LEVEL).map_or(unit.len(), |packed| packed.len())
        });
        for (name, packed) in [("lz4", lz4), ("zstd", zstd)] {
            let found = data.len() as f64 / packed;
            let off = 100.0 * (found / ratio - 1.0);
            let text = format!("{}:1 by {name} in {kib} KiB ({off:+.2} %)", words::number(found));
            if worst.as_ref().is_none_or(|(worst, _)| off.abs() > *worst) {
                worst = Some((off.abs(), text));
            }
        }
    }
    let (off, text) = worst.expect("there are units");
    let has_zeros = data.chunks_exact(64).any(|run| run.iter().all(|byte| *byte == 0));
    let zeros = if has_zeros { "; runs of zeros in it" } else { "" };
    Seen { passed: off <= OFF_PCT && !has_zeros, found: format!("farthest off {text}{zeros}"), off }
}
