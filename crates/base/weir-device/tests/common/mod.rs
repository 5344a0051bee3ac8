//! Helpers for tests of real disks: runtimes, patterns, loop devices, child processes.
//!
//! The tests are in the other files.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use weir_block::IoBuf;
use weir_device::{Device, DeviceError, Durability, FileDevice, OpenMode, io_backend, new_runtime};

pub(crate) const MIB: u64 = 1 << 20;

/// Runs a future on its own runtime.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    new_runtime().unwrap().block_on(future)
}

/// Returns bytes that depend on their offset on the disk.
pub(crate) fn pattern(offset: u64, len: usize) -> IoBuf {
    let mut buf = IoBuf::zeroed(len);
    for (index, word) in buf.chunks_exact_mut(8).enumerate() {
        let place = offset.wrapping_add(index as u64 * 8);
        word.copy_from_slice(&place.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    buf
}

pub(crate) async fn write(disk: &dyn Device, offset: u64, len: usize) -> Result<(), DeviceError> {
    disk.write_at(offset, Arc::new(pattern(offset, len)), 0..len, Durability::Cached).await
}

pub(crate) async fn read(disk: &dyn Device, offset: u64, len: usize) -> Result<IoBuf, DeviceError> {
    let (result, buf) = disk.read_at(offset, IoBuf::zeroed(len)).await;
    result.map(|()| buf)
}

/// Reads a range and compares it with the bytes that `write` writes there.
pub(crate) async fn verify(disk: &dyn Device, offset: u64, len: usize) {
    let found = read(disk, offset, len).await.unwrap();
    assert!(found[..] == pattern(offset, len)[..], "wrong bytes at {offset}");
}

pub(crate) fn sparse(dir: &Path, name: &str, len_bytes: u64) -> PathBuf {
    let path = dir.join(name);
    FileDevice::create_sparse(&path, len_bytes).unwrap();
    path
}

pub(crate) fn open(path: &Path) -> Result<FileDevice, DeviceError> {
    FileDevice::open(path, OpenMode::ReadWrite, MIB)
}

/// A loop device on a file; dropping this value detaches the device.
pub(crate) struct Loop(pub(crate) PathBuf);

impl Loop {
    /// Attaches a loop device. Prints a message and returns `None` if loop devices cannot be
    /// created.
    pub(crate) fn attach(file: &Path, args: &[&str]) -> Option<Self> {
        let mut losetup = Command::new("/usr/sbin/losetup");
        let output = losetup.args(args).args(["-f", "--show"]).arg(file).output().ok();
        let name = output.as_ref().map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
        match name {
            Some(name) if !name.is_empty() => Some(Self(PathBuf::from(name))),
            _ => {
                eprintln!("skipped: no loop device ({output:?})");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("/usr/sbin/losetup").arg("-d").arg(&self.0).status();
        assert!(detached.is_ok_and(|status| status.success()), "{} not detached", self.0.display());
    }
}

/// Runs one ignored test of this binary in a child process and returns its output. `prefix` is a
/// command that runs its arguments as a program.
pub(crate) fn child(prefix: &[&str], test: &str) -> String {
    let binary = std::env::current_exe().unwrap();
    let mut words = prefix.iter().map(std::ffi::OsString::from).collect::<Vec<_>>();
    words.push(binary.into());
    let output = Command::new(&words[0])
        .args(&words[1..])
        .args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test} failed with {}:\n{text}", io_backend());
    assert!(text.contains("1 passed"), "{test} did not run:\n{text}");
    text
}
