//! Runs the operations of a server, `weir check` and `weir rescue` on a forged pool. An error is a
//! valid result; a panic, or an operation that never ends, is a finding. The results of the
//! operations are not checked.
//!
//! Invariant: every step runs, whatever the result of the step before it.

use std::sync::Arc;

use weir_dataset::{
    DatasetError, Engine, ReceiveSpec, Receiver, SendFrom, SendSpec, SnapshotId, Volume,
};
use weir_device::Overlay;

use crate::bench::{Bench, drive, now};
use crate::disks::{Disks, import, options};
use crate::objects::{self, AnyLayer};
use crate::sample::send;

/// Number of bytes in each of the [`READS`] reads of a volume, which are spread over its length.
const READ_BYTES: usize = 16 << 10;
const READS: u64 = 8;
/// Number of digests that each call requests for a snapshot.
const DIGESTS: u64 = 4;
/// Number of steps after which a scan is stopped.
const STEPS_MAX: u32 = 500;

/// Opens the pool.
///
/// # Errors
/// The error of the engine.
pub fn open(disks: &Disks, force: bool) -> Result<Arc<Engine>, DatasetError> {
    now(Engine::open_with_layer(disks.devices(), import(force), &options(), &AnyLayer))
}

/// Imports a forged pool and performs every operation on it; returns 1 if an import succeeded and 0
/// otherwise, as a measure of how deep a forgery reaches.
pub fn exercise(disks: &Disks) -> u32 {
    let opened = [false, true].into_iter().find_map(|force| open(disks, force).ok());
    let is_open = opened.is_some();
    if let Some(bench) = opened.map(Bench::new) {
        read_all(&bench);
        use_it(&bench);
        scrub(&bench);
    }
    check(disks);
    u32::from(is_open)
}

/// Runs a scrub, and a recount if there was damage.
fn scrub(bench: &Bench) {
    let _started = bench.scrub_start();
    let sleeps = std::sync::atomic::AtomicU32::new(0);
    // `run_scans` sleeps between the steps of a scan, and after the last step until there is more
    // work. So stop the engine after [`STEPS_MAX`] sleeps.
    let sleep = |_| {
        if sleeps.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > STEPS_MAX {
            bench.stop();
        }
        std::future::ready(())
    };
    let _scanned = drive(bench, bench.run_scans(sleep));
}

/// Runs `weir check`, and `weir rescue` of every volume.
fn check(disks: &Disks) {
    let overlays: Vec<Arc<Overlay>> =
        disks.devices().into_iter().map(|disk| Arc::new(Overlay::new(disk))).collect();
    let devices = overlays.iter().map(|disk| Arc::clone(disk) as _).collect();
    let options = options();
    let opened = Engine::open_with_layer(devices, import(false), &options, &AnyLayer);
    let Ok(engine) = now(opened) else { return };
    let bench = Bench::new(engine);
    overlays.iter().for_each(|overlay| overlay.freeze());
    read_all(&bench);
    let _answers = (
        drive(&bench, bench.verify(|_| ())).map(|done| done.is_ok()),
        drive(&bench, bench.check_live_bytes()).map(|done| done.is_ok()),
        drive(&bench, bench.check_references()).map(|done| done.is_ok()),
        drive(&bench, bench.check_accounts()).map(|done| done.is_ok()),
        drive(&bench, bench.check_places()).map(|done| done.is_ok()),
    );
}

fn read_all(bench: &Bench) {
    for volume in bench.volumes() {
        read(bench, &volume);
        let name = volume.info().name;
        let snapshots = drive(bench, bench.snapshots(&name));
        for snapshot in snapshots.into_iter().flatten().flatten() {
            let id = SnapshotId { volume: name.clone(), name: snapshot.name };
            if let Ok(view) = bench.open_snapshot(&id) {
                read(bench, &view);
            }
        }
    }
}

fn read(bench: &Bench, volume: &Volume) {
    if objects::read(bench, volume) {
        return;
    }
    let size = volume.size_bytes();
    let _extents = drive(bench, volume.extents(0, size, 1000));
    let mut out = vec![0; READ_BYTES];
    for n in 0..READS {
        let at = size / READS * n / 4096 * 4096;
        let len = (size - at).min(READ_BYTES as u64) as usize;
        let _read = drive(bench, volume.read(at, &mut out[..len]));
    }
}

/// Runs the operations that use relations between datasets.
fn relate(bench: &Bench, name: &str) {
    let snapshots = drive(bench, bench.snapshots(name));
    let names: Vec<String> =
        snapshots.into_iter().flatten().flatten().map(|snapshot| snapshot.name).collect();
    for snapshot in &names {
        let id = SnapshotId::new(name, snapshot.clone());
        let _marked = drive(bench, bench.create_bookmark(&id, snapshot));
        let _digest = drive(bench, bench.digest(&id, 0, DIGESTS));
        let _freed = drive(bench, bench.freed_by(name, std::slice::from_ref(snapshot)));
        for from in [None, names.first()] {
            let older = from.map(|name| SnapshotId { name: name.clone(), ..id.clone() });
            let from = older.map(SendFrom::Snapshot);
            let spec = SendSpec { snapshot: id.clone(), from, resume: None };
            let _sent = drive(bench, send(bench, &spec));
        }
    }
    if let Some(first) = names.first() {
        let id = SnapshotId::new(name, first.clone());
        let _clone = drive(bench, bench.clone_snapshot(&id, "another"));
        let _promoted = drive(bench, bench.promote("another"));
    }
    let _promoted = drive(bench, bench.promote(name));
}

/// Uses the pool: writes, trims, takes snapshots, resizes, clones, cleans and destroys.
fn use_it(bench: &Bench) {
    for volume in bench.volumes() {
        let size = volume.size_bytes();
        let name = volume.info().name;
        if objects::read(bench, &volume) {
            objects::change(bench, &volume);
        }
        for (at, len) in [(0, 8192), (50 * 4096, 4096), (size.saturating_sub(8192), 8192)] {
            let at = at / 4096 * 4096;
            let _write = drive(bench, volume.write(at, &vec![0x5a; len]));
        }
        let _zero = drive(bench, volume.zero(130 * 4096, 3 * 4096));
        let _flush = drive(bench, bench.flush(&volume));
        let _commit = drive(bench, bench.commit());
        let _zero = drive(bench, volume.zero(0, size));
        let snapshot = [SnapshotId::new(name.clone(), "new")];
        let _snapshot = drive(bench, bench.create_snapshots(&snapshot));
        relate(bench, &name);
        let _resize = drive(bench, bench.resize_volume(&name, size + (1 << 20)));
    }
    commits(bench, 3);
    let names: Vec<String> = bench.volumes().iter().map(|volume| volume.info().name).collect();
    for name in &names {
        let _rollback = drive(bench, bench.destroy_snapshots(name, &["one".to_owned()]));
        let _destroy = drive(bench, bench.destroy_volume(name, true));
    }
    commits(bench, 6);
}

fn commits(bench: &Bench, count: usize) {
    for _ in 0..count {
        let _commit = drive(bench, bench.commit());
    }
}

/// Receives streams into the pool, in order; returns the number of complete receives.
pub fn receive(disks: &Disks, streams: &[Vec<u8>]) -> u32 {
    let Ok(engine) = open(disks, false) else { return 0 };
    let bench = Bench::new(engine);
    let mut received = 0;
    for stream in streams {
        for dry_run in [true, false] {
            let spec =
                ReceiveSpec { volume: "into".to_owned(), roll_back: true, dry_run, mark: None };
            let mut receiver = Receiver::new(Arc::clone(&bench), spec).with_objects();
            let mut parts = stream.chunks(64 << 10);
            let whole =
                parts.all(|part| matches!(drive(&bench, receiver.push(part)), Some(Ok(()))));
            if whole {
                let done = drive(&bench, receiver.finish());
                received += u32::from(matches!(done, Some(Ok(_))));
            }
        }
    }
    read_all(&bench);
    use_it(&bench);
    received
}
