//! Finds the path of the file behind a loop device.
//!
//! Invariant: the path comes from the kernel. The file may be renamed before the path is used.

use std::path::PathBuf;

/// Path of the file behind a loop device, or behind a partition of a loop device. `number` is the
/// device number (`st_rdev`). The path may refer to another file by now.
pub fn file_behind(number: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    // In sysfs, the directory of a partition is inside the directory of its disk.
    let places = ["loop/backing_file", "../loop/backing_file"];
    let read = |place| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{place}"));
    let path = places.into_iter().find_map(|place| read(place).ok())?;
    Some(path.trim_end_matches('\n').into())
}
