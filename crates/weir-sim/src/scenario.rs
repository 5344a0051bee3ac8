//! A scenario: a pool on simulated disks, clients that write, read, trim and flush at the same
//! time, and trouble with at most one leg of each mirror.
//!
//! Not here: cutting the power and judging what is left (enumerate).
//!
//! Invariants:
//! - trouble never exceeds what the layout's redundancy covers, so every client error but "no
//!   space" is a fault of the engine;
//! - everything is drawn from the scenario's seed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_dataset::{Engine, EngineOptions, Volume, VolumeSpec};
use weir_device::Device;
use weir_format::{Compression, VdevKind};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};

use crate::cut::CutPlan;
use crate::fault::{Budget, Fault};
use crate::history::{History, Tag, content, tag_of};
use crate::media::{DiskOptions, MediaImage};
use crate::rng::Rng;
use crate::world::SimWorld;

/// Small enough that segments turn over within a scenario.
const DISK_BYTES: u64 = 12 << 20;
const SEGMENT_BYTES: u32 = 256 << 10;
const ROW_BYTES: u32 = 4096;
const LOG_BYTES: u64 = 512 << 10;
const VOLUMES: usize = 2;
const VOLUME_BLOCKS: usize = 48;
const CLIENTS: usize = 3;
const STEPS_PER_CLIENT: u64 = 40;
const BLOCKS_PER_WRITE_MAX: u64 = 6;

/// Vdevs of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One disk.
    Single,
    /// A mirror of two.
    Mirror,
    /// Two mirrors of two, striped.
    Stripe,
}

/// What goes wrong with disk 0 (the first leg of the first mirror).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// A fault strikes now and then.
    Fault(Fault),
    /// It stops answering at some point.
    Dies,
}

/// One run, fully determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Everything random comes from this.
    pub seed: u64,
    /// Vdevs.
    pub layout: Layout,
    /// Trouble.
    pub trouble: Trouble,
    /// A deliberate fault of the engine.
    pub bug: PlantedBug,
}

/// The histories of all volumes, shared by clients and the oracle.
pub(crate) type Histories = Rc<RefCell<Vec<History>>>;

impl Scenario {
    /// The scenario of a seed: layout and trouble in turn, so that every combination is met.
    pub fn of_seed(seed: u64, bug: PlantedBug) -> Self {
        let mut rng = Rng::new(seed).stream("scenario", 0);
        let layout = [Layout::Single, Layout::Mirror, Layout::Stripe][rng.index(3)];
        let faults = Fault::ALL.map(Trouble::Fault);
        let trouble = match rng.index(Fault::ALL.len() + 4) {
            _ if layout == Layout::Single => Trouble::None,
            index if index < faults.len() => faults[index],
            index if index == faults.len() => Trouble::Dies,
            _ => Trouble::None,
        };
        Self { seed, layout, trouble, bug }
    }

    pub(crate) fn options(&self, world: &SimWorld) -> EngineOptions {
        EngineOptions { memory_bytes: 4 << 20, clock: world.executor().clock(), bug: self.bug }
    }

    /// Disks that hold a new pool with empty volumes.
    pub(crate) fn new_pool(layout: Layout) -> Vec<MediaImage> {
        let count = match layout {
            Layout::Single => 1,
            Layout::Mirror => 2,
            Layout::Stripe => 4,
        };
        let options: Vec<DiskOptions> =
            (0..count).map(|n| DiskOptions::new(&format!("disk{n}"), DISK_BYTES)).collect();
        let world = SimWorld::new(1, &options);
        let scenario = Self { seed: 1, layout, trouble: Trouble::None, bug: PlantedBug::None };
        let disks = devices(&world);
        let per_vdev = if layout == Layout::Single { 1 } else { 2 };
        let kind = if per_vdev == 1 { VdevKind::Disk } else { VdevKind::Mirror };
        let vdevs: Vec<VdevSpec> =
            disks.chunks(per_vdev).map(|legs| VdevSpec { kind, disks: legs.to_vec() }).collect();
        let sizes = CreateOptions {
            segment_bytes: Some(SEGMENT_BYTES),
            row_bytes: Some(ROW_BYTES),
            log_bytes: Some(LOG_BYTES),
            disk_bytes_min: Some(DISK_BYTES),
        };
        let mut next = 0;
        let mut guid = || {
            next += 1;
            Guid(next)
        };
        let made = world.run_until(async {
            let options = scenario.options(&world);
            let engine = Engine::create("sim", &vdevs, sizes, &options, &mut guid).await?;
            for n in 0..VOLUMES {
                let spec = VolumeSpec {
                    name: format!("v{n}"),
                    size_bytes: (VOLUME_BLOCKS * BLOCK_BYTES) as u64,
                    compression: Compression::Lz4,
                };
                engine.create_volume(&spec).await?;
            }
            Ok::<(), weir_dataset::DatasetError>(())
        });
        made.expect("nothing crashes here").expect("a pool on healthy disks");
        world.cut(CutPlan::Everything)
    }

    /// Histories of the empty volumes of [`Self::new_pool`].
    pub(crate) fn new_histories() -> Histories {
        Rc::new(RefCell::new(vec![History::new(VOLUME_BLOCKS); VOLUMES]))
    }

    /// Opens the pool and lets the clients work to their end.
    ///
    /// # Errors
    /// What a client or the engine was told that it should not have been.
    pub(crate) async fn run(
        &self,
        world: &SimWorld,
        histories: &Histories,
    ) -> Result<(), String> {
        let how = ImportOptions::default();
        let engine = Engine::open(devices(world), how, &self.options(world)).await;
        let engine = engine.map_err(|error| format!("open before the load: {error}"))?;
        let executor = world.executor().clone();
        let timer = executor.clone();
        let committer = Arc::clone(&engine);
        let run = executor.spawn("committer", async move {
            committer.run(|time| timer.sleep(time)).await
        });
        self.start_trouble(world);
        let mut clients = Vec::new();
        for n in 0..CLIENTS {
            let client = Client {
                rng: Rng::new(self.seed).stream("client", n as u64),
                engine: Arc::clone(&engine),
                histories: Rc::clone(histories),
                tags: (n as u64 + 1) << 48,
            };
            let executor = executor.clone();
            clients.push(self.spawn_client(&executor, n, client));
        }
        for client in clients {
            client.await?;
        }
        engine.stop();
        run.await.map_err(|error| format!("the committer gave up: {error}"))
    }

    fn spawn_client(
        &self,
        executor: &crate::executor::Executor,
        n: usize,
        mut client: Client,
    ) -> crate::executor::JoinHandle<Result<(), String>> {
        let pause = executor.clone();
        executor.spawn(format!("client {n}"), async move {
            for _ in 0..STEPS_PER_CLIENT {
                client.step().await.map_err(|error| format!("client {n}: {error}"))?;
                pause.yield_now().await;
            }
            Ok(())
        })
    }

    fn start_trouble(&self, world: &SimWorld) {
        const NOW_AND_THEN: Budget = Budget { per_million: 30_000, left: 12 };
        let disk = world.disk(0);
        match self.trouble {
            Trouble::None => {}
            Trouble::Fault(fault) => disk.set_fault(fault, NOW_AND_THEN),
            Trouble::Dies => {
                let executor = world.executor().clone();
                let after = 1 + Rng::new(self.seed).stream("death", 0).below(200);
                let _detached = world.executor().spawn("death of disk 0", async move {
                    for _ in 0..after {
                        executor.yield_now().await;
                    }
                    disk.set_dead(true);
                });
            }
        }
    }
}

/// The world's disks as the engine takes them.
pub(crate) fn devices(world: &SimWorld) -> Vec<Arc<dyn Device>> {
    world.disks().iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect()
}

/// Reads a whole volume back as tags.
pub(crate) async fn read_tags(volume: &Volume, blocks: usize) -> Result<Vec<Tag>, String> {
    let mut bytes = vec![0; blocks * BLOCK_BYTES];
    volume.read(0, &mut bytes).await.map_err(|error| format!("read: {error}"))?;
    let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
    Ok(blocks.iter().map(tag_of).collect())
}

struct Client {
    rng: Rng,
    engine: Arc<Engine>,
    histories: Histories,
    /// Tags of this client start here; the low bits count.
    tags: u64,
}

impl Client {
    async fn step(&mut self) -> Result<(), String> {
        let index = self.rng.index(VOLUMES);
        let name = format!("v{index}");
        let volume = self.engine.volume(&name).map_err(|error| error.to_string())?;
        let start = self.rng.index(VOLUME_BLOCKS);
        let room = (VOLUME_BLOCKS - start) as u64;
        let count = 1 + self.rng.below(BLOCKS_PER_WRITE_MAX.min(room)) as usize;
        match self.rng.below(100) {
            0..55 => self.write(index, &volume, start, count).await,
            55..65 => self.zero(index, &volume, start, count).await,
            65..85 => self.flush(index, &volume).await,
            85..97 => self.read(index, &volume).await,
            _ => self.engine.commit().await.map_err(|error| format!("commit: {error}")),
        }
    }

    async fn write(
        &mut self,
        index: usize,
        volume: &Volume,
        start: usize,
        count: usize,
    ) -> Result<(), String> {
        let tags: Vec<Tag> = (0..count)
            .map(|_| {
                self.tags += 1;
                // Zeros now and then: they are stored as holes.
                if self.rng.below(12) == 0 { 0 } else { self.tags }
            })
            .collect();
        let bytes: Vec<u8> = tags.iter().flat_map(|tag| content(*tag)).collect();
        let done = volume.write((start * BLOCK_BYTES) as u64, &bytes).await;
        self.acknowledge(index, start, tags, done)
    }

    async fn zero(
        &mut self,
        index: usize,
        volume: &Volume,
        start: usize,
        count: usize,
    ) -> Result<(), String> {
        let done = volume.zero((start * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u64).await;
        self.acknowledge(index, start, vec![0; count], done)
    }

    /// In the same executor step as the engine's own change: nothing is awaited in between.
    fn acknowledge(
        &self,
        index: usize,
        start: usize,
        tags: Vec<Tag>,
        done: Result<(), weir_dataset::DatasetError>,
    ) -> Result<(), String> {
        match done {
            Ok(()) => {
                self.histories.borrow_mut()[index].acknowledge(start, tags);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(()),
            Err(error) => Err(format!("write: {error}")),
        }
    }

    async fn flush(&mut self, index: usize, volume: &Volume) -> Result<(), String> {
        let before = self.histories.borrow()[index].acknowledged();
        self.engine.flush(volume).await.map_err(|error| format!("flush: {error}"))?;
        self.histories.borrow_mut()[index].flushed(before);
        Ok(())
    }

    /// Reads everything that fits the fast path against the model of this very moment.
    async fn read(&mut self, index: usize, volume: &Volume) -> Result<(), String> {
        let block = self.rng.index(VOLUME_BLOCKS);
        let mut bytes = [0; BLOCK_BYTES];
        let offset = (block * BLOCK_BYTES) as u64;
        let before = self.histories.borrow()[index].now()[block];
        let cached = volume.try_read(offset, &mut bytes).map_err(|error| format!("read: {error}"))?;
        if !cached {
            volume.read(offset, &mut bytes).await.map_err(|error| format!("read: {error}"))?;
        }
        // While a slow read waits, others may write: old and new content are both right.
        let (found, after) = (tag_of(&bytes), self.histories.borrow()[index].now()[block]);
        if found == before || found == after {
            return Ok(());
        }
        if cached || found == crate::history::GARBAGE {
            return Err(format!("v{index} block {block} reads {found:x}, not {after:x}"));
        }
        Ok(())
    }
}
