//! Measures the flush latencies of disks before they join a pool, and warns about suspicious
//! latencies.
//!
//! weir-device measures and classifies a single disk.
//!
//! Invariants:
//! - the server writes to no disk before the new pool passes all checks;
//! - the measurement overwrites the start of the log region, which the pool's creation then zeroes.

use std::sync::Arc;

use weir_api::ApiError;
use weir_api::types::{EventLevel, FlushCheck, FlushVerdict as ApiVerdict};
use weir_base::Clock;
use weir_dataset::DatasetError;
use weir_device::{Device, FlushFigures, FlushVerdict, Medium, probe_flushes};
use weir_format::layout::LABEL_BYTES;
use weir_pool::{CreateOptions, VdevSpec, check_create};

use crate::answer::errors::api_error;
use crate::disks::open_disks::device_error;
use crate::record::events::{Events, NewEvent};

/// Measured flush latencies of one disk, with a warning for the user if they are suspicious.
pub(crate) struct Measured {
    check: FlushCheck,
    warning: Option<String>,
}

/// Measures all disks of a new pool.
///
/// # Errors
/// The pool cannot be created on these disks (in this case the server wrote nothing), or a write or
/// flush failed.
pub(crate) async fn measure(
    pool: &str,
    vdevs: &[VdevSpec],
    sizes: CreateOptions,
    clock: &dyn Clock,
) -> Result<Vec<Measured>, ApiError> {
    check_create(pool, vdevs, sizes).map_err(|error| api_error(&DatasetError::from(error)))?;
    let disks: Vec<_> = vdevs.iter().flat_map(|vdev| &vdev.disks).map(Arc::clone).collect();
    measure_disks(&disks, clock).await
}

/// Measures the flush latency of disks that will join a pool. The caller has already run the pool's
/// checks of these disks.
///
/// # Errors
/// A write or flush failed.
pub(crate) async fn measure_disks(
    disks: &[Arc<dyn Device>],
    clock: &dyn Clock,
) -> Result<Vec<Measured>, ApiError> {
    let noise = |bytes: &mut [u8]| {
        getrandom::fill(bytes).expect("the kernel has random bytes");
    };
    let figures = probe_flushes(disks, LABEL_BYTES, clock, &noise).await;
    let figures = figures.map_err(|error| device_error(&error))?;
    Ok(disks.iter().zip(&figures).map(|(disk, figures)| judge(disk.path(), figures)).collect())
}

fn judge(path: &str, figures: &FlushFigures) -> Measured {
    let medium = Medium::of(path.as_ref());
    let verdict = FlushVerdict::of(figures, &medium);
    let check = FlushCheck {
        disk: path.to_owned(),
        medium: medium.to_string(),
        samples: figures.samples as u64,
        write_us: figures.write.as_micros() as u64,
        flush_us: figures.flush.as_micros() as u64,
        sync_write_us: figures.sync.as_micros() as u64,
        verdict: match verdict {
            FlushVerdict::Plausible => ApiVerdict::Plausible,
            FlushVerdict::TooFast => ApiVerdict::TooFast,
            FlushVerdict::NotJudged => ApiVerdict::NotJudged,
            FlushVerdict::NotDurable => ApiVerdict::NotDurable,
        },
    };
    Measured { check, warning: verdict.warning(path, figures, &medium) }
}

/// Adds the warnings about slow flushes to the response of the call, and an event for each warning.
pub(crate) fn report(
    measured: Vec<Measured>,
    pool: &str,
    warnings: &mut Vec<String>,
    events: &Events,
) -> Vec<FlushCheck> {
    let mut checks = Vec::new();
    for Measured { check, warning } in measured {
        if let Some(message) = warning {
            let (level, kind) = (EventLevel::Warning, "flush_suspect".to_owned());
            let (pool, disk) = (Some(pool.to_owned()), Some(check.disk.clone()));
            events.add(NewEvent { level, kind, pool, disk, message: message.clone() });
            warnings.push(message);
        }
        checks.push(check);
    }
    checks
}
