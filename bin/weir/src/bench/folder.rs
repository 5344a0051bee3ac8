//! The directory of a run: `result.json`, and the report beside it.
//!
//! Not here: what is in them (weir-bench).
//!
//! Invariants:
//! - `result.json` is replaced whole, by a rename: a run that is killed leaves the one before;
//! - it is written before measuring begins, so that a disk that would not take it is found out in
//!   time; where it cannot be written later, the result goes to another place and that is said.

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

/// The file of results.
pub(super) const RESULT: &str = "result.json";

/// The directory of a run.
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes a new one.
    pub(super) fn make(path: &Path) -> Result<Self, ApiError> {
        fs::create_dir_all(path).map_err(|error| cannot("make", path, &error))?;
        if path.join(RESULT).exists() {
            let message = format!("{} holds the result of another run", path.display());
            return Err(ApiError::new(ErrorKind::Exists, message).with_action(
                "name another directory with --out, or go on with that run with --resume",
            ));
        }
        Ok(Self { path: path.to_owned() })
    }

    /// One that is there.
    pub(super) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the result of before, with figures and verdicts.
    pub(super) fn keep(&self, result: &RunResult) -> io::Result<()> {
        write(&self.path, &WithVerdicts::of(&JudgedRun::of(result.clone())))
    }

    /// The same for the last time: to another directory if need be. Returns the path of the result.
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
        Err(first.with_action(format!("the result is kept in {} instead", there.display())))
    }
}

/// A result with what was said of it; only the result is read again, and judged anew.
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
        // Half a result would only take room; that it cannot be written is told already.
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

/// Reads a result: the file, or that in a directory.
pub(super) fn read(path: &Path) -> Result<RunResult, ApiError> {
    let file = if path.is_dir() { path.join(RESULT) } else { path.to_owned() };
    let text = fs::read_to_string(&file).map_err(|error| cannot("read", &file, &error))?;
    let bad = |why: &dyn std::fmt::Display| {
        let message = format!("{} is no result of weir bench: {why}", file.display());
        ApiError::new(ErrorKind::Invalid, message)
    };
    // The schema first: results of another version have other fields.
    let Head { schema } = serde_json::from_str(&text).map_err(|error| bad(&error))?;
    if schema != SCHEMA {
        return Err(bad(&format!("its schema is {schema}, this program reads {SCHEMA}")));
    }
    serde_json::from_str(&text).map_err(|error| bad(&error))
}

/// The field that all versions have.
#[derive(Deserialize)]
struct Head {
    schema: u32,
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> ApiError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::Permission,
        io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Unavailable,
    };
    ApiError::new(kind, format!("cannot {what} {}: {error}", path.display()))
}

/// A directory for a run that names none: the profile and the time.
pub(super) fn default_path(profile: &str, unix_ms: u64) -> PathBuf {
    let time: String = date(unix_ms)
        .chars()
        .map(|c| if c.is_ascii_digit() { c } else { '-' })
        .take("2026-01-01-00-00-00".len())
        .collect();
    PathBuf::from(format!("weir-bench-{}-{time}", plain(profile)))
}

/// Letters of a name that make no other directory: a file that is imported is named by its path.
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
    fn directory_of_an_imported_file_is_made_here() {
        let name = |profile: &str| default_path(profile, 0).display().to_string();
        assert!(name("../jobs/long.fio").starts_with("weir-bench-long.fio-19"));
        assert!(name("/a b\n").starts_with("weir-bench-a-b--19"));
        assert!(!name(&"x".repeat(1000)).contains('/') && name(&"x".repeat(1000)).len() < 128);
    }

    /// The error of reading this text as a result.
    fn refused(text: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(RESULT), text).unwrap();
        let error = read(directory.path()).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Invalid);
        error.message
    }

    #[test]
    fn result_of_another_version_is_told_by_its_schema() {
        let message = refused(r#"{"schema": 999, "cells": "of another form"}"#);
        assert!(message.contains("its schema is 999, this program reads"), "{message}");
        let message = refused(&format!(r#"{{"schema": {SCHEMA}}}"#));
        assert!(message.contains("missing field"), "{message}");
    }

    #[test]
    fn result_that_was_cut_off_is_told() {
        for text in ["", "{", r#"{"schema": 1, "program": "weir"#, "null", "[1]"] {
            let message = refused(text);
            assert!(message.contains("is no result of weir bench"), "{text}: {message}");
        }
    }
}
