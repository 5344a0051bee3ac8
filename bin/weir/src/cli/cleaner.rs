//! The line about the cleaner that `weir pool status` prints.
//!
//! Not here: the counters of the cleaner (`pool_status` returns them).
//!
//! Invariant: the line shows each threshold next to the current value.

use weir_api::types::CleanerStatus;
use weir_base::size::Human;

/// Describes the recent work of a pool's cleaner with its thresholds; `None` for a pool that is not
/// imported.
pub(crate) fn line(cleaner: Option<&CleanerStatus>) -> Option<String> {
    let cleaner = cleaner?;
    let lately = if cleaner.working {
        let seconds = cleaner.lately_ms.max(1000) / 1000;
        let speed = cleaner.lately_moved_bytes * 1000 / cleaner.lately_ms.max(1);
        let segments = cleaner.lately_segments;
        format!("cleaned {segments} segments in {seconds} s, moving {}/s", Human(speed))
    } else {
        "cleaner idle".to_owned()
    };
    let pending = match cleaner.pending_segments {
        0 => String::new(),
        pending => format!(", {pending} more within a few txgs"),
    };
    let remap = match cleaner.remap_bytes {
        0 => String::new(),
        bytes => format!("; remap tables take {} of RAM", Human(bytes)),
    };
    Some(format!(
        "{lately}; {} of {} segments free{pending}; cleans below {}, when idle below {}{remap}",
        cleaner.free_segments,
        cleaner.segments,
        cleaner.clean_below_segments,
        cleaner.clean_idle_below_segments,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_distinguishes_active_and_idle_cleaners() {
        assert_eq!(line(None), None);
        let idle = CleanerStatus {
            free_segments: 200,
            segments: 254,
            clean_below_segments: 39,
            clean_idle_below_segments: 64,
            ..CleanerStatus::default()
        };
        let text = line(Some(&idle)).unwrap();
        let wanted = "cleaner idle; 200 of 254 segments free; cleans below 39, when idle below 64";
        assert_eq!(text, wanted);
        let busy = CleanerStatus {
            working: true,
            lately_ms: 10_000,
            lately_segments: 7,
            lately_moved_bytes: 50 << 20,
            pending_segments: 3,
            remap_bytes: 2 << 20,
            ..idle
        };
        let text = line(Some(&busy)).unwrap();
        assert!(text.starts_with("cleaned 7 segments in 10 s, moving 5"), "{text}");
        assert!(
            text.contains("free, 3 more within a few txgs;") && text.contains("remap"),
            "{text}"
        );
    }
}
