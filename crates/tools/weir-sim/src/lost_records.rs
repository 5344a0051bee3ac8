//! Lost records: corrupts records on every leg, temporarily or permanently, or makes a leg misread
//! temporarily, and checks every block.
//!
//! `lost_nodes` covers lost tree nodes; `scenario` has many clients and repairable faults.
//!
//! Invariants:
//! - a read of a block that was flushed after the commit of its record returns the flushed content;
//! - a read of any other block of a lost record returns the content before the loss, or an error,
//!   and then the block is on the damage list;
//! - the record that a partial record replaced stays allocated: all counters agree with the trees;
//! - a restored and committed record survives the next power cut;
//! - a scrub destroys no copy on a leg that misreads.

use std::sync::Arc;
use std::time::Duration;

use weir_base::RecordSize;
use weir_base::ZstdLevel;
use weir_base::property::COMPRESSION;
use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_dataset::{Engine, EngineOptions, PropertyChange, Volume, VolumeSize};
use weir_format::Compression;
use weir_pool::{DiskAddress, ImportOptions, PlantedBug, ScanState};

use crate::client::whole_blocks;
use crate::cut::CutPlan;
use crate::fault::{Budget, Fault};
use crate::history::{Tag, contents_of, tags_of};
use crate::lost_nodes::run::counts;
use crate::media::MediaImage;
use crate::rng::Rng;
use crate::scenario::{Layout, Room, Scenario};
use crate::world::SimWorld;

const NAME: &str = "records";
const RECORD: RecordSize = RecordSize::from_shift(2).expect("four blocks");
/// Number of blocks in a record.
const PARTS: usize = 4;
const RECORDS: usize = 24;
const BLOCKS: usize = RECORDS * PARTS;
const MEMORY_BYTES: u64 = 4 << 20;
/// Maximum number of polls until a scrub ends.
const POLLS_MAX: usize = 1_000;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

type Checked<T> = Result<T, String>;

fn told<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

/// State of one run of this check.
struct Run {
    seed: u64,
    rng: Rng,
    bug: PlantedBug,
    layout: Layout,
    lives: u64,
    /// Expected content of each block.
    model: Vec<Tag>,
    tags: Tag,
}

/// Runs one simulation: loses records of a pool and checks its content. The seed selects one of
/// three runs of a small pool with dedupe:
/// - the power fails after flushed writes and trims of parts of records, and the next import cannot
///   read some of these records; later imports can read them again, or no import can;
/// - a scrub finds lost records while the pool is open, and the volume's owner restores them;
/// - a scrub runs while one leg of a mirror returns wrong bits; then an import has only that leg.
///
/// # Errors
/// The first violated invariant, with the seed that replays it.
pub fn lose_records(seed: u64, bug: PlantedBug) -> Result<(), String> {
    let rng = Rng::new(seed).stream("lost records", 0);
    let layout = if seed.is_multiple_of(2) { Layout::Single } else { Layout::Mirror };
    let mut run = Run { seed, rng, bug, layout, lives: 0, model: vec![0; BLOCKS], tags: 0 };
    let done = match run.rng.below(3) {
        0 => run.restored(),
        1 => {
            run.layout = Layout::Mirror;
            run.misread()
        }
        _ => run.logged_parts(),
    };
    done.map_err(|what| format!("lost records, seed {seed}, life {}: {what}", run.lives))
}

impl Run {
    fn world(&mut self, images: Vec<MediaImage>) -> SimWorld {
        self.lives += 1;
        SimWorld::from_media(self.seed.wrapping_mul(1000) + self.lives, images)
    }

    fn new_pool(&mut self) -> SimWorld {
        let images = Scenario::new_pool(self.layout, Room::Ample);
        self.world(images)
    }

    /// Opens the pool on the disks with these indexes.
    async fn open(&self, world: &SimWorld, disks: std::ops::Range<usize>) -> Checked<Arc<Engine>> {
        let clock = world.executor().clock();
        let options = EngineOptions { memory_bytes: MEMORY_BYTES, clock, bug: self.bug };
        let import_epoch = Guid(self.seed ^ self.lives << 40);
        let how = ImportOptions::new(import_epoch);
        let disks = world.devices()[disks].to_vec();
        Engine::open(disks, how, &options).await.map_err(told("open"))
    }

    /// Creates the volume, then writes and commits every block.
    async fn fill(&mut self, engine: &Engine, compression: Compression) -> Checked<Arc<Volume>> {
        let is_noisy = compression != Compression::Zstd(ZstdLevel::MAX);
        let bytes = (BLOCKS * BLOCK_BYTES) as u64;
        let size = VolumeSize { bytes, record: RECORD };
        let properties = [PropertyChange::set(COMPRESSION, compression)];
        let made = engine.create_volume_with(NAME, size, &properties).await;
        made.map_err(told("create"))?;
        engine.set_dedupe(NAME, true).await.map_err(told("dedupe"))?;
        let volume = engine.volume(NAME).map_err(told("volume"))?;
        for record in 0..RECORDS {
            let noise = if is_noisy { self.rng.below(2) } else { 0 };
            self.write(&volume, record * PARTS, PARTS, noise).await?;
        }
        engine.sync().await.map_err(told("sync"))?;
        Ok(volume)
    }

    /// Writes new content to blocks; with `noise` 1 the content does not compress.
    async fn write(
        &mut self,
        volume: &Volume,
        block: usize,
        count: usize,
        noise: u64,
    ) -> Checked<()> {
        for block in block..block + count {
            self.tags += 1;
            self.model[block] = self.tags << 8 | noise;
        }
        self.write_model(volume, block, count).await
    }

    /// Writes the expected content to blocks.
    async fn write_model(&self, volume: &Volume, block: usize, count: usize) -> Checked<()> {
        let bytes = contents_of(&whole_blocks(&self.model[block..block + count]));
        let done = volume.write((block * BLOCK_BYTES) as u64, &bytes).await;
        done.map_err(told("write"))
    }

    /// Overwrites every record that is not lost, and commits, so that the segments of the lost
    /// records hold no other live records.
    async fn overwrite_others(&mut self, engine: &Engine, lost: &[usize]) -> Checked<()> {
        let volume = engine.volume(NAME).map_err(told("volume"))?;
        for record in (0..RECORDS).filter(|record| !lost.contains(record)) {
            self.write(&volume, record * PARTS, PARTS, 1).await?;
        }
        engine.sync().await.map_err(told("sync"))
    }

    async fn trim(&mut self, volume: &Volume, block: usize, count: usize) -> Checked<()> {
        self.model[block..block + count].fill(0);
        let (offset, len) = ((block * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u64);
        volume.zero(offset, len).await.map_err(told("trim"))
    }

    /// Draws distinct records.
    fn draw_records(&mut self, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..RECORDS).collect();
        self.rng.shuffle(&mut all);
        all.truncate(count);
        all
    }

    async fn places(&self, volume: &Volume, records: &[usize]) -> Checked<Vec<DiskAddress>> {
        let mut places = Vec::new();
        for record in records {
            let place = volume.disk_address(0, *record as u64).await.map_err(told("place"))?;
            places.push(place.ok_or("a record is a hole")?);
        }
        Ok(places)
    }

    /// Flips bits of the records at these addresses on every leg; a second call restores them.
    fn flip(&self, images: &mut [MediaImage], places: &[DiskAddress]) {
        for image in &mut images[..self.layout.disks()] {
            for place in places {
                (0..4).for_each(|n| image.flip_bit(place.offset + n * 16, 3));
            }
        }
    }

    async fn scrub(&self, world: &SimWorld, engine: &Arc<Engine>) -> Checked<()> {
        let (scanner, timer) = (Arc::clone(engine), world.executor().clone());
        let scans = world
            .executor()
            .spawn("scans", async move { scanner.run_scans(|time| timer.sleep(time)).await });
        engine.scrub_start().map_err(told("scrub"))?;
        let is_done = || {
            let state = engine.pool().scan_status().map(|scan| scan.state);
            matches!(state, Some(ScanState::Finished | ScanState::Stopped))
        };
        for _ in 0..POLLS_MAX {
            if is_done() {
                break;
            }
            world.executor().sleep(POLL_INTERVAL).await;
        }
        if !is_done() {
            return Err("the scrub does not complete".to_owned());
        }
        engine.stop();
        scans.await.map_err(told("the scans failed"))
    }

    /// Compares every block with its expected content. A block for which `may_fail` is true may be
    /// unreadable, if the damage list contains it.
    async fn judge(&self, engine: &Engine, may_fail: impl Fn(usize) -> bool) -> Checked<()> {
        let volume = engine.volume(NAME).map_err(told("volume"))?;
        for block in 0..BLOCKS {
            let (mut bytes, offset) = ([0; BLOCK_BYTES], (block * BLOCK_BYTES) as u64);
            match volume.read(offset, &mut bytes).await {
                Ok(()) if tags_of(&bytes) == whole_blocks(&self.model[block..=block]) => {}
                Ok(()) => return Err(format!("block {block} returns wrong data")),
                Err(error) if error.kind() == ErrorKind::Data && may_fail(block) => {
                    let holds = |data: &weir_dataset::DamagedData| {
                        (data.offset_bytes..data.offset_bytes + data.len_bytes).contains(&offset)
                    };
                    if !engine.damage().data.iter().any(holds) {
                        return Err(format!("block {block} is lost, but not on the damage list"));
                    }
                }
                Err(error) => return Err(format!("block {block}: {error}")),
            }
        }
        Ok(())
    }

    /// Run in which clients flush changes to parts of records, and the next import cannot read
    /// these records.
    fn logged_parts(&mut self) -> Checked<()> {
        let world = self.new_pool();
        let filled = world.run_until(async {
            let engine = self.open(&world, 0..self.layout.disks()).await?;
            let volume = self.fill(&engine, Compression::Lz4).await?;
            let lost = self.draw_records(3);
            let places = self.places(&volume, &lost).await?;
            let mut logged = vec![false; BLOCKS];
            for _ in 0..=self.rng.below(8) {
                // Change parts of lost records, often across the records' ends.
                let record = lost[self.rng.index(lost.len())];
                let count = 1 + self.rng.index(PARTS + 1);
                let block = (record * PARTS + self.rng.index(PARTS)).min(BLOCKS - count);
                logged[block..block + count].fill(true);
                if self.rng.below(3) == 0 {
                    self.trim(&volume, block, count).await?;
                } else {
                    let noise = self.rng.below(2);
                    self.write(&volume, block, count, noise).await?;
                }
            }
            engine.flush(&volume).await.map_err(told("flush"))?;
            Ok::<_, String>((lost, places, logged))
        });
        let (lost, places, logged) = filled.map_err(told("run"))??;
        let mut images = world.cut(CutPlan::Nothing);
        self.flip(&mut images, &places);
        let may_fail = |block: usize| lost.contains(&(block / PARTS)) && !logged[block];
        for _ in 0..=self.rng.below(2) {
            let world = self.world(images);
            let opened = world.run_until(async {
                let engine = self.open(&world, 0..self.layout.disks()).await?;
                self.judge(&engine, may_fail).await?;
                self.overwrite_others(&engine, &lost).await?;
                self.judge(&engine, may_fail).await?;
                counts(&engine).await
            });
            opened.map_err(told("run"))??;
            images = world.cut(CutPlan::Nothing);
        }
        if self.rng.coin() {
            // Restore the bytes of the lost records, as if a disk with intact copies reconnected.
            self.flip(&mut images, &places);
        }
        let world = self.world(images);
        let scrubbed = world.run_until(async {
            let engine = self.open(&world, 0..self.layout.disks()).await?;
            self.judge(&engine, may_fail).await?;
            self.scrub(&world, &engine).await?;
            self.judge(&engine, may_fail).await?;
            // The owner of the volume restores the lost records from a backup.
            let volume = engine.volume(NAME).map_err(told("volume"))?;
            for record in &lost {
                self.write_model(&volume, record * PARTS, PARTS).await?;
            }
            engine.sync().await.map_err(told("sync"))?;
            match &engine.damage().data[..] {
                [] => Ok(()),
                data => Err(format!("restored, but on the damage list: {data:?}")),
            }
        });
        scrubbed.map_err(told("run"))??;
        let images = world.cut(CutPlan::Nothing);
        self.judge_whole(images)
    }

    /// Run in which records are lost while the pool is open, a scrub finds them, and the volume's
    /// owner restores them.
    fn restored(&mut self) -> Checked<()> {
        let world = self.new_pool();
        // The scrub restores most lost records from the cache, but no record that was compressed
        // with the highest level of zstd.
        let compression = match self.rng.below(3) {
            0 => Compression::Lz4,
            1 => Compression::Off,
            _ => Compression::Zstd(ZstdLevel::MAX),
        };
        let restored = world.run_until(async {
            let engine = self.open(&world, 0..self.layout.disks()).await?;
            let volume = self.fill(&engine, compression).await?;
            let lost = self.draw_records(4);
            for place in self.places(&volume, &lost).await? {
                for disk in &world.disks()[..self.layout.disks()] {
                    (0..4).for_each(|n| disk.flip_bit(place.offset + n * 16, 3));
                }
            }
            self.scrub(&world, &engine).await?;
            for record in &lost {
                self.write_model(&volume, record * PARTS, PARTS).await?;
            }
            engine.flush(&volume).await.map_err(told("flush"))?;
            engine.sync().await.map_err(told("sync"))
        });
        restored.map_err(told("run"))??;
        let images = world.cut(CutPlan::Nothing);
        self.judge_whole(images)
    }

    /// Run that scrubs while a leg misreads, then opens the pool on that leg alone.
    fn misread(&mut self) -> Checked<()> {
        let world = self.new_pool();
        let scrubbed = world.run_until(async {
            let engine = self.open(&world, 0..self.layout.disks()).await?;
            let volume = self.fill(&engine, Compression::Lz4).await?;
            // Overwrite some blocks, so that dead blocks lie between live ones.
            for _ in 0..4 {
                let block = self.rng.index(BLOCKS - PARTS);
                self.write(&volume, block, 2, 0).await?;
                engine.sync().await.map_err(told("sync"))?;
            }
            let leg = world.disk(0);
            leg.set_fault(Fault::Misread, Budget { per_million: 700_000, left: u32::MAX - 1 });
            self.scrub(&world, &engine).await?;
            leg.set_fault(Fault::Misread, Budget::default());
            engine.sync().await.map_err(told("sync"))
        });
        scrubbed.map_err(told("run"))??;
        let images = world.cut(CutPlan::Nothing);
        let world = self.world(images);
        let judged = world.run_until(async {
            let engine = self.open(&world, 0..1).await?;
            self.judge(&engine, |_| false).await
        });
        judged.map_err(told("run"))?
    }

    /// Opens the pool after a power cut and expects the correct content of every block.
    fn judge_whole(&mut self, images: Vec<MediaImage>) -> Checked<()> {
        let world = self.world(images);
        let judged = world.run_until(async {
            let engine = self.open(&world, 0..self.layout.disks()).await?;
            self.judge(&engine, |_| false).await
        });
        judged.map_err(told("run"))?
    }
}
