//! Merges the results of several clients into one run.
//!
//! `coordinator` receives the results.
//!
//! Invariants: latency distributions are merged. The distributions of single seconds are not kept,
//! so the merged 99th percentile of a second is the highest of the clients' percentiles, which is
//! an upper bound of the true value.

use std::collections::BTreeMap;

use crate::result::{CellRun, ClassResult, ClientShare, Interval};
use crate::spec::OpKind;
use crate::summary::{RunFigures, merged};

/// Result of one client in one run.
pub(super) struct One {
    /// Name of the client.
    pub(super) name: String,
    /// Cores available to the client.
    pub(super) cores: u32,
    /// Figures that the client measured.
    pub(super) run: CellRun,
    /// Start time of the load on the coordinator's clock, in nanoseconds.
    pub(super) began_ns: i128,
    /// Uncertainty of the start time, in microseconds.
    pub(super) clock_error_us: f64,
}

/// Merges the results of all clients into one run.
pub(super) fn merge(all: Vec<One>) -> CellRun {
    let mut whole = CellRun::default();
    let mut intervals: BTreeMap<u32, Interval> = BTreeMap::new();
    let (mut reads, mut zeros) = (0.0, 0.0);
    let (first, last) =
        (all.iter().map(|one| one.began_ns).min(), all.iter().map(|one| one.began_ns).max());
    if let (Some(first), Some(last)) = (first, last) {
        whole.start_skew_ms = Some((last - first) as f64 / 1e6);
    }
    whole.started_unix_ms = all.iter().map(|one| one.run.started_unix_ms).min().unwrap_or(0);
    for one in all {
        whole.clients.push(share(&one));
        let run = one.run;
        whole.seconds = whole.seconds.max(run.seconds);
        if let Some(offered) = run.offered_iops {
            *whole.offered_iops.get_or_insert(0.0) += offered;
        }
        whole.lag.add(&run.lag);
        whole.backlog_max = whole.backlog_max.saturating_add(run.backlog_max);
        whole.overloaded |= run.overloaded;
        whole.due = whole.due.saturating_add(run.due);
        whole.answered = whole.answered.saturating_add(run.answered);
        whole.stalls.add(&run.stalls);
        whole.cpu_wait_s += run.cpu_wait_s;
        // Use the highest value instead of the sum, because all clients on the server's machine
        // report the CPU time of the same server process.
        whole.target_cpu_s =
            whole.target_cpu_s.into_iter().chain(run.target_cpu_s).reduce(f64::max);
        whole.steal_pct = whole.steal_pct.max(run.steal_pct);
        whole.others_pct = whole.others_pct.max(run.others_pct);
        whole.cpu_s = (whole.cpu_s.0 + run.cpu_s.0, whole.cpu_s.1 + run.cpu_s.1);
        whole.threads = whole.threads.saturating_add(run.threads);
        whole.clock_jumped |= run.clock_jumped;
        whole.corrupt = whole.corrupt.saturating_add(run.corrupt);
        whole.other_run = whole.other_run.saturating_add(run.other_run);
        whole.coverage.add(&run.coverage);
        for (kind, count) in &run.metadata_ops {
            let all = whole.metadata_ops.entry(*kind).or_default();
            *all = all.saturating_add(*count);
        }
        if let Some(files) = run.files {
            whole.files.get_or_insert_default().add(files);
        }
        let read = run.classes.iter().filter(|class| class.op == OpKind::Read);
        let read: f64 = read.map(|class| class.ops as f64).sum();
        (reads, zeros) = (reads + read, zeros + read * run.zero_reads_pct);
        for interval in &run.intervals {
            let (second, empty) = (interval.second, Interval::default());
            add_interval(intervals.entry(second).or_insert(Interval { second, ..empty }), interval);
        }
        run.classes.into_iter().for_each(|class| add_class(&mut whole.classes, class));
    }
    whole.zero_reads_pct = if reads > 0.0 { zeros / reads } else { 0.0 };
    whole.intervals = intervals.into_values().collect();
    whole
}

fn share(one: &One) -> ClientShare {
    let run = &one.run;
    let cores = f64::from(one.cores.min(run.threads).max(1));
    ClientShare {
        name: one.name.clone(),
        iops: RunFigures::of(run).iops,
        mean_us: merged(run.classes.iter().filter(|class| class.op.is_counted())).mean_us(),
        cpu_pct: 100.0 * (run.cpu_s.0 + run.cpu_s.1) / (run.seconds * cores).max(1e-9),
        clock_error_us: one.clock_error_us,
    }
}

fn add_class(classes: &mut Vec<ClassResult>, class: ClassResult) {
    let is_same = |known: &&mut ClassResult| (known.op, &known.stream) == (class.op, &class.stream);
    let Some(known) = classes.iter_mut().find(is_same) else { return classes.push(class) };
    known.ops = known.ops.saturating_add(class.ops);
    known.bytes = known.bytes.saturating_add(class.bytes);
    known.latency.add(&class.latency);
    if let Some(service) = &class.service {
        known.service.get_or_insert_default().add(service);
    }
    for (name, count) in class.errors {
        let known = known.errors.entry(name).or_default();
        *known = known.saturating_add(count);
    }
}

fn add_interval(all: &mut Interval, one: &Interval) {
    let ops = all.ops.saturating_add(one.ops);
    if ops > 0 {
        let mean = |a: f64, b: f64| (a * all.ops as f64 + b * one.ops as f64) / ops as f64;
        (all.mean_us, all.p50_us) = (mean(all.mean_us, one.mean_us), mean(all.p50_us, one.p50_us));
    }
    all.ops = ops;
    all.bytes = all.bytes.saturating_add(one.bytes);
    all.p99_us = all.p99_us.max(one.p99_us);
    all.max_us = all.max_us.max(one.max_us);
    all.backlog = all.backlog.saturating_add(one.backlog);
    all.in_flight = all.in_flight.saturating_add(one.in_flight);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::histogram::Latencies;

    #[test]
    fn merged_clients_add_up_to_one_distribution() {
        let one = |name: &str, run, began_ns| One {
            name: name.to_owned(),
            cores: 4,
            run,
            began_ns,
            clock_error_us: 12.0,
        };
        let mut fast = fixture::closed_run(3000, 10, 100, 1000, 1000);
        fast.zero_reads_pct = 4.0;
        let mut slow = fixture::closed_run(1000, 9, 50, 5000, 7000);
        (slow.overloaded, slow.backlog_max, slow.offered_iops) = (true, 5, Some(2000.0));
        let mut expected = Latencies::default();
        for class in fast.classes.iter().chain(&slow.classes) {
            expected.add(&class.latency);
        }
        let whole = merge(vec![one("a", fast, 1_000_000), one("b", slow, -1_500_000)]);
        assert_eq!(merged(&whole.classes), expected);
        assert_eq!(whole.classes.len(), 2);
        assert_eq!((whole.classes[0].ops, whole.classes[1].ops), (34_500, 4_500));
        assert_eq!((whole.seconds, whole.threads, whole.start_skew_ms), (10.0, 2, Some(2.5)));
        assert_eq!((whole.overloaded, whole.backlog_max), (true, 5));
        assert_eq!(whole.offered_iops, Some(2000.0));
        assert_eq!((whole.intervals.len(), whole.intervals[9].ops), (10, 3000));
        assert_eq!((whole.intervals[0].ops, whole.intervals[0].max_us), (4000, 7000.0));
        assert!((whole.intervals[0].mean_us - 2250.0).abs() < 1e-6, "1,000 and 6,000 in 3 to 1");
        assert!((whole.zero_reads_pct - 4.0 * 30_000.0 / 34_500.0).abs() < 1e-9);
        assert_eq!((whole.clients[0].iops, whole.clients[1].name.as_str()), (3000.0, "b"));
        assert!((whole.clients[0].cpu_pct - 3.0).abs() < 1e-9, "30 ms of each second of a core");
    }
}
