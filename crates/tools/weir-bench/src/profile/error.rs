//! What can be wrong with a profile, and where.
//!
//! Not here: traps, which are legal but mislead (lint).
//!
//! Invariant: an error in a file names the file and the line.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Why a profile cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Neither built in nor a file.
    #[error(
        "there is no profile {name:?}; write the path of a .toml, .fio or .icf file, or one of \
         {known}"
    )]
    Unknown {
        /// As it was given.
        name: String,
        /// Those that are built in.
        known: String,
    },
    /// The file cannot be read.
    #[error("profile {} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Not TOML, or a value of the wrong kind.
    #[error("{file}:{line}: {what}")]
    Syntax {
        /// The file.
        file: String,
        /// Line in it, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A key, or one of a fixed set of words, that is not known here.
    #[error("{file}:{line}: `{word}` is not known here{}; known: {known}", hint(nearest.as_ref()))]
    UnknownWord {
        /// The file.
        file: String,
        /// Line in it, from 1.
        line: usize,
        /// As it was written.
        word: String,
        /// What was probably meant.
        nearest: Option<String>,
        /// All that are known here.
        known: String,
    },
    /// A key that must be there is not.
    #[error("{file}:{line}: `{key}` is missing; nothing is assumed for it")]
    Missing {
        /// The file.
        file: String,
        /// Line where its table begins, from 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// Values that cannot be, alone or together.
    #[error("{file}:{line}: {what}; {action}")]
    Contradiction {
        /// The file.
        file: String,
        /// Line in it, from 1.
        line: usize,
        /// What is wrong, and why.
        what: String,
        /// What to do about it.
        action: String,
    },
    /// No row of a run can be done by fio.
    #[error("fio can do no row of {name}: {why}")]
    NothingForFio {
        /// Name of the run.
        name: String,
        /// Rows, and why not.
        why: String,
    },
    /// The profile has no such variant.
    #[error("{file}: there is no variant {name:?}; {known}")]
    Variant {
        /// The file.
        file: String,
        /// As it was given.
        name: String,
        /// Those that it has.
        known: String,
    },
}

fn hint(nearest: Option<&String>) -> String {
    nearest.map(|word| format!(", did you mean `{word}`?")).unwrap_or_default()
}

/// The text of a profile, for telling where something stands in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// Line of a place in the text, from 1.
    pub(super) fn line(&self, place: &Range<usize>) -> usize {
        let before = self.text.get(..place.start).unwrap_or(self.text);
        before.bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    pub(super) fn contradiction(
        &self,
        place: &Range<usize>,
        what: impl Into<String>,
        action: impl Into<String>,
    ) -> ProfileError {
        refuse(self.file, self.line(place), what, action)
    }

    /// A word that is not one of those that are known.
    pub(super) fn unknown(&self, place: &Range<usize>, word: &str, known: &[&str]) -> ProfileError {
        ProfileError::UnknownWord {
            file: self.file.to_owned(),
            line: self.line(place),
            word: word.to_owned(),
            nearest: nearest(word, known),
            known: known.join(", "),
        }
    }
}

/// An error at a line of a file that is imported.
pub(super) fn refuse(
    file: &str,
    line: usize,
    what: impl Into<String>,
    action: impl Into<String>,
) -> ProfileError {
    let file = file.to_owned();
    ProfileError::Contradiction { file, line, what: what.into(), action: action.into() }
}

/// What was probably meant; `None` where nothing is near.
pub(super) fn nearest(word: &str, known: &[&str]) -> Option<String> {
    let distances = known.iter().map(|other| (strsim::damerau_levenshtein(word, other), *other));
    let (distance, best) = distances.min()?;
    // Half of the letters may be wrong: `reads` for `read_pct` is still found.
    (distance <= word.len().max(best.len()) / 2).then(|| best.to_owned())
}
