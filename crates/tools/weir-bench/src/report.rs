//! What people read of a run: `report.html`, `report.md` and `cells.csv`.
//!
//! Not here: judging (verdict), holding against a requirement (requirement).
//!
//! Invariants:
//! - made from a [`JudgedRun`] and nothing else, so the same result gives the same report;
//! - a number stands beside the verdict of its cell, in a table, a chart's title and a line of CSV;
//! - the HTML is one file that loads nothing and runs nothing.

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

/// File names in the directory of a run.
const HTML: &str = "report.html";
const MARKDOWN: &str = "report.md";
const CSV: &str = "cells.csv";

/// Why a report could not be made. The result it is made of is untouched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The disk would not take it.
    #[error(
        "cannot write the report {}: {source}; free some space or name another directory, then \
         make the report again from result.json",
        path.display()
    )]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line of the table of cells could not be made.
    #[error("cannot make a line of {CSV}: {0}")]
    Csv(#[from] csv::Error),
    /// A chart could not be drawn.
    #[error("cannot draw the chart {title:?}: {source}")]
    Chart {
        /// Which.
        title: String,
        /// What the library said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Writes all three files into `directory`, which exists; gives their paths.
///
/// # Errors
/// A file could not be made or written; files before it are there.
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

/// One line per cell and run, with a head.
///
/// # Errors
/// A line could not be made.
pub fn cells_csv(run: &JudgedRun) -> Result<String, ReportError> {
    sheet::cells(run)
}
