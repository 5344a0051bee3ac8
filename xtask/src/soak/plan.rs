//! The pieces that a release must have passed.
//!
//! Not here: what became of them (results.rs).
//!
//! Invariants: a piece needs nothing of another and takes less than 15 minutes; no two check the
//! same seeds.

use serde::{Deserialize, Serialize};

/// Crash recoveries in all.
pub(super) const RECOVERIES: u64 = 500_000;
/// Those of one piece: a few minutes.
const PIECE_RECOVERIES: u64 = 25_000;
/// Distance between the first seeds of two pieces. A scenario makes dozens of recoveries, so no
/// piece comes near it.
const SEEDS_APART: u64 = 1_000_000;
/// Pieces of load.
const LOADS: u64 = 6;
/// Seconds for each fuzz target.
pub(super) const FUZZ_SECONDS: u64 = 60;

/// Minutes of load in so many pieces; load.rs runs five pairs of two minutes.
pub(super) const fn load_minutes(pieces: u64) -> u64 {
    10 * pieces
}

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Recoveries,
    Load,
    Fuzz,
    Deny,
}

impl Kind {
    /// Seconds that a piece takes about, where none has been run.
    pub(super) fn usual_seconds(self) -> f64 {
        match self {
            Self::Recoveries => 300.0,
            Self::Load => 680.0,
            Self::Fuzz => 75.0,
            Self::Deny => 20.0,
        }
    }

    /// Seconds after which a piece counts as hung.
    pub(super) fn limit_seconds(self) -> u64 {
        match self {
            Self::Recoveries | Self::Load => 15 * 60,
            Self::Fuzz | Self::Deny => 5 * 60,
        }
    }
}

/// One piece of a soak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Recoveries from this seed on.
    Recoveries { number: u64, first_seed: u64, recoveries: u64 },
    /// Verified load beside hostile clients.
    Load { number: u64 },
    /// One fuzz target.
    Fuzz { target: String },
    /// Licences, crates and sources.
    Deny,
}

impl Piece {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Recoveries { .. } => Kind::Recoveries,
            Self::Load { .. } => Kind::Load,
            Self::Fuzz { .. } => Kind::Fuzz,
            Self::Deny => Kind::Deny,
        }
    }

    /// Its name in results and files.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Recoveries { number, .. } => format!("recoveries-{number:02}"),
            Self::Load { number } => format!("load-{number}"),
            Self::Fuzz { target } => format!("fuzz-{target}"),
            Self::Deny => "deny".to_owned(),
        }
    }
}

/// All pieces, with these fuzz targets; the short ones first, for they find what is plainly broken.
pub(super) fn pieces(targets: &[String]) -> Vec<Piece> {
    let fuzz = targets.iter().map(|target| Piece::Fuzz { target: target.clone() });
    let recoveries = (0..RECOVERIES.div_ceil(PIECE_RECOVERIES)).map(|index| Piece::Recoveries {
        number: index + 1,
        first_seed: index * SEEDS_APART + 1,
        recoveries: PIECE_RECOVERIES,
    });
    let loads = (1..=LOADS).map(|number| Piece::Load { number });
    std::iter::once(Piece::Deny).chain(fuzz).chain(recoveries).chain(loads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_are_apart_and_add_up() {
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
        // More scenarios than a piece could have, were each only one recovery.
        assert!(seeds.windows(2).all(|pair| pair[1] - pair[0] > PIECE_RECOVERIES));
        let loads = pieces.iter().filter(|piece| piece.kind() == Kind::Load).count() as u64;
        assert_eq!(load_minutes(loads), 60);
        assert!(pieces.iter().all(|piece| piece.kind().usual_seconds() < 15.0 * 60.0));
    }
}
