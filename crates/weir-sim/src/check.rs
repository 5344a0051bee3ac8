//! Judges an engine that was opened after a power cut.
//!
//! Not here: what was promised (books), where the power was cut (enumerate).
//!
//! Invariants:
//! - every volume holds a prefix of its acknowledged changes that includes every flushed one;
//! - volumes that were promised are there, those whose destruction was promised are not;
//! - where the only disk lied, a block is an error or something that was once written there;
//! - every segment's live bytes are what the trees refer to, and no two blocks share a place.

use weir_base::BLOCK_BYTES;
use weir_dataset::{Engine, Volume};
use weir_pool::LegState;

use crate::books::{Book, Books, Found, Presence};
use crate::coverage::{Met, note};
use crate::history::{Tag, tag_of};

/// Checks every promise; returns what is there.
pub(crate) async fn strict(engine: &Engine, books: &Books) -> Result<Vec<Option<Found>>, String> {
    let mut all = Vec::new();
    for book in &books.volumes {
        let found = one(engine, book).await.map_err(|what| format!("{}: {what}", book.name))?;
        all.push(found);
    }
    let strangers = engine.volumes().len() - all.iter().flatten().count();
    if strangers > 0 {
        return Err(format!("{strangers} volumes that nobody made"));
    }
    let shared = engine.check_places().await.map_err(|error| format!("walk: {error}"))?;
    if let Some((a, b)) = shared {
        return Err(format!("{a:?} and {b:?} share a place on disk, or have none"));
    }
    let differ = engine.check_live_bytes().await.map_err(|error| format!("walk: {error}"))?;
    match differ.first() {
        None => Ok(all),
        Some((vseg, counted, found)) => {
            Err(format!("segment {vseg} counts {counted} live bytes, the trees refer to {found}"))
        }
    }
}

async fn one(engine: &Engine, book: &Book) -> Result<Option<Found>, String> {
    let volume = match engine.volume(&book.name) {
        Ok(_) if book.presence == Presence::Gone => {
            return Err("it was destroyed and is back".to_owned());
        }
        Ok(volume) => volume,
        Err(error) if book.presence == Presence::There => return Err(error.to_string()),
        Err(_) => return Ok(None),
    };
    let info = volume.info();
    let size = info.size_bytes as usize / BLOCK_BYTES;
    if !book.size.admits(size) || !book.compression.admits(info.compression) {
        let (size, compression) = (book.size, book.compression);
        return Err(format!("{info:?} is neither of {size:?} blocks, {compression:?}"));
    }
    let mut state = read_tags(&volume, size).await?;
    state.resize(book.history.blocks(), 0);
    book.history.judge(&state)?;
    Ok(Some(Found { size, compression: info.compression, state }))
}

async fn read_tags(volume: &Volume, blocks: usize) -> Result<Vec<Tag>, String> {
    let mut bytes = vec![0; blocks * BLOCK_BYTES];
    volume.read(0, &mut bytes).await.map_err(|error| format!("read: {error}"))?;
    let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
    Ok(blocks.iter().map(tag_of).collect())
}

/// The weaker oracle: an error, or something that was once written there.
pub(crate) async fn detected_or_harmless(engine: &Engine, books: &Books) -> Result<(), String> {
    for (index, book) in books.volumes.iter().enumerate() {
        let Ok(volume) = engine.volume(&book.name) else { continue };
        for block in 0..(volume.size_bytes() as usize / BLOCK_BYTES) {
            let mut bytes = [0; BLOCK_BYTES];
            if volume.read((block * BLOCK_BYTES) as u64, &mut bytes).await.is_err() {
                note(Met::DamageDetected);
            } else if !books.was_written(tag_of(&bytes), index, block) {
                let name = &book.name;
                return Err(format!("{name} block {block} holds what nobody wrote there"));
            }
        }
    }
    Ok(())
}

/// Without trouble no copy is ever bad: a power cut is not an excuse.
pub(crate) fn no_leg_blamed(engine: &Engine, disks: usize) -> Result<(), String> {
    let status = engine.pool().status();
    let legs = || status.vdevs.iter().flat_map(|vdev| &vdev.legs);
    // Cut while a replaced disk left: its vdev has one leg more then, which misses something.
    let one_more = legs().count() > disks;
    let as_it_should_be =
        |state| state == LegState::Online || (one_more && state == LegState::Stale);
    let blamed =
        legs().find(|leg| !as_it_should_be(leg.state) || leg.checksum_errors + leg.read_errors > 0);
    blamed.map_or(Ok(()), |leg| Err(format!("healthy disks, but {leg:?}")))
}

/// Counts legs that missed writes.
pub(crate) fn note_stale_legs(engine: &Engine) {
    let status = engine.pool().status();
    let legs = status.vdevs.iter().flat_map(|vdev| &vdev.legs);
    legs.filter(|leg| leg.state == LegState::Stale).for_each(|_| note(Met::LegStale));
}
