//! Mounts by a server without root: fusermount3(1) of the package fuse3 has the rights, and passes
//! the open device.
//!
//! Invariants:
//! - no call waits longer than [`TIMEOUT`] for the device;
//! - the program inherits only its end of the socket, as its standard input.

use std::io::{self, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

const PROGRAM: &str = "fusermount3";
/// Environment variable with the number of the socket: standard input.
const SOCKET: (&str, &str) = ("_FUSE_COMMFD", "0");
/// Maximum time until the program passes the device.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Mounts `name` at a directory, and returns the device of the mount. Other users have no access,
/// unless the administrator allows it with `user_allow_other` in /etc/fuse.conf.
///
/// # Errors
/// The message of the program; `NotFound` if it is not installed.
pub(crate) fn mount(name: &str, directory: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let options = |others| {
        let mode = if read_only { ",ro" } else { "" };
        format!("fsname={name},subtype=weir,default_permissions{mode}{others}")
    };
    mount_with(&options(",allow_other"), directory).or_else(|_| mount_with(&options(""), directory))
}

fn mount_with(options: &str, directory: &Path) -> io::Result<OwnedFd> {
    let (own, other) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&own, Timeout::Recv, Some(TIMEOUT))?;
    let mut command = Command::new(PROGRAM);
    command.args(["-o", options, "--"]).arg(directory).env(SOCKET.0, SOCKET.1);
    command.stdin(Stdio::from(other)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut program = command.spawn()?;
    // The command has the other end of the socket, and would keep it open.
    drop(command);
    let device = receive(&own);
    if device.is_err() {
        // It may wait for an unresponsive directory.
        drop(program.kill());
    }
    let mut message = String::new();
    if let Some(stderr) = &mut program.stderr {
        drop(stderr.read_to_string(&mut message));
    }
    let status = program.wait()?;
    match device? {
        Some(device) => Ok(device),
        None if message.is_empty() => Err(io::Error::other(format!("{PROGRAM} failed: {status}"))),
        None => Err(io::Error::other(message.trim().to_owned())),
    }
}

/// Receives the device. `None` if the program closed the socket without a device.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut buffers, &mut passed, RecvFlags::CMSG_CLOEXEC)?;
    let device = passed.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok(device)
}

/// Unmounts a directory. `detaches`: also if programs use files of the mount.
///
/// # Errors
/// `ResourceBusy` while programs use files of the mount; `NotFound` if the program is not
/// installed.
pub(crate) fn unmount(directory: &Path, detaches: bool) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u").args(detaches.then_some("-z")).arg("--").arg(directory);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let is_busy = message.contains("busy");
    let kind = if is_busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, message))
}
