//! Starting other programs from the workspace root.
//!
//! Not here: which programs, and what their failure means for a task.
//!
//! Invariant: an error names the command as a person would type it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The workspace root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies one level below the root")
}

/// Cargo's folder for what it builds.
pub(crate) fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// What `cargo run` tells this program of its own package. Build scripts of others ask for these
/// variables and would run again after each change between cargo called here and by a person.
const OWN_VARIABLES: [&str; 4] = ["CARGO_BIN_", "CARGO_CRATE_", "CARGO_MANIFEST_", "CARGO_PKG_"];

/// A command that starts in the workspace root.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        if OWN_VARIABLES.iter().any(|own| name.to_string_lossy().starts_with(own)) {
            command.env_remove(name);
        }
    }
    command
}

/// Cargo with these arguments, its output shown.
pub(crate) fn cargo(args: &[impl AsRef<OsStr>]) -> Result<()> {
    run(command("cargo").args(args))
}

/// Runs a command to its end; anything but success is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", show(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", show(command));
    }
    Ok(())
}

/// Runs a command and returns what it wrote on stdout; stderr is part of the error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", show(command)))?;
    if !output.status.success() {
        let talk = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", show(command), output.status, talk.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Where a program is, or `None`. Debian keeps some tools in folders that only root's PATH has.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// The command as typed, without its folder and environment.
pub(crate) fn show(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).expect_err("exit 3");
        assert!(error.to_string().contains("sh -c exit 3"), "{error}");
        let error = run(&mut Command::new("no-such-tool-at-all")).expect_err("absent");
        assert!(error.to_string().contains("no-such-tool-at-all"), "{error}");
    }

    #[test]
    fn finds_what_is_there() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-tool-at-all"), None);
    }
}
