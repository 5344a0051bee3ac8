//! Properties of a target that is a volume of a Weir server: asks that server about the cache,
//! protection and features of the volume.
//!
//! Not here: the user's own statements about the target (plan), properties of this machine
//! (weir-bench).
//!
//! Invariant: the user's own statements take precedence. If the server does not respond, the run
//! continues without its answers.

use weir_api::ApiError;
use weir_api::types::{
    ListExports, ListTargets, PoolStatus, ShowPool, ShowServer, ShowVolume, VdevKind, VdevRole,
    Volume,
};
use weir_base::Compression;
use weir_bench::spec::RunSpec;
use weir_bench::target::Address;

use crate::cli::base::remote::RootRemote;
use crate::cli::base::session::Session;

/// Time limit in seconds for each response of the server.
const RESPONSE_TIMEOUT_S: u64 = 2;

/// Asks the server for the properties of the target that the user has not stated, and adds them to
/// the run.
pub(super) fn ask(spec: &mut RunSpec, address: &Address, named: &str) {
    if !matches!(address, Address::Nbd(_) | Address::Iscsi(_)) {
        return;
    }
    let remote = RootRemote { timeout: Some(RESPONSE_TIMEOUT_S), ..RootRemote::default() };
    let Ok(session) = Session::open(&remote, &RootRemote::default()) else { return };
    let Ok(Some(volume)) = volume_at(&session, address, named) else { return };
    if let Ok((cache_bytes, pool, volume)) = look(&session, &volume) {
        let told = &mut spec.told;
        told.cache_bytes = told.cache_bytes.or(Some(cache_bytes));
        told.protection = told.protection.take().or_else(|| Some(protection(&pool)));
        if told.features.is_empty() {
            told.features = features(&volume);
        }
        let name = volume.name;
        spec.assume
            .push(format!("cache, protection and features of {name} as reported by Weir's API"));
    }
}

/// Returns the volume at an address, if the server of this session serves that address.
fn volume_at(
    session: &Session,
    address: &Address,
    named: &str,
) -> Result<Option<String>, ApiError> {
    let of = |shown: &str| shown.split('@').next().unwrap_or_default().to_owned();
    let Address::Iscsi(url) = address else {
        let exports = session.call(ListExports {})?.exports;
        let found = exports.iter().find(|export| export.uris.iter().any(|uri| uri == named));
        return Ok(found.map(|export| of(&export.volume)));
    };
    let place = format!("{}:{}", url.host, url.port);
    let targets = session.call(ListTargets {})?.targets;
    let is_here = |portal: &String| portal.split(',').next() == Some(place.as_str());
    let mut here = targets.iter().filter(|target| target.portals.iter().any(is_here));
    let target = here.find(|target| target.name == url.target);
    let unit = target.and_then(|target| target.luns.iter().find(|lun| lun.number == url.lun));
    Ok(unit.map(|lun| of(&lun.volume)))
}

fn look(session: &Session, volume: &str) -> Result<(u64, PoolStatus, Volume), ApiError> {
    let pool = volume.split('/').next().unwrap_or_default().to_owned();
    let cache_bytes = session.call(ShowServer {})?.memory_cap_bytes;
    let pool = session.call(ShowPool { name: pool })?;
    let volume = session.call(ShowVolume { name: volume.to_owned() })?;
    Ok((cache_bytes, pool, volume))
}

/// Returns the redundancy of a pool's data vdevs as text, such as `mirror of 2`. Equal vdevs are
/// named once.
fn protection(pool: &PoolStatus) -> String {
    let data = pool.vdevs.iter().filter(|vdev| vdev.role == VdevRole::Data);
    let mut kinds: Vec<String> = data
        .map(|vdev| match vdev.kind {
            VdevKind::Disk => "none".to_owned(),
            kind => format!("{} of {}", kind.name(), vdev.disks.len()),
        })
        .collect();
    kinds.sort();
    kinds.dedup();
    kinds.join(", ")
}

fn features(volume: &Volume) -> Vec<String> {
    let mut features = vec!["checksums".to_owned()];
    if volume.compression.0 != Compression::Off {
        features.push(format!("compression {}", volume.compression.name()));
    }
    if volume.dedupe {
        features.push("dedupe".to_owned());
    }
    if volume.snapshots > 0 {
        features.push("snapshots".to_owned());
    }
    features
}
