//! Checks a profile for values outside their range, and for values that contradict each other.
//!
//! `expand/load` checks the load of each cell; `lint` reports traps: legal settings that make
//! results misleading.
//!
//! Invariant: all values that pass the checks fit the integer types of a `RunSpec`. Expansion
//! rounds only file sizes, down to whole blocks.

use std::ops::Range;

use toml::Spanned;

use crate::spec::SizingSpec;

use super::SECTOR_BYTES;
use super::error::{ProfileError, Source};
use super::format::{
    Content, Curve, Fill, Measure, Mix, OwnOp, Pattern, Precondition, Profile, Share, Stream, Test,
    Writes,
};
use super::quantity::{Size, Time};

/// True if the operation is one on files, such as create or stat.
fn is_of_files(op: Option<&Spanned<OwnOp>>) -> bool {
    op.is_some_and(|op| op.get_ref().kind().is_of_files())
}

type Checked = Result<(), ProfileError>;

/// Size of the largest operation in bytes; each operation in flight holds a buffer of this size.
const BLOCK_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of runs of a cell, because the result keeps the latency distributions of each
/// run.
const RUNS_MAX: u32 = 10_000;
/// Maximum number of rates that `refine` may add between two rates of a curve.
const REFINE_MAX: u32 = 1000;
/// Longest duration: 366 days. A longer duration is certainly a mistake.
const TIME_MS_MAX: u64 = 366 * 86_400_000;

/// Returns an error for the first value that is invalid or contradicts another value.
pub(super) fn check(source: Source<'_>, profile: &Profile) -> Checked {
    let check = Check(source);
    check.content(&profile.content)?;
    check.durability(profile)?;
    check.matrix(profile)?;
    profile.mix.as_ref().map_or(Ok(()), |mix| check.mix(mix))?;
    for stream in &profile.stream {
        check.stream(stream)?;
    }
    for test in &profile.test {
        check.test(test)?;
        let twin = |other: &&Spanned<Test>| other.get_ref().name == test.get_ref().name;
        if profile.test.iter().filter(twin).count() > 1 {
            return Err(source.contradiction(
                &test.span(),
                format!("two tests are called {:?}", test.get_ref().name),
                "a report identifies rows by name; rename one",
            ));
        }
    }
    profile.curve.as_ref().map_or(Ok(()), |curve| check.curve(curve))?;
    check.phases(profile)?;
    profile.sizing.as_ref().map_or(Ok(()), |sizing| check.sizing(sizing))?;
    if profile.matrix.is_none() && profile.test.is_empty() && profile.curve.is_none() {
        let action = "give a [matrix], a test or a [curve]";
        return Err(source.contradiction(&(0..0), "the profile has no rows", action));
    }
    if let Some(clients) = profile.clients.as_ref().filter(|clients| *clients.get_ref() == 0) {
        return Err(check.zero(&clients.span(), "clients"));
    }
    Ok(())
}

struct Check<'a>(Source<'a>);

impl Check<'_> {
    fn refuse(&self, place: &Range<usize>, what: String, action: &str) -> ProfileError {
        self.0.contradiction(place, what, action)
    }

    fn zero(&self, place: &Range<usize>, what: &str) -> ProfileError {
        self.refuse(place, format!("`{what}` is 0"), "a value of 0 does nothing; give at least 1")
    }

    fn pct(&self, value: &Spanned<f64>, what: &str) -> Checked {
        self.share(&value.span(), *value.get_ref(), what)
    }

    fn share(&self, place: &Range<usize>, value: f64, what: &str) -> Checked {
        if (0.0..=100.0).contains(&value) {
            return Ok(());
        }
        Err(self.refuse(
            place,
            format!("`{what}` is {value}"),
            "a share is between 0 and 100 percent",
        ))
    }

    fn block(&self, size: &Spanned<Size>) -> Checked {
        let bytes = size.get_ref().0;
        if bytes == 0 {
            return Err(self.zero(&size.span(), "block"));
        }
        if !bytes.is_multiple_of(SECTOR_BYTES) {
            let what = format!("a block of {bytes} bytes is not a multiple of {SECTOR_BYTES}");
            let action = "direct operations must be aligned; KiB is 1024 bytes, KB is 1000";
            return Err(self.refuse(&size.span(), what, action));
        }
        if bytes > BLOCK_BYTES_MAX {
            let what = format!("a block of {bytes} bytes is larger than 64 MiB");
            return Err(self.refuse(
                &size.span(),
                what,
                "targets split larger operations; give a smaller block",
            ));
        }
        Ok(())
    }

    /// Requires exactly one of the keys `block` and `blocks`.
    fn blocks(
        &self,
        place: &Range<usize>,
        one: Option<&Spanned<Size>>,
        set: Option<&Vec<Share>>,
    ) -> Checked {
        match (one, set) {
            (Some(size), None) => self.block(size),
            (None, Some(set)) => {
                set.iter().try_for_each(|share| self.block(&share.size))?;
                if set.iter().map(|share| u64::from(share.weight)).sum::<u64>() == 0 {
                    return Err(self.zero(place, "weight of all blocks"));
                }
                Ok(())
            }
            (Some(_), Some(_)) => Err(self.refuse(
                place,
                "both `block` and `blocks` are given".to_owned(),
                "keep one of them",
            )),
            (None, None) => {
                Err(self.refuse(place, "no block size is given".to_owned(), "add `block`"))
            }
        }
    }

    fn content(&self, content: &Spanned<Content>) -> Checked {
        let (place, content) = (content.span(), content.get_ref());
        if !(1.0..=1000.0).contains(&content.compress) {
            let what = format!("`compress` is {}", content.compress);
            let action = "give the compression ratio of the data, 1 (incompressible) to 1000";
            return Err(self.refuse(&place, what, action));
        }
        self.share(&place, content.dedupe_pct, "dedupe_pct")?;
        if content.dedupe_pct >= 100.0 {
            let what = "`dedupe_pct` is 100".to_owned();
            return Err(self.refuse(
                &place,
                what,
                "at least one unit must be unique; give less than 100",
            ));
        }
        let unit = content.unit.0;
        if !unit.is_power_of_two() || !(SECTOR_BYTES..=1 << 20).contains(&unit) {
            let what = format!("`unit` is {unit} bytes");
            return Err(self.refuse(&place, what, "give a power of two from 512B to 1MiB"));
        }
        Ok(())
    }

    fn durability(&self, profile: &Profile) -> Checked {
        let (place, durability) = (profile.durability.span(), profile.durability.get_ref());
        let flushes = matches!(durability.writes, Writes::Flush | Writes::UnstableCommit);
        let said = [durability.commit_every.is_some(), durability.every_writes.is_some()];
        match (flushes, said.iter().filter(|said| **said).count()) {
            (false, 0) => Ok(()),
            (false, _) => Err(self.refuse(
                &place,
                "an interval between flushes is given, but `writes` is not \"flush\"".to_owned(),
                "write `writes = \"flush\"`, or omit the interval",
            )),
            (true, 1) => {
                let zero = durability.commit_every == Some(Size(0));
                if zero || durability.every_writes == Some(0) {
                    return Err(self.zero(&place, "commit_every"));
                }
                Ok(())
            }
            (true, _) => Err(self.refuse(
                &place,
                "writes are flushed, but the interval between flushes is missing or given twice"
                    .to_owned(),
                "give either `commit_every = \"4MiB\"` or `every_writes = 32`",
            )),
        }
    }

    fn matrix(&self, profile: &Profile) -> Checked {
        let Some(matrix) = &profile.matrix else { return Ok(()) };
        let (place, matrix) = (matrix.span(), matrix.get_ref());
        if matrix.pattern.is_empty() || matrix.read_pct.is_empty() || matrix.block.is_empty() {
            let what = "one side of the matrix is empty".to_owned();
            return Err(self.refuse(&place, what, "give at least one value for each"));
        }
        matrix.block.iter().try_for_each(|block| self.block(block))?;
        let seq = matrix.seq_read_pct.iter().flatten();
        matrix.read_pct.iter().chain(seq).try_for_each(|pct| self.pct(pct, "read_pct"))?;
        if profile.load.is_none() {
            let what = "the matrix has no load".to_owned();
            return Err(self.refuse(&place, what, "add a [load]: mode, workers, window or qd"));
        }
        Ok(())
    }

    fn mix(&self, mix: &Spanned<Mix>) -> Checked {
        let (place, mix) = (mix.span(), mix.get_ref());
        self.share(&place, mix.data_pct, "data_pct")?;
        let refuse = |what: &str, action: &str| Err(self.refuse(&place, what.to_owned(), action));
        if mix.data_pct <= 0.0 {
            return refuse(
                "`data_pct` is 0",
                "give more than 0; a test of only metadata operations has an `op`",
            );
        }
        let weights = mix.meta.weights();
        if weights.iter().any(|weight| !(*weight >= 0.0 && weight.is_finite())) {
            return refuse("a weight in `meta` is negative", "give 0 or more");
        }
        if mix.data_pct < 100.0 && weights.iter().sum::<f64>() <= 0.0 {
            let what = "`data_pct` is below 100, but `meta` names no metadata operations";
            return refuse(what, "add weights: `meta = { getattr = 1 }`");
        }
        Ok(())
    }

    /// Refuses `read_pct` together with `op`, and refuses a percentage outside its range.
    fn what(
        &self,
        place: &Range<usize>,
        read_pct: Option<&Spanned<f64>>,
        op: Option<&Spanned<OwnOp>>,
    ) -> Checked {
        match (read_pct, op) {
            (Some(_), Some(_)) => Err(self.refuse(
                place,
                "both `read_pct` and `op` are given".to_owned(),
                "give each operation other than read and write its own stream or test",
            )),
            (read_pct, _) => read_pct.map_or(Ok(()), |pct| self.pct(pct, "read_pct")),
        }
    }

    /// Refuses block sizes of an operation on files, and a stream of data without a pattern.
    fn ordered(
        &self,
        place: &Range<usize>,
        op: Option<&Spanned<OwnOp>>,
        has_blocks: bool,
        pattern: Option<Pattern>,
    ) -> Checked {
        let of_files = is_of_files(op);
        if of_files && has_blocks {
            let what = "an operation on files has no block size".to_owned();
            return Err(self.refuse(place, what, "leave `block` out; `file_size` is the size"));
        }
        if !of_files && pattern.is_none() {
            let what = "no pattern is given".to_owned();
            return Err(self.refuse(place, what, "add `pattern = \"random\"` or \"seq\""));
        }
        Ok(())
    }

    fn stream(&self, stream: &Spanned<Stream>) -> Checked {
        let (place, stream) = (stream.span(), stream.get_ref());
        self.ordered(
            &place,
            stream.op.as_ref(),
            stream.block.is_some() || stream.blocks.is_some(),
            stream.pattern,
        )?;
        if !is_of_files(stream.op.as_ref()) {
            self.blocks(&place, stream.block.as_ref(), stream.blocks.as_ref())?;
        }
        self.what(&place, stream.read_pct.as_ref(), stream.op.as_ref())?;
        if stream.read_pct.is_none() && stream.op.is_none() {
            let what = format!("stream {:?} has no operation", stream.name);
            return Err(self.refuse(&place, what, "add `read_pct`, or `op`"));
        }
        if stream.share == 0 { Err(self.zero(&place, "share")) } else { Ok(()) }
    }

    fn test(&self, test: &Spanned<Test>) -> Checked {
        let (place, test) = (test.span(), test.get_ref());
        self.what(&place, test.read_pct.as_ref(), test.op.as_ref())?;
        for (list, key) in [(&test.qd, "qd"), (&test.threads, "threads")] {
            if list.as_ref().is_some_and(Vec::is_empty) {
                return Err(self.refuse(&place, format!("`{key}` is empty"), "give a number"));
            }
            if let Some(value) = list.iter().flatten().find(|value| *value.get_ref() == 0) {
                return Err(self.zero(&value.span(), key));
            }
        }
        let counts = [("runs", test.runs), ("clients", test.clients), ("workers", test.workers)];
        for (key, count) in counts {
            if count == Some(0) {
                return Err(self.zero(&place, key));
            }
        }
        self.time(&place, "duration", test.duration)?;
        self.runs(&place, test.runs)?;
        if test.block.is_some() || test.blocks.is_some() {
            self.blocks(&place, test.block.as_ref(), test.blocks.as_ref())?;
        }
        Ok(())
    }

    fn curve(&self, curve: &Spanned<Curve>) -> Checked {
        let (place, curve) = (curve.span(), curve.get_ref());
        self.block(&curve.block)?;
        curve.read_pct.iter().try_for_each(|pct| self.pct(pct, "read_pct"))?;
        self.share(&place, curve.stop.achieved_below_pct, "achieved_below_pct")?;
        if !(curve.rate.from > 0.0 && curve.rate.from.is_finite()) {
            let what = format!("the curve begins at {} operations per second", curve.rate.from);
            return Err(self.refuse(&place, what, "give a rate above 0"));
        }
        if !(1.01..=100.0).contains(&curve.rate.step) {
            let what = format!("each rate is {} times the previous rate", curve.rate.step);
            return Err(self.refuse(&place, what, "give a step from 1.01 to 100"));
        }
        if curve.rate.refine > REFINE_MAX {
            let what = format!("`refine` adds {} rates between two rates", curve.rate.refine);
            return Err(self.refuse(&place, what, "give at most 1000"));
        }
        self.time(&place, "burst", Some(curve.burst))
    }

    fn phases(&self, profile: &Profile) -> Checked {
        let phases = &profile.phases;
        phases.fill.as_ref().map_or(Ok(()), |fill| self.fill(fill))?;
        phases.precondition.as_ref().map_or(Ok(()), |steady| self.precondition(steady))?;
        phases.measure.as_ref().map_or(Ok(()), |measure| self.measure(measure))?;
        let verify = phases.verify.as_ref();
        verify.map_or(Ok(()), |it| self.share(&it.span(), it.get_ref().sample_pct(), "sample_pct"))
    }

    fn fill(&self, fill: &Spanned<Fill>) -> Checked {
        let (place, fill) = (fill.span(), fill.get_ref());
        self.block(&Spanned::new(place.clone(), fill.block))?;
        if fill.in_flight == Some(0) {
            return Err(self.zero(&place, "in_flight"));
        }
        match &fill.pattern {
            Some(pattern) if *pattern.get_ref() == Pattern::Random => Err(self.refuse(
                &pattern.span(),
                "a random fill leaves holes: it writes some blocks twice and others never"
                    .to_owned(),
                "write `seq`",
            )),
            _ => Ok(()),
        }
    }

    fn precondition(&self, steady: &Spanned<Precondition>) -> Checked {
        let (place, steady) = (steady.span(), steady.get_ref());
        self.time(&place, "round", Some(steady.round))?;
        if steady.window < 2 || steady.max_rounds < steady.window {
            let what = format!("{} of {} rounds are compared", steady.window, steady.max_rounds);
            let action = "compare at least 2, and no more than `max_rounds`";
            return Err(self.refuse(&place, what, action));
        }
        self.share(&place, steady.range_pct, "range_pct")?;
        self.share(&place, steady.slope_pct, "slope_pct")
    }

    fn measure(&self, measure: &Spanned<Measure>) -> Checked {
        let (place, measure) = (measure.span(), measure.get_ref());
        self.runs(&place, measure.runs)?;
        self.time(&place, "duration", measure.duration)?;
        // A warm-up of 0 is valid: the run then has no warm-up.
        self.time(&place, "warmup", measure.warmup.filter(|time| time.0 > 0))
    }

    fn runs(&self, place: &Range<usize>, runs: Option<u32>) -> Checked {
        match runs {
            Some(0) => Err(self.zero(place, "runs")),
            Some(runs) if runs > RUNS_MAX => {
                let what = format!("`runs` is {runs}");
                Err(self.refuse(place, what, "the report contains each run; give at most 10000"))
            }
            _ => Ok(()),
        }
    }

    fn time(&self, place: &Range<usize>, what: &str, time: Option<Time>) -> Checked {
        match time {
            Some(Time(0)) => Err(self.zero(place, what)),
            Some(Time(ms)) if ms > TIME_MS_MAX => {
                let what = format!("`{what}` is more than a year");
                Err(self.refuse(place, what, "give a shorter time"))
            }
            _ => Ok(()),
        }
    }

    fn sizing(&self, sizing: &Spanned<SizingSpec>) -> Checked {
        let (place, sizing) = (sizing.span(), sizing.get_ref());
        if sizing.bins_iops.len() != sizing.labels.len() {
            let (bins, labels) = (sizing.bins_iops.len(), sizing.labels.len());
            let what = format!("`bins_iops` has {bins} sizes, but {labels} labels are given");
            return Err(self.refuse(&place, what, "give one label for each of `bins_iops`"));
        }
        if !sizing.bins_iops.is_sorted_by(|low, high| low < high) {
            let what = "`bins_iops` does not ascend".to_owned();
            return Err(self.refuse(&place, what, "give the upper ends, smallest size first"));
        }
        self.share(&place, sizing.margin_pct, "margin_pct")
    }
}
