//! `weir pool iostat`: I/O of disks and clients, per second.
//!
//! Not here: the counters from which rates are computed (`pool_status` returns them).
//!
//! Invariants:
//! - the first report covers the time since the import of the pool, and each later report covers
//!   the interval before it;
//! - if the pool was imported again during the interval, the report covers the time since that
//!   import, so no rate is negative.

use std::time::Duration;

use serde::Serialize;
use weir_api::ApiError;
use weir_api::types::{ClientIo, DiskIo, OpIo, PoolStatus, ShowPool};

use crate::cli::base::output;
use crate::cli::base::output::Style;
use crate::cli::base::session::Session;

/// One report on one pool.
#[derive(Debug, Serialize)]
struct Report {
    pool: String,
    /// Length of the period that the rates cover.
    interval_ms: u64,
    total: Rates,
    vdevs: Vec<VdevReport>,
    client: ClientRates,
    /// Bytes written to disks for each byte that clients wrote; `None` if clients wrote nothing.
    written_per_client_byte: Option<f64>,
}

#[derive(Debug, Serialize)]
struct VdevReport {
    name: String,
    total: Rates,
    disks: Vec<DiskReport>,
}

#[derive(Debug, Serialize)]
struct DiskReport {
    path: String,
    slow: bool,
    rates: Rates,
}

/// Operations and bytes per second, and latencies of the operations that ended in the period.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Rates {
    reads_per_s: f64,
    writes_per_s: f64,
    flushes_per_s: f64,
    read_bytes_per_s: f64,
    written_bytes_per_s: f64,
    read_us: Option<u64>,
    write_us: Option<u64>,
    sync_write_us: Option<u64>,
    flush_us: Option<u64>,
    #[serde(flatten)]
    p99: P99,
}

/// 99th percentiles of latencies: since the import in the first report, and of the last 30 to 60 s
/// in later reports. The value for a vdev or a pool is the largest of its disks.
#[expect(clippy::struct_field_names, reason = "the unit ends the name")]
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct P99 {
    read_p99_us: Option<u64>,
    write_p99_us: Option<u64>,
    sync_write_p99_us: Option<u64>,
    flush_p99_us: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct ClientRates {
    reads_per_s: f64,
    writes_per_s: f64,
    flushes_per_s: f64,
    read_bytes_per_s: f64,
    written_bytes_per_s: f64,
    read_p99_us: Option<u64>,
    write_p99_us: Option<u64>,
    flush_p99_us: Option<u64>,
}

/// Change of the counters for one kind of operation, between two polls.
#[derive(Clone, Copy, Default)]
struct OpDelta {
    count: u64,
    bytes: u64,
    total_us: u64,
    p99_us: Option<u64>,
}

#[derive(Clone, Copy, Default)]
struct Delta {
    read: OpDelta,
    write: OpDelta,
    sync_write: OpDelta,
    flush: OpDelta,
}

impl OpDelta {
    /// Returns the difference; `before` is `None` for the report since the import.
    fn between(before: Option<OpIo>, now: OpIo) -> Self {
        let whole = (now.count > 0).then_some(now.p99_us);
        let p99_us = if before.is_some() { now.recent_p99_us } else { whole };
        let before = before.unwrap_or_default();
        Self {
            count: now.count.saturating_sub(before.count),
            bytes: now.bytes.saturating_sub(before.bytes),
            total_us: now.total_us.saturating_sub(before.total_us),
            p99_us,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            bytes: self.bytes + other.bytes,
            total_us: self.total_us + other.total_us,
            p99_us: self.p99_us.max(other.p99_us),
        }
    }

    fn mean_us(self) -> Option<u64> {
        self.total_us.checked_div(self.count)
    }
}

impl Delta {
    fn between(before: Option<&DiskIo>, now: &DiskIo) -> Self {
        Self {
            read: OpDelta::between(before.map(|io| io.read), now.read),
            write: OpDelta::between(before.map(|io| io.write), now.write),
            sync_write: OpDelta::between(before.map(|io| io.sync_write), now.sync_write),
            flush: OpDelta::between(before.map(|io| io.flush), now.flush),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            read: self.read.plus(other.read),
            write: self.write.plus(other.write),
            sync_write: self.sync_write.plus(other.sync_write),
            flush: self.flush.plus(other.flush),
        }
    }

    fn written_bytes(&self) -> u64 {
        self.write.bytes + self.sync_write.bytes
    }

    fn rates(&self, seconds: f64) -> Rates {
        let per_s = |count: u64| count as f64 / seconds;
        Rates {
            reads_per_s: per_s(self.read.count),
            writes_per_s: per_s(self.write.count + self.sync_write.count),
            flushes_per_s: per_s(self.flush.count),
            read_bytes_per_s: per_s(self.read.bytes),
            written_bytes_per_s: per_s(self.written_bytes()),
            read_us: self.read.mean_us(),
            write_us: self.write.mean_us(),
            sync_write_us: self.sync_write.mean_us(),
            flush_us: self.flush.mean_us(),
            p99: P99 {
                read_p99_us: self.read.p99_us,
                write_p99_us: self.write.p99_us,
                sync_write_p99_us: self.sync_write.p99_us,
                flush_p99_us: self.flush.p99_us,
            },
        }
    }
}

/// Compares two polls of a pool. Without `before`, the report covers the time since the import.
fn report(before: Option<&PoolStatus>, now: &PoolStatus) -> Report {
    // If the counters started after the last poll, the pool was imported again, so ignore that
    // poll.
    let before = before.filter(|old| old.guid == now.guid && old.counted_ms <= now.counted_ms);
    let interval_ms = now.counted_ms - before.map_or(0, |old| old.counted_ms);
    let seconds = interval_ms.max(1) as f64 / 1000.0;
    let known = |guid: &str| {
        let disks = before?.vdevs.iter().flat_map(|vdev| &vdev.disks);
        disks.filter(|disk| disk.guid == guid).find_map(|disk| disk.io)
    };
    let mut total = Delta::default();
    let mut vdevs = Vec::new();
    for vdev in &now.vdevs {
        let mut sum = Delta::default();
        let mut disks = Vec::new();
        for disk in &vdev.disks {
            let io = disk.io.unwrap_or_default();
            let delta = Delta::between(known(&disk.guid).as_ref(), &io);
            sum = sum.plus(delta);
            let rates = delta.rates(seconds);
            disks.push(DiskReport { path: disk.path.clone(), slow: disk.slow, rates });
        }
        total = total.plus(sum);
        vdevs.push(VdevReport { name: vdev.name.clone(), total: sum.rates(seconds), disks });
    }
    let client = before.map_or_else(ClientIo::default, |old| old.client);
    let written = now.client.written_bytes.saturating_sub(client.written_bytes);
    Report {
        pool: now.name.clone(),
        interval_ms,
        total: total.rates(seconds),
        vdevs,
        client: client_rates(&client, &now.client, seconds),
        written_per_client_byte: (written > 0)
            .then(|| total.written_bytes() as f64 / written as f64),
    }
}

fn client_rates(before: &ClientIo, now: &ClientIo, seconds: f64) -> ClientRates {
    let per_s = |old: u64, new: u64| new.saturating_sub(old) as f64 / seconds;
    ClientRates {
        reads_per_s: per_s(before.reads, now.reads),
        writes_per_s: per_s(before.writes, now.writes),
        flushes_per_s: per_s(before.flushes, now.flushes),
        read_bytes_per_s: per_s(before.read_bytes, now.read_bytes),
        written_bytes_per_s: per_s(before.written_bytes, now.written_bytes),
        read_p99_us: now.read_p99_us,
        write_p99_us: now.write_p99_us,
        flush_p99_us: now.flush_p99_us,
    }
}

/// Prints a report. If an interval is given, prints further reports, up to `count` reports in
/// total.
pub(crate) fn run(
    session: &Session,
    pool: &str,
    interval: Option<u64>,
    count: Option<u64>,
    style: Style,
) -> Result<(), ApiError> {
    let mut before: Option<PoolStatus> = None;
    let mut left = if interval.is_some() { count.unwrap_or(u64::MAX) } else { 1 };
    let mut screen = Screen::default();
    loop {
        let now = session.call(ShowPool { name: pool.to_owned() })?;
        session.print(&report(before.as_ref(), &now), |report| screen.next(report, style))?;
        left -= 1;
        let Some(seconds) = interval.filter(|_| left > 0) else { return Ok(()) };
        before = Some(now);
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

/// Number of lines to assume for a terminal that does not report its size.
const SCREEN_LINES: usize = 24;

/// Lines printed since the last header. A report prints the header again when the header has
/// scrolled away.
#[derive(Default)]
struct Screen {
    lines: usize,
}

impl Screen {
    fn next(&mut self, report: &Report, style: Style) -> String {
        let terminal = console::Term::stdout();
        let height = match terminal.size_checked() {
            Some((rows, _)) if terminal.is_term() && rows > 0 => usize::from(rows),
            _ if terminal.is_term() => SCREEN_LINES,
            _ => usize::MAX,
        };
        let text = text(report, style);
        if style == Style::Script { text } else { self.fit(&text, height) }
    }

    /// Removes the header from a report if the last header is still visible, on a terminal with
    /// `height` lines.
    fn fit(&mut self, text: &str, height: usize) -> String {
        let lines = text.lines().count();
        if self.lines == 0 || self.lines + lines > height {
            self.lines = lines;
            return text.to_owned();
        }
        self.lines += lines - 1;
        text.split_once('\n').map_or_else(String::new, |(_, rest)| rest.to_owned())
    }
}

fn text(report: &Report, style: Style) -> String {
    let mut rows = vec![row(&report.pool, &report.total, style)];
    for vdev in &report.vdevs {
        rows.push(row(&format!("  {}", vdev.name), &vdev.total, style));
        let disks = vdev.disks.iter().filter(|disk| disk.path != vdev.name);
        for disk in disks {
            let mark = if disk.slow { " (slow)" } else { "" };
            rows.push(row(&format!("    {}{mark}", disk.path), &disk.rates, style));
        }
    }
    rows.push(client_row(&report.client, style));
    let header = [
        "NAME",
        ">READ op/s",
        ">WRITE op/s",
        ">FLUSH op/s",
        ">READ B/s",
        ">WRITE B/s",
        ">READ mean",
        ">p99",
        ">WRITE mean",
        ">p99",
        ">SYNC mean",
        ">p99",
        ">FLUSH mean",
        ">p99",
    ];
    let table = output::table(header, &rows, style);
    match (style, report.written_per_client_byte) {
        (Style::Script, _) => table,
        (Style::People, Some(ratio)) => {
            format!("{table}written to disks per byte written by clients: {ratio:.2}\n")
        }
        (Style::People, None) => format!("{table}clients wrote nothing\n"),
    }
}

fn row(name: &str, rates: &Rates, style: Style) -> [String; 14] {
    [
        name.to_owned(),
        operations(rates.reads_per_s, style),
        operations(rates.writes_per_s, style),
        operations(rates.flushes_per_s, style),
        bytes(rates.read_bytes_per_s, style),
        bytes(rates.written_bytes_per_s, style),
        time(rates.read_us, style),
        time(rates.p99.read_p99_us, style),
        time(rates.write_us, style),
        time(rates.p99.write_p99_us, style),
        time(rates.sync_write_us, style),
        time(rates.p99.sync_write_p99_us, style),
        time(rates.flush_us, style),
        time(rates.p99.flush_p99_us, style),
    ]
}

fn client_row(rates: &ClientRates, style: Style) -> [String; 14] {
    let none = || time(None, style);
    [
        "clients".to_owned(),
        operations(rates.reads_per_s, style),
        operations(rates.writes_per_s, style),
        operations(rates.flushes_per_s, style),
        bytes(rates.read_bytes_per_s, style),
        bytes(rates.written_bytes_per_s, style),
        none(),
        time(rates.read_p99_us, style),
        none(),
        time(rates.write_p99_us, style),
        none(),
        none(),
        none(),
        time(rates.flush_p99_us, style),
    ]
}

#[expect(clippy::cast_sign_loss, reason = "rates are never negative")]
fn bytes(per_s: f64, style: Style) -> String {
    style.size(per_s as u64)
}

fn operations(per_s: f64, style: Style) -> String {
    match style {
        Style::Script => format!("{per_s:.3}"),
        Style::People if per_s > 0.0 && per_s < 9.95 => format!("{per_s:.1}"),
        Style::People => format!("{per_s:.0}"),
    }
}

fn time(us: Option<u64>, style: Style) -> String {
    match (us, style) {
        (None, _) => "-".to_owned(),
        (Some(us), Style::Script) => us.to_string(),
        (Some(us), Style::People) => output::micros(us),
    }
}

#[cfg(test)]
mod tests {
    use weir_api::types::{DiskStatus, ErrorCounts, Health, VdevKind, VdevStatus};

    use super::*;

    fn op(count: u64, bytes: u64, total_us: u64) -> OpIo {
        let recent_p99_us = Some(2 * total_us / count.max(1));
        OpIo { count, bytes, total_us, p99_us: 7000, recent_p99_us, ..OpIo::default() }
    }

    fn disk(name: &str, io: &DiskIo) -> DiskStatus {
        DiskStatus {
            path: name.into(),
            guid: name.into(),
            state: Health::Online,
            errors: ErrorCounts::default(),
            note: None,
            slow: name == "/b",
            io: Some(*io),
        }
    }

    fn pool(counted_ms: u64, written: u64, disks: &[DiskIo; 2]) -> PoolStatus {
        let [a, b] = disks;
        let vdev = VdevStatus {
            role: weir_api::types::VdevRole::Data,
            leaving: None,
            name: "mirror-0".into(),
            kind: VdevKind::Mirror,
            state: Health::Online,
            errors: ErrorCounts::default(),
            disks: vec![disk("/a", a), disk("/b", b)],
        };
        let json = serde_json::json!({
            "name": "tank", "guid": "1", "state": "online", "status": null, "action": null,
            "see": null, "size_bytes": 1, "allocated_bytes": 0, "free_bytes": 1, "txg": 4,
            "properties": {}, "errors": ErrorCounts::default(), "vdevs": [vdev],
            "client": ClientIo { writes: 10, written_bytes: written, ..ClientIo::default() },
            "counted_ms": counted_ms,
        });
        serde_json::from_value(json).unwrap()
    }

    fn writes(count: u64, bytes: u64, total_us: u64) -> DiskIo {
        DiskIo { sync_write: op(count, bytes, total_us), ..DiskIo::default() }
    }

    #[test]
    fn interval_shows_only_its_own_operations() {
        let before = pool(10_000, 4096, &[writes(10, 40_960, 1000), writes(10, 40_960, 1000)]);
        let now = pool(12_000, 12_288, &[writes(30, 57_344, 5000), writes(30, 57_344, 85_000)]);
        let first = report(None, &before);
        assert_eq!(first.interval_ms, 10_000);
        assert_eq!(first.written_per_client_byte, Some(20.0));
        let next = report(Some(&before), &now);
        assert_eq!(next.interval_ms, 2000);
        assert_eq!(next.written_per_client_byte, Some(4.0));
        let [a, b] = [0, 1].map(|index| next.vdevs[0].disks[index].rates);
        assert_eq!((a.sync_write_us, b.sync_write_us), (Some(200), Some(4200)));
        assert_eq!(a.read_us, None);
        assert!(
            (a.writes_per_s - 10.0).abs() < 1e-9 && (a.written_bytes_per_s - 8192.0).abs() < 1e-9
        );
        assert!((next.total.writes_per_s - 20.0).abs() < 1e-9);
        let text = text(&next, Style::People);
        assert!(text.contains("    /b (slow)"), "{text}");
        let p99 = |report: &Report| report.vdevs[0].disks[0].rates.p99.sync_write_p99_us;
        assert_eq!((p99(&first), p99(&next)), (Some(7000), Some(333)), "since import, then recent");
        assert_eq!(next.total.p99.sync_write_p99_us, Some(5666), "of the slowest disk");
        assert!(text.contains("per byte written by clients: 4.00"), "{text}");
    }

    #[test]
    fn header_is_repeated_when_it_left_the_screen() {
        let mut screen = Screen::default();
        let report = "HEADER\na\nb\n";
        let shown: Vec<String> = (0..5).map(|_| screen.fit(report, 8)).collect();
        assert_eq!(shown.concat(), "HEADER\na\nb\na\nb\na\nb\nHEADER\na\nb\na\nb\n");
        let mut file = Screen::default();
        let headers = (0..100).filter(|_| file.fit(report, usize::MAX).contains("HEADER"));
        assert_eq!(headers.count(), 1);
    }

    #[test]
    fn counters_restart_after_another_import() {
        let before = pool(10_000, 4096, &[writes(10, 40_960, 1000), writes(10, 40_960, 1000)]);
        let now = pool(500, 0, &[writes(1, 4096, 100), writes(1, 4096, 100)]);
        let next = report(Some(&before), &now);
        assert_eq!(next.interval_ms, 500);
        assert_eq!(next.written_per_client_byte, None);
        assert!((next.total.writes_per_s - 4.0).abs() < 1e-9);
    }
}
