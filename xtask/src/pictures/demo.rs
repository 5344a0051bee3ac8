//! Records the demo: `weir serve --demo` and the commands of a first visit.
//!
//! Not here: the drawing of the recording (terminal.rs).
//!
//! Invariant: every recorded line was printed by the program or by an ordinary client in this run.
//! If a command fails, the recording fails.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use weir_command::command;
use weir_command::process::{Process, guarded};

use super::terminal::Line;

/// Last line of the text that `weir serve --demo` prints.
const READY: &str = "Stop: Ctrl-C";

/// Commands of the recording, run in the folder of the demo with `weir` on the path.
const COMMANDS: [&str; 5] = [
    "nbdinfo --size 'nbd+unix:///demo/vol1?socket=weir-demo/nbd.sock'",
    "fio --name=try --ioengine=nbd --thread=1 \
     '--uri=nbd+unix:///demo/vol1?socket=weir-demo/nbd.sock' --rw=randwrite --bs=4k --iodepth=32 \
     --size=256m --verify=crc32c --output=fio.txt && grep -E 'IOPS|err=' fio.txt",
    "weir snapshot create demo/vol1@before-upgrade",
    "weir volume list",
    "weir pool status demo",
];

/// Records the demo in a temporary folder. `binary` is the path of the program; `None` builds a
/// release.
pub(super) fn record(binary: Option<&Path>) -> Result<Vec<Line>> {
    let binary = match binary {
        Some(binary) => binary.canonicalize().with_context(|| binary.display().to_string())?,
        None => command::weir_program()?,
    };
    let binaries = binary.parent().context("the program is in no folder")?.to_owned();
    let folder = std::env::temp_dir().join(format!("weir-pictures-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let lines = in_folder(&folder, &binaries);
    std::fs::remove_dir_all(&folder)?;
    lines
}

fn in_folder(folder: &Path, binaries: &Path) -> Result<Vec<Line>> {
    let mut serve = guarded(&binaries.join("weir").display().to_string());
    serve.args(["serve", "--demo", "--log", "error"]).current_dir(folder);
    // The server prints data to standard output and its greeting to standard error.
    let mut child = serve.stderr(Stdio::piped()).spawn().context("weir serve")?;
    let stderr = child.stderr.take().context("standard error is a pipe")?;
    let _server = Process::new(child);
    let here = folder.display().to_string();
    let shown = |text: &str| without(text, &format!("{here}/"));
    let mut lines = vec![Line::Typed("weir serve --demo".into())];
    lines.extend(greeting(stderr)?.iter().map(|line| Line::Printed(shown(line))));
    for typed in COMMANDS {
        lines.push(Line::Typed(typed.into()));
        let path = format!("{}:{}", binaries.display(), std::env::var("PATH")?);
        let done = Command::new("bash")
            .args(["-c", typed])
            .current_dir(folder)
            .env("PATH", path)
            .output()
            .context("bash")?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(done.status.success(), "{typed}: {said}");
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        lines.extend(printed.lines().map(|line| Line::Printed(shown(line))));
    }
    Ok(lines)
}

/// Returns a line of output without the path of the temporary folder, because readers run the demo
/// in a folder of their own. Columns behind the path stay aligned.
fn without(text: &str, folder: &str) -> String {
    let (gap, mut line) = (" ".repeat(folder.len()), String::new());
    for (index, part) in text.split(folder).enumerate() {
        match part.split_once("  ") {
            Some((path, columns)) if index > 0 => line.extend([path, &gap, "  ", columns]),
            _ => line += part,
        }
    }
    line.trim_end().to_owned()
}

/// Returns the lines of the greeting, which the demo prints to standard error.
fn greeting(stderr: ChildStderr) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        let is_last = line.contains(READY);
        lines.push(line);
        if is_last {
            return Ok(lines);
        }
    }
    bail!("weir serve --demo ended without its greeting: {lines:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stay_aligned_without_the_folder() {
        assert_eq!(without("a /f/x  1", "/f/"), "a x     1");
        assert_eq!(without("a /f/x\n", "/f/"), "a x");
    }
}
