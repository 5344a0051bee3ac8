//! The mounts of the machine, as the kernel lists them (proc(5), mountinfo).
//!
//! Invariant: only [`is_dead`] waits for a file system.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::io::Errno;

/// Type of the mounts of Weir.
pub(crate) const FS_TYPE: &str = "fuse.weir";

/// A mount of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedAt {
    /// The directory.
    pub directory: PathBuf,
    /// Source of the mount; for a mount of Weir, the name of the filesystem or snapshot.
    pub source: String,
    /// True for a mount of Weir, of any server.
    pub is_weir: bool,
}

/// Lists the mounts of the machine, in the order in which they were made.
///
/// # Errors
/// `/proc` is not mounted.
pub fn mounts() -> io::Result<Vec<MountedAt>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// True if the server of a FUSE mount has ended.
pub fn is_dead(directory: &Path) -> bool {
    matches!(statfs(directory), Err(Errno::NOTCONN))
}

/// Parses a line: number, parent, device, root, directory, options, optional fields, `-`, type,
/// source, options.
fn parse(line: &[u8]) -> Option<MountedAt> {
    let mut fields = line.split(|byte| *byte == b' ');
    let directory = fields.nth(4)?;
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let (fs_type, source) = (after.next()?, after.next()?);
    Some(MountedAt {
        directory: PathBuf::from(OsString::from_vec(unescape(directory))),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        is_weir: fs_type == FS_TYPE.as_bytes(),
    })
}

/// Replaces the octal numbers of special characters, such as `\040` for a space.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        text.push(code.unwrap_or(*first));
        rest = if code.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    text
}

impl MountedAt {
    /// True if a path is the directory of this mount or below it. Compares only the texts.
    pub fn contains(&self, path: &Path) -> bool {
        self.directory.as_os_str().as_bytes() != b"/" && path.starts_with(&self.directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_optional_fields_are_parsed() {
        let line = b"36 35 0:45 / /srv/a\\040b rw,relatime shared:1 - fuse.weir tank/home rw,fd=9";
        let found = parse(line).unwrap();
        assert_eq!(found.directory, Path::new("/srv/a b"));
        assert_eq!((&*found.source, found.is_weir), ("tank/home", true));
        assert!(found.contains(Path::new("/srv/a b/c")) && found.contains(Path::new("/srv/a b")));
        assert!(!found.contains(Path::new("/srv/a bc")));
        let root = parse(b"1 0 8:1 / / rw - ext4 /dev/sda1 rw").unwrap();
        assert!(!root.is_weir && !root.contains(Path::new("/srv")));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"1 2 3:4 / /a rw - ext4"), None);
    }

    #[test]
    fn wrong_escapes_stay_as_they_are() {
        assert_eq!(unescape(b"a\\134b\\09\\777\\1"), b"a\\b\\09\\777\\1");
    }

    #[test]
    fn this_machine_has_a_root() {
        let all = mounts().unwrap();
        assert!(all.iter().any(|mount| mount.directory == Path::new("/")), "{all:?}");
    }
}
