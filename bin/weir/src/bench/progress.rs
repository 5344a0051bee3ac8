//! Supervision of a run: shows progress and the time left, handles Ctrl-C, saves partial results.
//!
//! Not here: the measurement itself (weir-bench).
//!
//! Invariant: at the first Ctrl-C the program stops, saves the results so far and reports them; a
//! second Ctrl-C ends the program at once.

use std::fmt;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_bench::result::RunResult;
use weir_bench::run::Observer;

use crate::bench::folder::Folder;
use crate::cli::base::output;

/// Number of steps of the progress bar.
const STEPS: u64 = 1000;
/// Exit code of a program that Ctrl-C has ended, as shells define it.
const INTERRUPTED: i32 = 130;

/// Shows the progress of a run, saves its results, and stops it at Ctrl-C.
pub(super) struct Watch<'a> {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    folder: Option<&'a Folder>,
    /// True if the user has already read that the newest result could not be saved.
    told_unkept: bool,
}

impl<'a> Watch<'a> {
    /// Handles Ctrl-C from now on. Without a folder, Ctrl-C saves no results.
    pub(super) fn new(folder: Option<&'a Folder>) -> Result<Self, ApiError> {
        let stop = Arc::new(AtomicBool::new(false));
        catch_interrupts(
            &stop,
            "weir: stopping; results are kept. Press Ctrl-C again to exit at once",
        )?;
        let bar = bar();
        bar.enable_steady_tick(Duration::from_millis(500));
        Ok(Self { bar, stop, folder, told_unkept: false })
    }

    /// Removes the progress bar.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// True if the user has typed Ctrl-C.
    pub(super) fn was_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

impl Observer for Watch<'_> {
    fn begins(&mut self, what: &str, run: u32, of: u32) {
        let times = if of > 1 { format!(", {run} of {of}") } else { String::new() };
        self.bar.set_message(format!("{what}{times}"));
    }

    fn done(&mut self, part: f64) {
        // Never move the bar back: a phase may take longer than its estimate.
        self.bar.set_position(steps(part).max(self.bar.position()));
    }

    fn goes_on(&mut self) -> bool {
        !self.was_stopped()
    }

    fn keep(&mut self, result: &RunResult) {
        let Some(Err(error)) = self.folder.map(|folder| folder.keep(result)) else { return };
        if !std::mem::replace(&mut self.told_unkept, true) {
            let text = format!("weir: cannot write the result so far: {error}; the run continues");
            self.bar.suspend(|| output::say(&text));
        }
    }
}

/// Returns a progress bar that also shows the time left; it is visible only on a terminal.
pub(super) fn bar() -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let line = "{bar:30} {percent:>3} %  {msg}{left}";
    let style = ProgressStyle::with_template(line).expect("the template is constant");
    let style = style.with_key("left", left);
    ProgressBar::with_draw_target(Some(STEPS), target).with_style(style)
}

/// Prints the time left, estimated from the position of the bar, once at least 1 % of the time has
/// passed.
fn left(state: &ProgressState, out: &mut dyn fmt::Write) {
    let part = f64::from(state.fraction());
    if part >= 0.01 {
        let left = state.elapsed().mul_f64(1.0 / part - 1.0);
        // Ignore the error: the bar cannot be drawn, but the run can continue.
        write!(out, "  ETA {:#}", HumanDuration(left)).ok();
    }
}

/// Converts a fraction between 0 and 1 into steps of the progress bar.
#[expect(clippy::cast_sign_loss, reason = "a share from 0 to 1")]
pub(super) fn steps(part: f64) -> u64 {
    (part.clamp(0.0, 1.0) * STEPS as f64) as u64
}

/// At the first Ctrl-C, sets `stop` and prints `what`. At the second Ctrl-C, ends the process.
pub(super) fn catch_interrupts(stop: &Arc<AtomicBool>, what: &'static str) -> Result<(), ApiError> {
    let cannot = |error: std::io::Error| {
        ApiError::new(ErrorKind::Internal, format!("cannot wait for Ctrl-C: {error}"))
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(cannot)?;
    let stop = Arc::clone(stop);
    let wait = move || {
        runtime.block_on(async {
            // If this process cannot handle signals, Ctrl-C ends it as usual.
            while tokio::signal::ctrl_c().await.is_ok() {
                if stop.swap(true, Ordering::AcqRel) {
                    std::process::exit(INTERRUPTED);
                }
                output::say(what);
            }
        });
    };
    std::thread::Builder::new().name("interrupts".to_owned()).spawn(wait).map_err(cannot)?;
    Ok(())
}
