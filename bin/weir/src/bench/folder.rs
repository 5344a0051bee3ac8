//! The directory of a run, with `result.json` and the report.
//!
//! Not here: the contents of these files (weir-bench).
//!
//! Invariants:
//! - `result.json` is replaced atomically by a rename, so a killed run leaves the previous file
//!   intact;
//! - the program writes `result.json` before the measurement starts: a full or read-only file
//!   system then causes an error early. If a later write fails, the result goes to another
//!   directory, whose path the program prints.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_bench::result::{RunResult, SCHEMA};
use weir_bench::standing::Standing;
use weir_bench::verdict::{JudgedCell, JudgedRun};

use crate::cli::base::output::date;

/// Name of the result file.
pub(super) const RESULT: &str = "result.json";

/// The directory of a run.
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates a directory for a new run.
    pub(super) fn make(path: &Path) -> Result<Self, ApiError> {
        fs::create_dir_all(path).map_err(|error| cannot("make", path, &error))?;
        if path.join(RESULT).exists() {
            let message = format!("{} holds the result of another run", path.display());
            return Err(ApiError::new(ErrorKind::Exists, message).with_action(
                "name another directory with --out, or continue that run with --resume",
            ));
        }
        Ok(Self { path: path.to_owned() })
    }

    /// Opens an existing directory.
    pub(super) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the result file by a file with this result, its figures and its verdicts.
    pub(super) fn keep(&self, result: &RunResult) -> io::Result<()> {
        write(&self.path, &WithVerdicts::of(&JudgedRun::of(result.clone())))
    }

    /// Saves the final result and returns the path of its file. If the directory of the run cannot
    /// be written, saves the result in another directory and returns an error with the path of that
    /// directory.
    pub(super) fn keep_somewhere(&self, judged: &JudgedRun) -> Result<PathBuf, ApiError> {
        let (result, whole) = (judged.result(), WithVerdicts::of(judged));
        let Err(error) = write(&self.path, &whole) else { return Ok(self.path.join(RESULT)) };
        let other = std::env::temp_dir().join(format!("weir-bench-{}", result.started_unix_ms));
        let kept = fs::create_dir_all(&other).and_then(|()| write(&other, &whole));
        let first = cannot("write", &self.path.join(RESULT), &error);
        if kept.is_err() {
            return Err(first);
        }
        let there = other.join(RESULT);
        Err(first.with_action(format!("the result is written to {} instead", there.display())))
    }
}

/// Result with its verdicts, as the file contains them. A reader of the file ignores these verdicts
/// and judges the result again.
#[derive(Serialize)]
struct WithVerdicts<'a> {
    #[serde(flatten)]
    result: &'a RunResult,
    quotable: usize,
    cache_standing: Standing,
    cells_judged: &'a [JudgedCell],
}

impl<'a> WithVerdicts<'a> {
    fn of(judged: &'a JudgedRun) -> Self {
        let result = judged.result();
        Self {
            result,
            quotable: judged.quotable().0,
            cache_standing: Standing::of(result),
            cells_judged: judged.cells(),
        }
    }
}

fn write(directory: &Path, result: &impl Serialize) -> io::Result<()> {
    let (new, place) = (directory.join(".result.json.new"), directory.join(RESULT));
    let written = write_new(&new, result).and_then(|()| fs::rename(&new, &place));
    if written.is_err() {
        // Remove the partial file, which only takes space. The caller reports the error of the
        // write.
        drop(fs::remove_file(&new));
    }
    written
}

fn write_new(path: &Path, result: &impl Serialize) -> io::Result<()> {
    let mut file = File::create(path)?;
    serde_json::to_writer(&mut file, result)?;
    file.write_all(b"\n")?;
    file.sync_all()
}

/// Reads a result from its file or its directory.
pub(super) fn read(path: &Path) -> Result<RunResult, ApiError> {
    let file = if path.is_dir() { path.join(RESULT) } else { path.to_owned() };
    let text = fs::read_to_string(&file).map_err(|error| cannot("read", &file, &error))?;
    let bad = |why: &dyn std::fmt::Display| {
        let message = format!("{} is not a result of weir bench: {why}", file.display());
        ApiError::new(ErrorKind::Invalid, message)
    };
    // Check the schema version first: results of other versions have other fields, and would give a
    // misleading error.
    let Head { schema } = serde_json::from_str(&text).map_err(|error| bad(&error))?;
    if schema != SCHEMA {
        return Err(bad(&format!("its schema is {schema}, this program supports {SCHEMA}")));
    }
    serde_json::from_str(&text).map_err(|error| bad(&error))
}

/// The part of a result file that all versions have.
#[derive(Deserialize)]
struct Head {
    schema: u32,
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> ApiError {
    let kind = ErrorKind::of_file(error.kind());
    let told = ApiError::new(kind, format!("cannot {what} {}: {error}", path.display()));
    // The general action for a missing object is a list of the server's objects.
    if kind == ErrorKind::NotFound { told.with_action("check the path") } else { told }
}

/// Returns the default directory of a run: its name contains the name of the profile and the time.
pub(super) fn default_path(profile: &str, unix_ms: u64) -> PathBuf {
    let time: String = date(unix_ms)
        .chars()
        .map(|c| if c.is_ascii_digit() { c } else { '-' })
        .take("2026-01-01-00-00-00".len())
        .collect();
    PathBuf::from(format!("weir-bench-{}-{time}", plain(profile)))
}

/// Replaces the characters that are not allowed in a file name. The name of an imported profile is
/// the path of its job file, for example.
fn plain(name: &str) -> String {
    const LETTERS_MAX: usize = 64;
    let last = name.rsplit('/').next().unwrap_or(name);
    let letter = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    last.chars().map(letter).take(LETTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imported_profile_names_a_directory_in_the_working_directory() {
        let name = |profile: &str| default_path(profile, 0).display().to_string();
        assert!(name("../jobs/long.fio").starts_with("weir-bench-long.fio-19"));
        assert!(name("/a b\n").starts_with("weir-bench-a-b--19"));
        assert!(!name(&"x".repeat(1000)).contains('/') && name(&"x".repeat(1000)).len() < 128);
    }

    /// Returns the error of reading this text as a result file.
    fn refused(text: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(RESULT), text).unwrap();
        let error = read(directory.path()).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Invalid);
        error.message
    }

    #[test]
    fn result_of_another_schema_is_refused() {
        let message = refused(r#"{"schema": 999, "cells": "of another form"}"#);
        assert!(message.contains("its schema is 999, this program supports"), "{message}");
        let message = refused(&format!(r#"{{"schema": {SCHEMA}}}"#));
        assert!(message.contains("missing field"), "{message}");
    }

    #[test]
    fn truncated_result_is_refused() {
        for text in ["", "{", r#"{"schema": 1, "program": "weir"#, "null", "[1]"] {
            let message = refused(text);
            assert!(message.contains("is not a result of weir bench"), "{text}: {message}");
        }
    }
}
