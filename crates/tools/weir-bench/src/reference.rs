//! Published rows of the documents that profiles repeat; `report` compares Weir's results with
//! them. Published hardware differs, so ratios to published rows show only how figures change from
//! row to row (their shape), not which storage is faster (a rank).
//!
//! The data is in `profiles/reference`. A document has one CSV file for each kind of table that it
//! publishes: measurements, bonnie++ runs, sizing. Lines that begin with `#` are notes on all rows
//! of the file, the names of the columns contain the units, and the column `note` contains the note
//! on one row.
//!
//! Invariants:
//! - a row names the profile's cell that repeats the row, and the variant of the profile;
//! - a figure that the document did not publish is empty, never 0.

mod bonnie;
mod files;
#[cfg(test)]
mod tests;

use serde::Deserialize;

use crate::spec::CellSpec;

pub use bonnie::{BonnieFigure, BonnieRow};

/// Reason for which published results cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The program contains no document of this name.
    #[error("there are no published rows {name:?}; there are {known}")]
    Unknown {
        /// Name of the document, as the run or the user gave it.
        name: String,
        /// Names of the documents that the program contains.
        known: String,
    },
    /// A row of the CSV text does not match the columns of the table.
    #[error("published rows {name}: {source}")]
    Row {
        /// Name of the document.
        name: String,
        /// Parse error, with its line and column.
        source: csv::Error,
    },
}

/// Published tables of one document, which the program contains.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Name of the document, as the `reference` of a run contains it.
    pub name: String,
    /// Notes that apply to all measurements in `rows`.
    pub notes: Vec<String>,
    /// Published measurements, in the order of the document.
    pub rows: Vec<Row>,
    /// Rows of the document's bonnie++ test; empty if the document has no such test.
    pub bonnie: Vec<BonnieRow>,
    /// Notes that apply to all rows in `bonnie`.
    pub bonnie_notes: Vec<String>,
    /// Rows of the document's sizing tables; empty if the document has no such table.
    pub sizing: Vec<SizingRow>,
    /// Notes that apply to all rows in `sizing`.
    pub sizing_notes: Vec<String>,
}

/// One published measurement. The names of the fields contain the units; `None` means that the
/// document did not publish the figure.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Row {
    /// Name of the table in the document.
    pub table: String,
    /// Name of the profile's cell that repeats the measurement; `fill` means the fill phase.
    pub cell: String,
    /// Variant of the profile that repeats the measurement; `None` for the profile without a
    /// variant.
    pub variant: Option<String>,
    /// Redundancy or media of the storage, in the words of the document.
    pub layout: Option<String>,
    /// Media of the storage.
    pub media: Option<String>,
    /// Protocol between client and storage.
    pub protocol: Option<String>,
    /// Number of the test in the document.
    pub test: Option<u32>,
    /// Number of copies of the data that the storage keeps.
    pub copies: Option<u32>,
    /// Number of clients that generated the load together.
    pub clients: Option<u32>,
    /// Record size of the storage, in KiB.
    pub record_kib: Option<f64>,
    /// Queue depth of each worker.
    pub window: Option<u32>,
    /// Percentage of data operations; the other operations access metadata.
    pub data_pct: Option<f64>,
    /// Size of one operation.
    pub block_kib: Option<f64>,
    /// Percentage of reads among the data operations.
    pub read_pct: Option<f64>,
    /// Throughput on the wire, including headers and metadata operations.
    pub wire_mib_s: Option<f64>,
    /// Throughput of the data that was read and written, in MB as the document prints it.
    pub payload_mb_s: Option<f64>,
    /// Rate that the test required.
    pub required_ops_s: Option<f64>,
    /// Rate of all operations, including metadata operations.
    pub total_ops_s: Option<f64>,
    /// Rate of reads.
    pub read_ops_s: Option<f64>,
    /// Rate of writes.
    pub write_ops_s: Option<f64>,
    /// Mean latency of all operations.
    pub latency_ms: Option<f64>,
    /// Mean latency of writes to the log.
    pub log_write_ms: Option<f64>,
    /// Mean latency of writes to the database.
    pub db_write_ms: Option<f64>,
    /// Mean latency of reads of the database.
    pub db_read_ms: Option<f64>,
    /// CPU use of the target.
    pub cpu_pct: Option<f64>,
    /// Note on this measurement.
    pub note: String,
}

/// Row of a sizing table: the recommended node for a range of rates.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizingRow {
    /// Name of the table in the document.
    pub table: String,
    /// Size of one operation.
    pub block_kib: f64,
    /// Lower end of the range of rates in operations per second; the range does not include it.
    pub iops_above: f64,
    /// Upper end of the range of rates in operations per second; the range includes it.
    pub iops_to: f64,
    /// Maximum throughput of the range, in MB per second as the document prints it.
    pub mb_s_to: f64,
    /// Name of the recommended node.
    pub node: String,
    /// Number of cores of the node.
    pub cores: u32,
    /// Memory of the node, in GB as the document prints it.
    pub memory_gb: f64,
    /// Network bandwidth of the node.
    pub network_mbps: f64,
}

impl Row {
    /// Rate of the data operations, with which the report compares Weir's results.
    pub fn data_ops_s(&self) -> Option<f64> {
        match (self.read_ops_s, self.write_ops_s) {
            (None, None) => None,
            (read, write) => Some(read.unwrap_or(0.0) + write.unwrap_or(0.0)),
        }
    }

    /// Mean number of operations in flight, computed by Little's law.
    pub fn in_flight(&self) -> Option<f64> {
        Some(self.total_ops_s? * self.latency_ms? / 1000.0)
    }

    /// Measured share of reads, in percent of the data operations.
    pub fn mix_pct(&self) -> Option<f64> {
        Some(self.read_ops_s.unwrap_or(0.0) / self.data_ops_s()? * 100.0)
    }

    /// Mean number of bytes on the wire for each operation, without the payload of the operation.
    pub fn overhead_bytes(&self) -> Option<f64> {
        let payload = self.data_ops_s()? * self.block_kib? * 1024.0;
        Some((self.wire_mib_s? * 1_048_576.0 - payload) / self.total_ops_s?)
    }

    /// Payload in MiB per second, computed from the operations and the block size if the document
    /// has both.
    pub fn payload_mib_s(&self) -> Option<f64> {
        let by_blocks = self.data_ops_s().zip(self.block_kib).map(|(ops, kib)| ops * kib / 1024.0);
        by_blocks.or(self.payload_mb_s)
    }
}

impl Published {
    /// Published rows to compare with a cell, in the order of the document. A cell with a variant
    /// gets only the rows of this variant; a cell without a variant gets the rows of all variants.
    /// If the document measured several protocols and `target` (a kind of target, such as `nfs`)
    /// uses one of them, the cell gets only the rows of this protocol.
    pub fn rows_for<'a>(
        &'a self,
        cell: &'a CellSpec,
        target: &str,
    ) -> impl Iterator<Item = &'a Row> {
        let used = match target {
            "nfs" => Some("nfs3"),
            "iscsi" => Some("iscsi"),
            _ => None,
        };
        let fits = move |row: &&Row| {
            let variant = cell.variant.is_none() || cell.variant == row.variant;
            let protocol = used.zip(row.protocol.as_deref());
            let protocol = protocol.is_none_or(|(used, published)| used == published);
            row.cell == cell.name && variant && protocol
        };
        self.rows.iter().filter(fits)
    }
}

/// Names of the documents that the program contains.
pub fn names() -> Vec<&'static str> {
    files::FILES.iter().map(|file| file.name).collect()
}

/// Loads the published rows of a document. `name` is the `reference` of a run.
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
