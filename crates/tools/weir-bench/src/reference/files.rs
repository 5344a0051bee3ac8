//! The files of published rows, embedded, and their reading.
//!
//! Not here: what the columns mean (the row types).
//!
//! Invariant: a column that the row type does not know is an error, not left out.

use serde::de::DeserializeOwned;

use super::ReferenceError;

/// The texts of one document; empty where it has no such table.
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

/// What must be known of all rows.
pub(super) fn notes(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix("# ")).map(str::to_owned).collect()
}

/// Rows of a text.
pub(super) fn rows<T: DeserializeOwned>(name: &str, text: &str) -> Result<Vec<T>, ReferenceError> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
    let rows: Result<Vec<T>, csv::Error> = reader.deserialize().collect();
    rows.map_err(|source| ReferenceError::Row { name: name.to_owned(), source })
}
