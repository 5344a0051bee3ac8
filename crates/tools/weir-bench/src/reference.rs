//! Published rows of the documents that profiles repeat, to be laid beside ours.
//!
//! Not here: laying them beside (report). They are of other hardware: a ratio to them shows a
//! shape, not a rank.
//!
//! The data is in `profiles/reference`, one CSV per document: `#` lines are what must be known of
//! all its rows, the header names carry units, `note` is what must be known of one row.
//!
//! Invariants:
//! - a row names the cell of the profile that repeats it, and the variant in which;
//! - a figure that was not published is empty, never 0.

mod bonnie;
mod files;
#[cfg(test)]
mod tests;

use serde::Deserialize;

use crate::spec::CellSpec;

pub use bonnie::{BonnieFigure, BonnieRow};

/// Why published rows could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// No such file comes along.
    #[error("there are no published rows {name:?}; there are {known}")]
    Unknown {
        /// As it was given.
        name: String,
        /// Files that come along.
        known: String,
    },
    /// A row is not as the header says.
    #[error("published rows {name}: {source}")]
    Row {
        /// The file.
        name: String,
        /// Line and column.
        source: csv::Error,
    },
}

/// What a document published.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// File it comes from: the `reference` of a run.
    pub name: String,
    /// What must be known of all rows.
    pub notes: Vec<String>,
    /// In the order of the document.
    pub rows: Vec<Row>,
    /// Rows of its file test, where it has one.
    pub bonnie: Vec<BonnieRow>,
    /// What must be known of these.
    pub bonnie_notes: Vec<String>,
    /// Its sizing tables, where it has any.
    pub sizing: Vec<SizingRow>,
    /// What must be known of these.
    pub sizing_notes: Vec<String>,
}

/// A published row. Units are in the names; what the document leaves out is `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Row {
    /// Table of the document.
    pub table: String,
    /// Name of our cell that repeats it; `fill` is the fill.
    pub cell: String,
    /// Variant of the profile that repeats it; `None`: the profile itself.
    pub variant: Option<String>,
    /// Redundancy or media, in words of the document.
    pub layout: Option<String>,
    /// What the storage is made of.
    pub media: Option<String>,
    /// How it was spoken to.
    pub protocol: Option<String>,
    /// Number of the test.
    pub test: Option<u32>,
    /// Copies of the data.
    pub copies: Option<u32>,
    /// Clients that offered the load together.
    pub clients: Option<u32>,
    /// Unit in which the storage keeps data.
    pub record_kib: Option<f64>,
    /// Operations in flight of each worker.
    pub window: Option<u32>,
    /// Share of operations on data; the rest are on metadata.
    pub data_pct: Option<f64>,
    /// Size of an operation.
    pub block_kib: Option<f64>,
    /// Share of reads in data operations.
    pub read_pct: Option<f64>,
    /// Bytes on the wire, headers and metadata included.
    pub wire_mib_s: Option<f64>,
    /// Bytes read and written, in MB as the document prints them.
    pub payload_mb_s: Option<f64>,
    /// What was required.
    pub required_ops_s: Option<f64>,
    /// All operations, metadata included.
    pub total_ops_s: Option<f64>,
    /// Reads.
    pub read_ops_s: Option<f64>,
    /// Writes.
    pub write_ops_s: Option<f64>,
    /// Mean of all operations.
    pub latency_ms: Option<f64>,
    /// Mean of writes to the log.
    pub log_write_ms: Option<f64>,
    /// Mean of writes to the database.
    pub db_write_ms: Option<f64>,
    /// Mean of reads of the database.
    pub db_read_ms: Option<f64>,
    /// Processor of the target.
    pub cpu_pct: Option<f64>,
    /// What must be known of this row.
    pub note: String,
}

/// A row of a sizing table: which node for how much.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizingRow {
    /// Table of the document.
    pub table: String,
    /// Size of an operation.
    pub block_kib: f64,
    /// More operations per second than this ...
    pub iops_above: f64,
    /// ... and no more than this.
    pub iops_to: f64,
    /// No more throughput than this, in MB as the document prints it.
    pub mb_s_to: f64,
    /// Name of the node.
    pub node: String,
    /// Its cores.
    pub cores: u32,
    /// Its memory, in GB as the document prints it.
    pub memory_gb: f64,
    /// Its network.
    pub network_mbps: f64,
}

impl Row {
    /// Operations on data per second: what ours are compared with.
    pub fn data_ops_s(&self) -> Option<f64> {
        match (self.read_ops_s, self.write_ops_s) {
            (None, None) => None,
            (read, write) => Some(read.unwrap_or(0.0) + write.unwrap_or(0.0)),
        }
    }

    /// Operations in flight on average, by Little's law.
    pub fn in_flight(&self) -> Option<f64> {
        Some(self.total_ops_s? * self.latency_ms? / 1000.0)
    }

    /// Share of reads that was reached, in percent of data operations.
    pub fn mix_pct(&self) -> Option<f64> {
        Some(self.read_ops_s.unwrap_or(0.0) / self.data_ops_s()? * 100.0)
    }

    /// Bytes on the wire that are no payload, by operation.
    pub fn overhead_bytes(&self) -> Option<f64> {
        let payload = self.data_ops_s()? * self.block_kib? * 1024.0;
        Some((self.wire_mib_s? * 1_048_576.0 - payload) / self.total_ops_s?)
    }

    /// Payload in MiB per second: from operations and block size, where both are published.
    pub fn payload_mib_s(&self) -> Option<f64> {
        let by_blocks = self.data_ops_s().zip(self.block_kib).map(|(ops, kib)| ops * kib / 1024.0);
        by_blocks.or(self.payload_mb_s)
    }
}

impl Published {
    /// Rows to lay beside a cell, in the order of the document: those of its variant; of a cell
    /// without one, those of all variants.
    pub fn beside<'a>(&'a self, cell: &'a CellSpec) -> impl Iterator<Item = &'a Row> {
        let fits = move |row: &&Row| {
            let variant = cell.variant.is_none() || cell.variant == row.variant;
            row.cell == cell.name && variant
        };
        self.rows.iter().filter(fits)
    }
}

/// Names of the files that come along.
pub fn names() -> Vec<&'static str> {
    files::FILES.iter().map(|file| file.name).collect()
}

/// Reads published rows by the name of their file: the `reference` of a run.
pub fn load(name: &str) -> Result<Published, ReferenceError> {
    let Some(file) = files::FILES.iter().find(|file| file.name == name) else {
        let known = names().join(", ");
        return Err(ReferenceError::Unknown { name: name.to_owned(), known });
    };
    Ok(Published {
        name: name.to_owned(),
        notes: files::notes(file.rows),
        rows: files::rows(name, file.rows)?,
        bonnie: files::rows(name, file.bonnie)?,
        bonnie_notes: files::notes(file.bonnie),
        sizing: files::rows(name, file.sizing)?,
        sizing_notes: files::notes(file.sizing),
    })
}
