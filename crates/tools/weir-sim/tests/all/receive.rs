//! Receive on disks that lose power at any step: the stream resumes at the position stored on the
//! disks, and the received data equals the sent data.
//!
//! weir-dataset tests truncated streams and refusals. In these tests, no other load runs.
//!
//! Invariant: no test is random; a seed replays its run.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_base::RecordSize;
use weir_base::property::COMPRESSION;
use weir_base::{BLOCK_BYTES, Guid};
use weir_dataset::{
    BookmarkId, DatasetError, Engine, EngineOptions, PropertyChange, ReceiveSpec, Receiver,
    SendFrom, SendSpec, SnapshotId, Volume, VolumeSize,
};
use weir_format::layout::LABEL_BYTES;
use weir_format::stream::ResumeToken;
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};
use weir_sim::{CutPlan, DiskOptions, Rng, SimError, SimWorld};

const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCKS: u64 = 704;
const SNAPSHOTS: u64 = 4;

/// Number that fills a block, by the number of the block. A block of zeros has no entry.
type Content = BTreeMap<u64, u64>;

/// Engine options with `bytes` of memory. The source has no committer, so its memory must hold all
/// writes between two commits. The receiver has little memory and commits often.
fn options(world: &SimWorld, bytes: u64, bug: PlantedBug) -> EngineOptions {
    EngineOptions { memory_bytes: bytes, clock: world.executor().clock(), bug }
}

fn blank(seed: u64, name: &str) -> SimWorld {
    let log_bytes = 256 << 10;
    let len = 2 * LABEL_BYTES + log_bytes + (12 << 20);
    SimWorld::new(seed, &[DiskOptions::new(&format!("{name}0"), len)])
}

async fn create(world: &SimWorld, name: &str, guids: u64, bug: PlantedBug) -> Arc<Engine> {
    let (kind, role, disks) = (VdevKind::Disk, VdevRole::Data, world.devices());
    let sizes = CreateOptions {
        segment_bytes: Some(256 << 10),
        strip_bytes: Some(4096),
        log_bytes: Some(256 << 10),
        disk_bytes_min: Some(2 * LABEL_BYTES),
    };
    let mut next = guids;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let vdevs = [VdevSpec { kind, role, disks }];
    let made = Engine::create(name, &vdevs, sizes, &options(world, 4 << 20, bug), &mut guid).await;
    made.expect("a pool on healthy disks")
}

fn block_of(block: u64, fill: u64) -> [u8; BLOCK_BYTES] {
    let mut data = [0; BLOCK_BYTES];
    Rng::new(fill).stream("content", block).fill(&mut data[..2048]);
    data[..8].copy_from_slice(&fill.to_le_bytes());
    data
}

async fn content(volume: &Volume) -> Result<Content, DatasetError> {
    let mut content = Content::new();
    for block in 0..volume.size_bytes() / BLOCK {
        let mut data = [0; BLOCK_BYTES];
        volume.read(block * BLOCK, &mut data).await?;
        if data != [0; BLOCK_BYTES] {
            let fill = u64::from_le_bytes(*data.first_chunk().expect("long enough"));
            let known = data == block_of(block, fill);
            content.insert(block, if known { fill } else { u64::MAX });
        }
    }
    Ok(content)
}

/// Sender of the streams, whose disks are healthy and never lose power. For every other seed, the
/// sender keeps only a bookmark of each sent snapshot.
struct Source {
    only_bookmarks: bool,
    world: SimWorld,
    engine: Arc<Engine>,
    /// Content of each snapshot by name, oldest first.
    model: Vec<(String, Content)>,
}

impl Source {
    fn new(seed: u64, bug: PlantedBug) -> Self {
        let world = blank(seed, "source");
        let mut rng = Rng::new(seed).stream("history", 0);
        let made = world.run_until(async {
            let engine = create(&world, "tank", 0, bug).await;
            // Use record sizes from one block to 32 KiB.
            let record = RecordSize::from_shift((seed % 4) as u8).expect("a few blocks");
            let size = VolumeSize { bytes: BLOCKS * BLOCK, record };
            let lz4 = PropertyChange::set(COMPRESSION, Compression::Lz4);
            engine.create_volume_with("v", size, &[lz4]).await?;
            let volume = engine.volume("v")?;
            let (mut model, mut now) = (Vec::new(), Content::new());
            for round in 0..SNAPSHOTS {
                for step in 0..3 + rng.below(5) {
                    let start = rng.below(BLOCKS);
                    let end = (start + 1 + rng.below(120)).min(BLOCKS);
                    let fill = 1 + round * 100 + step;
                    if rng.below(3) == 0 {
                        volume.zero(start * BLOCK, (end - start) * BLOCK).await?;
                        now.retain(|block, _| !(start..end).contains(block));
                        continue;
                    }
                    for block in start..end {
                        volume.write(block * BLOCK, &block_of(block, fill)).await?;
                        now.insert(block, fill);
                    }
                    engine.sync().await?;
                }
                let name = format!("s{round}");
                engine.create_snapshots(&[SnapshotId::new("v", &name)]).await?;
                model.push((name, now.clone()));
            }
            Ok::<_, DatasetError>((engine, model))
        });
        let (engine, model) = made.expect("nothing crashes here").expect("healthy disks");
        Self { only_bookmarks: seed.is_multiple_of(2), world, engine, model }
    }

    fn from(&self, name: &str) -> SendFrom {
        if self.only_bookmarks {
            return SendFrom::Bookmark(BookmarkId {
                volume: "v".to_owned(),
                name: name.to_owned(),
            });
        }
        SendFrom::Snapshot(SnapshotId::new("v", name))
    }

    /// Replaces a snapshot of the sender, which the receiver already has, by a bookmark.
    fn let_go(&self, index: usize) -> Result<(), String> {
        if !self.only_bookmarks {
            return Ok(());
        }
        let name = &self.model[index].0;
        let done = self.world.run_until(async {
            self.engine.create_bookmark(&SnapshotId::new("v", name), name).await?;
            self.engine.destroy_snapshots("v", std::slice::from_ref(name)).await?;
            // Commit several times, so that the engine frees the blocks of the snapshot before the
            // next stream.
            for _ in 0..4 {
                self.engine.sync().await?;
            }
            Ok(())
        });
        done.expect("nothing crashes here").map_err(text)
    }

    /// Returns the stream up to a snapshot, complete or from a receiver's resume token on.
    fn stream(&self, index: usize, resume: Option<ResumeToken>) -> Result<Vec<u8>, DatasetError> {
        let before = index.checked_sub(1).filter(|_| resume.is_none());
        let from = before.map(|before| self.from(&self.model[before].0));
        let spec = SendSpec { snapshot: SnapshotId::new("v", &self.model[index].0), from, resume };
        let sent = self.world.run_until(async {
            let sending = self.engine.prepare_send(&spec)?;
            let mut bytes = Vec::new();
            let put = async |part: Vec<u8>| {
                bytes.extend(part);
                Ok(())
            };
            self.engine.send(&sending, put).await?;
            Ok(bytes)
        });
        sent.expect("nothing crashes here")
    }
}

/// Numbers of interrupted streams, and of streams resumed after their first record.
#[derive(Default)]
struct Met {
    crashes: u64,
    resumed: u64,
}

/// Sends all snapshots in order to disks that lose power; returns the first violation.
fn replicate(seed: u64, bug: PlantedBug, met: &mut Met) -> Result<(), String> {
    let source = Source::new(seed, bug);
    let mut rng = Rng::new(seed).stream("cuts", 0);
    let world = blank(seed + 1, "back");
    let made = world.run_until(async { create(&world, "back", 1000, PlantedBug::None).await });
    drop(made.expect("nothing crashes here"));
    let mut images = world.cut(CutPlan::Everything);
    for index in 0..source.model.len() {
        let mut crashes = rng.below(6);
        let mut generation = 0;
        loop {
            generation += 1;
            let world = SimWorld::from_media(seed * 1000 + generation, images.clone());
            if crashes > 0 {
                crashes -= 1;
                world.crash_after(4 + rng.below(150));
            }
            let ran = receive_once(&world, &source, index, generation, &mut rng, met);
            match ran {
                Ok(done) => {
                    done?;
                    images = world.cut(CutPlan::Everything);
                    source.let_go(index)?;
                    break;
                }
                Err(SimError::Crashed { .. }) => {
                    met.crashes += 1;
                    let plan = match rng.below(3) {
                        0 => CutPlan::Nothing,
                        1 => CutPlan::Everything,
                        _ => CutPlan::Random(rng.next_u64()),
                    };
                    images = world.cut(plan);
                }
                Err(other) => return Err(other.to_string()),
            }
        }
    }
    Ok(())
}

/// Runs one generation of the receiver.
fn receive_once(
    world: &SimWorld,
    source: &Source,
    index: usize,
    import_epoch: u64,
    rng: &mut Rng,
    met: &mut Met,
) -> Result<Result<(), String>, SimError> {
    let how = ImportOptions::new(Guid(import_epoch + index as u64 * 1000));
    let opened = world.run_until(async {
        let options = options(world, 1 << 20, PlantedBug::None);
        let engine = Engine::open(world.devices(), how, &options).await.map_err(text)?;
        judge(&engine, source, index, false).await?;
        let receiving = engine.volume("w").is_ok_and(|volume| volume.receiving().is_some());
        let token =
            if receiving { Some(engine.receive_token("w").await.map_err(text)?) } else { None };
        Ok::<_, String>((engine, token))
    })?;
    let (engine, token) = match opened {
        Ok(opened) => opened,
        Err(what) => return Ok(Err(what)),
    };
    if engine.snapshot_names("w").is_ok_and(|all| all.contains(&source.model[index].0)) {
        return Ok(Ok(()));
    }
    met.resumed += u64::from(token.is_some_and(|token| token.next_record > 0));
    let bytes = match source.stream(index, token) {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(format!("sending: {error}"))),
    };
    let executor = world.executor().clone();
    let (committer, timer) = (Arc::clone(&engine), executor.clone());
    let _committing =
        executor.spawn("committer", async move { committer.run(|t| timer.sleep(t)).await });
    let piece = 1 + rng.below(60_000) as usize;
    world.run_until(async {
        let spec =
            ReceiveSpec { volume: "w".to_owned(), roll_back: false, dry_run: false, mark: None };
        let mut receiver = Receiver::new(Arc::clone(&engine), spec);
        for part in bytes.chunks(piece) {
            receiver.push(part).await.map_err(text)?;
            executor.yield_now().await;
        }
        receiver.finish().await.map_err(text)?;
        engine.stop();
        judge(&engine, source, index, true).await
    })
}

/// Checks that every snapshot holds the sent data, and that all required snapshots exist.
async fn judge(
    engine: &Engine,
    source: &Source,
    index: usize,
    is_done: bool,
) -> Result<(), String> {
    let names = engine.snapshot_names("w").unwrap_or_default();
    for (at, (name, wanted)) in source.model.iter().enumerate() {
        let there = names.contains(name);
        if there != (at < index || (at == index && is_done)) && at != index {
            return Err(format!("snapshot {name} is there: {there}"));
        }
        if at == index && is_done && !there {
            return Err(format!("snapshot {name} is promised and not there"));
        }
        if !there {
            continue;
        }
        let view = engine.open_snapshot(&SnapshotId::new("w", name)).map_err(text)?;
        let found = content(&view).await.map_err(text)?;
        if found != *wanted {
            let differ = (0..BLOCKS).find(|block| found.get(block) != wanted.get(block));
            return Err(format!("snapshot {name} differs, first at block {differ:?}"));
        }
    }
    if let Some(wrong) = engine.check_live_bytes().await.map_err(text)?.first() {
        return Err(format!("live bytes {wrong:?}"));
    }
    if let Some(wrong) = engine.check_accounts().await.map_err(text)?.first() {
        return Err(format!("account {wrong:?}"));
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
fn text(error: DatasetError) -> String {
    error.to_string()
}

fn first_violation(bug: PlantedBug, seeds: u64) -> Option<(u64, String)> {
    let mut met = Met::default();
    (1..=seeds).find_map(|seed| replicate(seed, bug, &mut met).err().map(|what| (seed, what)))
}

#[test]
fn received_data_equals_sent_data_across_crashes() {
    let mut met = Met::default();
    for seed in 1..=60 {
        if let Err(what) = replicate(seed, PlantedBug::None, &mut met) {
            panic!("seed {seed}: {what}");
        }
    }
    assert!(met.crashes > 100, "{} crashes", met.crashes);
    assert!(met.resumed > 20, "{} went on behind their first block", met.resumed);
}

#[test]
fn resume_token_that_skips_a_leaf_is_noticed() {
    assert!(first_violation(PlantedBug::ResumeSkips, 20).is_some());
}

#[test]
fn unsent_trim_is_noticed() {
    assert!(first_violation(PlantedBug::TrimsNotSent, 20).is_some());
}
