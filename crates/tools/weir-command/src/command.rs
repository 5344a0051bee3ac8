//! Runs other programs from the workspace root.
//!
//! The callers choose the programs, and decide what a failure means for their task.
//!
//! Invariant: an error shows the command as a user would type it in a shell.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Returns the root folder of the workspace.
pub fn root() -> &'static Path {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.ancestors().nth(3).expect("weir-command lies three levels below the root")
}

/// Returns cargo's build folder.
pub fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Prefixes of variables that `cargo run` sets for the package of this program. Build scripts of
/// other packages depend on these variables: with them, cargo would run the scripts again whenever
/// a user alternates between xtask and cargo in a shell.
const OWN_VARIABLES: [&str; 4] = ["CARGO_BIN_", "CARGO_CRATE_", "CARGO_MANIFEST_", "CARGO_PKG_"];

/// Creates a command with the workspace root as its working directory.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        if OWN_VARIABLES.iter().any(|own| name.to_string_lossy().starts_with(own)) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs cargo with these arguments and shows its output.
pub fn cargo(args: &[impl AsRef<OsStr>]) -> Result<()> {
    run(command("cargo").args(args))
}

/// Runs a command until it exits. Every exit status except success is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", show(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", show(command));
    }
    Ok(())
}

/// Runs a command and returns its stdout. If the command fails, the error contains its stderr.
pub fn output(command: &mut Command) -> Result<String> {
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

/// Builds the release binary and returns its path.
pub fn weir_program() -> Result<PathBuf> {
    cargo(&["build", "--release", "--package", "weir"])?;
    let line = ["metadata", "--no-deps", "--format-version", "1"];
    let json = output(command("cargo").args(line))?;
    let metadata: serde_json::Value = serde_json::from_str(&json)?;
    let target = metadata["target_directory"].as_str().context("cargo names no target folder")?;
    Ok(Path::new(target).join("release/weir"))
}

/// Runs git in the workspace and returns its output.
pub fn git(args: &[&str]) -> Result<String> {
    output(command("git").args(args))
}

/// Finds a program in PATH and in the `sbin` folders. Debian keeps some tools in `sbin`, which only
/// root's PATH contains.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Formats a command line, without its working directory and environment.
pub fn show(command: &Command) -> String {
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
    fn failure_names_the_command() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).expect_err("exit 3");
        assert!(error.to_string().contains("sh -c exit 3"), "{error}");
        let error = run(&mut Command::new("no-such-tool-at-all")).expect_err("absent");
        assert!(error.to_string().contains("no-such-tool-at-all"), "{error}");
    }

    #[test]
    fn find_searches_the_path() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-tool-at-all"), None);
    }
}
