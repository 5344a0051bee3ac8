//! Watchdog: a thread that reports an input that takes too long or needs too much memory.
//!
//! The search catches panics; the watchdog does not.
//!
//! Invariants: the report contains the input that is running at this time; the watchdog never
//! reports an input that ended within its limits.

use std::fs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which the thread checks the elapsed time and the memory use of the process.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Function that the thread calls with the input and the limit that it exceeded.
type Report = dyn Fn(&[u8], &str) + Send;

/// Watches the inputs of one search.
pub struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    input: Vec<u8>,
    /// Start time of the input that is running.
    since: Option<Instant>,
    is_ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics under this lock")
    }
}

impl Watchdog {
    /// Starts the watchdog thread. `report` should write the input to a file and end the process.
    pub fn start(
        input_time_max: Duration,
        memory_bytes_max: u64,
        report: impl Fn(&[u8], &str) + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let watched = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            watch(&watched, input_time_max, memory_bytes_max, &report);
        });
        Self { shared, thread: Some(thread) }
    }

    /// Runs `run` on an input, which the watchdog supervises.
    pub(crate) fn run<T>(&self, input: &[u8], run: impl FnOnce() -> T) -> T {
        let mut state = self.shared.lock();
        state.input.clear();
        state.input.extend_from_slice(input);
        state.since = Some(Instant::now());
        drop(state);
        let result = run();
        self.shared.lock().since = None;
        result
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().is_ended = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn watch(shared: &Shared, input_time_max: Duration, memory_bytes_max: u64, report: &Report) {
    let mut state = shared.lock();
    while !state.is_ended {
        state = shared.ended.wait_timeout(state, POLL_INTERVAL).expect("as lock").0;
        let Some(since) = state.since else { continue };
        let memory_bytes = resident_bytes();
        if since.elapsed() > input_time_max {
            report(&state.input, &format!("it runs for more than {input_time_max:?}"));
        } else if memory_bytes > memory_bytes_max {
            let mib = memory_bytes >> 20;
            report(&state.input, &format!("the process uses {mib} MiB of memory"));
        } else {
            continue;
        }
        state.since = None;
    }
}

/// Resident memory of this process in bytes; 0 if the kernel does not report it.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).map(str::parse);
    kib.and_then(Result::ok).unwrap_or(0_u64) << 10
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn slow_input_is_reported_and_others_are_not() {
        let (reports, reported) = mpsc::channel();
        let start = |input_time_max| {
            let reports = reports.clone();
            let report = move |input: &[u8], _: &str| {
                reports.send(input.to_vec()).expect("a receiver");
            };
            Watchdog::start(input_time_max, u64::MAX, report)
        };
        start(Duration::MAX).run(b"in time", || std::thread::sleep(3 * POLL_INTERVAL));
        let watchdog = start(Duration::ZERO);
        std::thread::sleep(3 * POLL_INTERVAL);
        let input = watchdog.run(b"slow", || reported.recv());
        assert_eq!(input.expect("a report"), b"slow");
    }

    #[test]
    fn large_process_is_reported() {
        let (reports, reported) = mpsc::channel();
        let report = move |input: &[u8], _: &str| reports.send(input.to_vec()).expect("a receiver");
        let watchdog = Watchdog::start(Duration::MAX, 1, report);
        let input = watchdog.run(b"any", || reported.recv());
        assert_eq!(input.expect("a report"), b"any");
    }
}
