//! Damage of a record of a file on both legs of the mirror.
//!
//! Invariant: only reads of the files with a reference to the record fail, and only the check of
//! these files finds something.

use std::sync::Arc;

use weir_base::{BLOCK_BYTES, ObjectId};
use weir_dataset::Engine;
use weir_format::files::FileType;
use weir_fs::{Filesystem, FsError};
use weir_pool::DiskAddress;

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
    /// Files with a reference to the record, with the index of their dataset.
    owners: Vec<(usize, Inode)>,
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
                let owners = owners_of(engine, recovered, place).await?;
                let mut images = world.cut(CutPlan::Everything);
                for image in &mut images {
                    let (count, step) = FLIPS;
                    (0..count).for_each(|n| image.flip_bit(place.offset + n * step, 3));
                }
                let states = recovered.files.iter();
                let states = states.map(|(owner, _, state)| (*owner, state.clone())).collect();
                return Ok(Some(Self { images, owners, states }));
            }
        }
        Ok(None)
    }

    /// Imports the damaged pool, and compares all filesystems.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn judge(self, scenario: FilesScenario) -> Result<(), String> {
        let Self { images, owners, states } = self;
        let world = SimWorld::from_media(scenario.seed, images);
        let judged = world.run_until(async {
            let engine = scenario.recover(&world).await.map_err(|error| error.to_string())?;
            for (owner, state) in &states {
                judge_one(&world, &engine, (*owner, state), &owners).await?;
            }
            Ok(())
        });
        world.crash();
        let judged = judged.map_err(|error| error.to_string()).and_then(|done| done);
        judged.map_err(|what| format!("a record of {owners:?} is damaged: {what}"))
    }
}

/// Finds the files with a reference to the block at an address.
async fn owners_of(
    engine: &Engine,
    recovered: &Recovered,
    place: DiskAddress,
) -> Result<Vec<(usize, Inode)>, String> {
    let mut owners = Vec::new();
    for (owner, _, state) in &recovered.files {
        let volume = engine.volume(NAMES[*owner]).map_err(|error| error.to_string())?;
        for (inode, content) in &state.files {
            for record in 0..content.data.len().div_ceil(BLOCK_BYTES as u64) {
                let found = volume.object_address(ObjectId(inode.0), 0, record).await;
                if found.map_err(|error| error.to_string())? == Some(place) {
                    owners.push((*owner, *inode));
                    break;
                }
            }
        }
    }
    Ok(owners)
}

async fn judge_one(
    world: &SimWorld,
    engine: &Arc<Engine>,
    (owner, expected): (usize, &State),
    owners: &[(usize, Inode)],
) -> Result<(), String> {
    let told = |error: FsError| format!("{}: {error}", NAMES[owner]);
    let now = clock(world.executor());
    let files = Filesystem::open(engine, NAMES[owner], now).await.map_err(told)?;
    let (found, damaged) = read_readable(&files).await.map_err(told)?;
    let is_owner = |inode: Inode| owners.contains(&(owner, inode));
    let fails = |inode: &Inode| damaged.iter().any(|(of, _)| of == inode);
    let all_fail = owners.iter().all(|(of, inode)| *of != owner || fails(inode));
    if !all_fail || damaged.iter().any(|(of, _)| !is_owner(*of)) {
        return Err(format!("damaged in {}: {damaged:?}", NAMES[owner]));
    }
    let mut expected = expected.clone();
    damaged.iter().for_each(|(of, _)| drop(expected.files.remove(of)));
    found.compare(&expected).map_err(|what| format!("{}: {what}", NAMES[owner]))?;
    engine.sync().await.map_err(|error| error.to_string())?;
    let findings = files.check().await.map_err(told)?;
    let is_of_owner =
        |inode: u64| owners.iter().any(|(of, (own, _))| *of == owner && *own == inode);
    match findings.iter().find(|finding| !is_of_owner(finding.inode)) {
        Some(finding) => Err(format!("the check of {} found {finding:?}", NAMES[owner])),
        None => Ok(()),
    }
}
