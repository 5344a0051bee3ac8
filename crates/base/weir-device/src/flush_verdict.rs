//! Flush verdict: compares measured flush times with the physical limits of the disk's medium.
//!
//! `flush_probe` measures the times; `medium` finds out the kind of the disk.
//!
//! Invariants:
//! - a disk is suspected only if it is faster than the physical limit of its kind. A disk of an
//!   unknown kind (virtual, remote, stacked) gets no verdict;
//! - a warning contains the measured time, the reason why this time is impossible, and a remedy.

use std::fmt;
use std::time::Duration;

use crate::flush_probe::FlushFigures;
use crate::medium::{CacheMode, Medium, MediumKind};

/// Minimum time of a durable write on a rotating disk: a quarter of a revolution at 15,000 rpm, the
/// fastest disk ever sold. Rewriting one location takes a whole revolution, so no correct disk is
/// near this limit. The flash in USB sticks, to which the limit also applies, is much slower too.
const ROTATING_MIN: Duration = Duration::from_millis(1);
/// Minimum time of a durable write on flash: programming a page takes 100 us or more, without the
/// update of the flash translation layer. Faster flash disks have capacitors, and report that they
/// have no volatile cache.
const FLASH_MIN: Duration = Duration::from_micros(100);

/// Verdict on the flush times of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushVerdict {
    /// The disk is within the limits of its kind, or reports that it has no volatile cache.
    Plausible,
    /// The disk is faster than data can become durable on its kind of medium.
    TooFast,
    /// The physical limits of the disk are unknown.
    NotJudged,
    /// The disk keeps its data in memory that a power cut erases.
    NotDurable,
}

impl FlushVerdict {
    /// Compares the measured times of a disk with the limits of its medium.
    pub fn of(figures: &FlushFigures, medium: &Medium) -> Self {
        match (medium.kind, least(medium)) {
            (MediumKind::Memory, _) => Self::NotDurable,
            (_, Some(least)) if figures.durable() < least => Self::TooFast,
            (MediumKind::Rotating | MediumKind::PersistentMemory, _) => Self::Plausible,
            (MediumKind::SolidState, _) if medium.cache.is_some() => Self::Plausible,
            _ => Self::NotJudged,
        }
    }

    /// Warning for the user about the disk at `path`; `None` if the times give no reason for a
    /// warning.
    pub fn warning(self, path: &str, figures: &FlushFigures, medium: &Medium) -> Option<String> {
        match self {
            Self::Plausible | Self::NotJudged => None,
            Self::NotDurable => Some(format!(
                "{path}: is in memory ({}), so a power loss or restart loses all its data; use it \
                 for tests only",
                medium.name
            )),
            Self::TooFast => Some(too_fast(path, figures, medium)),
        }
    }
}

/// Physical minimum time of a durable write on this medium; `None` if it is unknown.
fn least(medium: &Medium) -> Option<Duration> {
    match (medium.kind, medium.cache) {
        // USB sticks report that they rotate, and USB bridges hide caches; no USB disk is fast.
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
        _ if medium.usb => "connect it without USB, or do not store data on it",
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
        "{path}: reports 4 KiB as durable after {} (median of {samples}: write {}, flush {}, sync \
         write {}), but a {medium} needs at least {}. It completes flushes from a cache, and a \
         power loss that empties the cache loses flushed data: {remedy}",
        Micros(figures.durable()),
        Micros(write),
        Micros(flush),
        Micros(sync),
        Micros(least),
    )
}

/// Formats a short time in us or ms.
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
    fn only_impossible_times_are_suspected() {
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
            // The disk reports power-loss protection, so the kernel sends no flushes to the disk.
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
    fn usb_bridge_that_hides_the_cache_is_suspected() {
        let kind = MediumKind::SolidState;
        let hidden = Medium { usb: true, ..medium(kind, Some(CacheMode::WriteThrough)) };
        let verdict = FlushVerdict::of(&figures(200, 2, 200), &hidden);
        assert_eq!(verdict, FlushVerdict::TooFast);
        let text = verdict.warning("/dev/sda", &figures(200, 2, 200), &hidden).unwrap();
        assert!(text.contains("without USB"), "{text}");
        assert_eq!(FlushVerdict::of(&figures(200, 9000, 9000), &hidden), FlushVerdict::Plausible);
    }

    #[test]
    fn warning_states_the_measurement_and_a_remedy() {
        let medium = medium(MediumKind::SolidState, Some(CacheMode::WriteBack));
        let measured = figures(15, 20, 40);
        let text = FlushVerdict::TooFast.warning("/dev/sda", &measured, &medium).unwrap();
        for part in ["/dev/sda", "after 35 us", "at least 100 us", "data sheet", "median of 32"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
