//! Judges measured flush times: what a disk of that kind can do, and what it cannot.
//!
//! Not here: measuring (flush_probe.rs), and finding out what the disk is (medium.rs).
//!
//! Invariants:
//! - a disk is suspected only against a bound that its own kind cannot beat; where the kind is
//!   not known (virtual, remote, stacked disks) nothing is concluded;
//! - a suspicion says what was measured, why that cannot be, and what to do.

use std::fmt;
use std::time::Duration;

use crate::flush_probe::FlushFigures;
use crate::medium::{CacheMode, Medium, MediumKind};

/// A quarter of a revolution at 15,000 rpm, the quickest ever sold: rewriting one place takes a
/// whole one. Also far below what the flash of USB sticks takes.
const ROTATING_MIN: Duration = Duration::from_millis(1);
/// Programming a flash page takes 100 us and more, writing the flash's own map not counted.
/// Flash sold for less has capacitors and says that it has no volatile cache.
const FLASH_MIN: Duration = Duration::from_micros(100);

/// What the times of a disk say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushVerdict {
    /// As quick as such a disk can be, or it declares that it has nothing to flush.
    Plausible,
    /// Quicker than a disk with a volatile cache can make anything durable.
    TooFast,
    /// What the times should be is not known.
    NotJudged,
    /// There is nothing durable: it keeps its data in memory.
    NotDurable,
}

impl FlushVerdict {
    /// Judges what was measured on a disk.
    pub fn of(figures: &FlushFigures, medium: &Medium) -> Self {
        match (medium.kind, least(medium)) {
            (MediumKind::Memory, _) => Self::NotDurable,
            (_, Some(least)) if figures.durable() < least => Self::TooFast,
            (MediumKind::Rotating | MediumKind::PersistentMemory, _) => Self::Plausible,
            (MediumKind::SolidState, _) if medium.cache.is_some() => Self::Plausible,
            _ => Self::NotJudged,
        }
    }

    /// What the user must know, if anything; `path` is the disk.
    pub fn warning(self, path: &str, figures: &FlushFigures, medium: &Medium) -> Option<String> {
        match self {
            Self::Plausible | Self::NotJudged => None,
            Self::NotDurable => Some(format!(
                "{path}: is in memory ({}), so all of it is lost with the power or a restart; use \
                 it for trials only",
                medium.name
            )),
            Self::TooFast => Some(too_fast(path, figures, medium)),
        }
    }
}

/// The least time in which such a disk makes a write durable, where that is known.
fn least(medium: &Medium) -> Option<Duration> {
    match (medium.kind, medium.cache) {
        // Sticks call themselves rotating, and bridges hide caches; neither is quick.
        (MediumKind::Rotating, _) => Some(ROTATING_MIN),
        (MediumKind::SolidState, _) if medium.usb => Some(ROTATING_MIN),
        (MediumKind::SolidState, Some(CacheMode::WriteBack)) => Some(FLASH_MIN),
        _ => None,
    }
}

fn too_fast(path: &str, figures: &FlushFigures, medium: &Medium) -> String {
    let FlushFigures { samples, write, flush, sync } = *figures;
    let least = least(medium).unwrap_or_default();
    let remedy = match (medium.kind, medium.cache) {
        _ if medium.usb => "attach it without USB, or do not trust it with data",
        (MediumKind::Rotating, _) => {
            "fine behind a controller whose cache has a battery; else turn the disk's cache off \
             (hdparm -W0, sdparm --clear WCE) or replace it"
        }
        _ => {
            "fine if its data sheet names power-loss protection; else turn its cache off (hdparm \
             -W0, nvme set-feature -f 6 -v 0) or replace it"
        }
    };
    format!(
        "{path}: says that 4 KiB are durable after {} (median of {samples}: write {}, flush {}, \
         sync write {}), but a {medium} needs at least {}. It answers from a cache, and if that \
         is lost with the power, so is what was flushed: {remedy}",
        Micros(figures.durable()),
        Micros(write),
        Micros(flush),
        Micros(sync),
        Micros(least),
    )
}

/// A short time for people.
struct Micros(Duration);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_micros() {
            us @ 0..1000 => write!(f, "{us} us"),
            us => write!(f, "{}.{} ms", us / 1000, us / 100 % 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(write_us: u64, flush_us: u64, sync_us: u64) -> FlushFigures {
        let [write, flush, sync] = [write_us, flush_us, sync_us].map(Duration::from_micros);
        FlushFigures { samples: 32, write, flush, sync }
    }

    fn medium(kind: MediumKind, cache: Option<CacheMode>) -> Medium {
        Medium { kind, cache, name: "sda".to_owned(), ..Medium::unknown() }
    }

    #[test]
    fn suspects_only_what_cannot_be() {
        use CacheMode::{WriteBack, WriteThrough};
        use FlushVerdict::{NotDurable, NotJudged, Plausible, TooFast};
        use MediumKind::{
            Memory, PersistentMemory, Remote, Rotating, SolidState, Unknown, Virtual,
        };

        let liar = figures(15, 20, 40);
        let flash = figures(20, 900, 950);
        let platter = figures(60, 8300, 8300);
        let fua_liar = figures(60, 8300, 90);
        for (kind, cache, measured, verdict) in [
            (Rotating, Some(WriteBack), platter, Plausible),
            (Rotating, Some(WriteBack), liar, TooFast),
            (Rotating, Some(WriteThrough), liar, TooFast),
            (Rotating, Some(WriteBack), fua_liar, TooFast),
            (Rotating, None, flash, TooFast),
            (SolidState, Some(WriteBack), flash, Plausible),
            (SolidState, Some(WriteBack), liar, TooFast),
            // It declares power-loss protection: the kernel sends it no flushes.
            (SolidState, Some(WriteThrough), liar, Plausible),
            (SolidState, None, liar, NotJudged),
            (PersistentMemory, Some(WriteThrough), liar, Plausible),
            (Memory, Some(WriteThrough), platter, NotDurable),
            (Virtual, Some(WriteBack), liar, NotJudged),
            (Remote, Some(WriteBack), liar, NotJudged),
            (Unknown, None, liar, NotJudged),
        ] {
            let medium = medium(kind, cache);
            assert_eq!(FlushVerdict::of(&measured, &medium), verdict, "{medium} {measured:?}");
            let warns = verdict.warning("/dev/sda", &measured, &medium).is_some();
            assert_eq!(warns, matches!(verdict, TooFast | NotDurable), "{medium}");
        }
    }

    #[test]
    fn a_usb_bridge_that_hides_the_cache_is_not_believed() {
        let kind = MediumKind::SolidState;
        let hidden = Medium { usb: true, ..medium(kind, Some(CacheMode::WriteThrough)) };
        let verdict = FlushVerdict::of(&figures(200, 2, 200), &hidden);
        assert_eq!(verdict, FlushVerdict::TooFast);
        let text = verdict.warning("/dev/sda", &figures(200, 2, 200), &hidden).unwrap();
        assert!(text.contains("without USB"), "{text}");
        assert_eq!(FlushVerdict::of(&figures(200, 9000, 9000), &hidden), FlushVerdict::Plausible);
    }

    #[test]
    fn a_warning_names_what_was_measured_and_what_to_do() {
        let medium = medium(MediumKind::SolidState, Some(CacheMode::WriteBack));
        let measured = figures(15, 20, 40);
        let text = FlushVerdict::TooFast.warning("/dev/sda", &measured, &medium).unwrap();
        for part in ["/dev/sda", "after 35 us", "at least 100 us", "data sheet", "median of 32"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
