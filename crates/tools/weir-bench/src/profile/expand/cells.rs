//! Expands a profile to cells, in this order: matrix, tests, curve.
//!
//! `load` derives the load of a cell; `scale` shortens a cell.
//!
//! Invariant: the names of cells are unique, and do not depend on the scale or the target, because
//! published rows are matched with cells by name.

use std::fmt::Write as _;

use toml::Spanned;

use weir_base::size::Human;

use crate::spec::{
    Access, BlockShare, CacheState, CellSpec, LoadSpec, MetadataSpec, OpKind, Requirement,
    SearchSpec, StreamSpec,
};

use super::super::Options;
use super::super::error::{ProfileError, Source};
use super::super::format::{Dataset, Engine, Pattern, Profile, Share, Test, Where};
use super::super::quantity::Size;
use super::metadata::{self, Asked};
use super::{load, scale};

const RUNS: u32 = 3;
const WARMUP_MS: u64 = 5_000;
const DURATION_MS: u64 = 60_000;
const VERIFY_PCT: f64 = 1.0;

/// Expands the matrix, the tests and the curve of a profile to cells.
pub(super) fn cells(
    source: Source<'_>,
    profile: &Profile,
    options: &Options,
    require: Option<&Requirement>,
    assume: &mut Vec<String>,
) -> Result<Vec<CellSpec>, ProfileError> {
    let plan = Plan { source, profile, options, require };
    let mut cells = plan.matrix()?;
    for test in &profile.test {
        if test.get_ref().engine == Engine::Weir {
            cells.extend(plan.test(test)?);
        }
    }
    cells.extend(plan.curve()?);
    assume.extend(metadata::describe(cells.iter().flat_map(|cell| &cell.streams)));
    for cell in &mut cells {
        scale::cell(cell, options.scale_of_file(), profile.reference.is_some());
    }
    if let Some(least) = options.block_min_bytes.filter(|least| *least > 0) {
        enlarge(&mut cells, least, assume);
    }
    Ok(cells)
}

struct Plan<'a> {
    source: Source<'a>,
    profile: &'a Profile,
    options: &'a Options,
    require: Option<&'a Requirement>,
}

impl Plan<'_> {
    fn matrix(&self) -> Result<Vec<CellSpec>, ProfileError> {
        let Some(matrix) = &self.profile.matrix else { return Ok(Vec::new()) };
        let matrix = matrix.get_ref();
        let Some(said) = &self.profile.load else { return Ok(Vec::new()) };
        let load = load::of_profile(self.source, said)?;
        let mut cells = Vec::new();
        for pattern in &matrix.pattern {
            let seq = matrix.seq_read_pct.as_ref().filter(|_| *pattern == Pattern::Seq);
            for read_pct in seq.unwrap_or(&matrix.read_pct) {
                for block in &matrix.block {
                    let (read_pct, bytes) = (*read_pct.get_ref(), block.get_ref().0);
                    let word = word(*pattern);
                    let name = format!("{word} {} read {read_pct}%", Human(bytes));
                    let stream = self.stream("", *pattern, &one(block), read_pct, 1)?;
                    let stream = StreamSpec { metadata: self.of_mix()?, ..stream };
                    cells.push(self.cell(name, word, vec![stream], load));
                }
            }
        }
        Ok(cells)
    }

    fn test(&self, test: &Spanned<Test>) -> Result<Vec<CellSpec>, ProfileError> {
        let streams = self.streams(test)?;
        let iops = self.require.and_then(|require| require.iops);
        let loads = load::of_test(self.source, test, self.profile.load.as_ref(), iops)?;
        for (_, load) in &loads {
            metadata::check_renames(self.source, &test.span(), &streams, load)?;
        }
        let test = test.get_ref();
        let search = match (&test.search, self.require) {
            (None, _) => None,
            (Some(search), Some(slo)) => {
                let tolerance_pct = search.get_ref().tolerance_pct;
                if !(0.1..=50.0).contains(&tolerance_pct) {
                    return Err(self.source.contradiction(
                        &search.span(),
                        format!("`tolerance_pct` is {tolerance_pct}"),
                        "give 0.1 to 50 percent",
                    ));
                }
                Some(SearchSpec::Knee { tolerance_pct, slo: slo.clone() })
            }
            (Some(search), None) => {
                return Err(self.source.contradiction(
                    &search.span(),
                    "the search needs a requirement, but the profile has none",
                    "add [require]",
                ));
            }
        };
        let row = |(what, load): (String, LoadSpec)| {
            let mut name = test.name.clone();
            if !what.is_empty() {
                let _infallible = write!(name, " {what}");
            }
            let mut cell = self.cell(name, &test.name, streams.clone(), load);
            cell.duration_ms = test.duration.map_or(cell.duration_ms, |time| time.0);
            cell.runs = test.runs.unwrap_or(cell.runs);
            cell.clients = test.clients.unwrap_or(cell.clients);
            cell.search.clone_from(&search);
            cell
        };
        Ok(loads.into_iter().map(row).collect())
    }

    /// Streams of a test: the operations of the test itself, or the streams of the profile.
    fn streams(&self, test: &Spanned<Test>) -> Result<Vec<StreamSpec>, ProfileError> {
        let (place, test) = (test.span(), test.get_ref());
        let refuse =
            |what: &str, action: &str| Err(self.source.contradiction(&place, what, action));
        if test.size.is_some() {
            let what = "only the bonnie engine uses `size`";
            return refuse(what, "leave it out, or add `engine = \"bonnie\"`");
        }
        // A test with `op` has no reads, so it needs no `read_pct`.
        let op = test.op.as_ref().map(|op| op.get_ref().kind());
        let read_pct = test.read_pct.as_ref().map(|pct| *pct.get_ref());
        let metadata = self.metadata(&Asked {
            place: place.clone(),
            op,
            files: test.files,
            file_size: test.file_size.as_ref(),
            directory: test.directory,
            metadata_pct: test.metadata_pct.as_ref(),
        })?;
        let has_blocks = test.block.is_some() || test.blocks.is_some();
        if let Some(op) = op.filter(|op| op.is_of_files()) {
            if has_blocks {
                let what = "an operation on files has no block size";
                return refuse(what, "leave `block` out; `file_size` is the size");
            }
            let stream = self.stream("", test.pattern.unwrap_or(Pattern::Seq), &[], 0.0, 1)?;
            return Ok(vec![StreamSpec { op: Some(op), metadata, ..stream }]);
        }
        match (test.pattern, read_pct.or(op.map(|_| 0.0))) {
            (Some(pattern), Some(read_pct)) => {
                let blocks = match (&test.block, &test.blocks) {
                    (Some(block), _) => one(block),
                    (None, Some(set)) => shares(set),
                    (None, None) => return refuse("no block size is given", "add `block`"),
                };
                let stream = self.stream("", pattern, &blocks, read_pct, 1)?;
                Ok(vec![StreamSpec { op, metadata, ..stream }])
            }
            (None, None) if !has_blocks && test.metadata_pct.is_none() => {
                if self.profile.stream.is_empty() {
                    let what = format!("test {:?} has no operation", test.name);
                    return refuse(&what, "add `pattern`, `block` and `read_pct`, or streams");
                }
                self.profile.stream.iter().map(|stream| self.of_profile(stream)).collect()
            }
            _ => refuse(
                "one of `pattern`, `block` and `read_pct` (or `op`) is missing",
                "give all three, or none to use the streams of the profile",
            ),
        }
    }

    /// Stream of the profile, which all tests without an operation use.
    fn of_profile(
        &self,
        stream: &Spanned<super::super::format::Stream>,
    ) -> Result<StreamSpec, ProfileError> {
        let (place, stream) = (stream.span(), stream.get_ref());
        let set = stream.blocks.as_ref().map(|set| shares(set));
        let blocks = stream.block.as_ref().map(one).or(set).unwrap_or_default();
        let read_pct = stream.read_pct.as_ref().map_or(0.0, |pct| *pct.get_ref());
        let op = stream.op.as_ref().map(|op| op.get_ref().kind());
        let metadata = self.metadata(&Asked {
            place,
            op,
            files: stream.files,
            file_size: stream.file_size.as_ref(),
            directory: stream.directory,
            metadata_pct: stream.metadata_pct.as_ref(),
        })?;
        let (name, pattern) = (&stream.name, stream.pattern.unwrap_or(Pattern::Seq));
        let spec = self.stream(name, pattern, &blocks, read_pct, stream.share)?;
        Ok(StreamSpec { op, metadata, ..spec })
    }

    fn metadata(&self, asked: &Asked<'_>) -> Result<Option<MetadataSpec>, ProfileError> {
        let mix = self.profile.mix.as_ref().map(Spanned::get_ref);
        metadata::of_stream(self.source, asked, mix, self.options.protocol)
    }

    /// Metadata operations of a stream for which only the mix of the profile gives any.
    fn of_mix(&self) -> Result<Option<MetadataSpec>, ProfileError> {
        let place = self.profile.dataset.span();
        let (op, files, file_size, directory, metadata_pct) = (None, None, None, None, None);
        self.metadata(&Asked { place, op, files, file_size, directory, metadata_pct })
    }

    fn curve(&self) -> Result<Vec<CellSpec>, ProfileError> {
        let Some(curve) = &self.profile.curve else { return Ok(Vec::new()) };
        let (place, curve) = (curve.span(), curve.get_ref());
        let pattern = curve.pattern.unwrap_or(Pattern::Random);
        let load =
            load::open(self.source, &place, curve.rate.from, Some(curve.arrival), curve.workers)?;
        let mut cells = Vec::new();
        for read_pct in curve.read_pct.iter().map(|pct| *pct.get_ref()) {
            let bytes = curve.block.get_ref().0;
            let name = format!("curve {} {} read {read_pct}%", word(pattern), Human(bytes));
            let stream = self.stream("", pattern, &one(&curve.block), read_pct, 1)?;
            let stream = StreamSpec { metadata: self.of_mix()?, ..stream };
            let mut cell = self.cell(name, "curve", vec![stream], load);
            cell.duration_ms = curve.burst.0;
            cell.warmup_ms = 0;
            cell.runs = 1;
            cell.clients = curve.clients.unwrap_or(cell.clients);
            cell.search = Some(SearchSpec::Curve {
                step: curve.rate.step,
                refine: curve.rate.refine,
                achieved_below_pct: curve.stop.achieved_below_pct,
                p99_above_us: curve.stop.or_p99_above.0 as f64 * 1000.0,
            });
            cells.push(cell);
        }
        Ok(cells)
    }

    fn cell(
        &self,
        name: String,
        table: &str,
        streams: Vec<StreamSpec>,
        load: LoadSpec,
    ) -> CellSpec {
        let phases = &self.profile.phases;
        let measure = phases.measure.as_ref().map(Spanned::get_ref);
        let warmup = measure.and_then(|measure| measure.warmup);
        let duration = measure.and_then(|measure| measure.duration);
        let chosen = self.options.variant.as_ref();
        let variant = self.profile.variant.iter().find(|known| Some(&known.name) == chosen);
        let verify = phases.verify.as_ref();
        let ends_with_files =
            streams.iter().any(|stream| stream.op.is_some_and(OpKind::ends_with_files));
        let warmup_ms = match warmup {
            // A warm-up would use up the files of the run.
            _ if ends_with_files => 0,
            given => given.map_or(WARMUP_MS, |time| time.0),
        };
        CellSpec {
            name,
            table: table.to_owned(),
            variant: self.options.variant.clone(),
            streams,
            load,
            warmup_ms,
            duration_ms: duration.map_or(DURATION_MS, |time| time.0),
            worker_bytes: None,
            runs: measure.and_then(|measure| measure.runs).unwrap_or(RUNS),
            clients: self.profile.clients.as_ref().map_or(1, |clients| *clients.get_ref()),
            cache: variant.and_then(|variant| variant.cache).unwrap_or(CacheState::AsIs),
            verify_pct: verify.map_or(VERIFY_PCT, |verify| verify.get_ref().sample_pct()),
            verify_full: verify.is_some_and(|verify| verify.get_ref().is_full()),
            search: None,
        }
    }

    fn stream(
        &self,
        name: &str,
        pattern: Pattern,
        blocks: &[BlockShare],
        read_pct: f64,
        share: u32,
    ) -> Result<StreamSpec, ProfileError> {
        let access = match pattern {
            Pattern::Seq => Access::Sequential,
            Pattern::Random => self.random()?,
        };
        let (name, blocks) = (name.to_owned(), blocks.to_vec());
        Ok(StreamSpec { name, access, blocks, read_pct, op: None, metadata: None, share })
    }

    /// Address distribution of random operations, as the `dataset` table of the profile defines it.
    fn random(&self) -> Result<Access, ProfileError> {
        let (place, dataset) = (self.profile.dataset.span(), self.profile.dataset.get_ref());
        let refuse =
            |what: &str, action: &str| Err(self.source.contradiction(&place, what, action));
        let Dataset { theta, hot_ops_pct, hot_data_pct, .. } = dataset;
        let share = |pct: f64| pct > 0.0 && pct < 100.0;
        match (dataset.access, theta, hot_ops_pct, hot_data_pct) {
            (Where::Uniform, None, None, None) => Ok(Access::Random),
            (Where::Uniform, ..) => {
                refuse("uniform access has no hot data", "write `access = \"hotspot\"` or \"zipf\"")
            }
            (Where::Zipf, Some(theta), None, None) if *theta > 0.0 && *theta < 5.0 => {
                Ok(Access::Zipf { theta: *theta })
            }
            (Where::Zipf, ..) => {
                refuse("zipf access needs its exponent alone", "add `theta = 0.99`")
            }
            (Where::Hotspot, None, Some(ops_pct), Some(data_pct))
                if share(*ops_pct) && share(*data_pct) =>
            {
                Ok(Access::Hotspot { ops_pct: *ops_pct, data_pct: *data_pct })
            }
            (Where::Hotspot, ..) => refuse(
                "hotspot access needs two shares between 0 and 100 percent",
                "add `hot_ops_pct = 90` and `hot_data_pct = 10`",
            ),
        }
    }
}

fn word(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Random => "random",
        Pattern::Seq => "seq",
    }
}

fn one(block: &Spanned<Size>) -> Vec<BlockShare> {
    vec![BlockShare { bytes: block.get_ref().0 as u32, weight: 1 }]
}

fn shares(set: &[Share]) -> Vec<BlockShare> {
    let share =
        |share: &Share| BlockShare { bytes: share.size.get_ref().0 as u32, weight: share.weight };
    set.iter().map(share).collect()
}

/// Rounds block sizes up to multiples of the target's smallest I/O size. The cells keep their
/// names.
fn enlarge(cells: &mut [CellSpec], least: u32, assume: &mut Vec<String>) {
    for cell in cells {
        let blocks = cell.streams.iter_mut().flat_map(|stream| &mut stream.blocks);
        for block in blocks.filter(|block| !block.bytes.is_multiple_of(least)) {
            let whole = block.bytes.next_multiple_of(least);
            assume.push(format!(
                "{}: blocks of {whole} bytes instead of {}, the unit of the target is {least}",
                cell.name, block.bytes
            ));
            block.bytes = whole;
        }
    }
}
