//! Embedded files with published rows, and their parser.
//!
//! The row types define the columns of the files.
//!
//! Invariant: a column that the row type does not define is an error, so no column is ignored.

use serde::de::DeserializeOwned;

use super::ReferenceError;

/// CSV texts of one document. If the document lacks a table, the text of this table is empty.
pub(super) struct File {
    pub(super) name: &'static str,
    pub(super) rows: &'static str,
    pub(super) bonnie: &'static str,
    pub(super) sizing: &'static str,
}

macro_rules! text {
    ($name:literal) => {
        include_str!(concat!("../../../../../profiles/reference/", $name))
    };
}

pub(super) const FILES: [File; 5] = [
    File {
        name: "s000-nexenta-vm.csv",
        rows: text!("s000-nexenta-vm.csv"),
        bonnie: "",
        sizing: "",
    },
    File { name: "s001-storpool.csv", rows: text!("s001-storpool.csv"), bonnie: "", sizing: "" },
    File {
        name: "s002-vlab.csv",
        rows: text!("s002-vlab.csv"),
        bonnie: text!("s002-vlab-bonnie.csv"),
        sizing: "",
    },
    File {
        name: "s003-softnas.csv",
        rows: text!("s003-softnas.csv"),
        bonnie: "",
        sizing: text!("s003-softnas-sizing.csv"),
    },
    File { name: "s004-exchange.csv", rows: text!("s004-exchange.csv"), bonnie: "", sizing: "" },
];

/// Returns the notes in a text; the notes apply to all rows of the text.
pub(super) fn notes(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix("# ")).map(str::to_owned).collect()
}

/// Parses the rows in a CSV text.
pub(super) fn rows<T: DeserializeOwned>(name: &str, text: &str) -> Result<Vec<T>, ReferenceError> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
    let rows: Result<Vec<T>, csv::Error> = reader.deserialize().collect();
    rows.map_err(|source| ReferenceError::Row { name: name.to_owned(), source })
}
