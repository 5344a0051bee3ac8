//! Damage of a record of a file on both legs of the mirror.
//!
//! Invariant: only reads of that file fail, and only the check of that file finds something.

use std::sync::Arc;

use weir_base::ObjectId;
use weir_dataset::Engine;
use weir_format::files::FileType;
use weir_fs::{Filesystem, FsError};

use super::content::{Inode, State, read_readable};
use super::expected::NAMES;
use super::pool::clock;
use super::recovery::Recovered;
use super::scenario::FilesScenario;
use crate::cut::CutPlan;
use crate::media::MediaImage;
use crate::rng::Rng;
use crate::world::SimWorld;

/// Maximum number of records of a file that a search visits.
const RECORDS_MAX: u64 = 4;
/// Number of flipped bits, and the distance of their bytes.
const FLIPS: (u64, u64) = (4, 16);

/// A pool with a damaged record.
pub(super) struct Damaged {
    images: Vec<MediaImage>,
    inode: Inode,
    /// State of each filesystem before the damage, by index of the dataset.
    states: Vec<(usize, State)>,
}

impl Damaged {
    /// Copies the disks of a recovered pool, and damages a record of the first filesystem on all of
    /// them. `None`: no file has a record.
    ///
    /// # Errors
    /// An error of the engine.
    pub(super) async fn of(
        world: &SimWorld,
        engine: &Arc<Engine>,
        recovered: &Recovered,
        rng: &mut Rng,
    ) -> Result<Option<Self>, String> {
        engine.sync().await.map_err(|error| error.to_string())?;
        let Some((_, _, state)) = recovered.files.first() else { return Ok(None) };
        let is_regular = |inode: &&Inode| state.files[*inode].file_type == FileType::Regular;
        let mut files: Vec<Inode> = state.files.keys().filter(is_regular).copied().collect();
        rng.shuffle(&mut files);
        let volume = engine.volume(NAMES[0]).map_err(|error| error.to_string())?;
        for inode in files {
            for record in 0..RECORDS_MAX {
                let place = volume.object_address(ObjectId(inode.0), 0, record).await;
                let Some(place) = place.map_err(|error| error.to_string())? else { continue };
                let mut images = world.cut(CutPlan::Everything);
                for image in &mut images {
                    let (count, step) = FLIPS;
                    (0..count).for_each(|n| image.flip_bit(place.offset + n * step, 3));
                }
                let states = recovered.files.iter();
                let states = states.map(|(owner, _, state)| (*owner, state.clone())).collect();
                return Ok(Some(Self { images, inode, states }));
            }
        }
        Ok(None)
    }

    /// Imports the damaged pool, and compares all filesystems.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn judge(self, scenario: FilesScenario) -> Result<(), String> {
        let Self { images, inode, states } = self;
        let world = SimWorld::from_media(scenario.seed, images);
        let judged = world.run_until(async {
            let engine = scenario.recover(&world).await.map_err(|error| error.to_string())?;
            for (owner, state) in &states {
                judge_one(&world, &engine, (*owner, state), inode).await?;
            }
            Ok(())
        });
        world.crash();
        let judged = judged.map_err(|error| error.to_string()).and_then(|done| done);
        judged.map_err(|what| format!("a record of {inode:?} is damaged: {what}"))
    }
}

async fn judge_one(
    world: &SimWorld,
    engine: &Arc<Engine>,
    (owner, expected): (usize, &State),
    inode: Inode,
) -> Result<(), String> {
    let told = |error: FsError| format!("{}: {error}", NAMES[owner]);
    let now = clock(world.executor());
    let files = Filesystem::open(engine, NAMES[owner], now).await.map_err(told)?;
    let (found, damaged) = read_readable(&files).await.map_err(told)?;
    // The clone shares the record, unless a client changed it.
    let is_due = owner == 0 && damaged.is_empty();
    if is_due || damaged.iter().any(|(of, _)| *of != inode) {
        return Err(format!("damaged in {}: {damaged:?}", NAMES[owner]));
    }
    let mut expected = expected.clone();
    damaged.iter().for_each(|(of, _)| drop(expected.files.remove(of)));
    found.compare(&expected).map_err(|what| format!("{}: {what}", NAMES[owner]))?;
    engine.sync().await.map_err(|error| error.to_string())?;
    let findings = files.check().await.map_err(told)?;
    match findings.iter().find(|finding| finding.inode != inode.0) {
        Some(finding) => Err(format!("the check of {} found {finding:?}", NAMES[owner])),
        None => Ok(()),
    }
}
