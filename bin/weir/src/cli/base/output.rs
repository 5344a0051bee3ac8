//! Output: tables, JSON, errors.
//!
//! Not here: the columns of each table (one file for each noun).
//!
//! Invariants:
//! - if the reader of a pipe has closed it, the program neither fails nor panics;
//! - text from disks and servers cannot control the terminal: control characters are printed as
//!   `?`.

use std::io::{self, Write};

use serde::Serialize;
use weir_api::ApiError;
use weir_api::types::Outcome;
use weir_api::wire::{ErrorBody, advice};
use weir_base::ErrorKind;

/// Version of the JSON output; it is increased if a field is renamed, removed or gets another
/// meaning.
const SCHEMA_VERSION: u32 = 1;

/// Line width at which long sentences are wrapped.
const WIDTH: usize = 80;

#[derive(Serialize)]
struct Versioned<'a, T> {
    schema_version: u32,
    #[serde(flatten)]
    body: &'a T,
}

/// Formats a response as JSON.
pub(crate) fn json<T: Serialize>(body: &T) -> Result<String, ApiError> {
    let versioned = Versioned { schema_version: SCHEMA_VERSION, body };
    serde_json::to_string_pretty(&versioned).map(|text| text + "\n").map_err(|error| {
        ApiError::new(ErrorKind::Internal, format!("cannot print the answer as JSON: {error}"))
    })
}

/// Writes data to standard output.
pub(crate) fn print(text: &str) -> Result<(), ApiError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has closed the pipe, which is not an error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            let message = format!("cannot write to standard output: {error}");
            Err(ApiError::new(ErrorKind::Unavailable, message))
        }
        Ok(()) => Ok(()),
    }
}

/// Writes a message to standard error. Ignores a failure, because the program has no other way to
/// report it.
pub(crate) fn say(text: &str) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// Prints an error and the action that it recommends.
pub(crate) fn error(error: &ApiError, as_json: bool) {
    match as_json.then(|| json(&ErrorBody { error: error.clone() })) {
        Some(Ok(text)) => say(text.trim_end()),
        _ => {
            let message = clean(&error.message);
            match exact(error) {
                Some(action) => say(&format!("weir: {message}\n  try: {}", clean(&action))),
                None => say(&format!("weir: {message}")),
            }
        }
    }
}

/// Returns the command that the user should type next. If the error has only the general action of
/// its kind, this function returns a list command for a missing object and `None` for an invalid
/// request, whose message explains the remedy.
fn exact(error: &ApiError) -> Option<String> {
    if error.action != advice(error.kind) {
        return Some(error.action.clone());
    }
    match error.kind {
        ErrorKind::Invalid => None,
        ErrorKind::NotFound => {
            let noun = error.message.split(' ').next().unwrap_or_default();
            let noun = if noun == "LUN" { "lun" } else { noun };
            let listed =
                ["pool", "volume", "filesystem", "snapshot", "bookmark", "export", "target", "lun"];
            let is_listed = listed.contains(&noun) || ["token", "replication"].contains(&noun);
            let noun = if noun == "replication" { "replicate" } else { noun };
            Some(if is_listed { format!("weir {noun} list") } else { "weir list".to_owned() })
        }
        _ => Some(error.action.clone()),
    }
}

/// Returns the message about the outcome of a changing call.
pub(crate) fn outcome(what: &str, name: &str, outcome: Outcome) -> String {
    match outcome {
        Outcome::Created => format!("{what} {name} created"),
        Outcome::Changed => format!("{what} {name} changed"),
        Outcome::Removed => format!("{what} {name} removed"),
        Outcome::Unchanged => format!("{what} {name}: already up to date; nothing changed"),
    }
}

/// Format of a table: for users or for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Aligned columns with a header, for users.
    People,
    /// Tab-separated columns without a header, for scripts.
    Script,
}

impl Style {
    pub(crate) fn new(script: bool) -> Self {
        if script { Self::Script } else { Self::People }
    }

    /// Formats a size: in bytes for scripts, with a unit for users.
    pub(crate) fn size(self, bytes: u64) -> String {
        match self {
            Self::People => weir_base::size::Human(bytes).to_string(),
            Self::Script => bytes.to_string(),
        }
    }
}

/// Formats a table. A header that starts with `>` aligns its column to the right.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    all: &[[String; N]],
    style: Style,
) -> String {
    let all: Vec<Vec<String>> = all.iter().map(|row| row.to_vec()).collect();
    rows(&header, &all, style)
}

/// Formats a table like [`table`], with any number of columns. The header and all rows must have
/// the same number of columns.
pub(crate) fn rows(header: &[&str], rows: &[Vec<String>], style: Style) -> String {
    let rows = rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect::<Vec<_>>());
    let rows: Vec<Vec<String>> = rows.collect();
    let mut text = String::new();
    if style == Style::Script {
        for row in &rows {
            text += &row.join("\t");
            text.push('\n');
        }
        return text;
    }
    let titles = header.iter().map(|title| title.trim_start_matches('>').to_owned()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&titles).chain(&rows).collect();
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..header.len()).map(|column| width(column).unwrap_or(0)).collect();
    for row in all {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let gap = " ".repeat(widths[column] - cell.chars().count());
            let right = header[column].starts_with('>');
            let (before, after) = if right { (gap.as_str(), "") } else { ("", gap.as_str()) };
            line = line + before + cell + after + "  ";
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Formats lines of `label: text`. Labels are aligned to the right, and long text is wrapped.
pub(crate) fn labelled(lines: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let label_width = lines.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
    for (label, value) in lines {
        let mut start = format!("{label:>label_width$}:");
        let mut column = start.len();
        for word in clean(value).split_whitespace() {
            let chars = word.chars().count();
            if column + 1 + chars > WIDTH && column > label_width + 1 {
                start = start + "\n" + &" ".repeat(label_width + 1);
                column = label_width + 1;
            }
            start = start + " " + word;
            column += 1 + chars;
        }
        text += &start;
        text.push('\n');
    }
    text
}

/// Replaces control characters by `?`.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Formats a duration in days, hours, minutes and seconds.
pub(crate) fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let time = format!("{hours:02}:{minutes:02}:{:02}", seconds % 60);
    if days > 0 { format!("{days} d {time}") } else { time }
}

/// Formats the duration of an operation in a suitable unit.
pub(crate) fn micros(us: u64) -> String {
    match us {
        0..1000 => format!("{us}us"),
        1000..1_000_000 => format!("{}.{}ms", us / 1000, us / 100 % 10),
        _ => format!("{}.{}s", us / 1_000_000, us / 100_000 % 10),
    }
}

/// Formats a time as `YYYY-MM-DD HH:MM:SS UTC`.
pub(crate) fn date(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (time, mut days) = (seconds % 86_400, seconds / 86_400);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    // Every 400 years have 146,097 days. The loop below counts the years that remain.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_aligned() {
        let rows = [["a".into(), "1".into()], ["longer".into(), "100".into()]];
        let people = table(["NAME", ">SIZE"], &rows, Style::People);
        assert_eq!(people, "NAME    SIZE\na          1\nlonger   100\n");
        assert_eq!(table(["NAME", ">SIZE"], &rows, Style::Script), "a\t1\nlonger\t100\n");
    }

    #[test]
    fn control_characters_cannot_reach_the_terminal() {
        let rows = [["\u{1b}[2J\ta\n".into()]];
        assert_eq!(table(["X"], &rows, Style::Script), "?[2J?a?\n");
    }

    #[test]
    fn long_sentences_wrap_under_their_label() {
        let text = labelled(&[("pool", "tank"), ("action", &"word ".repeat(30))]);
        assert!(text.starts_with("  pool: tank\naction: word"), "{text}");
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().nth(2).is_some_and(|l| l.starts_with("        word")), "{text}");
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds * 1000), text);
        }
    }

    #[test]
    fn durations_are_formatted() {
        assert_eq!(duration(61_000), "00:01:01");
        assert_eq!(duration(90_061_000), "1 d 01:01:01");
    }
}
