//! Checks of an engine that opened its pool after a power cut.
//!
//! `expected` holds the expected state; `enumerate` cuts the power.
//!
//! Invariants:
//! - every volume holds a prefix of its acknowledged changes that includes every flushed change;
//! - every volume whose creation was acknowledged exists; no destroyed volume does;
//! - if faults may lose data of the only disk, a read fails or returns data once written to the
//!   block;
//! - every acknowledged snapshot exists with its content; no destroyed snapshot does;
//! - the live bytes of segments, the reference counts, and the space accounts of volumes and
//!   snapshots match a walk of the trees; no two blocks have the same address.

use std::collections::HashMap;
use std::sync::Arc;

use weir_base::BLOCK_BYTES;
use weir_dataset::{DatasetError, Engine, PropertyTarget, SnapshotId, Volume};
use weir_pool::{LegState, LegStatus};

use crate::coverage::{CoveragePoint, note};
use crate::expected::{Book, ExpectedState, Found, Recovered, SnapshotBook};
use crate::history::Presence;
use crate::history::{SECTORS, Tag, tags_of};
use crate::objects::book::is_of_objects;
use crate::replication::volumes::is_replica;

/// Checks every guarantee; returns the recovered state.
pub(crate) async fn strict(
    engine: &Arc<Engine>,
    expected: &ExpectedState,
) -> Result<Recovered, String> {
    let mut all = Vec::new();
    for (at, book) in expected.volumes.iter().enumerate() {
        let found =
            one(engine, expected, at).await.map_err(|what| format!("{}: {what}", book.name))?;
        all.push(found);
    }
    let replica = expected.replica.judge(engine).await;
    let replica = replica.map_err(|what| format!("replica: {what}"))?;
    let objects = expected.objects.judge(engine).await?;
    let known = all.iter().flatten().count() + usize::from(replica.is_some()) + objects.count();
    let strangers = engine.volumes().len() - known;
    if strangers > 0 {
        return Err(format!("{strangers} unexpected volumes"));
    }
    let snapshots = snapshots(engine, expected).await?;
    let shared = engine.check_places().await.map_err(|error| format!("walk: {error}"))?;
    if let Some((a, b)) = shared {
        return Err(format!("{a:?} and {b:?} overlap on disk, or have no address"));
    }
    let wrong = engine.check_accounts().await.map_err(|error| format!("walk: {error}"))?;
    if let Some(wrong) = wrong.first() {
        return Err(format!("{wrong:?}"));
    }
    let counts = engine.check_references().await.map_err(|error| format!("walk: {error}"))?;
    if let Some(wrong) = counts.first() {
        return Err(format!("{wrong:?}"));
    }
    let differ = engine.check_live_bytes().await.map_err(|error| format!("walk: {error}"))?;
    match differ.first() {
        None => Ok(Recovered { volumes: all, snapshots, replica, objects }),
        Some((vseg, counted, found)) => {
            Err(format!("segment {vseg} counts {counted} live bytes, the trees refer to {found}"))
        }
    }
}

async fn one(
    engine: &Engine,
    expected: &ExpectedState,
    at: usize,
) -> Result<Option<Found>, String> {
    let book = &expected.volumes[at];
    let volume = match engine.volume(&book.name) {
        Ok(_) if book.presence == Presence::Gone => {
            return Err("it exists after its destruction".to_owned());
        }
        Ok(volume) => volume,
        Err(error) if book.presence == Presence::There => return Err(error.to_string()),
        Err(_) => return Ok(None),
    };
    let info = volume.info();
    let size = info.size_bytes as usize / BLOCK_BYTES;
    if !book.compression.admits(info.compression) {
        let compression = book.compression;
        return Err(format!("{info:?} does not have {compression:?}"));
    }
    let limits = limits(engine, book, info.space.used)?;
    let mut state = read_tags(&volume, 0, size).await.map_err(|error| format!("read: {error}"))?;
    state.resize(book.history.sectors(), 0);
    expected.judge(at, size, &state)?;
    Ok(Some(Found { size, compression: info.compression, limits, state }))
}

/// Checks the quota and the reservation of a volume, and that its used space is within the quota.
fn limits(engine: &Engine, book: &Book, used: u64) -> Result<(u64, u64), String> {
    let target = PropertyTarget::Volume(book.name.clone());
    let own = engine.properties(&target).map_err(|error| error.to_string())?.own;
    let found = (own.quota_bytes(), own.reservation_bytes());
    if !book.limits.admits(found) {
        return Err(format!("quota and reservation {found:?} differ from {:?}", book.limits));
    }
    // The engine may already have checked writes against a pending new quota, so accept the larger
    // one of the two quotas.
    let or_none = |quota: u64| if quota == 0 { u64::MAX } else { quota };
    let asked = book.limits.asked.map_or(0, |(quota, _)| or_none(quota));
    let most = or_none(book.limits.known.0).max(asked);
    if used > most {
        return Err(format!("{used} bytes are used, the quota is {most}"));
    }
    Ok(found)
}

/// Checks all snapshots; returns the content of each by name.
async fn snapshots(
    engine: &Engine,
    expected: &ExpectedState,
) -> Result<HashMap<String, Vec<Tag>>, String> {
    let mut found = HashMap::new();
    for volume in engine.volumes() {
        let of = volume.info().name;
        if is_replica(&of) || is_of_objects(&of) {
            continue;
        }
        let listed = engine.snapshots(&of).await;
        for info in listed.map_err(|error| format!("snapshots of {of}: {error}"))? {
            let full = format!("{of}@{}", info.name);
            let at = expected.snapshots.iter().position(|book| book.name == info.name);
            let at = at.ok_or_else(|| format!("{full}: unexpected snapshot"))?;
            if expected.snapshots[at].presence == Presence::Gone {
                return Err(format!("{full}: it exists after its destruction"));
            }
            let state = read_snapshot(engine, &of, &info.name, expected.sectors_max()).await;
            let state = state.map_err(|error| format!("{full}: {error}"))?;
            expected.judge_snapshot(at, &state).map_err(|what| format!("{full}: {what}"))?;
            found.insert(info.name, state);
        }
    }
    let lost =
        |book: &&SnapshotBook| book.presence == Presence::There && !found.contains_key(&book.name);
    match expected.snapshots.iter().find(lost) {
        Some(book) => Err(format!("snapshot {} is missing", book.name)),
        None => Ok(found),
    }
}

/// Content of a snapshot, padded with zeros to the length of the longest volume.
pub(crate) async fn read_snapshot(
    engine: &Engine,
    volume: &str,
    name: &str,
    sectors_max: usize,
) -> Result<Vec<Tag>, DatasetError> {
    let id = SnapshotId::new(volume, name);
    let view = engine.open_snapshot(&id)?;
    let mut state = read_tags(&view, 0, view.size_bytes() as usize / BLOCK_BYTES).await?;
    state.resize(sectors_max, 0);
    Ok(state)
}

/// Reads `blocks` blocks of a volume, from block `from` on, and returns the tags of their sectors.
pub(crate) async fn read_tags(
    volume: &Volume,
    from: u64,
    blocks: usize,
) -> Result<Vec<Tag>, DatasetError> {
    let mut bytes = vec![0; blocks * BLOCK_BYTES];
    volume.read(from * BLOCK_BYTES as u64, &mut bytes).await?;
    Ok(tags_of(&bytes))
}

/// Weaker check than [`strict`]: every read returns an error or data that was once written to that
/// sector, slot or record.
pub(crate) async fn detected_or_harmless(
    engine: &Engine,
    expected: &ExpectedState,
) -> Result<(), String> {
    for book in &expected.volumes {
        let Ok(volume) = engine.volume(&book.name) else { continue };
        for block in 0..(volume.size_bytes() as usize / BLOCK_BYTES) {
            let mut bytes = [0; BLOCK_BYTES];
            if volume.read((block * BLOCK_BYTES) as u64, &mut bytes).await.is_err() {
                note(CoveragePoint::DamageDetected);
                continue;
            }
            let mut sectors = (block * SECTORS..).zip(tags_of(&bytes));
            if let Some((sector, _)) = sectors.find(|(at, tag)| !expected.was_written(*tag, *at)) {
                let name = &book.name;
                return Err(format!("{name} sector {sector} holds what no client wrote there"));
            }
        }
    }
    expected.objects.readable(engine).await.map(drop)
}

/// Checks that no leg has errors, in a scenario without injected faults: a power cut alone must
/// cause no errors of legs.
pub(crate) fn no_leg_blamed(engine: &Engine, disks: usize) -> Result<(), String> {
    let status = engine.pool().status();
    let legs = || status.vdevs.iter().flat_map(|vdev| &vdev.legs);
    // If the cut came while the pool was detaching a replaced disk, the vdev still has this disk as
    // an extra leg, which lacks writes.
    let one_more = legs().count() > disks;
    // If the cut came between the uberblocks of two legs, the leg with the older one is unconfirmed
    // and counts as complete.
    let as_it_should_be = |leg: &LegStatus| match leg.state {
        LegState::Online => true,
        LegState::Stale => one_more || leg.unconfirmed,
        _ => false,
    };
    let blamed =
        legs().find(|leg| !as_it_should_be(leg) || leg.checksum_errors + leg.read_errors > 0);
    blamed.map_or(Ok(()), |leg| Err(format!("all disks are healthy, but the pool reports {leg:?}")))
}

/// Counts the legs that lack writes as coverage points.
pub(crate) fn note_stale_legs(engine: &Engine) {
    let status = engine.pool().status();
    let legs = status.vdevs.iter().flat_map(|vdev| &vdev.legs);
    legs.filter(|leg| leg.state == LegState::Stale).for_each(|_| note(CoveragePoint::LegStale));
}
