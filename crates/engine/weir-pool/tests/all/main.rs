//! Integration tests of weir-pool. Volumes are tested in weir-dataset.
#![expect(clippy::unwrap_used, reason = "tests")]

mod objects;
