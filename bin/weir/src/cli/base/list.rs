//! Lists: the options of every `list` verb, and tables with the columns and the order that a user
//! chose.
//!
//! Not here: the alignment of the columns (`output`).
//!
//! Invariants:
//! - every list has the same options: -o, -s, -S, -H and -p;
//! - a sort compares values instead of their texts: 9 GiB comes before 10 GiB, and sizes with
//!   different units are sorted correctly;
//! - an unknown column is refused before the command calls the server.

use std::cmp::Ordering;

use weir_api::ApiError;
use weir_base::size::Human;

use crate::cli::base::output::{self, Style};
use crate::cli::base::{grammar, typed};

/// Names of other tools for a column, each with the name of that column in some list.
const ALIASES: [(&str, &str); 11] = [
    ("used", "alloc"),
    ("allocated", "alloc"),
    ("avail", "free"),
    ("available", "free"),
    ("capacity", "cap"),
    ("state", "health"),
    ("status", "health"),
    ("alloc", "used"),
    ("referenced", "refer"),
    ("creation", "created"),
    ("connections", "clients"),
];

/// Options of a list.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ListArgs {
    /// Print these columns, separated by commas; `-o help` prints their names
    #[arg(short = 'o', value_name = "COLUMN,...")]
    columns: Option<String>,
    /// Sort by a column
    #[arg(short = 's', value_name = "COLUMN", conflicts_with = "reverse")]
    sort: Option<String>,
    /// Sort by a column, largest first
    #[arg(short = 'S', value_name = "COLUMN")]
    reverse: Option<String>,
    /// Print for scripts: no header, tab-separated columns, exact numbers
    #[arg(short = 'H')]
    script: bool,
    /// Print exact numbers: sizes in bytes
    #[arg(short = 'p')]
    exact: bool,
}

/// A named set of columns: its name, and the names of the columns.
pub(crate) type Set = (&'static str, &'static [&'static str]);

impl ListArgs {
    /// Returns the format of the table: for users, or for scripts.
    pub(crate) fn style(&self) -> Style {
        Style::new(self.script)
    }

    /// Returns a list with these columns. A title that starts with `>` aligns its column to the
    /// right. If there are `sets`, the first one has the columns that are printed without `-o`, and
    /// `-o` also accepts the names of sets.
    ///
    /// Returns `None` after `-o help`, which prints the names of the columns.
    pub(crate) fn list<'a>(
        &self,
        titles: &'a [&'a str],
        sets: &[Set],
    ) -> Result<Option<List<'a>>, ApiError> {
        let names: Vec<String> = titles.iter().map(|title| name(title)).collect();
        let known = || {
            let sets = sets.iter().map(|(set, _)| (*set).to_owned());
            names.iter().cloned().chain(sets).collect::<Vec<_>>()
        };
        if self.columns.as_deref() == Some("help") {
            let lines: String = known().iter().map(|name| name.clone() + "\n").collect();
            output::print(&lines)?;
            return Ok(None);
        }
        let find = |wanted: &str| {
            let is_it = |name: &String| *name == wanted.to_lowercase();
            names.iter().position(is_it).unwrap_or_else(|| self.refuse(wanted, &known()))
        };
        let of_set = |set: &Set| set.1.iter().map(|name| find(name)).collect::<Vec<_>>();
        let columns = match &self.columns {
            None => sets.first().map_or_else(|| (0..names.len()).collect(), of_set),
            Some(columns) => {
                let set_or_column = |word: &str| match sets.iter().find(|(set, _)| *set == word) {
                    Some(set) => of_set(set),
                    None => vec![find(word)],
                };
                columns.split(',').map(str::trim).flat_map(set_or_column).collect()
            }
        };
        let ascending = self.sort.as_deref().map(|column| (find(column), false));
        let sort = ascending.or_else(|| self.reverse.as_deref().map(|column| (find(column), true)));
        let exact = self.exact || self.script;
        Ok(Some(List { titles, columns, sort, exact, style: self.style() }))
    }

    /// Prints the error for an unknown column with the command to type next, and exits.
    fn refuse(&self, wanted: &str, known: &[String]) -> ! {
        let columns = self.columns.iter().flat_map(|all| all.split(',')).map(str::trim);
        let mut given = columns.chain(self.sort.as_deref()).chain(self.reverse.as_deref());
        let is_only = given.all(|name| name == wanted || known.contains(&name.to_lowercase()));
        let right = meant(wanted, known).filter(|_| is_only);
        let next = right.and_then(|right| typed::line_with_value(&OPTIONS, wanted, right));
        let next = next.unwrap_or_else(help_of_columns);
        let wanted = output::clean(wanted);
        let columns = known.join(", ");
        output::say(&format!("weir: no column {wanted:?}; columns: {columns}\n  try: {next}"));
        std::process::exit(2)
    }
}

/// Options whose values are columns.
const OPTIONS: [&str; 3] = ["-o", "-s", "-S"];

/// Returns the column that the user probably meant by an unknown name.
fn meant<'a>(wanted: &str, known: &'a [String]) -> Option<&'a str> {
    let lower = wanted.to_lowercase();
    let is_alias = |name: &str| ALIASES.iter().any(|(alias, own)| *alias == lower && *own == name);
    let names = || known.iter().map(String::as_str);
    names().find(|name| is_alias(name)).or_else(|| typed::nearest(wanted, names()))
}

/// Returns the typed list command with `-o help` in place of its arguments and options.
fn help_of_columns() -> String {
    let (options, words) = grammar::split_options(&typed::words());
    let list = grammar::grammar().map(|grammar| grammar::level_of(&grammar, &words).1.to_vec());
    let list = list.unwrap_or_else(|| words.into_iter().take(2).collect());
    typed::shown(&options, &[list, vec!["-o".to_owned(), "help".to_owned()]].concat())
}

/// Returns the name of a column: its title in lower case, without the `>` that aligns it.
fn name(title: &str) -> String {
    title.trim_start_matches('>').to_lowercase().replace(' ', "_")
}

/// One value in a row of a list.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    /// A text, which is also its sort key.
    Text(String),
    /// A size in bytes.
    Size(u64),
    /// A text with a number as its sort key: a date, a ratio or a duration.
    Keyed(String, f64),
}

impl Cell {
    /// Creates a cell that sorts and shows a number.
    pub(crate) fn number(number: u64) -> Self {
        Self::Keyed(number.to_string(), number as f64)
    }

    /// Creates the cell of a ratio, with two decimals.
    pub(crate) fn ratio(ratio: f64) -> Self {
        Self::Keyed(format!("{ratio:.2}"), ratio)
    }

    /// Creates the cell of a time.
    pub(crate) fn date(unix_ms: u64) -> Self {
        Self::Keyed(output::date(unix_ms), unix_ms as f64)
    }

    /// Creates the cell of a time. If there is no time, the cell shows `none` and sorts before all
    /// times.
    pub(crate) fn date_or(unix_ms: Option<u64>, none: &str) -> Self {
        unix_ms.map_or_else(|| Self::Keyed(none.to_owned(), 0.0), Self::date)
    }

    /// Creates the cell of a text; the cell shows `-` if there is no text.
    pub(crate) fn or_dash(text: Option<&str>) -> Self {
        Self::Text(text.unwrap_or("-").to_owned())
    }

    fn text(&self, exact: bool) -> String {
        match self {
            Self::Text(text) | Self::Keyed(text, _) => text.clone(),
            Self::Size(bytes) if exact => bytes.to_string(),
            Self::Size(bytes) => Human(*bytes).to_string(),
        }
    }

    fn key(&self) -> Option<f64> {
        match self {
            Self::Text(_) => None,
            Self::Size(bytes) => Some(*bytes as f64),
            Self::Keyed(_, key) => Some(*key),
        }
    }

    /// Compares the sort keys of two cells. Numbers come before texts.
    fn compare(&self, other: &Self) -> Ordering {
        match (self.key(), other.key()) {
            (Some(one), Some(two)) => one.total_cmp(&two),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => self.text(true).cmp(&other.text(true)),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A list with the columns to print and the sort order.
#[derive(Debug)]
pub(crate) struct List<'a> {
    titles: &'a [&'a str],
    columns: Vec<usize>,
    /// Index of the column to sort by. The second value is true if the largest value comes first.
    sort: Option<(usize, bool)>,
    exact: bool,
    style: Style,
}

impl<'a> List<'a> {
    /// Creates a list for users, with all columns in the order of `titles`.
    pub(crate) fn all(titles: &'a [&'a str]) -> Self {
        let columns = (0..titles.len()).collect();
        Self { titles, columns, sort: None, exact: false, style: Style::People }
    }

    /// Formats rows as a table; empty if there are no rows. Each row has one cell for each title.
    pub(crate) fn table<const N: usize>(
        &self,
        rows: impl IntoIterator<Item = [Cell; N]>,
    ) -> String {
        assert_eq!(N, self.titles.len(), "a cell for each title");
        let mut rows: Vec<[Cell; N]> = rows.into_iter().collect();
        if rows.is_empty() {
            return String::new();
        }
        if let Some((column, largest_first)) = self.sort {
            rows.sort_by(|one, two| {
                let order = one[column].compare(&two[column]);
                if largest_first { order.reverse() } else { order }
            });
        }
        let header: Vec<&str> = self.columns.iter().map(|&column| self.titles[column]).collect();
        let text = |row: &[Cell; N]| {
            self.columns.iter().map(|&column| row[column].text(self.exact)).collect()
        };
        let rows: Vec<Vec<String>> = rows.iter().map(text).collect();
        output::rows(&header, &rows, self.style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLES: [&str; 3] = ["NAME", ">USED", "LAST USED"];

    fn rows() -> Vec<[Cell; 3]> {
        let row = |name: &str, bytes, day| [name.into(), Cell::Size(bytes), Cell::date(day)];
        vec![row("b", 9 << 30, 2), row("a", 10 << 30, 1), row("c", 512, 3)]
    }

    fn table(columns: Option<&str>, sort: Option<&str>, reverse: Option<&str>) -> String {
        let args = ListArgs {
            columns: columns.map(str::to_owned),
            sort: sort.map(str::to_owned),
            reverse: reverse.map(str::to_owned),
            script: true,
            exact: false,
        };
        let sets: [Set; 2] = [("default", &["name", "used"]), ("times", &["name", "last_used"])];
        args.list(&TITLES, &sets).unwrap().expect("no help").table(rows())
    }

    #[test]
    fn unknown_column_has_a_near_name_or_an_alias() {
        let known = ["name", "alloc", "free", "health"].map(str::to_owned);
        for (wanted, own) in [
            ("used", Some("alloc")),
            ("AVAIL", Some("free")),
            ("helth", Some("health")),
            ("foo", None),
            ("", None),
        ] {
            assert_eq!(meant(wanted, &known), own, "{wanted}");
        }
    }

    #[test]
    fn columns_come_in_the_order_asked_for() {
        assert_eq!(table(None, None, None), "b\t9663676416\na\t10737418240\nc\t512\n");
        assert_eq!(table(Some("used,NAME"), None, None), "9663676416\tb\n10737418240\ta\n512\tc\n");
        assert!(table(Some("times"), None, None).starts_with("b\t1970-01-01"));
    }

    #[test]
    fn sorting_compares_values() {
        let names =
            |text: String| text.lines().map(|line| line[..1].to_owned()).collect::<String>();
        assert_eq!(names(table(None, Some("used"), None)), "cba");
        assert_eq!(names(table(None, None, Some("used"))), "abc");
        assert_eq!(names(table(None, Some("name"), None)), "abc");
        assert_eq!(names(table(None, Some("last_used"), None)), "abc");
    }

    #[test]
    fn exact_numbers_keep_the_header() {
        let args = ListArgs { exact: true, ..ListArgs::default() };
        let list = args.list(&["NAME", ">USED", "DAY"], &[]).unwrap().expect("no help");
        assert!(list.table(rows()).starts_with("NAME         USED"));
        assert!(list.table(rows()).contains("10737418240"));
        let human = ListArgs::default();
        let list = human.list(&["NAME", ">USED", "DAY"], &[]).unwrap().expect("no help");
        assert!(list.table(rows()).contains("10GiB"));
        assert_eq!(list.table::<3>([]), "");
    }
}
