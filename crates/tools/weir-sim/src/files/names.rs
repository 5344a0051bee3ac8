//! Names that clients use, and their comparison in the model.
//!
//! In a case-insensitive filesystem, clients use several spellings of each name.
//!
//! Invariants:
//! - the model has its own list of equal letters, so that it notices a fault in the tables of
//!   weir-fs;
//! - a name keeps its spelling until a rename gives it another one.

use weir_fs::{Attributes, RenameMode};

use super::book::Book;
use super::content::{Inode, Names, inode_of};
use crate::rng::Rng;

/// Number of short names.
const SHORT_NAMES: u64 = 7;
/// Number of long names. A directory with all of them has several blocks.
const LONG_NAMES: u64 = 24;
const LONG_NAME_BYTES: usize = 240;
/// Number of bytes after the letters and the number of a long name with several spellings.
const LONG_TAIL_BYTES: usize = 225;
/// Spellings of the letters of a name. They differ in their number of bytes.
const SPELLINGS: [&[&str]; 3] = [
    &["k", "K", "\u{212a}"],
    &["\u{e9}", "\u{c9}", "e\u{301}", "E\u{301}"],
    &["\u{3c3}", "\u{3a3}", "\u{3c2}"],
];

/// A name in a directory.
pub(super) type Place = (Inode, Vec<u8>);

/// Draws a name, in one of its spellings if the filesystem is case-insensitive.
pub(super) fn draw(rng: &mut Rng, folds: bool) -> Vec<u8> {
    let is_short = rng.below(4) > 0;
    let number = rng.below(if is_short { SHORT_NAMES } else { LONG_NAMES });
    if folds {
        let letters = SPELLINGS.map(|spellings| spellings[rng.index(spellings.len())]).concat();
        let tail = if is_short { 0 } else { LONG_TAIL_BYTES };
        return format!("{letters}{number}{}", ".".repeat(tail)).into_bytes();
    }
    if is_short {
        return format!("n{number}").into_bytes();
    }
    let mut name = format!("long{number}").into_bytes();
    name.resize(LONG_NAME_BYTES, b'.');
    name
}

/// Draws a spelling of a name.
pub(super) fn respell(rng: &mut Rng, name: &[u8]) -> Vec<u8> {
    let mut name = first_spelling(name);
    for spellings in SPELLINGS {
        name = name.replace(spellings[0], spellings[rng.index(spellings.len())]);
    }
    name.into_bytes()
}

/// The first spelling of a name.
fn first_spelling(name: &[u8]) -> String {
    let mut name = String::from_utf8_lossy(name).into_owned();
    for spellings in SPELLINGS {
        for other in spellings {
            name = name.replace(other, spellings[0]);
        }
    }
    name
}

impl Book {
    /// The place of a name in its present spelling, with its inode.
    pub(super) fn find(&self, directory: Inode, name: &[u8]) -> Option<(Place, Inode)> {
        let of_name = |(place, inode): (&Place, &Inode)| (place.clone(), *inode);
        if !self.folds {
            return self.now().get_key_value(&(directory, name.to_vec())).map(of_name);
        }
        let form = first_spelling(name);
        let mut all = self.now().iter().filter(|((of, _), _)| *of == directory);
        all.find(|((_, other), _)| first_spelling(other) == form).map(of_name)
    }

    /// Records a rename that succeeded.
    pub(super) fn renamed(
        &mut self,
        (from, old): (Inode, &[u8]),
        (to, new): (Inode, &[u8]),
        mode: RenameMode,
    ) {
        let (Some(from), Some(to)) = (self.directory(from.0), self.directory(to.0)) else {
            return self.fail(format!("a rename from {from:?} to {to:?} succeeded"));
        };
        let Some((source, moved)) = self.find(from, old) else {
            return self.fail(format!("a rename from a name without an inode in {from:?}"));
        };
        let target = self.find(to, new);
        let is_respelled = target.as_ref().is_some_and(|(place, _)| *place == source);
        if is_respelled && (mode == RenameMode::Exchange || old == new || source.1 == new) {
            return;
        }
        let target = target.filter(|_| !is_respelled);
        if target.as_ref().is_some_and(|(_, inode)| *inode == moved) {
            return;
        }
        let other = target.as_ref().map(|(_, inode)| *inode);
        let named: Vec<Inode> = std::iter::once(moved).chain(other).collect();
        self.rename(&named, |names: &mut Names| {
            names.remove(&source);
            match (target, mode) {
                (Some((place, other)), RenameMode::Exchange) => {
                    names.insert(place, moved);
                    names.insert(source, other);
                }
                (target, _) => {
                    target.map(|(place, _)| names.remove(&place));
                    names.insert((to, new.to_vec()), moved);
                }
            }
        });
    }

    /// Compares a lookup that no change accompanied.
    pub(super) fn judge_lookup(
        &mut self,
        directory: Inode,
        name: &[u8],
        found: Option<&Attributes>,
    ) {
        let Some(directory) = self.directory(directory.0) else { return };
        let expected = self.find(directory, name).map(|(_, inode)| inode);
        let found = found.map(inode_of);
        if found != expected {
            let name = String::from_utf8_lossy(name);
            self.fail(format!("{name} in {directory:?} is {found:?}, not {expected:?}"));
        }
    }
}
