//! Detects caches between the generator and the storage medium of a target, as far as possible.
//!
//! The targets drop caches; `judge` decides how caches affect a verdict.
//!
//! Invariants:
//! - a statement of the user about a cache takes precedence over detection;
//! - nothing is guessed: if no cache is stated or found, the report says that the cache is unknown,
//!   not that there is none.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::notes;
use crate::result::TargetInfo;
use crate::spec::StatedTarget;

/// Magic numbers of tmpfs and ramfs, which keep all data in memory (statfs(2)).
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// Value of `cache_source` for a target whose server runs on this machine.
pub(crate) const SERVER_HERE: &str =
    "the server runs on this machine, and the page cache may hold its data";

/// Completes the properties of a target with the user's statements and with the caches found on
/// this machine, which has `memory_bytes` of memory.
pub(crate) fn add(info: &mut TargetInfo, told: &StatedTarget, memory_bytes: u64) {
    let found = in_memory(info).or_else(|| server_here(info));
    if let Some(found) = found {
        (info.cache_bytes, info.cache_source) = (Some(memory_bytes), Some(found));
    }
    if let Some(bytes) = told.cache_bytes {
        (info.cache_bytes, info.cache_source) = (Some(bytes), Some("told".to_owned()));
    }
    if told.protection.is_some() {
        info.protection.clone_from(&told.protection);
    }
    info.features.extend(told.features.iter().cloned());
}

/// Returns the reason why the memory of this machine holds the data of a file or device; `None` if
/// the memory does not hold the data.
fn in_memory(info: &TargetInfo) -> Option<String> {
    if !info.is_local() {
        return None;
    }
    let path = Path::new(&info.address);
    if let Ok(found) = rustix::fs::statfs(path)
        && info.kind != "device"
        && [TMPFS_MAGIC, RAMFS_MAGIC].contains(&found.f_type.cast_unsigned())
    {
        return Some("its file system keeps everything in memory (tmpfs)".to_owned());
    }
    if info.kind == "device" {
        return device_in_memory(path);
    }
    let is_cached = info.driver.contains("page cache");
    is_cached.then(|| "this machine's page cache, which this target cannot bypass".to_owned())
}

fn server_here(info: &TargetInfo) -> Option<String> {
    notes::is_local(&info.address).then(|| SERVER_HERE.to_owned())
}

/// Returns the reason why memory holds the data of a block device: the device itself is in memory,
/// or it is a loop device whose backing file is in the page cache.
fn device_in_memory(path: &Path) -> Option<String> {
    let rdev = fs::metadata(path).ok()?.rdev();
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let sys = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = sys.file_name()?.to_string_lossy().into_owned();
    if name.starts_with("zram") || name.starts_with("ram") {
        return Some(format!("the device is memory ({name})"));
    }
    let direct = fs::read_to_string(sys.join("loop/dio")).ok()?;
    (direct.trim() == "0").then(|| "the loop device's file is in the page cache".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpfs_file_is_in_memory_unless_the_user_states_otherwise() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("tmpfs is there");
        let of = |told: &StatedTarget| {
            let mut info = TargetInfo {
                address: file.path().display().to_string(),
                kind: "file".to_owned(),
                driver: "io_uring, page cache".to_owned(),
                ..TargetInfo::default()
            };
            add(&mut info, told, 1 << 30);
            (info.cache_bytes, info.cache_source.unwrap_or_default(), info.features)
        };
        let (bytes, source, _) = of(&StatedTarget::default());
        assert!(bytes == Some(1 << 30) && source.contains("tmpfs"), "{source}");
        let features = vec!["dedupe".to_owned()];
        let told = StatedTarget { cache_bytes: Some(0), features, ..StatedTarget::default() };
        let (bytes, source, features) = of(&told);
        assert_eq!((bytes, source.as_str(), features.len()), (Some(0), "told", 1));
    }

    #[test]
    fn cache_of_a_local_server_is_the_memory_of_this_machine() {
        let mut info = TargetInfo {
            address: "nbd://store/tank/v".to_owned(),
            kind: "nbd".to_owned(),
            ..TargetInfo::default()
        };
        add(&mut info, &StatedTarget::default(), 1 << 30);
        assert_eq!((info.cache_bytes, info.cache_source.clone()), (None, None));
        info.address = "nbd://127.0.0.1/tank/v".to_owned();
        add(&mut info, &StatedTarget::default(), 1 << 30);
        assert_eq!(info.cache_bytes, Some(1 << 30));
        assert_eq!(info.cache_source.as_deref(), Some(SERVER_HERE));
        let told = StatedTarget { cache_bytes: Some(0), ..StatedTarget::default() };
        add(&mut info, &told, 1 << 30);
        assert_eq!((info.cache_bytes, info.cache_source.as_deref()), (Some(0), Some("told")));
    }
}
