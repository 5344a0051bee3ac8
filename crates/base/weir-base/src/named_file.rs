//! Reads files whose names come from a caller or from the configuration.
//!
//! `caller_files` in weir-server decides which files a caller may name; `private` checks the
//! permissions of secret files.
//!
//! Invariants:
//! - if the name refers to a pipe, a device or a socket, the read fails, and opening it never
//!   waits;
//! - the file type is checked on the descriptor from which the file is read, so that the file
//!   cannot be replaced between the check and the read;
//! - a read returns at most the given number of bytes.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Maximum length of a certificate file: the certificates of all public authorities fit into it.
pub const CERTIFICATES_BYTES_MAX: u64 = 1 << 20;

/// `O_NONBLOCK`: without this flag, opening a FIFO waits for a writer.
const NONBLOCK: i32 = 0o4000;

/// Reads a regular file of at most `bytes_max` bytes, and returns its metadata and content.
///
/// # Errors
/// `InvalidInput` if the file is not a regular file, `FileTooLarge` if it is longer than
/// `bytes_max`, and the errors of the operating system.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<(Metadata, Vec<u8>)> {
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    if meta.len() <= bytes_max {
        bytes.reserve_exact(meta.len() as usize);
        // The file may grow after its length was read, and files of /proc report a length of 0.
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

    // Regression: a FIFO blocked the management interface, because opening it waited for a writer.
    #[test]
    fn fifo_directory_and_device_are_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for path in [fifo.as_path(), dir.path(), Path::new("/dev/zero")] {
            assert_eq!(read(path, 100).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        // Read a file that reports a length of 0.
        let endless = read(Path::new("/proc/self/maps"), 10).unwrap_err();
        assert_eq!(endless.kind(), io::ErrorKind::FileTooLarge);
    }
}
