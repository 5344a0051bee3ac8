//! `weir check` and `weir rescue` on forged pools: all checksums are valid, but some fields have
//! impossible values.
//!
//! Not here: how the engine itself handles such pools (weir-forge).

use weir_forge::{Disks, Forgery, Map, Rng, sample};
use weir_format::VdevKind;

use super::{block_on, open_over};
use crate::offline::{check, rescue_volume};

/// Checks a pool, prints the report, and rescues each volume. Returns the number of volumes that
/// were rescued.
fn look(disks: &Disks, folder: &std::path::Path) -> usize {
    let looked = block_on(async {
        if let Ok((engine, overlays)) = open_over(disks.devices(), false).await {
            overlays.iter().for_each(|overlay| overlay.freeze());
            if let Ok(report) = check::check(&engine).await {
                let _told = check::tell(&report, true);
                let _told = check::tell(&report, false);
            }
        }
        let (engine, _) = open_over(disks.devices(), true).await?;
        let mut copied = 0;
        for (n, volume) in engine.volumes().into_iter().enumerate() {
            let (file, name) = (folder.join(n.to_string()), volume.info().name);
            let _rescued = rescue_volume::copy(&engine, &name, file.clone(), true).await;
            copied += usize::from(std::fs::remove_file(file).is_ok());
        }
        Ok(copied)
    });
    looked.unwrap_or_default()
}

#[test]
fn check_and_rescue_return_on_forged_pools() {
    let folder = tempfile::tempdir().expect("a folder");
    let disks = sample(VdevKind::Mirror);
    let map = Map::of(&disks);
    assert_eq!(look(&disks, folder.path()), 4, "volumes of the sound sample");
    let mut copied = 0;
    for seed in 0..200 {
        let (mut rng, mut forged) = (Rng::new(seed), disks.clone());
        let mut forgery = Forgery::new(&map);
        forgery.forge(&mut rng);
        if forgery.seal(&mut forged) {
            copied += look(&forged, folder.path());
        }
    }
    assert!(copied > 400, "{copied} volumes of 200 pools");
}

/// Regression: `weir rescue` tried to read every record of a terabyte below an unreadable node, and
/// followed a cycle in a tree for ever.
#[test]
fn rescue_skips_a_tree_that_repeats_one_node() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = sample(VdevKind::Disk);
    let mut forgery = Forgery::new(&Map::of(&disks));
    assert!(forgery.fill_nodes() > 0 && forgery.seal(&mut disks));
    assert_eq!(look(&disks, folder.path()), 4);
}

/// Regression: a rescue failed because of a wrong counter, although a rescue needs no counters.
#[test]
fn rescue_ignores_impossible_counters() {
    /// Offset of the used-blocks counter in a directory entry.
    const USED_BLOCKS: usize = 42;
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = sample(VdevKind::Disk);
    let map = Map::of(&disks);
    let mut forgery = Forgery::new(&map);
    for n in 1..map.counts()[&weir_forge::Kind::Directory] {
        forgery.put(weir_forge::Kind::Directory, n, USED_BLOCKS, &[0xff; 40]);
    }
    assert!(forgery.seal(&mut disks));
    assert_eq!(look(&disks, folder.path()), 4);
}
