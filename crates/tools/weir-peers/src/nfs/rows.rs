//! Rows of the NFS tables: the loads, with the bars (required values) for Weir.
//!
//! `load` runs the rows on a server.
//!
//! Invariant: rows of one group share a dataset, a durability and an address, so that one call of
//! `weir bench` runs them.

use std::fmt::Write as _;

/// Files of each worker that create and remove use; four workers.
pub(super) const CREATED_FILES: u64 = 2500;
/// Number of files of each of the four directories that are listed.
pub(super) const LISTED_FILES: u64 = 5000;
/// Bytes of each file of the archive: a common size in a tree of source code.
const EXTRACTED_BYTES: u64 = 8192;
/// Block sizes of the matrix in KiB.
pub(super) const MATRIX_KIB: [u32; 4] = [4, 8, 16, 32];
/// Patterns of the matrix with their percentages of reads, as in the reference document 000.
pub(super) const MATRIX: [(&str, &[u32]); 2] =
    [("random", &[100, 75, 50, 25, 0]), ("seq", &[0, 50, 75, 100])];
/// Metadata operations of the matrix: the profile `s000-nexenta-vm` has the same.
const META: &str = "getattr = 26, lookup = 24, access = 11, setattr = 4, readdirplus = 2, \
                    readdir = 1, fsstat = 1, create = 1, remove = 1";
/// Minimum ratio of Weir's operations per second to Ganesha's in each cell of the matrix.
pub(super) const MATRIX_MIN: f64 = 2.0;

/// Time at which a change of names and attributes is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Before the reply: Weir's default, and Ganesha on a directory with the flag `D` of ext4.
    Durable,
    /// Seconds after the reply: Weir's `--async`, and Ganesha on a plain directory.
    Volatile,
}

/// Rows that one call of `weir bench` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Matrix,
    Large,
    Small,
    Sync,
    Names(Names),
    /// An archive on the durable share. It takes as long as all other groups of a round, so it runs
    /// only in the first round.
    Extract,
}

/// Unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Thousands,
    MiB,
    /// Entries of a directory: each operation lists this many.
    Entries(u64),
}

/// A row of the tables.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) group: Group,
    /// Kinds of operation that the rate counts.
    pub(super) classes: &'static [&'static str],
    pub(super) unit: Unit,
    /// Minimum ratio of Weir's rate to Ganesha's.
    pub(super) ratio_min: Option<f64>,
    /// Minimum of Weir's rate, in the unit of the row.
    pub(super) rate_min: Option<f64>,
    /// Maximum of Weir's CPU time for each operation.
    pub(super) cpu_us_max: Option<f64>,
    /// Keys of the test in the profile.
    test: String,
}

impl Group {
    pub(crate) const ALL: [Self; 7] = [
        Self::Matrix,
        Self::Large,
        Self::Small,
        Self::Sync,
        Self::Names(Names::Durable),
        Self::Names(Names::Volatile),
        Self::Extract,
    ];

    /// Name of the group in messages, and behind `nfs-` in options.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Matrix => "matrix",
            Self::Large => "large",
            Self::Small => "small",
            Self::Sync => "sync",
            Self::Names(Names::Durable) => "names-durable",
            Self::Names(Names::Volatile) => "names-volatile",
            Self::Extract => "extract",
        }
    }

    /// Share on which the group runs: names are durable on Weir for data too, as by default, and
    /// not on Ganesha.
    pub(super) fn names(self) -> Option<Names> {
        match self {
            Self::Names(names) => Some(names),
            Self::Extract => Some(Names::Durable),
            _ => None,
        }
    }

    /// Keys of the address.
    pub(super) fn keys(self) -> &'static str {
        if self == Self::Sync { "&sync=file" } else { "" }
    }

    /// Text of the profile. `seconds`: length of each timed row.
    pub(super) fn profile(self, rows: &[Row], seconds: u64) -> String {
        let (files, size) = match self {
            Self::Names(_) | Self::Extract => (1, "1MiB"),
            _ => (8, "32MiB"),
        };
        let writes = match self {
            Self::Matrix => "writes = \"unstable+commit\", commit_every = \"4MiB\"",
            Self::Large => "writes = \"unstable+commit\", commit_every = \"64MiB\"",
            _ => "writes = \"none\"",
        };
        let seconds = if self == Self::Matrix { seconds.div_ceil(2) } else { seconds };
        let mut text = format!(
            "schema = 1\nname = \"nfs\"\n\
             dataset = {{ files = {files}, file_size = \"{size}\" }}\n\
             content = {{ compress = 1.0, dedupe_pct = 0, unit = \"4KiB\", seed = 42 }}\n\
             durability = {{ {writes} }}\n"
        );
        match self {
            Self::Matrix => text.push_str(&matrix()),
            Self::Small => text.push_str("[mix]\ndata_pct = 100\nmeta = { getattr = 1 }\n"),
            _ => {}
        }
        write!(
            text,
            "[phases]\nfill = {{ block = \"1MiB\", in_flight = 8 }}\n\
             measure = {{ warmup = \"300ms\", duration = \"{seconds}s\", runs = 1 }}\n"
        )
        .expect("a String takes every write");
        for Row { name, test, .. } in rows.iter().filter(|row| row.group == self) {
            write!(text, "[[test]]\nname = \"{name}\"\n{test}\n")
                .expect("a String takes every write");
        }
        text
    }
}

/// Tables of the profile for the matrix: 8 workers with 4 operations in flight each.
fn matrix() -> String {
    let [(random, reads), (seq, seq_reads)] = MATRIX;
    let blocks = MATRIX_KIB.map(|kib| format!("{kib}KiB"));
    format!(
        "load = {{ mode = \"closed\", workers = 8, window = 4 }}\n\
         [mix]\ndata_pct = 95\nmeta = {{ {META} }}\n\
         [matrix]\npattern = [\"{random}\", \"{seq}\"]\nread_pct = {reads:?}\n\
         seq_read_pct = {seq_reads:?}\nblock = {blocks:?}\n"
    )
}

/// Name of a cell of the matrix, as `weir bench` derives it.
pub(super) fn cell(pattern: &str, kib: u32, read_pct: u32) -> String {
    format!("{pattern} {kib}KiB read {read_pct}%")
}

/// All rows except the matrix, in the order of the table. `extracted`: number of files of the
/// archive.
pub(super) fn rows(extracted: u64) -> Vec<Row> {
    let mut rows = data_rows();
    for names in [Names::Durable, Names::Volatile] {
        rows.extend(name_rows(names));
    }
    let test = format!(
        "op = \"extract\"\nfiles = {extracted}\nfile_size = \"{EXTRACTED_BYTES}B\"\n\
         duration = \"180s\"\nworkers = 1\nqd = [1]"
    );
    rows.push(Row {
        name: "extract",
        title: "untar: CREATE, WRITE, SETATTR; 1 client",
        group: Group::Extract,
        classes: &["extract"],
        unit: Unit::Thousands,
        ratio_min: Some(1.0),
        rate_min: None,
        cpu_us_max: None,
        test,
    });
    rows
}

fn data_rows() -> Vec<Row> {
    let row = |name, title, group, class: &'static [&'static str], test: &str| Row {
        name,
        title,
        group,
        classes: class,
        unit: if group == Group::Large { Unit::MiB } else { Unit::Thousands },
        ratio_min: None,
        rate_min: None,
        cpu_us_max: None,
        test: match group {
            Group::Large => format!("pattern = \"seq\"\nblock = \"1MiB\"\nqd = [16]\n{test}"),
            Group::Sync => {
                format!("pattern = \"random\"\nblock = \"4KiB\"\nworkers = 8\nqd = [8]\n{test}")
            }
            _ => format!("pattern = \"random\"\nblock = \"4KiB\"\nworkers = 4\nqd = [32]\n{test}"),
        },
    };
    let [read, write] = ["read_pct = 100", "read_pct = 0"];
    let getattr = "read_pct = 100\nmetadata_pct = 99.9";
    let (large, small, sync) = (Group::Large, Group::Small, Group::Sync);
    let read_1m = "sequential read, 1 MiB, 16 in flight";
    let write_1m = "sequential write, 1 MiB, 16 in flight";
    let read_4k = "4 KiB random read, warm, 32 in flight";
    let write_4k = "4 KiB random write, UNSTABLE, 32 in flight";
    let sync_4k = "4 KiB random write, FILE_SYNC, 8 clients";
    let at_least = |ratio, row| Row { ratio_min: Some(ratio), ..row };
    let at_most = |us, row| Row { cpu_us_max: Some(us), ..row };
    vec![
        at_least(1.5, row("read-1m", read_1m, large, &["read"], read)),
        at_least(1.0, row("write-1m", write_1m, large, &["write"], write)),
        at_most(7.0, row("read-4k", read_4k, small, &["read"], read)),
        at_most(4.0, row("getattr", "GETATTR, 32 in flight", small, &["metadata"], getattr)),
        at_most(10.0, row("write-4k", write_4k, small, &["write"], write)),
        at_least(1.0, row("sync-4k", sync_4k, sync, &["write"], write)),
    ]
}

fn name_rows(names: Names) -> Vec<Row> {
    let row = |name, title, classes, test: String| Row {
        name,
        title,
        group: Group::Names(names),
        classes,
        unit: Unit::Thousands,
        ratio_min: None,
        rate_min: None,
        cpu_us_max: None,
        test,
    };
    let four = |op: &str, files: u64| {
        let most = if ["create", "remove"].contains(&op) { "duration = \"60s\"\n" } else { "" };
        format!("op = \"{op}\"\nfiles = {files}\n{most}workers = 4\nqd = [16]")
    };
    let mut rows = vec![
        row("create", "create", &["create"], four("create", CREATED_FILES)),
        row("remove", "remove", &["remove"], four("remove", CREATED_FILES)),
    ];
    if names == Names::Volatile {
        let stat = row("stat", "stat (LOOKUP), 16 in flight", &["stat"], four("stat", 2500));
        rows.push(Row { ratio_min: Some(2.0), ..stat });
        let list = four("readdirplus", LISTED_FILES);
        let listed = row("readdirplus", "READDIRPLUS, entries", &["readdirplus"], list);
        let unit = Unit::Entries(LISTED_FILES);
        rows.push(Row { unit, rate_min: Some(200_000.0), ..listed });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_all_rows_and_profiles_name_them() {
        let rows = rows(100);
        for row in &rows {
            assert!(Group::ALL.contains(&row.group), "{row:?}");
            let profile = row.group.profile(&rows, 2);
            assert!(profile.contains(&format!("name = \"{}\"\n", row.name)), "{profile}");
        }
        let matrix = Group::Matrix.profile(&rows, 2);
        assert!(matrix.contains("read_pct = [100, 75, 50, 25, 0]"), "{matrix}");
        assert!(matrix.contains("block = [\"4KiB\", \"8KiB\", \"16KiB\", \"32KiB\"]"), "{matrix}");
        assert_eq!(cell("seq", 8, 50), "seq 8KiB read 50%");
    }
}
