//! Tables of lying disks. Each has the verdict that `weir bench` must give, over NBD and as a file.
//!
//! Not here: disks that lie about their timing (steady), disks that have a test of their own
//! (liars).
//!
//! Invariants: no verdict of these tables depends on the load of the machine. A disk lies only
//! after the fill unless its entry says otherwise, so that the fill succeeds.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::common::liar::{Act, BYTES, EIO, ENOSPC, Kind, Liar, Mount, Op};
use crate::common::{code, text};
use crate::liars::{Bench, MS, NO};

/// A change of the profile: a text in the profile, and the text that replaces it.
pub(crate) type Change = (&'static str, &'static str);
const SHORT: Change = ("duration = \"3s\"", "duration = \"500ms\"");
pub(crate) const NO_VERIFICATION: Change = ("sample_pct = 100", "sample_pct = 0");
const LARGE_BLOCKS: Change = ("block = \"4KiB\"\nread_pct", "block = \"64KiB\"\nread_pct");
pub(crate) const FLUSHES: Change = ("writes = \"none\"", "writes = \"flush\", every_writes = 4");
/// A load that `weir bench` can generate even on a busy machine.
const LIGHT: &str = "qd = [2]";

/// A lying disk, with the profile to measure it and the verdict that it must get.
#[derive(Clone, Copy)]
pub(crate) struct Lie {
    pub(crate) name: &'static str,
    pub(crate) act: fn(&Op) -> Act,
    pub(crate) latency: Duration,
    pub(crate) rate: f64,
    /// Percentage of reads in the row of the profile.
    pub(crate) reads: u32,
    pub(crate) load: &'static str,
    pub(crate) changes: &'static [Change],
    /// Additional arguments of `weir bench run`.
    pub(crate) more: &'static [&'static str],
    /// Verdict that the row must get, or [`REFUSED`].
    pub(crate) verdict: &'static str,
    pub(crate) status: i32,
    /// Text that the details of the row must contain if the disk is measured over NBD.
    pub(crate) words: &'static str,
    /// Text that the details of the row must contain if the disk is measured as a file; `None`
    /// skips this measurement.
    pub(crate) file_words: Option<&'static str>,
}

/// Used in place of a verdict if `weir bench` must refuse to start the run.
const REFUSED: &str = "refused";

impl Lie {
    /// Creates an entry for a disk with 1 ms latency. A load with 50 % reads must get this verdict,
    /// and exit code 1.
    pub(crate) const fn new(
        name: &'static str,
        verdict: &'static str,
        words: &'static str,
        act: fn(&Op) -> Act,
    ) -> Self {
        Self {
            name,
            act,
            latency: MS,
            rate: 1e6,
            reads: 50,
            load: "qd = [4]",
            changes: &[SHORT],
            more: &["--runs", "1"],
            verdict,
            status: NO,
            words,
            file_words: Some(words),
        }
    }

    /// Measures the disk over NBD and as a file. Returns how the verdicts and texts differ from the
    /// expected ones.
    pub(crate) fn differences(&self) -> Vec<String> {
        std::thread::scope(|scope| {
            let nbd = scope.spawn(|| {
                self.difference("over NBD", self.words, |bench, liar| (bench.serve(liar), None))
            });
            let file = self.file_words.and_then(|words| {
                self.difference("as a file", words, |bench, liar| {
                    bench.serve(liar);
                    let at = bench.path("disk");
                    let mount = Mount::new(&bench.short("liar"), at.clone());
                    (at.display().to_string(), Some(mount))
                })
            });
            nbd.join().unwrap().into_iter().chain(file).collect()
        })
    }

    fn difference(
        &self,
        way: &str,
        words: &str,
        serve: impl FnOnce(&Bench, Liar) -> (String, Option<Mount>),
    ) -> Option<String> {
        let bench = Bench::new(self.reads, self.load);
        let profile = bench.path("liars.toml");
        let mut toml = fs::read_to_string(&profile).unwrap();
        for (from, to) in self.changes {
            assert!(toml.contains(from), "{from}");
            toml = toml.replace(from, to);
        }
        fs::write(&profile, toml).unwrap();
        let liar = Liar { rate: self.rate, ..Liar::lying(self.latency, self.act) };
        let (target, _mount) = serve(&bench, liar);
        let words_of_run = ["run", "-p", "./liars.toml", "-t", &target, "-o", "out", "--json"];
        let output = bench.command(&[&words_of_run[..], self.more].concat()).output().unwrap();
        let row = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        let row = &row["cells"][0];
        let verdict = row["verdict"].as_str().unwrap_or(REFUSED);
        let remarks = row["remarks"].as_array().into_iter().flatten();
        let details: Vec<&str> = remarks.filter_map(|remark| remark["detail"].as_str()).collect();
        let details = if row.is_null() { text(&output) } else { details.join("; ") };
        let is_expected = verdict == self.verdict
            && output.status.code() == Some(self.status)
            && details.contains(words);
        let (name, status) = (self.name, output.status.code());
        (!is_expected).then(|| {
            let wanted = (self.verdict, self.status, words);
            format!("{name} {way}: {verdict}, exit code {status:?}, {details:?}; not {wanted:?}")
        })
    }
}

/// Measures all disks of a table.
#[track_caller]
fn check(table: &[Lie]) {
    let wrong: Vec<String> = table.iter().flat_map(Lie::differences).collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Applies the fault `act` to each operation of this kind whose number since the fill is a multiple
/// of `every`.
fn some(op: &Op, kind: Kind, every: u64, act: Act) -> Act {
    let is_one = op.kind == kind && op.number > 0 && op.number.is_multiple_of(every);
    if is_one { act } else { Act::Right }
}

/// Applies the fault `act` to every operation of this kind after the fill.
fn all(op: &Op, kind: Kind, act: Act) -> Act {
    some(op, kind, 1, act)
}

const DAMAGED: &str = "damaged";
const BAD: &str = "blocks differ from the written data";
const OTHER: &str = "the block of address";
const STALE: &str = "generation";
const ZEROS: &str = "only zeros";

/// Disks that damage or lose the data that they should store.
const KEPT: &[Lie] = &[
    Lie::new("a write in 50 has a flipped bit", "corrupt", DAMAGED, |op| {
        some(op, Kind::Write, 50, Act::Flip)
    }),
    Lie::new("a write in 50 is lost", "corrupt", STALE, |op| some(op, Kind::Write, 50, Act::Lose)),
    Lie::new("a write in 50 goes to the next block", "corrupt", OTHER, |op| {
        some(op, Kind::Write, 50, Act::At((op.start + op.len) % BYTES))
    }),
    Lie::new("a write in 50 goes 512 bytes too far", "corrupt", DAMAGED, |op| {
        some(op, Kind::Write, 50, Act::At(op.start + 512))
    }),
    Lie::new("a write in 20 is half kept", "corrupt", DAMAGED, |op| {
        some(op, Kind::Write, 20, Act::Tear)
    }),
    Lie::new("blocks keep their first contents", "corrupt", STALE, |op| {
        all(op, Kind::Write, Act::Lose)
    }),
    Lie::new("nothing is kept", "corrupt", ZEROS, |op| match op.kind {
        Kind::Write => Act::Lose,
        _ => Act::Right,
    }),
    Lie::new("a write in four of the fill is lost", "corrupt", ZEROS, |op| {
        let is_one = op.kind == Kind::Write && !op.filled && op.start.is_multiple_of(1 << 20);
        if is_one { Act::Lose } else { Act::Right }
    }),
];

/// Disks that store data correctly but return other data.
const RETURNED: &[Lie] = &[
    Lie::new("a read in 50 has a flipped bit", "corrupt", DAMAGED, |op| {
        some(op, Kind::Read, 50, Act::Flip)
    }),
    Lie::new("a read in 50 returns the next block", "corrupt", OTHER, |op| {
        some(op, Kind::Read, 50, Act::At((op.start + op.len) % BYTES))
    }),
    Lie::new("reads count from the end of the disk", "corrupt", OTHER, |op| {
        all(op, Kind::Read, Act::At(BYTES - op.start - op.len))
    }),
    Lie::new("a read in 50 returns older contents", "corrupt", BAD, |op| {
        some(op, Kind::Read, 50, Act::Old)
    }),
    Lie {
        changes: &[SHORT, NO_VERIFICATION],
        ..Lie::new("a read in 50 returns zeros, without verification", "holes", ZEROS, |op| {
            some(op, Kind::Read, 50, Act::Zeros)
        })
    },
    Lie {
        changes: &[NO_VERIFICATION, LARGE_BLOCKS],
        ..Lie::new("large writes are half kept, without verification", "corrupt", BAD, |op| {
            all(op, Kind::Write, Act::Tear)
        })
    },
];

/// Disks that fail operations with an error.
const REFUSING: &[Lie] = &[
    Lie::new("a read in 50 fails", "invalid", "read failed", |op| {
        some(op, Kind::Read, 50, Act::Fail(EIO))
    }),
    Lie::new("a write in 50 fails", "invalid", "write failed", |op| {
        some(op, Kind::Write, 50, Act::Fail(EIO))
    }),
    Lie::new("all writes fail", "invalid", "% reads instead of 50.0 %", |op| {
        all(op, Kind::Write, Act::Fail(EIO))
    }),
    Lie {
        changes: &[SHORT, FLUSHES],
        ..Lie::new("flushes fail", "invalid", "flush failed", |op| {
            // Only fail later flushes: the first 20 belong to the fill and to the probe.
            let is_one = op.kind == Kind::Flush && op.number > 20;
            if is_one { Act::Fail(EIO) } else { Act::Right }
        })
    },
    Lie::new("the disk shrinks", "invalid", "failed", |op| {
        let is_cut = op.filled && op.start >= BYTES / 2;
        if is_cut { Act::Fail(ENOSPC) } else { Act::Right }
    }),
    Lie {
        status: code::UNAVAILABLE,
        ..Lie::new("a write of the fill fails", REFUSED, "write failed 1 times", |op| {
            let is_one = op.kind == Kind::Write && op.start == 1 << 20;
            if is_one { Act::Fail(EIO) } else { Act::Right }
        })
    },
    Lie {
        status: code::UNAVAILABLE,
        ..Lie::new("the disk has half of its size", REFUSED, "No space left", |op| {
            let is_full = op.kind == Kind::Write && op.start >= BYTES / 2;
            if is_full { Act::Fail(ENOSPC) } else { Act::Right }
        })
    },
];

/// Servers that break the protocol or their connection. If such a disk is measured as a file, the
/// operations on the file fail.
const BROKEN: &[Lie] = &[
    Lie {
        file_words: Some("failed"),
        ..Lie::new("an answer is for no operation", "invalid", "unknown request", |op| {
            some(op, Kind::Read, 300, Act::Stranger)
        })
    },
    Lie {
        file_words: Some("failed"),
        ..Lie::new("an answer comes twice", "invalid", "unknown request", |op| {
            some(op, Kind::Write, 100, Act::Twice)
        })
    },
    Lie {
        file_words: None,
        ..Lie::new("answers are short", "invalid", "unknown request", |op| {
            some(op, Kind::Read, 300, Act::Short)
        })
    },
    Lie {
        file_words: Some("failed"),
        ..Lie::new("the connection breaks", "invalid", "talk to", |op| {
            some(op, Kind::Write, 100, Act::HangUp)
        })
    },
    Lie {
        file_words: Some("failed"),
        ..Lie::new("the server disappears", "invalid", "talk to", |op| {
            some(op, Kind::Write, 100, Act::Vanish)
        })
    },
];

/// Disks that answer from a cache. The exit code is 0: the figures are correct, although they show
/// the speed of the cache.
const CACHED: &[Lie] = &[
    Lie {
        load: LIGHT,
        more: &["--runs", "1", "--target-cache", "16MiB"],
        status: 0,
        ..Lie::new(
            "the dataset fits the cache",
            "cache-resident",
            "fits the cache of 16MiB",
            |_| Act::Right,
        )
    },
    Lie {
        load: LIGHT,
        changes: &[SHORT, (LIGHT, "qd = [2]\n[limits]\ndisk_iops = 100")],
        status: 0,
        ..Lie::new("more than the disks can do", "cache-resident", "the stated limit", |_| {
            Act::Right
        })
    },
];

#[test]
fn lost_or_damaged_writes_are_corrupt() {
    check(KEPT);
}

#[test]
fn wrong_data_from_reads_is_corrupt_or_holes() {
    check(RETURNED);
}

#[test]
fn refused_operations_are_invalid() {
    check(REFUSING);
}

#[test]
fn protocol_errors_are_invalid() {
    check(BROKEN);
}

#[test]
fn figures_of_a_cache_are_cache_resident() {
    check(CACHED);
}

// Regression: an unresponsive file blocked `weir bench` for ever, because only operations on
// servers had a time limit.
#[test]
fn unresponsive_disk_is_invalid_after_30_seconds() {
    check(&[Lie {
        changes: &[NO_VERIFICATION],
        ..Lie::new("the disk goes silent", "invalid", "no answer to any operation", |op| {
            if op.number > 100 { Act::Silent } else { Act::Right }
        })
    }]);
}

#[test]
fn operation_without_a_reply_is_invalid_after_30_seconds() {
    check(&[Lie {
        changes: &[SHORT, NO_VERIFICATION],
        ..Lie::new("one write gets no answer", "invalid", "no answer", |op| {
            let is_one = op.kind == Kind::Write && op.number == 100;
            if is_one { Act::Silent } else { Act::Right }
        })
    }]);
}
