//! Errors of profiles, each with its file and line.
//!
//! `lint` reports traps: legal settings that make results misleading.
//!
//! Invariant: an error in a file contains the file's name and the line.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Reason why a profile cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The name is neither the name of a built-in profile nor the path of a file.
    #[error(
        "there is no profile {name:?}; write the path of a .toml, .fio or .icf file, or one of \
         {known}"
    )]
    Unknown {
        /// Name of the profile as the user wrote it.
        name: String,
        /// Names of the built-in profiles.
        known: String,
    },
    /// The file cannot be read.
    #[error("profile {} cannot be read: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// The text is not valid TOML, or a value has the wrong type.
    #[error("{file}:{line}: {what}")]
    Syntax {
        /// Name of the file.
        file: String,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the syntax error.
        what: String,
    },
    /// A key is unknown, or a value is a word that is not valid for its key.
    #[error("{file}:{line}: `{word}` is not known here{}; known: {known}", hint(nearest.as_ref()))]
    UnknownWord {
        /// Name of the file.
        file: String,
        /// Number of the line, from 1.
        line: usize,
        /// Word that is unknown.
        word: String,
        /// Valid word that is most similar to the unknown word, if there is a similar one.
        nearest: Option<String>,
        /// All words that would be valid in place of the unknown word.
        known: String,
    },
    /// The profile lacks a mandatory key.
    #[error("{file}:{line}: `{key}` is missing and has no default")]
    Missing {
        /// Name of the file.
        file: String,
        /// Number of the line, from 1, at which the table of the missing key begins.
        line: usize,
        /// Key that is missing.
        key: String,
    },
    /// A value is invalid, or contradicts another value.
    #[error("{file}:{line}: {what}; {action}")]
    Contradiction {
        /// Name of the file.
        file: String,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the error, with its reason.
        what: String,
        /// Action that the user should take.
        action: String,
    },
    /// The user requested operations on files, but the target has none.
    #[error(
        "operations on files need a target with files, such as {with_files}; a target of kind \
         {kind} has none"
    )]
    NoFiles {
        /// Kind of the target.
        kind: &'static str,
        /// Forms of the addresses of targets with files.
        with_files: &'static str,
    },
    /// fio cannot run any cell of the run.
    #[error("fio can run no row of {name}: {why}")]
    NothingForFio {
        /// Name of the run.
        name: String,
        /// Cells of the run, each with the reason for which fio cannot run the cell.
        why: String,
    },
    /// The profile has no variant of this name.
    #[error("{file}: there is no variant {name:?}; {known}")]
    Variant {
        /// Name of the file.
        file: String,
        /// Name of the variant, as the user wrote it.
        name: String,
        /// Text that lists the variants of the profile.
        known: String,
    },
}

fn hint(nearest: Option<&String>) -> String {
    nearest.map(|word| format!(", did you mean `{word}`?")).unwrap_or_default()
}

/// Text of a profile, with which the line number of a value is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// Number (from 1) of the line in which a range of the text begins.
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

    /// Returns the error for a word that is not in `known`.
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

/// Returns an error with a line of an imported file.
pub(super) fn refuse(
    file: &str,
    line: usize,
    what: impl Into<String>,
    action: impl Into<String>,
) -> ProfileError {
    let file = file.to_owned();
    ProfileError::Contradiction { file, line, what: what.into(), action: action.into() }
}

/// Returns the word in `known` that is most similar to `word`; `None` if no known word is similar.
pub(super) fn nearest(word: &str, known: &[&str]) -> Option<String> {
    let distances = known.iter().map(|other| (strsim::damerau_levenshtein(word, other), *other));
    let (distance, best) = distances.min()?;
    // Up to half of the letters may differ, so that `reads` suggests `read_pct`.
    (distance <= word.len().max(best.len()) / 2).then(|| best.to_owned())
}
