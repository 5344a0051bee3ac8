//! Installs the tools that tasks need: Debian packages, cargo tools, and a library for User-Mode
//! Linux.
//!
//! Not here: the Rust toolchain (rust-toolchain.toml) and the C compiler. cargo needs both to build
//! this program; the Makefile checks whether there is a compiler.
//!
//! Invariants:
//! - setup never replaces an installed tool, whatever its version;
//! - setup installs packages only as root or with a sudo that needs no password. Otherwise it
//!   prints one line with the missing packages and the command that installs them;
//! - setup starts no daemon of a package that it installs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Result, bail};
use weir_command::command;

mod uml;

/// A program and the Debian package that contains it.
struct Need {
    tool: &'static str,
    package: &'static str,
}

const fn need(tool: &'static str, package: &'static str) -> Need {
    Need { tool, package }
}

/// Tools that tests and benchmarks need.
const FOR_TEST: &[Need] = &[
    need("g++", "g++"), // libFuzzer is C++
    need("fio", "fio"),
    need("qemu-img", "qemu-utils"),
    need("qemu-io", "qemu-utils"),
    need("qemu-nbd", "qemu-utils"),
    need("nbdinfo", "libnbd-bin"),
    need("nbdcopy", "libnbd-bin"),
    need("nbdfuse", "libnbd-bin"),
    need("nbdkit", "nbdkit"),
    need("iscsi-test-cu", "libiscsi-bin"),
    need("nfs-cp", "libnfs-utils"),
    need("mount.nfs", "nfs-common"),
    need("rpcbind", "rpcbind"),
    need("tgtd", "tgt"),
    need("qemu/block-iscsi.so", "qemu-block-extra"),
    need("mke2fs", "e2fsprogs"),
    need("fusermount3", "fuse3"),
    need("setpriv", "util-linux"),
    need("eu-stack", "elfutils"), // stacks of a hung test
    // These tools boot a Linux guest with its own kernel.
    need("linux.uml", "user-mode-linux"),
    need("ip", "iproute2"),
    need("modprobe", "kmod"),
    need("udevadm", "udev"),
    need("iscsid", "open-iscsi"),
    need("multipathd", "multipath-tools"),
    need("sg_xcopy", "sg3-utils"),
];

/// Tools that the benchmark of filesystems needs.
const FOR_FILES: &[Need] = &[
    need("cc", "gcc"),
    need("libfuse3.so", "libfuse3-dev"), // with the source of passthrough_ll
    need("mke2fs", "e2fsprogs"),
    need("pkg-config", "pkg-config"),
    need("setpriv", "util-linux"),
];

/// Servers without which the benchmark of filesystems has no column of zfs-fuse, or no NFS part:
/// not every distribution has them.
const FOR_FILES_IF_AVAILABLE: [&[Need]; 2] = [
    &[need("zfs-fuse", "zfs-fuse")],
    &[
        need("ganesha.nfsd", "nfs-ganesha"),
        need("ganesha/libfsalvfs.so", "nfs-ganesha-vfs"),
        need("rpcbind", "rpcbind"),
        need("ip", "iproute2"),
        need("chattr", "e2fsprogs"),
    ],
];

/// Cargo tools with the options of their builds. The versions are fixed, so that all machines run
/// the same checks.
const CARGO_TOOLS: &[(&str, &str, &[&str])] = &[
    (DENY, "0.20.2", &[]),
    (FUZZ, "0.13.2", &[]),
    // mdBook is built without its search index, its web server and its file watcher.
    (MDBOOK, "0.5.4", &["--no-default-features"]),
];
/// Name of the cargo tool that checks the licences, names and sources of dependencies more
/// thoroughly than licences.rs does.
pub(crate) const DENY: &str = "cargo-deny";
/// The cargo tool that builds fuzz targets.
pub(crate) const FUZZ: &str = "cargo-fuzz";
/// The program that builds the book of the documentation.
pub(crate) const MDBOOK: &str = "mdbook";

/// Installs the packages of tests and benchmarks, and builds the library for User-Mode Linux.
pub(crate) fn for_clients() -> Result<()> {
    packages(FOR_TEST)?;
    uml::build()
}

/// Installs the packages of the benchmark of filesystems.
pub(crate) fn for_files() -> Result<()> {
    packages(FOR_FILES)?;
    for needs in FOR_FILES_IF_AVAILABLE {
        if let Err(error) = packages(needs) {
            eprintln!("setup: {error:#}");
        }
    }
    Ok(())
}

/// Installation in the background.
type Installation = JoinHandle<Result<()>>;

/// Installations that [`start_for_stages`] began.
static STARTED: Mutex<Vec<Installation>> = Mutex::new(Vec::new());

/// Begins to install the tools of all CI stages in the background.
pub(crate) fn start_for_stages() {
    let installations: [fn() -> Result<()>; 2] = [for_clients, || cargo_tool(MDBOOK)];
    STARTED.lock().expect("no thread panics").extend(installations.map(std::thread::spawn));
}

/// Waits for the installations that [`start_for_stages`] began.
pub(crate) fn wait_for_stages() -> Result<()> {
    let started = std::mem::take(&mut *STARTED.lock().expect("no thread panics"));
    let results = started.into_iter().map(|one| one.join().expect("an installation returns"));
    results.collect::<Vec<_>>().into_iter().collect()
}

/// Installs a cargo tool if it is missing.
pub(crate) fn cargo_tool(tool: &str) -> Result<()> {
    if command::find(tool).is_some() {
        return Ok(());
    }
    let known = CARGO_TOOLS.iter().find(|(known, ..)| *known == tool);
    let (_, version, options) = known.expect("only tools of the list are asked for");
    eprintln!("setup: installing {tool} {version}, once; this takes minutes");
    let start = Instant::now();
    // Build in debug mode: the tools run for seconds, while an optimised build takes minutes.
    let install = ["install", "--locked", "--debug", "--version", version, tool];
    command::cargo(&[&install[..], options].concat())?;
    eprintln!("setup: {tool} installed in {:.0} s", start.elapsed().as_secs_f64());
    if command::find(tool).is_none() {
        bail!("{tool} is installed, but cargo's bin folder is not in PATH");
    }
    Ok(())
}

fn packages(needs: &[Need]) -> Result<()> {
    let wanted = missing(needs, is_installed);
    if wanted.is_empty() {
        return Ok(());
    }
    let list = wanted.join(" ");
    let Some(as_root) = as_root() else {
        bail!("missing packages: {list} (as root: apt-get install {list})");
    };
    eprintln!("setup: installing {list}");
    // A fresh machine has no package lists. So if the installation fails, update the lists and
    // retry.
    let install = || install(as_root, &wanted);
    if !(install() || apt_get(as_root, &["update"]) && install()) {
        bail!("cannot install packages: {list}");
    }
    let left = missing(needs, is_installed);
    if !left.is_empty() {
        bail!("still missing after apt-get: {}", left.join(" "));
    }
    Ok(())
}

/// Returns true if PATH has a program of this name, or a system folder has a library of this name.
fn is_installed(tool: &str) -> bool {
    if Path::new(tool).extension().is_none_or(|extension| extension != "so") {
        return command::find(tool).is_some();
    }
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    folders.map(|folder| folder.path().join(tool)).any(|library| library.exists())
}

/// Returns the packages of the missing tools, in the order of `needs` and without duplicates.
fn missing(needs: &[Need], is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for need in needs {
        if !is_there(need.tool) && !packages.contains(&need.package) {
            packages.push(need.package);
        }
    }
    packages
}

/// Returns the prefix of a command that runs as root; `None` if this user cannot become root.
fn as_root() -> Option<&'static [&'static str]> {
    command::find("apt-get")?;
    if rustix::process::geteuid().is_root() {
        return Some(&["env"]);
    }
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    sudo.status().is_ok_and(|status| status.success()).then_some(&["sudo", "-n", "env"][..])
}

fn install(as_root: &[&str], packages: &[&str]) -> bool {
    let mut args = vec!["install", "--yes", "--no-install-recommends"];
    args.extend(packages);
    apt_get(as_root, &args)
}

/// Runs apt-get with a policy-rc.d script that forbids packages to start daemons. An existing
/// script stays in place.
const QUIETLY: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
"$@"
"#;

fn apt_get(as_root: &[&str], args: &[&str]) -> bool {
    let mut command = Command::new(as_root[0]);
    command.args(&as_root[1..]).args(["DEBIAN_FRONTEND=noninteractive", "sh", "-c", QUIETLY]);
    command.args(["sh", "apt-get", "-qq"]).args(args);
    command.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_package_is_listed_once() {
        assert_eq!(missing(FOR_TEST, |_| true), Vec::<&str>::new());
        let absent = missing(FOR_TEST, |tool| !tool.starts_with("qemu") && tool != "fio");
        assert_eq!(absent, ["fio", "qemu-utils", "qemu-block-extra"]);
    }
}
