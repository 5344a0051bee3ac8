//! Reports of a run for users: `report.html`, `report.md` and `cells.csv`.
//!
//! Not here: verdicts (verdict), comparison with a requirement (requirement).
//!
//! Invariants:
//! - the only input is a [`JudgedRun`], so the same result always gives the same report;
//! - each number appears with the verdict of its cell: in tables, chart titles and lines of CSV;
//! - the HTML is one file without scripts that loads no other resource.

mod beside;
mod bonnie;
mod chart;
mod conclusions;
mod facts;
mod html;
mod markdown;
mod plots;
mod rows;
mod sheet;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::verdict::JudgedRun;

/// Names of the report's files in the directory of a run.
const HTML: &str = "report.html";
const MARKDOWN: &str = "report.md";
const CSV: &str = "cells.csv";

/// Reason why a report could not be created. The result file is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A file could not be written.
    #[error(
        "cannot write the report {}: {source}; free some space or name another directory, then \
         make the report again from result.json",
        path.display()
    )]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// A line of `cells.csv` could not be formatted.
    #[error("cannot make a line of {CSV}: {0}")]
    Csv(#[from] csv::Error),
    /// A chart could not be drawn.
    #[error("cannot draw the chart {title:?}: {source}")]
    Chart {
        /// Title of the chart.
        title: String,
        /// Error of the chart library.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Writes all three files into the existing directory `directory` and returns their paths.
///
/// # Errors
/// A file could not be created or written. Files written before it remain.
pub fn write(run: &JudgedRun, directory: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let files = [(CSV, cells_csv(run)?), (MARKDOWN, markdown(run)), (HTML, html(run)?)];
    let mut paths = Vec::with_capacity(files.len());
    for (name, content) in files {
        let path = directory.join(name);
        fs::write(&path, content)
            .map_err(|source| ReportError::Write { path: path.clone(), source })?;
        paths.push(path);
    }
    Ok(paths)
}

/// The report as one HTML document.
///
/// # Errors
/// A chart could not be drawn.
pub fn html(run: &JudgedRun) -> Result<String, ReportError> {
    html::document(run)
}

/// The report as Markdown, without charts.
pub fn markdown(run: &JudgedRun) -> String {
    markdown::document(run)
}

/// `cells.csv`: one line for each cell and run, below a header line.
///
/// # Errors
/// A line could not be formatted.
pub fn cells_csv(run: &JudgedRun) -> Result<String, ReportError> {
    sheet::cells(run)
}
