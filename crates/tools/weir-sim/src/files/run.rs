//! Filesystems under power cuts: several clients change few names, and the power fails at random
//! steps. Each recovered filesystem must be in a state that the crash promise allows.
//!
//! Invariants:
//! - the check of the recovered filesystem finds nothing;
//! - the background freeing leaves no inode of a removed file.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_base::{Clock as _, Guid, ObjectId, RecordSize};
use weir_dataset::{Engine, EngineOptions};
use weir_format::files::{FileType, TimeStamp};
use weir_format::{VdevKind, VdevRole};
use weir_fs::{Filesystem, FilesystemLayer, FreeingLimits, FsError, Layout, Now, ROOT};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};

use super::book::{Book, Content, Inode, Names};
use super::client::{Client, inode_of};
use crate::cut::CutPlan;
use crate::media::{DiskOptions, MediaImage};
use crate::rng::Rng;
use crate::world::SimWorld;

const DISK_BYTES: u64 = 64 << 20;
/// Inodes with a fixed number; the root directory is one of them.
const INTERNAL_INODES: u64 = 16;
/// Limits under which a file of two records is large.
const LIMITS: FreeingLimits = FreeingLimits { at_once: 1, part: 1 };
const CLIENTS: u64 = 3;
const STEPS: usize = 200;
const LAYOUT: Layout =
    Layout { hash_key: 5, record_size: RecordSize::from_shift(2).expect("16 KiB") };

fn clock(world: &SimWorld) -> Now {
    let clock = world.executor().clock();
    Box::new(move || {
        let milliseconds = clock.unix_ms();
        TimeStamp { seconds: (milliseconds / 1000).cast_signed(), nanos: 0 }
    })
}

fn options(world: &SimWorld, bug: PlantedBug) -> EngineOptions {
    EngineOptions { memory_bytes: 8 << 20, clock: world.executor().clock(), bug }
}

/// Reads all names and contents.
async fn read_all(files: &Filesystem) -> Result<(Names, BTreeMap<Inode, Content>), FsError> {
    let (mut names, mut contents) = (Names::new(), BTreeMap::new());
    let mut waiting = vec![inode_of(&files.attributes(ROOT).await?)];
    while let Some(directory) = waiting.pop() {
        let mut cookie = 0;
        loop {
            let part = files.list(ObjectId(directory.0), cookie).await?;
            let Some(last) = part.last() else { break };
            cookie = last.key.number();
            for entry in part {
                let inode = inode_of(&files.attributes(entry.inode).await?);
                names.insert((directory, entry.name.to_vec()), inode);
                if entry.file_type == FileType::Directory {
                    waiting.push(inode);
                } else {
                    let data = match entry.file_type {
                        FileType::SymbolicLink => files.read_link(entry.inode).await?,
                        _ => files.read(entry.inode, 0, 1 << 20).await?,
                    };
                    let mut xattrs = BTreeMap::new();
                    for name in files.xattr_names(entry.inode).await? {
                        let value = files.xattr(entry.inode, &name).await?;
                        xattrs.insert(name.into_vec(), value);
                    }
                    contents.insert(inode, Content { data, xattrs });
                }
            }
        }
    }
    Ok((names, contents))
}

/// Numbers of power cuts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCuts {
    /// Number of power cuts, each with a recovery.
    pub cuts: usize,
    /// Number of cuts that lost changes.
    pub lost: usize,
}

/// Runs clients on a filesystem, cuts the power at random steps, and checks each recovered
/// filesystem.
///
/// # Errors
/// The first violation of the crash promise.
pub fn cut_files(seed: u64, bug: PlantedBug) -> Result<FileCuts, String> {
    let disks = ["disk0", "disk1"];
    let disks = disks.map(|name| MediaImage::blank(DiskOptions::new(name, DISK_BYTES))).to_vec();
    let world = SimWorld::from_media(seed, disks);
    let cuts = Rc::new(RefCell::new(Vec::new()));
    let ran = world.run_until(run_clients(&world, seed, bug, Rc::clone(&cuts)));
    ran.map_err(|error| format!("files, seed {seed}: {error}"))??;
    world.crash();
    let mut counted = FileCuts::default();
    for (book, images) in cuts.take() {
        let world = SimWorld::from_media(seed, images);
        let lost = Cell::new(false);
        let recovered = world.run_until(async {
            let engine = recover(&world, bug).await?;
            let files = Filesystem::open_with(&engine, "files", LIMITS, clock(&world)).await;
            let files = files.map_err(|error| error.to_string())?;
            let (names, contents) = read_all(&files).await.map_err(|error| error.to_string())?;
            lost.set(book.judge(&names, &contents)?);
            check(&engine, &files).await?;
            free_removed(&engine, &files, &names).await
        });
        let recovered = recovered.map_err(|error| error.to_string()).and_then(|done| done);
        recovered.map_err(|what| format!("files, seed {seed}, cut {}: {what}", counted.cuts))?;
        world.crash();
        counted.cuts += 1;
        counted.lost += usize::from(lost.get());
    }
    Ok(counted)
}

async fn check(engine: &Engine, files: &Filesystem) -> Result<(), String> {
    engine.sync().await.map_err(|error| error.to_string())?;
    let findings = files.check().await.map_err(|error| error.to_string())?;
    if findings.is_empty() { Ok(()) } else { Err(format!("the check found {findings:?}")) }
}

/// Frees the removed files as a background task does. Nothing of them may be left.
async fn free_removed(engine: &Engine, files: &Filesystem, names: &Names) -> Result<(), String> {
    let numbers = files.removed_files().await.map_err(|error| error.to_string())?;
    for number in numbers {
        while files.free_part(number).await.map_err(|error| error.to_string())? {}
    }
    check(engine, files).await?;
    let named: BTreeSet<Inode> = names.values().copied().collect();
    let mut expected = INTERNAL_INODES + named.len() as u64;
    for (number, _) in named {
        let inode = files.has_large_xattrs(ObjectId(number)).await;
        expected += u64::from(inode.map_err(|error| error.to_string())?);
    }
    let used = files.statistics().await.map_err(|error| error.to_string())?.files;
    if used == expected { Ok(()) } else { Err(format!("{used} inodes instead of {expected}")) }
}

async fn recover(world: &SimWorld, bug: PlantedBug) -> Result<Arc<Engine>, String> {
    let how = ImportOptions::new(Guid(99));
    let options = options(world, bug);
    let opened = Engine::open_with_layer(world.devices(), how, &options, &FilesystemLayer).await;
    opened.map_err(|error| error.to_string())
}

/// Frees the removed files until `is_done`.
fn free_in_background(
    world: &SimWorld,
    files: &Rc<Filesystem>,
    is_done: &Rc<Cell<bool>>,
) -> impl Future<Output = Result<(), FsError>> + 'static {
    let (files, is_done, timer) = (Rc::clone(files), Rc::clone(is_done), world.executor().clone());
    async move {
        while !is_done.get() {
            files.free_removed().await?;
            timer.sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

type Cuts = Rc<RefCell<Vec<(Book, Vec<MediaImage>)>>>;

async fn run_clients(
    world: &SimWorld,
    seed: u64,
    bug: PlantedBug,
    cuts: Cuts,
) -> Result<(), String> {
    let told = |error: FsError| error.to_string();
    let vdev = VdevSpec { kind: VdevKind::Mirror, role: VdevRole::Data, disks: world.devices() };
    let sizes = CreateOptions { segment_bytes: Some(1 << 20), ..CreateOptions::default() };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().expect("endless");
    let engine = Engine::create("tank", &[vdev], sizes, &options(world, bug), &mut guid).await;
    let engine = engine.map_err(|error| error.to_string())?;
    let files = Filesystem::create(&engine, "files", LAYOUT, &[], clock(world)).await;
    let files = Rc::new(files.map_err(told)?);
    files.set_freeing_limits(LIMITS);
    let root = inode_of(&files.attributes(ROOT).await.map_err(told)?);
    let (names, named) = (vec![Names::new()], vec![Vec::new()]);
    let book = Book { names, named, synced: 0, files: BTreeMap::new(), root };
    let book = Rc::new(RefCell::new(book));
    let (timer, committer) = (world.executor().clone(), Arc::clone(&engine));
    let committer = async move { committer.run(|time| timer.sleep(time)).await };
    let committer = world.executor().spawn("committer", committer);
    let is_done = Rc::new(Cell::new(false));
    let background = free_in_background(world, &files, &is_done);
    let background = world.executor().spawn("background", background);
    let state = Rc::clone(&book);
    world.on_step(move |cut| {
        let mut rng = Rng::new(seed).stream("cut", cut.steps);
        if rng.below(3) == 0 {
            let plan = if rng.coin() { CutPlan::Nothing } else { CutPlan::Random(cut.steps) };
            cuts.borrow_mut().push((state.borrow().clone(), cut.cut(plan)));
        }
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let rng = Rng::new(seed).stream("files", number);
            let (engine, files) = (Arc::clone(&engine), Rc::clone(&files));
            let mut client = Client { rng, engine, files, book: Rc::clone(&book) };
            let executor = world.executor().clone();
            world.executor().spawn(format!("client {number}"), async move {
                for _ in 0..STEPS {
                    client.step().await?;
                    executor.yield_now().await;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for client in clients {
        client.await?;
    }
    is_done.set(true);
    background.await.map_err(told)?;
    engine.stop();
    committer.await.map_err(|error| error.to_string())
}
