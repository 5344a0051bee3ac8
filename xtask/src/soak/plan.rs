//! The pieces of a soak. A release needs a passed result of each piece.
//!
//! Not here: the results of the pieces (results.rs).
//!
//! Invariants: pieces are independent and take less than 15 minutes each; no two pieces check the
//! same seeds.

use serde::{Deserialize, Serialize};

use crate::sim::Scenarios;

/// Number of crash recoveries of all pieces together.
pub(super) const RECOVERIES: u64 = 500_000;
/// Number of crash recoveries that one piece checks; they take a few minutes.
const PIECE_RECOVERIES: u64 = 25_000;
/// Distance between the first seeds of two pieces. A scenario has one seed and dozens of
/// recoveries, so a piece uses far fewer seeds than this.
const SEEDS_APART: u64 = 1_000_000;
/// Number of load pieces.
const LOADS: u64 = 5;
/// Scenarios of filesystems and NFS clients: the number of pieces, and the number of seeds of a
/// piece, which take a few minutes.
const SEEDS: [(Scenarios, u64, u64); 2] =
    [(Scenarios::Files, 4, FILES_SEEDS), (Scenarios::Nfs, 4, NFS_SEEDS)];
/// A seed of a filesystem takes about 5 s.
const FILES_SEEDS: u64 = 30;
/// A seed of NFS clients takes about 0.1 s.
const NFS_SEEDS: u64 = 1500;
/// Seconds for each fuzz target.
pub(super) const FUZZ_SECONDS: u64 = 60;

/// Returns the minutes that `pieces` load pieces take. Each piece has six pairs of runs of two
/// minutes (load.rs).
pub(super) const fn load_minutes(pieces: u64) -> u64 {
    12 * pieces
}

/// Kind of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Recoveries,
    Seeds,
    Load,
    Fuzz,
    Tests,
    Deny,
}

/// End-to-end tests that run longer here than in `make test`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LongTests {
    /// Name of the test, or text that the names of the tests contain.
    pub(super) filter: &'static str,
    /// Environment variable that sets the length, and its value.
    pub(super) length: (&'static str, &'static str),
}

/// Long end-to-end tests, each with the name of its piece.
const LONG_TESTS: [(&str, LongTests); 4] = [
    (
        "crash",
        LongTests {
            filter: "crash::flushed_changes_survive_sigkill",
            length: ("WEIR_CRASH_ROUNDS", "48"),
        },
    ),
    (
        "send",
        LongTests {
            filter: "send::streams_survive_kills_of_either_side",
            length: ("WEIR_SEND_KILLS", "100"),
        },
    ),
    (
        "files",
        LongTests {
            filter: "weir::all::files_model::",
            length: ("WEIR_FILES_OPERATIONS", "25000"),
        },
    ),
    ("full", LongTests { filter: "weir::all::full::", length: ("WEIR_FULL_CYCLES", "24") }),
];

impl Kind {
    /// Returns the expected seconds of a piece of this kind, for a machine that has no record of
    /// such a piece.
    pub(super) fn usual_seconds(self) -> f64 {
        match self {
            Self::Recoveries | Self::Seeds => 300.0,
            Self::Load => 800.0,
            Self::Fuzz => 75.0,
            Self::Tests => 120.0,
            Self::Deny => 20.0,
        }
    }

    /// Returns the seconds after which a piece of this kind counts as hung.
    pub(super) fn limit_seconds(self) -> u64 {
        match self {
            Self::Recoveries | Self::Seeds | Self::Load => 15 * 60,
            Self::Fuzz | Self::Tests | Self::Deny => 5 * 60,
        }
    }
}

/// One piece of a soak, which runs alone and has a result of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Crash recoveries of the scenarios from this seed on.
    Recoveries { number: u64, first_seed: u64, recoveries: u64 },
    /// Scenarios of filesystems or NFS clients with these seeds.
    Seeds { scenarios: Scenarios, number: u64, first_seed: u64, seeds: u64 },
    /// Verified load with concurrent hostile clients.
    Load { number: u64 },
    /// One fuzz target.
    Fuzz { target: String },
    /// End-to-end tests in their long form.
    Tests { name: &'static str, tests: LongTests },
    /// Licences, bans and sources, checked by cargo-deny.
    Deny,
}

impl Piece {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Recoveries { .. } => Kind::Recoveries,
            Self::Seeds { .. } => Kind::Seeds,
            Self::Load { .. } => Kind::Load,
            Self::Fuzz { .. } => Kind::Fuzz,
            Self::Tests { .. } => Kind::Tests,
            Self::Deny => Kind::Deny,
        }
    }

    /// Returns the name of the piece in results and files.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Recoveries { number, .. } => format!("recoveries-{number:02}"),
            Self::Seeds { scenarios, number, .. } => {
                format!("{}-{number}", scenarios.example().unwrap_or("pools"))
            }
            Self::Load { number } => format!("load-{number}"),
            Self::Fuzz { target } => format!("fuzz-{target}"),
            Self::Tests { name, .. } => format!("tests-{name}"),
            Self::Deny => "deny".to_owned(),
        }
    }
}

/// Returns all pieces, with one for each of these fuzz targets. Short pieces come first, because
/// they find obvious faults early.
pub(super) fn pieces(targets: &[String]) -> Vec<Piece> {
    let fuzz = targets.iter().map(|target| Piece::Fuzz { target: target.clone() });
    let recoveries = (0..RECOVERIES.div_ceil(PIECE_RECOVERIES)).map(|index| Piece::Recoveries {
        number: index + 1,
        first_seed: index * SEEDS_APART + 1,
        recoveries: PIECE_RECOVERIES,
    });
    let seeds = SEEDS.into_iter().flat_map(|(scenarios, pieces, seeds)| {
        (0..pieces).map(move |index| Piece::Seeds {
            scenarios,
            number: index + 1,
            first_seed: index * seeds + 1,
            seeds,
        })
    });
    let loads = (1..=LOADS).map(|number| Piece::Load { number });
    let tests = LONG_TESTS.map(|(name, tests)| Piece::Tests { name, tests });
    let short = std::iter::once(Piece::Deny).chain(fuzz).chain(tests);
    short.chain(seeds).chain(recoveries).chain(loads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_separate_seeds_and_add_up() {
        let pieces = pieces(&["a".to_owned(), "b".to_owned()]);
        let mut names: Vec<String> = pieces.iter().map(Piece::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), pieces.len());
        let (mut sum, mut seeds) = (0, Vec::new());
        for piece in &pieces {
            if let Piece::Recoveries { first_seed, recoveries, .. } = piece {
                sum += recoveries;
                seeds.push(*first_seed);
            }
        }
        assert_eq!((sum, seeds[0]), (RECOVERIES, 1));
        // Even if each scenario had only one recovery, a piece would use fewer seeds than the
        // distance between the first seeds of two pieces.
        assert!(seeds.windows(2).all(|pair| pair[1] - pair[0] > PIECE_RECOVERIES));
        for (scenarios, pieces_of, count) in SEEDS {
            let ranges = pieces.iter().filter_map(|piece| match piece {
                Piece::Seeds { scenarios: of, first_seed, seeds, .. } if *of == scenarios => {
                    Some(*first_seed..first_seed + seeds)
                }
                _ => None,
            });
            let all: Vec<u64> = ranges.flatten().collect();
            assert!(all.iter().copied().eq(1..=pieces_of * count), "each seed once");
        }
        let loads = pieces.iter().filter(|piece| piece.kind() == Kind::Load).count() as u64;
        assert_eq!(load_minutes(loads), 60);
        assert!(pieces.iter().all(|piece| piece.kind().usual_seconds() < 15.0 * 60.0));
    }
}
