//! Forecasts: the effect that other settings would have on a volume, and the savings of dedupe.
//!
//! The measurements are in weir-dataset, the job threads in `state::jobs`.
//!
//! Invariant: a job holds a reference to its pool only during one sample or one step, so that the
//! pool can be closed between them.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weir_api::types::{
    DatasetKind, DedupeEstimate, DedupeForecast, RecordForecast, SampledShare, SampledTime,
    SettingForecast, VolumeAdvice, VolumeAdvise,
};
use weir_api::{ApiError, Handle};
use weir_base::ErrorKind;
use weir_dataset::{Advisor, DedupeCount, Engine, Estimate, SettingSample, Timing};
use weir_format::Compression;

use crate::answer::errors::api_error;
use crate::answer::names::{guid, split};
use crate::disks::pool_thread::OpenPool;
use crate::state::jobs::Job;
use crate::state::server::Manager;

/// Time limits of a forecast: for the samples of a volume, and then for counting duplicate
/// contents.
const SAMPLING: Duration = Duration::from_secs(8);
const COUNTING: Duration = Duration::from_secs(4);
/// Maximum number of samples: enough for a good estimate. The samples read at most 1 GiB.
const SAMPLES_MAX: u64 = 1024;
/// Minimum number of samples for a reliable margin of error.
const SAMPLES_MIN: u64 = 64;
/// Sampling stops when the margin of error of every estimate is below this fraction.
const MARGIN_WANTED: f64 = 0.005;
/// Number of samples between two partial results.
const SAMPLES_TOLD: u64 = 16;
/// Maximum number of distinct contents that the count keeps in memory: about 64 MiB.
const PLACES_MAX: usize = 1 << 20;

/// Interval between two partial results of a dedupe estimate: to compute one takes up to a second.
const ADDED_UP_EVERY: Duration = Duration::from_secs(10);

/// Maximum time in microseconds for which a recommended setting may compress 4 KiB of a record: at
/// this speed one CPU compresses 80 MiB/s.
const WRITE_US_MAX: f64 = 50.0;
/// Minimum saving of a slower setting over a faster one, as a fraction of the written data.
const SAVING_MIN: f64 = 0.03;

/// Returns the engine of a pool; an error if the pool was closed meanwhile.
fn held(engine: &Weak<Engine>) -> Result<Arc<Engine>, ApiError> {
    let open = engine.upgrade().filter(|engine| !engine.is_stopping());
    open.ok_or_else(|| ApiError::new(ErrorKind::Unavailable, "the pool was closed meanwhile"))
}

/// Writes the data that is still in memory to disk, because forecasts measure stored data.
async fn settle(open: &OpenPool) -> Result<(), ApiError> {
    open.call(|engine| async move { engine.sync().await }).await
}

fn share(estimate: Estimate) -> SampledShare {
    SampledShare { share: estimate.mean, margin: estimate.margin }
}

fn time(timing: Timing) -> SampledTime {
    let Timing { median_us, low_us, high_us } = timing;
    SampledTime { median_us, low_us, high_us }
}

/// Returns the recommended compression setting, with the reason.
fn recommend(settings: &[SettingSample]) -> (Compression, String) {
    let off = Estimate { mean: 1.0, margin: 0.0 };
    let (mut best, mut stored, mut write_us) = (Compression::Off, off, 0.0);
    for setting in settings {
        let sure = setting.stored.mean + setting.stored.margin < stored.mean - SAVING_MIN;
        if sure && setting.write.median_us <= WRITE_US_MAX {
            (best, stored) = (setting.compression, setting.stored);
            write_us = setting.write.median_us;
        }
    }
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    let why = if best == Compression::Off {
        "no setting that is fast enough makes the data clearly smaller".to_owned()
    } else {
        format!(
            "it stores {} % of the written data (within {:.1}), and adds {write_us:.0} us to a \
             write of 4 KiB; faster settings store clearly more, and smaller ones take more than \
             {WRITE_US_MAX:.0} us or save less than {} % more",
            percent(stored.mean),
            stored.margin * 100.0,
            percent(SAVING_MIN)
        )
    };
    (best, why)
}

/// Returns the forecast from the samples taken so far.
fn advice(of: &VolumeAdvice, advisor: &Advisor) -> VolumeAdvice {
    let settings = advisor.settings();
    let (recommended, why) = match advisor.samples() {
        0 => (of.recommended, "the volume holds no data to measure".to_owned()),
        _ => {
            let (best, why) = recommend(&settings);
            (best.into(), why)
        }
    };
    let setting = |sample: &SettingSample| SettingForecast {
        compression: sample.compression.into(),
        stored: share(sample.stored),
        ratio: 1.0 / sample.stored.mean,
        write: time(sample.write),
        read: time(sample.read),
    };
    let record = |sample: &weir_dataset::RecordSample| RecordForecast {
        compression: sample.compression.into(),
        record_bytes: sample.record_bytes,
        stored: share(sample.stored),
        ratio: 1.0 / sample.stored.mean,
        write_amplification: sample.record_bytes / weir_base::BLOCK_BYTES as u64,
    };
    let known = |known: bool| usize::from(known) * usize::MAX;
    let shown = known(advisor.samples() > 0);
    VolumeAdvice {
        samples: advisor.samples(),
        settings: settings.iter().take(shown).map(setting).collect(),
        records: advisor.records().iter().take(shown).map(record).collect(),
        recommended,
        why,
        ..of.clone()
    }
}

fn forecast(names: Vec<String>, permille: u32, count: &DedupeCount) -> DedupeForecast {
    let estimate = count.estimate();
    DedupeForecast {
        names,
        job: None,
        progress_permille: permille,
        blocks: estimate.records,
        unique: estimate.unique,
        duplicates: estimate.duplicates,
        stored_bytes: estimate.stored_bytes,
        saved_bytes: estimate.saved_bytes,
        ratio: estimate.ratio,
        ratio_low: estimate.ratio_low,
        ratio_high: estimate.ratio_high,
        index_bytes: estimate.index_bytes,
        one_in: estimate.one_in,
    }
}

#[expect(clippy::cast_sign_loss, reason = "it is between 0 and 1000")]
fn permille(done: f64) -> u32 {
    (done.clamp(0.0, 1.0) * 1000.0) as u32
}

/// True if there are enough samples, and the margins of error of all settings are small enough.
fn is_sure(advisor: &Advisor) -> bool {
    let narrow = |setting: &SettingSample| setting.stored.margin < MARGIN_WANTED;
    advisor.samples() >= SAMPLES_MIN && advisor.settings().iter().all(narrow)
}

/// Measures a volume, and then counts its duplicate contents.
async fn advise(
    engine: Weak<Engine>,
    own: String,
    mut told: VolumeAdvice,
    job: Job<VolumeAdvice>,
) -> Result<(), ApiError> {
    let mut advisor = Advisor::new(guid().0);
    job.report(advice(&told, &advisor));
    let start = Instant::now();
    let whole = SAMPLING + COUNTING;
    while start.elapsed() < SAMPLING && advisor.samples() < SAMPLES_MAX && job.is_wanted() {
        let engine = held(&engine)?;
        let met = advisor.sample(&engine, &own).await.map_err(|error| api_error(&error))?;
        if !met && told.data_bytes == 0 {
            break;
        }
        if advisor.samples().is_multiple_of(SAMPLES_TOLD) {
            let by_time = start.elapsed().as_secs_f64() / whole.as_secs_f64();
            let by_count = advisor.samples() as f64 / SAMPLES_MAX as f64;
            let sampling = SAMPLING.as_secs_f64() / whole.as_secs_f64();
            told.progress_permille = permille(by_time.max(by_count * sampling));
            job.report(advice(&told, &advisor));
            if is_sure(&advisor) {
                break;
            }
        }
    }
    let mut count = DedupeCount::new(PLACES_MAX);
    let (begun, mut next) = (Instant::now(), Some(0));
    while let Some(from) = next.filter(|_| begun.elapsed() < COUNTING && job.is_wanted()) {
        let counted = held(&engine)?.count_contents(&own, from, &mut count).await;
        next = counted.map_err(|error| api_error(&error))?;
    }
    if next.is_none() {
        told.dedupe = Some(forecast(vec![told.name.clone()], 1000, &count));
    }
    told.progress_permille = 1000;
    job.report(advice(&told, &advisor));
    Ok(())
}

/// Counts the duplicate contents of volumes.
async fn estimate(
    engine: Weak<Engine>,
    names: Vec<String>,
    volumes: Vec<(String, u64)>,
    job: Job<DedupeForecast>,
) -> Result<(), ApiError> {
    let mut count = DedupeCount::new(PLACES_MAX);
    let all: u64 = volumes.iter().map(|(_, records)| records).sum();
    let mut known = forecast(names.clone(), 0, &count);
    job.report(known.clone());
    let mut added_up = Instant::now();
    for (own, _) in volumes {
        let mut next = Some(0);
        while let Some(from) = next.filter(|_| job.is_wanted()) {
            let counted = held(&engine)?.count_contents(&own, from, &mut count).await;
            next = counted.map_err(|error| api_error(&error))?;
            let done = permille(count.looked_at() as f64 / all.max(1) as f64).min(999);
            if added_up.elapsed() > ADDED_UP_EVERY {
                known = forecast(names.clone(), done, &count);
                added_up = Instant::now();
            }
            known.progress_permille = done;
            job.report(known.clone());
        }
    }
    job.report(forecast(names, 1000, &count));
    Ok(())
}

impl Handle<VolumeAdvise> for Manager {
    /// Estimates how other settings would store a volume. The first call starts a job. Each call
    /// returns the results so far within about a second. A response with `job` is partial; its
    /// caller repeats the call with this job.
    ///
    /// # Errors
    /// `Busy` while too many jobs run; `NotFound` for a job that has ended or was cancelled.
    async fn handle(&self, request: VolumeAdvise) -> Result<VolumeAdvice, ApiError> {
        let VolumeAdvise { name, job } = request;
        let number = match job {
            Some(number) => number,
            None => {
                let (pool, own) = split(&name)?;
                let open = self.pool(pool)?;
                settle(&open).await?;
                let shown = self.dataset_of_kind(&name, DatasetKind::Volume)?;
                let told = VolumeAdvice {
                    name: name.clone(),
                    job: None,
                    progress_permille: 0,
                    samples: 0,
                    data_bytes: shown.used_bytes,
                    compression: shown.compression,
                    record_bytes: shown.record_bytes,
                    ratio: shown.compression_ratio,
                    settings: Vec::new(),
                    records: Vec::new(),
                    dedupe: None,
                    recommended: shown.compression,
                    why: String::new(),
                };
                let (engine, own) = (Arc::downgrade(&open.engine), own.to_owned());
                self.advising.start(&name, |job| advise(engine, own, told, job))?
            }
        };
        let (mut known, job) = self.advising.ask(&number, &name).await?;
        known.job = job;
        Ok(known)
    }
}

impl Handle<DedupeEstimate> for Manager {
    /// Estimates the savings of dedupe for volumes. The estimate runs in a job, which the caller
    /// polls as for `volume_advise`.
    async fn handle(&self, request: DedupeEstimate) -> Result<DedupeForecast, ApiError> {
        let DedupeEstimate { names, job } = request;
        let about = names.join(" ");
        let number = match job {
            Some(number) => number,
            None => {
                let (pool, _) = split(names.first().map_or("", String::as_str))?;
                let open = self.pool(pool)?;
                settle(&open).await?;
                let mut volumes = Vec::new();
                for name in &names {
                    let (_, own) = split(name)?;
                    let shown = self.dataset_of_kind(name, DatasetKind::Volume)?;
                    let records = shown.used_bytes / shown.record_bytes;
                    volumes.push((own.to_owned(), records));
                }
                let engine = Arc::downgrade(&open.engine);
                self.estimating.start(&about, |job| estimate(engine, names, volumes, job))?
            }
        };
        let (mut known, job) = self.estimating.ask(&number, &about).await?;
        known.job = job;
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_setting_with_clear_savings_is_recommended() {
        let zstd = |level: u8| Compression::of_code(32 + level).unwrap();
        let setting = |compression, mean, margin, us| SettingSample {
            compression,
            stored: Estimate { mean, margin },
            write: Timing { median_us: us, ..Timing::default() },
            read: Timing::default(),
        };
        let best = |shares: [f64; 4], margin, us: [f64; 4]| {
            let names = [Compression::Lz4, zstd(1), zstd(3), zstd(19)];
            let all = names.into_iter().zip(shares).zip(us);
            let all: Vec<_> =
                all.map(|((name, share), us)| setting(name, share, margin, us)).collect();
            recommend(&all).0
        };
        let us = [3.0, 15.0, 25.0, 900.0];
        assert_eq!(best([1.0; 4], 0.0, us), Compression::Off);
        assert_eq!(best([0.5, 0.49, 0.48, 0.4], 0.001, us), Compression::Lz4);
        assert_eq!(best([0.6, 0.5, 0.49, 0.3], 0.001, us), zstd(1));
        assert_eq!(best([0.6, 0.5, 0.4, 0.3], 0.001, us), zstd(3));
        assert_eq!(best([0.6, 0.5, 0.4, 0.3], 0.7, us), Compression::Off, "not sure of anything");
        assert_eq!(best([0.6, 0.5, 0.4, 0.3], 0.0, [3.0, 60.0, 70.0, 900.0]), Compression::Lz4);
    }

    #[test]
    fn forecast_of_a_closed_pool_fails() {
        assert_eq!(held(&Weak::new()).err().unwrap().kind, ErrorKind::Unavailable);
    }
}
