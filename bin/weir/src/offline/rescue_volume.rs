//! `weir rescue` of a volume: copies its data into a new file.
//!
//! Invariants:
//! - the output file is always new: an existing file is never changed;
//! - an unreadable range becomes a hole in the file. The command reports the range, also by the
//!   exit code. No data is guessed;
//! - the file is on stable media when the command reports success.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use indicatif::ProgressBar;
use serde::Serialize;
use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_base::size::Human;
use weir_dataset::{DatasetError, Engine, Volume};
use weir_server::api_error;

use crate::cli::base::output;
use crate::offline::disks::progress;

/// Size of a read. After a failed read, the records in its range are read one by one.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// Maximum number of extents of the volume that one request to the engine returns.
const EXTENTS: usize = 1024;

/// Maximum number of damaged ranges that the report names. Further ranges are only counted.
const DAMAGE_NAMED_MAX: usize = 64;

/// Maximum number of ranges below unreadable nodes that the rescue collects before the copy starts.
/// In further ranges, the rescue tries to read each record.
const UNREADABLE_MAX: usize = 65_536;

/// Result of a rescue.
#[derive(Serialize)]
struct Rescued {
    volume: String,
    file: PathBuf,
    size_bytes: u64,
    copied_bytes: u64,
    damaged_bytes: u64,
    /// The first damaged ranges, at most [`DAMAGE_NAMED_MAX`] of them.
    damaged: Vec<Damage>,
}

#[derive(Serialize)]
struct Damage {
    offset: u64,
    len_bytes: u64,
}

pub(super) async fn copy(
    engine: &Engine,
    name: &str,
    file: PathBuf,
    json: bool,
) -> Result<(), ApiError> {
    let volume = engine.volume(name).map_err(|error| api_error(&error))?;
    let size_bytes = volume.size_bytes();
    let target = OpenOptions::new().write(true).create_new(true).open(&file).and_then(|target| {
        target.set_len(size_bytes)?;
        Ok(target)
    });
    let target = target.map_err(|error| file_error(&file, &error))?;
    let unreadable = volume.unreadable(UNREADABLE_MAX).await.map_err(|error| api_error(&error))?;
    let mut copier = Copier {
        volume: &volume,
        unreadable,
        target,
        progress: progress(volume.info().used_bytes),
        rescued: Rescued {
            volume: format!("{}/{name}", engine.pool().name()),
            file,
            size_bytes,
            copied_bytes: 0,
            damaged_bytes: 0,
            damaged: Vec::new(),
        },
    };
    copier.copy_all(size_bytes).await?;
    copier.target.sync_all().map_err(|error| file_error(&copier.rescued.file, &error))?;
    copier.progress.finish_and_clear();
    report(&copier.rescued, json)
}

fn report(rescued: &Rescued, json: bool) -> Result<(), ApiError> {
    let Rescued { volume, file, copied_bytes, damaged_bytes, .. } = rescued;
    if json {
        output::print(&output::json(rescued)?)?;
    } else {
        let copied = Human(*copied_bytes);
        output::say(&format!("{copied} of volume {volume} copied to {}", file.display()));
        for Damage { offset, len_bytes } in &rescued.damaged {
            output::say(&format!("unreadable: {len_bytes} bytes at {offset}"));
        }
    }
    if *damaged_bytes == 0 {
        return Ok(());
    }
    let message = format!(
        "{} of volume {volume} cannot be read from these disks; in {} they are zeros",
        Human(*damaged_bytes),
        file.display()
    );
    Err(ApiError::new(ErrorKind::Data, message)
        .with_action("add disks of the pool with -d, or take these ranges from a backup"))
}

pub(super) fn file_error(file: &std::path::Path, error: &io::Error) -> ApiError {
    ApiError::new(ErrorKind::of_file(error.kind()), format!("{}: {error}", file.display()))
}

struct Copier<'a> {
    volume: &'a Volume,
    /// Ranges below unreadable nodes of the volume's tree. The rescue skips them without a read,
    /// because these ranges may cover terabytes.
    unreadable: Vec<Range<u64>>,
    target: File,
    progress: ProgressBar,
    rescued: Rescued,
}

impl Copier<'_> {
    async fn copy_all(&mut self, size: u64) -> Result<(), ApiError> {
        let mut at = 0;
        while at < size {
            let found = self.volume.extents(at, size - at, EXTENTS).await;
            let extents = match found {
                Ok(extents) => extents,
                Err(error) if error.kind() == ErrorKind::Data => {
                    // A node above this range is unreadable, so its extents are unknown: copy the
                    // range in reads of [`PIECE_BYTES`].
                    let len = PIECE_BYTES.min(size - at);
                    self.copy_range(at, len).await?;
                    at += len;
                    continue;
                }
                Err(error) => return Err(api_error(&error)),
            };
            for extent in extents {
                let len = extent.len.min(size - at);
                if !extent.hole {
                    self.copy_range(at, len).await?;
                }
                at += len;
            }
        }
        Ok(())
    }

    async fn copy_range(&mut self, start: u64, len: u64) -> Result<(), ApiError> {
        let mut buffer = vec![0; PIECE_BYTES as usize];
        let mut at = start;
        while at < start + len {
            let ahead = self.unreadable.iter().find(|range| range.end > at);
            let (lost, next) = match ahead {
                Some(range) if range.start <= at => (range.end.min(start + len), start + len),
                Some(range) => (at, range.start.min(start + len)),
                None => (at, start + len),
            };
            if lost > at {
                self.lost(at, lost - at);
                self.progress.inc(lost - at);
                at = lost;
                continue;
            }
            let piece = &mut buffer[..PIECE_BYTES.min(next - at) as usize];
            match self.volume.read(at, piece).await {
                Ok(()) => self.put(at, piece)?,
                Err(error) => self.copy_records(at, piece, error).await?,
            }
            at += piece.len() as u64;
            self.progress.inc(piece.len() as u64);
        }
        Ok(())
    }

    /// Reads the records in the range of a failed read one by one, and copies the readable ones.
    async fn copy_records(
        &mut self,
        start: u64,
        piece: &mut [u8],
        error: DatasetError,
    ) -> Result<(), ApiError> {
        if error.kind() != ErrorKind::Data {
            return Err(api_error(&error));
        }
        // Extents and reads start at record boundaries, so the pieces below are whole records.
        let record = self.volume.record_size().bytes();
        for (at, bytes) in (start..).step_by(record).zip(piece.chunks_mut(record)) {
            match self.volume.read(at, bytes).await {
                Ok(()) => self.put(at, bytes)?,
                Err(error) if error.kind() == ErrorKind::Data => self.lost(at, bytes.len() as u64),
                Err(error) => return Err(api_error(&error)),
            }
        }
        Ok(())
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), ApiError> {
        self.rescued.copied_bytes += bytes.len() as u64;
        let written = self.target.write_all_at(bytes, at);
        written.map_err(|error| file_error(&self.rescued.file, &error))
    }

    fn lost(&mut self, offset: u64, len_bytes: u64) {
        self.rescued.damaged_bytes += len_bytes;
        let damaged = &mut self.rescued.damaged;
        if let Some(last) = damaged.last_mut()
            && last.offset + last.len_bytes == offset
        {
            last.len_bytes += len_bytes;
        } else if damaged.len() < DAMAGE_NAMED_MAX {
            damaged.push(Damage { offset, len_bytes });
        }
    }
}
