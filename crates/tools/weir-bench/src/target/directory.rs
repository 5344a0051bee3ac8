//! A directory target with one file for each part of the dataset.
//!
//! Invariant: the program opens and changes only files whose names it assigned itself.

use std::path::Path;

use super::error::{TargetError, io_error};
use super::file::{FileTarget, open_file};
use super::parts::file_name;
use crate::spec::DatasetSpec;

pub(super) fn open(path: &Path, dataset: &DatasetSpec) -> Result<FileTarget, TargetError> {
    std::fs::create_dir_all(path).map_err(io_error(path, "make"))?;
    let mut all_direct = true;
    let mut files = Vec::new();
    for number in 0..dataset.files.max(1) {
        let path = path.join(file_name(number));
        let (file, direct) = open_file(&path, dataset.file_bytes)?;
        all_direct &= direct;
        files.push(file);
    }
    let address = path.display().to_string();
    FileTarget::of(&address, files, Some(dataset.file_bytes), all_direct)?.with_tree(path)
}
