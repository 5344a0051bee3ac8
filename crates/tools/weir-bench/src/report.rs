//! Reports of a run for users: `report.html`, `report.md` and `cells.csv`.
//!
//! `verdict` has the verdicts; `requirement` compares the results with a requirement.
//!
//! Invariants:
//! - the only input of a report is a [`JudgedRun`], so that equal results always give equal
//!   reports;
//! - each figure appears with the verdict on its cell: in tables, in titles of charts and in lines
//!   of CSV;
//! - the HTML report is one file that contains no scripts and loads no other file.

mod bonnie;
mod chart;
mod conclusions;
mod facts;
mod html;
mod markdown;
mod plots;
mod published;
mod rows;
mod several;
mod sheet;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::verdict::JudgedRun;

pub use several::{Named, html_of_several, markdown_of_several, write_several};

/// Names of the report's files in the directory of a run.
const HTML: &str = "report.html";
const MARKDOWN: &str = "report.md";
const CSV: &str = "cells.csv";

/// Reason for which a report could not be created. The file with the result is unchanged.
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
        /// Error that the system call returned.
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
        /// Error that the chart library returned.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Writes the three files of the report into `directory`, which must exist, and returns their
/// paths.
///
/// # Errors
/// A file could not be created or written. The files that were written before it remain.
pub fn write(run: &JudgedRun, directory: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let files = vec![(CSV, cells_csv(run)?), (MARKDOWN, markdown(run)), (HTML, html(run)?)];
    save(directory, files)
}

/// Writes files with these names and contents into `directory`, and returns their paths.
fn save(directory: &Path, files: Vec<(&str, String)>) -> Result<Vec<PathBuf>, ReportError> {
    let mut paths = Vec::with_capacity(files.len());
    for (name, content) in files {
        let path = directory.join(name);
        fs::write(&path, content)
            .map_err(|source| ReportError::Write { path: path.clone(), source })?;
        paths.push(path);
    }
    Ok(paths)
}

/// Formats the report as one HTML document.
///
/// # Errors
/// A chart could not be drawn.
pub fn html(run: &JudgedRun) -> Result<String, ReportError> {
    html::document(run)
}

/// Formats the report as Markdown, without charts.
pub fn markdown(run: &JudgedRun) -> String {
    markdown::document(run)
}

/// Formats `cells.csv`: a header line, and one line for each run of each cell.
///
/// # Errors
/// A line could not be formatted as CSV.
pub fn cells_csv(run: &JudgedRun) -> Result<String, ReportError> {
    sheet::cells(run)
}
