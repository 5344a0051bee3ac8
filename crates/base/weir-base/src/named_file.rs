//! Reading of files that a caller or the configuration names.
//!
//! Not here: which files a caller may name (bin/weir), permissions of secrets (private).
//!
//! Invariants:
//! - a pipe, a device or a socket in place of the file is an error; opening one waits for nothing;
//! - the type is checked on the descriptor that is read, so the file cannot be replaced between;
//! - a read takes at most the given number of bytes.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Maximum length of a file with certificates: the certificates of all public authorities fit.
pub const CERTIFICATES_BYTES_MAX: u64 = 1 << 20;

/// `O_NONBLOCK`: without it, open waits for a writer of a FIFO.
const NONBLOCK: i32 = 0o4000;

/// Reads a regular file of at most `bytes_max` bytes; also returns its metadata.
///
/// # Errors
/// `InvalidInput` for anything but a regular file, `FileTooLarge` for a longer one, and the errors
/// of the system.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<(Metadata, Vec<u8>)> {
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    if meta.len() <= bytes_max {
        bytes.reserve_exact(meta.len() as usize);
        // The file may grow meanwhile, and files of /proc have no length.
        file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    }
    if meta.len().max(bytes.len() as u64) > bytes_max {
        let why = format!("it is longer than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok((meta, bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn regular_files_are_read_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, [7; 100]).unwrap();
        assert_eq!(read(&path, 100).unwrap().1, [7; 100]);
        assert_eq!(read(&path, 99).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(read(&link, 100).unwrap().1.len(), 100);
    }

    // A FIFO stopped the management interface: open waited for a writer for ever.
    #[test]
    fn anything_else_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for path in [fifo.as_path(), dir.path(), Path::new("/dev/zero")] {
            assert_eq!(read(path, 100).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        // A file that never ends.
        let endless = read(Path::new("/proc/self/maps"), 10).unwrap_err();
        assert_eq!(endless.kind(), io::ErrorKind::FileTooLarge);
    }
}
