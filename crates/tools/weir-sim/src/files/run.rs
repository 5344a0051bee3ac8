//! Filesystems under power cuts: several clients change few names, and the power fails at random
//! steps. Each recovered filesystem must be in a state that the crash promise allows.
//!
//! Invariants:
//! - a client records each change in the same step of the executor in which the filesystem returns;
//! - the check of the recovered filesystem finds nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use weir_base::{Clock as _, Guid, ObjectId, RecordSize};
use weir_dataset::{Engine, EngineOptions};
use weir_format::files::{FileType, TimeStamp};
use weir_format::{VdevKind, VdevRole};
use weir_fs::{
    Attributes, Filesystem, FilesystemLayer, FsError, Layout, NewInode, NewKind, Now, ROOT,
    RenameMode, SetAttributes,
};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};

use super::book::{Book, Contents, Inode, Names};
use crate::cut::CutPlan;
use crate::media::{DiskOptions, MediaImage};
use crate::rng::Rng;
use crate::world::SimWorld;

const DISK_BYTES: u64 = 64 << 20;
const CLIENTS: u64 = 3;
const STEPS: usize = 200;
const LAYOUT: Layout =
    Layout { hash_key: 5, record_size: RecordSize::from_shift(2).expect("16 KiB") };
const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, uid: 0, gid: 0 };
const DIRECTORY: NewInode<'static> = NewInode { kind: NewKind::Directory, ..FILE };

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

fn inode_of(found: &Attributes) -> Inode {
    (found.number.0, found.generation)
}

/// A client of the filesystem.
struct Client {
    rng: Rng,
    engine: Arc<Engine>,
    files: Rc<Filesystem>,
    book: Rc<RefCell<Book>>,
}

impl Client {
    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.rng.below(7)).into_bytes()
    }

    /// Draws a directory: the root or a directory with a name.
    fn directory(&mut self) -> Inode {
        let book = self.book.borrow();
        let named = book.now().values().filter(|inode| !book.files.contains_key(inode));
        let known: Vec<Inode> = named.copied().collect();
        let at = self.rng.below(known.len() as u64 + 1) as usize;
        known.get(at).copied().unwrap_or(book.root)
    }

    fn file(&mut self) -> Option<Inode> {
        let book = self.book.borrow();
        let named = book.now().values().filter(|inode| book.files.contains_key(inode));
        let named: Vec<Inode> = named.copied().collect();
        let at = self.rng.below(named.len().max(1) as u64) as usize;
        named.get(at).copied()
    }

    /// True for errors of operations on names that other clients changed meanwhile.
    fn is_expected(error: &FsError) -> bool {
        !matches!(error, FsError::Dataset(_) | FsError::Damaged { .. })
    }

    async fn step(&mut self) -> Result<(), String> {
        let done = match self.rng.below(20) {
            0..5 => self.create().await,
            5..8 => self.rename().await,
            8..10 => self.remove().await,
            10..17 => self.write().await,
            17 => self.truncate().await,
            // A commit, so that later changes replace committed content.
            18 => self.engine.commit().await.map_err(FsError::from),
            _ => self.sync().await,
        };
        match done {
            Err(error) if !Self::is_expected(&error) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    async fn create(&mut self) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let is_directory = self.rng.below(5) == 0;
        let new = if is_directory { DIRECTORY } else { FILE };
        let made = self.files.create_inode(ObjectId(directory.0), &name, &new).await?;
        let inode = inode_of(&made);
        let mut book = self.book.borrow_mut();
        if !is_directory {
            let contents = Contents { all: vec![Vec::new()], synced: 0 };
            book.files.insert(inode, contents);
        }
        book.rename(&[inode], |names| _ = names.insert((directory, name), inode));
        Ok(())
    }

    async fn rename(&mut self) -> Result<(), FsError> {
        let (from, old) = (self.directory(), self.name());
        let (to, new) = (self.directory(), self.name());
        let (source, target) = ((ObjectId(from.0), &old[..]), (ObjectId(to.0), &new[..]));
        self.files.rename(source, target, RenameMode::Replace).await?;
        let mut book = self.book.borrow_mut();
        let Some(inode) = book.now().get(&(from, old.clone())).copied() else { return Ok(()) };
        let replaced = book.now().get(&(to, new.clone())).copied();
        if replaced == Some(inode) {
            return Ok(());
        }
        let named: Vec<Inode> = std::iter::once(inode).chain(replaced).collect();
        book.rename(&named, |names| {
            names.remove(&(from, old));
            names.insert((to, new), inode);
        });
        Ok(())
    }

    async fn remove(&mut self) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let is_directory = self.rng.coin();
        self.files.remove(ObjectId(directory.0), &name, is_directory).await?;
        let mut book = self.book.borrow_mut();
        let inode = book.now().get(&(directory, name.clone())).copied();
        let named: Vec<Inode> = inode.into_iter().collect();
        book.rename(&named, |names| _ = names.remove(&(directory, name)));
        Ok(())
    }

    async fn write(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let offset = [0, 700, 3_000, 4_096, 20_000][self.rng.below(5) as usize];
        let length = [5, 600, 4_096, 30_000][self.rng.below(4) as usize];
        let byte = self.rng.below(250) as u8;
        let data = vec![byte; length];
        self.files.write(ObjectId(inode.0), offset as u64, &data, false).await?;
        self.changed(inode, |content| {
            content.resize(content.len().max(offset + length), 0);
            content[offset..offset + length].fill(byte);
        });
        Ok(())
    }

    async fn truncate(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let size = [0, 100, 5_000, 40_000][self.rng.below(4) as usize];
        let changes = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
        self.files.set_attributes(ObjectId(inode.0), &changes, false).await?;
        self.changed(inode, |content| content.resize(size, 0));
        Ok(())
    }

    fn changed(&self, inode: Inode, change: impl FnOnce(&mut Vec<u8>)) {
        let mut book = self.book.borrow_mut();
        // The number may belong to a new file meanwhile.
        let Some(contents) = book.files.get_mut(&inode) else { return };
        let mut content = contents.all.last().cloned().unwrap_or_default();
        change(&mut content);
        contents.all.push(content);
    }

    async fn sync(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let (names, content) = {
            let book = self.book.borrow();
            (book.names.len() - 1, book.files[&inode].all.len() - 1)
        };
        self.files.sync(ObjectId(inode.0)).await?;
        let mut book = self.book.borrow_mut();
        book.synced = book.synced.max(names);
        let contents = book.files.get_mut(&inode).expect("a known file");
        contents.synced = contents.synced.max(content);
        Ok(())
    }
}

/// Reads all names and contents.
async fn read_all(files: &Filesystem) -> Result<(Names, BTreeMap<Inode, Vec<u8>>), FsError> {
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
                    contents.insert(inode, files.read(entry.inode, 0, 1 << 20).await?);
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
            let files = Filesystem::open(&engine, "files", clock(&world)).await;
            let files = files.map_err(|error| error.to_string())?;
            let (names, contents) = read_all(&files).await.map_err(|error| error.to_string())?;
            lost.set(book.judge(&names, &contents)?);
            engine.sync().await.map_err(|error| error.to_string())?;
            let findings = files.check().await.map_err(|error| error.to_string())?;
            if findings.is_empty() { Ok(()) } else { Err(format!("the check found {findings:?}")) }
        });
        let recovered = recovered.map_err(|error| error.to_string()).and_then(|done| done);
        recovered.map_err(|what| format!("files, seed {seed}, cut {}: {what}", counted.cuts))?;
        world.crash();
        counted.cuts += 1;
        counted.lost += usize::from(lost.get());
    }
    Ok(counted)
}

async fn recover(world: &SimWorld, bug: PlantedBug) -> Result<Arc<Engine>, String> {
    let how = ImportOptions::new(Guid(99));
    let options = options(world, bug);
    let opened = Engine::open_with_layer(world.devices(), how, &options, &FilesystemLayer).await;
    opened.map_err(|error| error.to_string())
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
    let root = inode_of(&files.attributes(ROOT).await.map_err(told)?);
    let (names, named) = (vec![Names::new()], vec![Vec::new()]);
    let book = Book { names, named, synced: 0, files: BTreeMap::new(), root };
    let book = Rc::new(RefCell::new(book));
    let (timer, committer) = (world.executor().clone(), Arc::clone(&engine));
    let committer = async move { committer.run(|time| timer.sleep(time)).await };
    let committer = world.executor().spawn("committer", committer);
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
    engine.stop();
    committer.await.map_err(|error| error.to_string())
}
