//! Text about the permanent errors of a pool: data without an intact copy on any disk.
//!
//! Not here: errors that the pool repaired from another copy (the table of `weir pool status`).
//!
//! Invariant: "No known data errors" is printed only for an imported pool without permanent errors.

use weir_api::types::{Damage, DamagedRange, Health, PoolStatus};
use weir_base::size::Human;

use crate::cli::base::output;
use crate::cli::base::output::Style;

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Describes how many ranges and how much metadata are damaged; `None` if there is no damage.
pub(crate) fn summary(damage: &Damage) -> Option<String> {
    let mut parts = Vec::new();
    if !damage.ranges.is_empty() {
        let ranges = counted(damage.ranges.len() as u64, "range", "ranges");
        let volumes = counted(damage.volumes, "volume", "volumes");
        let bytes = format!(" ({})", Human(damage.bytes));
        // Ranges of objects have no size in bytes, so leave the size out.
        let bytes = if damage.bytes > 0 { bytes } else { String::new() };
        parts.push(format!("{ranges}{bytes} in {volumes}"));
    }
    if !damage.parts.is_empty() {
        let count = damage.parts.len() as u64;
        parts.push(counted(count, "part of the pool's metadata", "parts of the pool's metadata"));
    }
    if damage.more > 0 {
        parts.push(format!("at least {} more", damage.more));
    }
    (!parts.is_empty()).then(|| parts.join(" and "))
}

/// Returns the text after `errors:` in the status of a pool.
pub(crate) fn line(pool: &PoolStatus, verbose: bool) -> String {
    let Some(summary) = summary(&pool.damage) else {
        let is_open = pool.state != Health::Unavailable;
        let text = if is_open { "No known data errors" } else { "not known, the pool is not open" };
        return text.to_owned();
    };
    let one = pool.damage.ranges.len() + pool.damage.parts.len() == 1 && pool.damage.more == 0;
    let have = if one { "has" } else { "have" };
    if verbose {
        return format!("{summary} {have} no good copy:");
    }
    format!("{summary} {have} no good copy; 'weir pool status -v {}' lists it", pool.name)
}

fn shared_by(range: &DamagedRange) -> String {
    let (named, more) = range.shared_by();
    let mut words: Vec<String> = named.iter().map(|name| format!("@{name}")).collect();
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    words.join(" ")
}

/// Returns the list of permanent errors, with an empty line before it; empty if there are none.
pub(crate) fn list(damage: &Damage) -> String {
    let range = |range: &DamagedRange| {
        let of_volume = |bytes: u64| match range.objects {
            None => bytes.to_string(),
            Some(_) => String::new(),
        };
        [
            range.place(),
            of_volume(range.offset_bytes),
            of_volume(range.len_bytes),
            output::date(range.found_unix_ms),
            shared_by(range),
        ]
    };
    let ranges: Vec<[String; 5]> = damage.ranges.iter().map(range).collect();
    let parts: Vec<[String; 3]> = damage
        .parts
        .iter()
        .map(|part| [part.part.clone(), part.number.to_string(), output::date(part.found_unix_ms)])
        .collect();
    let header = ["DATA", ">OFFSET", ">LENGTH", "FOUND", "SHARED BY"];
    let mut text = String::new();
    if !ranges.is_empty() {
        text += &indented(&output::table(header, &ranges, Style::People));
    }
    if !parts.is_empty() {
        let table = output::table(["STRUCTURE", ">NUMBER", "FOUND"], &parts, Style::People);
        text += &indented(&table);
    }
    text
}

fn indented(table: &str) -> String {
    let lines = table.lines().map(|line| format!("        {line}\n"));
    std::iter::once("\n".to_owned()).chain(lines).collect()
}
