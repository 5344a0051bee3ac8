//! Metadata operations of a stream: a percentage of its operations, or an `op` on files.
//!
//! `cells` makes the streams; `load` in the crate's root chooses the operations.
//!
//! Invariants: the percentage of a published mix applies only to targets with files, and the
//! assumptions say so for other targets; a stream that requests metadata operations itself is
//! refused for a target without files.

use std::ops::Range;

use toml::Spanned;

use crate::spec::{LoadSpec, MetadataKind, MetadataShare, MetadataSpec, OpKind, StreamSpec};
use crate::target::WITH_FILES;

use super::super::Protocol;
use super::super::error::{ProfileError, Source};
use super::super::format::{DirectoryName, MetaMix, Mix};
use super::super::quantity::Size;

/// Weights of the metadata operations, if the profile gives none: the proportions of the NFSv3
/// procedures in SPEC SFS 2008.
const DEFAULT_SHARES: [(MetadataKind, f64); 9] = [
    (MetadataKind::Getattr, 26.0),
    (MetadataKind::Lookup, 24.0),
    (MetadataKind::Access, 11.0),
    (MetadataKind::Setattr, 4.0),
    (MetadataKind::Readdirplus, 2.0),
    (MetadataKind::Readdir, 1.0),
    (MetadataKind::Fsstat, 1.0),
    (MetadataKind::Create, 1.0),
    (MetadataKind::Remove, 1.0),
];

/// Keys of a test or a stream that concern metadata operations.
pub(super) struct Asked<'a> {
    pub(super) place: Range<usize>,
    pub(super) op: Option<OpKind>,
    pub(super) files: Option<u32>,
    pub(super) file_size: Option<&'a Spanned<Size>>,
    pub(super) directory: Option<DirectoryName>,
    pub(super) metadata_pct: Option<&'a Spanned<f64>>,
}

/// Returns the metadata operations of a stream; `None` if it has none. `mix` is the mix of the
/// profile.
pub(super) fn of_stream(
    source: Source<'_>,
    asked: &Asked<'_>,
    mix: Option<&Mix>,
    protocol: Option<Protocol>,
) -> Result<Option<MetadataSpec>, ProfileError> {
    let refuse = |what: String, action: &str| Err(source.contradiction(&asked.place, what, action));
    if let Some(op) = asked.op.filter(|op| op.is_of_files()) {
        return files(source, asked, op, protocol).map(Some);
    }
    if asked.files.is_some() || asked.file_size.is_some() || asked.directory.is_some() {
        return refuse(
            "`files`, `file_size` and `directory` are given, but no operation on files".to_owned(),
            "add `op`: create, extract, stat, remove, rename, readdir or readdirplus; or leave \
             them out",
        );
    }
    let Some(pct) = asked.metadata_pct else {
        // The mix of a published measurement. Targets without files run only its data operations.
        let pct = mix.map_or(0.0, |mix| 100.0 - mix.data_pct);
        let runs = asked.op.is_none() && pct > 0.0 && protocol.is_some_and(Protocol::has_files);
        return Ok(runs.then(|| MetadataSpec::Mix { pct, shares: shares(mix) }));
    };
    let (place, pct) = (pct.span(), *pct.get_ref());
    if !(0.0..100.0).contains(&pct) {
        return Err(source.contradiction(
            &place,
            format!("`metadata_pct` is {pct}"),
            "give 0 or more, and less than 100; a test of only metadata operations has an `op`",
        ));
    }
    if asked.op.is_some() && pct > 0.0 {
        return refuse(
            "both `metadata_pct` and `op` are given".to_owned(),
            "give `read_pct` in place of `op`",
        );
    }
    if pct <= 0.0 {
        return Ok(None);
    }
    needs_files(source, &place, protocol)?;
    Ok(Some(MetadataSpec::Mix { pct, shares: shares(mix) }))
}

/// Returns the files for an operation on files.
fn files(
    source: Source<'_>,
    asked: &Asked<'_>,
    op: OpKind,
    protocol: Option<Protocol>,
) -> Result<MetadataSpec, ProfileError> {
    let refuse = |what: String, action: &str| Err(source.contradiction(&asked.place, what, action));
    let name = op.name();
    needs_files(source, &asked.place, protocol)?;
    if asked.metadata_pct.is_some() {
        let what = format!("both `metadata_pct` and `op = \"{name}\"` are given");
        return refuse(
            what,
            "every operation of the row is a metadata operation; leave the pct out",
        );
    }
    let files = match asked.files {
        Some(files) if (1..=MetadataSpec::FILES_MAX).contains(&files) => files,
        Some(files) => {
            return refuse(format!("`files` is {files}"), "give 1 to 10,000,000 for each worker");
        }
        None => {
            let what = format!("{name} needs `files`, the number of files of each worker");
            return refuse(what, "add `files = 20000`");
        }
    };
    let file_bytes = asked.file_size.map_or(0, |size| size.get_ref().0);
    let fitting = u32::try_from(file_bytes).ok();
    let Some(file_bytes) = fitting.filter(|bytes| *bytes <= MetadataSpec::FILE_BYTES_MAX) else {
        let what = format!("files of {file_bytes} bytes are larger than 16 MiB");
        return refuse(what, "measure the data of large files with a test of reads and writes");
    };
    let shared = asked.directory == Some(DirectoryName::Shared);
    Ok(MetadataSpec::Files { files, file_bytes, shared })
}

fn needs_files(
    source: Source<'_>,
    place: &Range<usize>,
    protocol: Option<Protocol>,
) -> Result<(), ProfileError> {
    let Some(used) = protocol.filter(|used| !used.has_files()) else { return Ok(()) };
    let what =
        format!("metadata operations need files, but a target of kind {} has none", used.name());
    Err(source.contradiction(place, what, format!("use a target with files, such as {WITH_FILES}")))
}

/// Kinds of the metadata operations of a mix, with their weights.
fn shares(mix: Option<&Mix>) -> Vec<MetadataShare> {
    let share = |(op, weight): (MetadataKind, f64)| MetadataShare { op, weight };
    let given = mix.map(|mix| of_mix(&mix.meta)).filter(|all| all.iter().any(|one| one.1 > 0.0));
    let all = given.unwrap_or(DEFAULT_SHARES);
    all.into_iter().filter(|(_, weight)| *weight > 0.0).map(share).collect()
}

fn of_mix(meta: &MetaMix) -> [(MetadataKind, f64); 9] {
    [
        (MetadataKind::Getattr, meta.getattr),
        (MetadataKind::Lookup, meta.lookup),
        (MetadataKind::Access, meta.access),
        (MetadataKind::Setattr, meta.setattr),
        (MetadataKind::Readdirplus, meta.readdirplus),
        (MetadataKind::Readdir, meta.readdir),
        (MetadataKind::Fsstat, meta.fsstat),
        (MetadataKind::Create, meta.create),
        (MetadataKind::Remove, meta.remove),
    ]
}

/// Requires more files than renames in flight, because a file has at most one change in flight.
pub(super) fn check_renames(
    source: Source<'_>,
    place: &Range<usize>,
    streams: &[StreamSpec],
    load: &LoadSpec,
) -> Result<(), ProfileError> {
    let depth = match load {
        LoadSpec::Closed { depth, .. } => *depth,
        LoadSpec::Open { workers, in_flight_max, .. } => in_flight_max.div_ceil((*workers).max(1)),
    };
    for stream in streams.iter().filter(|stream| stream.op == Some(OpKind::Rename)) {
        // A worker prepares at most as many operations as it has in flight.
        let needed = u64::from(depth) * 2;
        match stream.metadata {
            Some(MetadataSpec::Files { files, .. }) if u64::from(files) < needed => {
                let what =
                    format!("each worker renames {files} files with {depth} operations in flight");
                let action = format!("give at least {needed} files");
                return Err(source.contradiction(place, what, action));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Describes the metadata operations of the streams; `None` if the streams have no mix.
pub(super) fn describe<'a>(mut streams: impl Iterator<Item = &'a StreamSpec>) -> Option<String> {
    let (pct, shares) = streams.find_map(|stream| match &stream.metadata {
        Some(MetadataSpec::Mix { pct, shares }) => Some((pct, shares)),
        _ => None,
    })?;
    let share = |share: &MetadataShare| {
        let MetadataShare { op, weight } = share;
        format!("{} {weight}", op.name())
    };
    let shares: Vec<String> = shares.iter().map(share).collect();
    Some(format!(
        "metadata operations ({pct} % where the profile states no other share) by weight: {}",
        shares.join(", ")
    ))
}
