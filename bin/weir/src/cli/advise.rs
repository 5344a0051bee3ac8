//! `weir volume advise` and `weir dedupe estimate`: start a job of the server, poll it until it has
//! ended, and print its result.
//!
//! Not here: the measurement and the recommendation, which the server makes.
//!
//! Invariant: a terminal shows the progress and the time left. Ctrl-C ends the command; the server
//! soon cancels the job, because no command polls it any more.

use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use weir_api::types::{
    DedupeEstimate, DedupeForecast, RecordForecast, SampledShare, SampledTime, SettingForecast,
    VolumeAdvice, VolumeAdvise,
};
use weir_api::{ApiError, Call};
use weir_base::size::Human;

use crate::cli::base::output;
use crate::cli::base::output::Style;
use crate::cli::base::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum DedupeVerb {
    /// Estimate the savings of dedupe for volumes without reading their data
    Estimate {
        /// Full names of volumes of one pool, such as tank/vm1 tank/vm2
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

pub(crate) fn run(verb: DedupeVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        DedupeVerb::Estimate { names } => estimate(names, session),
    }
}

/// Progress bar; `None` if standard error is not a terminal.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn new(session: &Session, what: &str) -> Self {
        Self(session.is_watched().then(|| {
            let bar = ProgressBar::new(1000);
            let style = ProgressStyle::with_template("{msg} {bar:30} {percent} %, {eta} left");
            bar.set_style(style.expect("a template that was tried"));
            bar.set_message(what.to_owned());
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        }))
    }

    fn at(&self, permille: u32) {
        if let Some(bar) = &self.0 {
            bar.set_position(u64::from(permille));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Repeats a call until its job has ended, and shows the progress. `next` copies the number of the
/// job from a response into the next request, and returns the progress in permille and whether the
/// job has ended.
fn poll<C: Call + Clone>(
    session: &Session,
    what: &'static str,
    mut request: C,
    next: impl Fn(&mut C, &C::Answer) -> (u32, bool),
) -> Result<C::Answer, ApiError> {
    request.check()?;
    let bar = Bar::new(session, what);
    loop {
        let answer = session.call(request.clone())?;
        let (progress_permille, is_done) = next(&mut request, &answer);
        bar.at(progress_permille);
        if is_done {
            return Ok(answer);
        }
    }
}

pub(crate) fn advise(name: String, session: &Session) -> Result<(), ApiError> {
    let request = VolumeAdvise { name, job: None };
    let answer = poll(session, "measuring", request, |request, answer| {
        request.job.clone_from(&answer.job);
        (answer.progress_permille, answer.job.is_none())
    })?;
    session.print(&answer, shown)
}

fn stored(stored: SampledShare) -> String {
    format!("{:.1} % +-{:.1}", stored.share * 100.0, stored.margin * 100.0)
}

fn time(time: SampledTime) -> String {
    let SampledTime { median_us, low_us, high_us } = time;
    if high_us == 0.0 {
        return "-".to_owned();
    }
    format!("{median_us:.1} ({low_us:.1} to {high_us:.1})")
}

/// Formats the expected savings of dedupe.
fn dedupe(forecast: &DedupeForecast) -> String {
    let sampled = match forecast.one_in {
        1 => "every record counted".to_owned(),
        many => format!("one content in {many} counted"),
    };
    let ratio = match forecast.one_in {
        1 => format!("{:.3}", forecast.ratio),
        _ => format!(
            "{:.3} (95 %: {:.3} to {:.3})",
            forecast.ratio, forecast.ratio_low, forecast.ratio_high
        ),
    };
    let of = |bytes: u64| Human(bytes).to_string();
    output::labelled(&[
        ("volumes", &forecast.names.join(" ")),
        ("records", &format!("{} ({sampled})", forecast.blocks)),
        ("unique", &forecast.unique.to_string()),
        ("duplicates", &forecast.duplicates.to_string()),
        ("ratio", &ratio),
        ("saved", &format!("{} of {}", of(forecast.saved_bytes), of(forecast.stored_bytes))),
        ("index", &format!("{} of RAM to find all duplicates", of(forecast.index_bytes))),
    ])
}

fn estimate(names: Vec<String>, session: &Session) -> Result<(), ApiError> {
    let request = DedupeEstimate { names, job: None };
    let answer = poll(session, "counting", request, |request, answer| {
        request.job.clone_from(&answer.job);
        (answer.progress_permille, answer.job.is_none())
    })?;
    session.print(&answer, dedupe)
}

/// Formats all measurements of a volume and the recommendation.
fn shown(advice: &VolumeAdvice) -> String {
    let recommended = format!("{}: {}", advice.recommended.name(), advice.why);
    let now = format!(
        "{}, records of {}, ratio {:.2}",
        advice.compression.name(),
        Human(advice.record_bytes),
        advice.ratio
    );
    let head = output::labelled(&[
        ("volume", &advice.name),
        ("data", &format!("{} in {} samples", Human(advice.data_bytes), advice.samples)),
        ("now", &now),
        ("recommended", &recommended),
    ]);
    if advice.samples == 0 {
        return head;
    }
    let setting = |one: &SettingForecast| {
        [
            one.compression.name().to_owned(),
            stored(one.stored),
            format!("{:.2}", one.ratio),
            time(one.write),
            time(one.read),
        ]
    };
    let record = |one: &RecordForecast| {
        [
            Human(one.record_bytes).to_string(),
            one.compression.name().to_owned(),
            stored(one.stored),
            format!("{:.2}", one.ratio),
            format!("x{}", one.write_amplification),
        ]
    };
    let settings: Vec<_> = advice.settings.iter().map(setting).collect();
    let records: Vec<_> = advice.records.iter().map(record).collect();
    let header = ["COMPRESSION", ">STORED", ">RATIO", ">WRITE us", ">READ us"];
    let settings = output::table(header, &settings, Style::People);
    let header = ["RECORD", "COMPRESSION", ">STORED", ">RATIO", ">4 KiB WRITE"];
    let records = output::table(header, &records, Style::People);
    let found = advice.dedupe.as_ref().map_or_else(
        || format!("dedupe: unknown; to estimate it: weir dedupe estimate {}\n", advice.name),
        dedupe,
    );
    format!("{head}\n{settings}\n{records}\n{found}")
}
