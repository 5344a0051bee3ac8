//! Describes the machine that runs the generator.
//!
//! `load` measures the CPU use of the machine during the load.
//!
//! Invariant: a value that the system does not report is empty or 0, never guessed.

use std::fs::read_to_string;
use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::result::Environment;

/// Duration of the CPU benchmark from which the core score is computed.
const SCORE_TIME: Duration = Duration::from_millis(300);

pub(crate) fn look() -> Environment {
    let line = |file: &str, name: &str| {
        let text = read_to_string(file).unwrap_or_default();
        let found = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        found.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned())).unwrap_or_default()
    };
    let memory_kib = line("/proc/meminfo", "MemTotal");
    let memory_kib: u64 =
        memory_kib.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
    let governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    let file = |path: &str| read_to_string(path).map(|text| text.trim().to_owned());
    Environment {
        host: file("/proc/sys/kernel/hostname").unwrap_or_default(),
        cpu: line("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        memory_bytes: memory_kib << 10,
        kernel: file("/proc/sys/kernel/osrelease").unwrap_or_default(),
        load_average: load_average(&file("/proc/loadavg").unwrap_or_default()),
        governor: file(governor).ok(),
        core_score: core_score(),
    }
}

/// Returns the first field of /proc/loadavg; 0 if the field is missing.
fn load_average(text: &str) -> f64 {
    text.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0.0)
}

/// Returns the number of 4 KiB blocks that one core hashes per second.
fn core_score() -> f64 {
    let (block, start, mut count) = ([7_u8; 4096], Instant::now(), 0_u64);
    while start.elapsed() < SCORE_TIME {
        for _ in 0..64 {
            black_box(twox_hash::XxHash3_128::oneshot(black_box(&block)));
        }
        count += 64;
    }
    count as f64 / start.elapsed().as_secs_f64()
}
