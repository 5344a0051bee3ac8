//! Describes the processes of a hung test: command lines, thread stacks and the ends of their logs.
//!
//! Not here: the watchdog, which finds hung tests (process.rs).
//!
//! Invariant: the text names each part that could not be read; every step has a time limit.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use weir_command::command;

use super::processes::Process;
use super::tail;

/// Maximum number of log lines of a process in the text.
const LOG_LINES: usize = 100;
/// Time limit in seconds for reading the stacks of one process.
const STACK_SECONDS: &str = "10";

/// Returns command lines, threads, stacks and logs of these processes.
pub(super) fn describe(processes: &[Process]) -> String {
    let mut text = String::new();
    let mut logs = BTreeSet::new();
    for process in processes {
        let pid = process.pid.as_raw_nonzero();
        let folder = PathBuf::from(format!("/proc/{pid}"));
        add(&mut text, &format!("process {pid}: {}", process.command_line()));
        add(&mut text, &threads(&folder));
        add(&mut text, &user_stacks(pid.get()));
        if let Ok(log) = fs::read_link(folder.join("fd/2"))
            && log.is_file()
            && logs.insert(log.clone())
        {
            add(&mut text, &format!("the last lines of {}:", log.display()));
            add(&mut text, &tail(&log, LOG_LINES));
        }
    }
    text
}

fn add(text: &mut String, part: &str) {
    text.push_str(part);
    text.push('\n');
}

/// Returns the name of each thread, and the kernel function in which it waits.
fn threads(process: &Path) -> String {
    let mut text = String::new();
    let tasks = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    for task in tasks {
        let read = |name: &str| {
            let text = fs::read_to_string(task.path().join(name));
            text.unwrap_or_else(|error| format!("({name}: {error})")).trim().to_owned()
        };
        let id = task.file_name();
        let (name, waits_in) = (read("comm"), read("wchan"));
        add(&mut text, &format!("  thread {} {name}: in {waits_in}", id.display()));
        for frame in read("stack").lines() {
            add(&mut text, &format!("    kernel {frame}"));
        }
    }
    text.trim_end().to_owned()
}

/// Returns the user-space stacks of all threads.
fn user_stacks(pid: i32) -> String {
    if command::find("eu-stack").is_none() {
        return "  no stacks of the program: eu-stack (package elfutils) is missing".to_owned();
    }
    let mut command = command::command("timeout");
    command.args(["--kill-after=1", STACK_SECONDS, "eu-stack", "-p", &pid.to_string()]);
    match command.output() {
        Ok(output) => {
            let parts = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part));
            parts.concat().trim_end().to_owned()
        }
        Err(error) => format!("  no stacks of the program: {error}"),
    }
}
