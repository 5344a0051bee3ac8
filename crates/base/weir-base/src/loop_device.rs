//! Loop devices.
//!
//! Invariant: a path comes from the kernel and may be out of date at its use.

use std::path::PathBuf;

/// Path of the file behind a loop device, or behind a partition of one. `number` is the device
/// number (`st_rdev`). Another file may be at this path now.
pub fn file_behind(number: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    // A partition's folder is inside that of its disk.
    let places = ["loop/backing_file", "../loop/backing_file"];
    let read = |place| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{place}"));
    let path = places.into_iter().find_map(|place| read(place).ok())?;
    Some(path.trim_end_matches('\n').into())
}
