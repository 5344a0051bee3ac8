//! Errors of profiles, with file and line.
//!
//! Traps are legal settings that mislead; `lint` reports them.
//!
//! Invariant: an error in a file names the file and the line.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Reason why a profile cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The name is neither a built-in profile nor a file.
    #[error(
        "there is no profile {name:?}; write the path of a .toml, .fio or .icf file, or one of \
         {known}"
    )]
    Unknown {
        /// Name as the user wrote it.
        name: String,
        /// Names of the built-in profiles.
        known: String,
    },
    /// The file cannot be read.
    #[error("profile {} cannot be read: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Invalid TOML, or a value of the wrong type.
    #[error("{file}:{line}: {what}")]
    Syntax {
        /// The file.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// Description of the error.
        what: String,
    },
    /// A key is unknown, or a value is an unknown word where only certain words are valid.
    #[error("{file}:{line}: `{word}` is not known here{}; known: {known}", hint(nearest.as_ref()))]
    UnknownWord {
        /// The file.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// The unknown word.
        word: String,
        /// The known word that is most similar to the unknown word, if there is a similar one.
        nearest: Option<String>,
        /// All words that are valid instead of the unknown word.
        known: String,
    },
    /// A mandatory key is missing.
    #[error("{file}:{line}: `{key}` is missing and has no default")]
    Missing {
        /// The file.
        file: String,
        /// Line on which the key's table begins, from 1.
        line: usize,
        /// The missing key.
        key: String,
    },
    /// A value is invalid, alone or together with another value.
    #[error("{file}:{line}: {what}; {action}")]
    Contradiction {
        /// The file.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// Description and reason of the error.
        what: String,
        /// Recommended action for the user.
        action: String,
    },
    /// fio can run no cell of the run.
    #[error("fio can run no row of {name}: {why}")]
    NothingForFio {
        /// Name of the run.
        name: String,
        /// Cells of the run, each with the reason why fio cannot run it.
        why: String,
    },
    /// The profile has no such variant.
    #[error("{file}: there is no variant {name:?}; {known}")]
    Variant {
        /// The file.
        file: String,
        /// Name as the user wrote it.
        name: String,
        /// Text that lists the variants of the profile.
        known: String,
    },
}

fn hint(nearest: Option<&String>) -> String {
    nearest.map(|word| format!(", did you mean `{word}`?")).unwrap_or_default()
}

/// Text of a profile, used to find the line number of a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// Number, from 1, of the line in which a span of the text begins.
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

    /// Returns an error for a word that is not in `known`.
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

/// Returns an error at a line of an imported file.
pub(super) fn refuse(
    file: &str,
    line: usize,
    what: impl Into<String>,
    action: impl Into<String>,
) -> ProfileError {
    let file = file.to_owned();
    ProfileError::Contradiction { file, line, what: what.into(), action: action.into() }
}

/// Returns the known word that is most similar to `word`; `None` if no known word is similar.
pub(super) fn nearest(word: &str, known: &[&str]) -> Option<String> {
    let distances = known.iter().map(|other| (strsim::damerau_levenshtein(word, other), *other));
    let (distance, best) = distances.min()?;
    // Up to half of the letters may differ: for `reads` this suggests `read_pct`.
    (distance <= word.len().max(best.len()) / 2).then(|| best.to_owned())
}
