//! Files and directories that a load creates for its metadata operations.
//!
//! `files` has the state of each file; `target::metadata` has the names.
//!
//! Invariants: the directories exist only while the load is prepared, runs and is checked; they are
//! removed also if the load fails or is stopped; only files whose names `target::metadata` assigns
//! are removed.

use std::collections::HashMap;

use super::files::{Found, Metadata};
use super::{Ground, Place};
use crate::content::Content;
use crate::result::FilesCheck;
use crate::spec::{MetadataSpec, StreamSpec};
use crate::target::metadata::{Directory, FileName};
use crate::target::{Done, FileTree, Lane, MetadataCall, MetadataOp, TargetError, Wait};

/// Number of operations in flight while files are created or removed outside the measured time.
const IN_FLIGHT: usize = 16;
/// Maximum number of files that a check describes in words.
const EXAMPLES_MAX: usize = 8;
/// Number of operations between two calls of the observer.
const ASK_EVERY: u32 = 256;

/// Directories of a load.
pub(super) struct Scratch<'a> {
    tree: &'a dyn FileTree,
    client: u32,
    directories: Vec<Directory>,
    is_removed: bool,
}

/// Creates the directories of a load, and the files that must exist at its start. Removes the files
/// of an earlier run that was killed. Returns `None` if the load has no metadata operations. If
/// `goes_on` returns false, some files are not created.
///
/// # Errors
/// If the target has no files, or a file or directory cannot be created. In this case no files
/// remain, unless they cannot be removed either.
pub(super) fn prepare<'a>(
    ground: &Ground<'a>,
    streams: &[StreamSpec],
    place: Place,
    workers: u32,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Scratch<'a>>, TargetError> {
    if streams.iter().all(|stream| stream.metadata.is_none()) {
        return Ok(None);
    }
    let no_files = || TargetError::NoFiles { address: ground.target.info().address.clone() };
    let tree = ground.target.files().ok_or_else(no_files)?;
    let client = place.number;
    let all: Vec<Metadata> = (0..workers)
        .flat_map(|worker| {
            let of = move |(index, stream): (usize, &StreamSpec)| {
                let mut own = Metadata::new(stream, index, (worker, workers), 1, 0)?;
                own.for_client(client);
                Some(own)
            };
            streams.iter().enumerate().filter_map(of).collect::<Vec<_>>()
        })
        .filter(Metadata::needs_directory)
        .collect();
    let mut directories: Vec<Directory> = all.iter().map(Metadata::directory).collect();
    directories.sort_unstable();
    directories.dedup();
    remove(tree, client)?;
    let scratch = Scratch { tree, client, directories, is_removed: false };
    if scratch.directories.is_empty() {
        return Ok(Some(scratch));
    }
    tree.make_directory(&Directory::root(client))?;
    for directory in &scratch.directories {
        tree.make_directory(&directory.to_string())?;
    }
    let buffer_bytes = buffer_bytes(streams, ground.content);
    let mut lane = tree.lane(IN_FLIGHT, IN_FLIGHT, buffer_bytes)?;
    let mut fill = |call: &MetadataCall, buffer: &mut [u8]| fill(ground.content, call, buffer);
    let initial = all.iter().flat_map(Metadata::initial);
    execute(&mut *lane, initial, &mut fill, goes_on)?;
    // Write the new files to stable media now, so that this does not slow down the load.
    execute(&mut *lane, std::iter::once(MetadataCall::Sync), &mut fill, &mut || true)?;
    Ok(Some(scratch))
}

/// Size in bytes of a buffer for the contents of the files that the streams create, in whole
/// content blocks; 0 if the files are empty.
pub(super) fn buffer_bytes(streams: &[StreamSpec], content: &Content) -> usize {
    let bytes = streams.iter().map(|stream| match stream.metadata {
        Some(MetadataSpec::Files { file_bytes, .. }) => file_bytes as usize,
        _ => 0,
    });
    bytes.max().unwrap_or(0).next_multiple_of(content.block_bytes())
}

/// Fills a buffer with the contents of the file that a call creates.
pub(super) fn fill(content: &Content, call: &MetadataCall, buffer: &mut [u8]) {
    let Some((file, bytes)) = call.created() else { return };
    let len = (bytes as usize).next_multiple_of(content.block_bytes());
    // An address that no other file of the run has.
    let address = (u64::from(file.worker) << 48) + u64::from(file.number) * len as u64;
    content.fill(&mut buffer[..len], address, 1);
}

/// Executes calls with [`IN_FLIGHT`] of them in flight. Removing a file that does not exist is no
/// error.
fn execute(
    lane: &mut dyn Lane,
    calls: impl Iterator<Item = MetadataCall>,
    fill: &mut dyn FnMut(&MetadataCall, &mut [u8]),
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<(), TargetError> {
    let mut calls = calls.fuse();
    let mut under_way: [Option<MetadataCall>; IN_FLIGHT] = [None; IN_FLIGHT];
    let (mut done, mut count, mut is_stopped) = (Vec::new(), 0_u32, false);
    loop {
        for (slot, work) in under_way.iter_mut().enumerate().filter(|(_, work)| work.is_none()) {
            count = count.wrapping_add(1);
            is_stopped |= count.is_multiple_of(ASK_EVERY) && !goes_on();
            let Some(call) = calls.next().filter(|_| !is_stopped) else { break };
            fill(&call, lane.buffer(slot));
            lane.submit_metadata(slot, &MetadataOp { call, durable: false })?;
            *work = Some(call);
        }
        if under_way.iter().all(Option::is_none) {
            return Ok(());
        }
        lane.reap(Wait::One, &mut done)?;
        for Done { slot, result, .. } in done.drain(..) {
            let call = under_way[slot].take().expect("it was sent");
            let (address, what) = match call {
                MetadataCall::Create { file, .. } => (file.to_string(), "create"),
                MetadataCall::Remove { file } => (file.to_string(), "remove"),
                _ => ("the files of the run".to_owned(), "flush"),
            };
            match result {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && what == "remove" => {}
                result => result.map_err(|source| TargetError::Io { address, what, source })?,
            }
        }
    }
}

/// Removes all files and directories that this program created for a client, if there are any.
fn remove(tree: &dyn FileTree, client: u32) -> Result<(), TargetError> {
    let (root, mut names) = (Directory::root(client), Vec::new());
    if !tree.list(&root, &mut |name| names.push(name.to_owned()))? {
        return Ok(());
    }
    let mut lane = None;
    for directory in names.iter().filter_map(|name| Directory::parse(client, name)) {
        let mut files = Vec::new();
        tree.list(&directory.to_string(), &mut |name| {
            files.extend(FileName::parse(directory, name));
        })?;
        if !files.is_empty() {
            let lane = match &mut lane {
                Some(lane) => lane,
                none => none.insert(tree.lane(IN_FLIGHT, IN_FLIGHT, 4096)?),
            };
            let calls = files.into_iter().map(|file| MetadataCall::Remove { file });
            execute(&mut **lane, calls, &mut |_, _| {}, &mut || true)?;
        }
        tree.remove_directory(&directory.to_string())?;
    }
    tree.remove_directory(&root)
}

impl Scratch<'_> {
    /// Lists all directories, and compares the names with the states of the files.
    ///
    /// # Errors
    /// If a directory cannot be read.
    pub(super) fn check(&self, all: Vec<Metadata>) -> Result<FilesCheck, TargetError> {
        let mut check = FilesCheck::default();
        let key = |own: &Metadata| (own.directory(), own.worker());
        let mut all: HashMap<_, Metadata> = all.into_iter().map(|own| (key(&own), own)).collect();
        for directory in &self.directories {
            let is_there = self.tree.list(&directory.to_string(), &mut |name| {
                check.listed += 1;
                let file = FileName::parse(*directory, name);
                let found = file.map_or(Found::Unexpected, |file| {
                    let own = all.get_mut(&(*directory, file.worker));
                    own.map_or(Found::Unexpected, |own| own.look(file.number, file.renamed))
                });
                if found == Found::Unexpected {
                    check.unexpected += 1;
                    example(&mut check, format!("{directory}/{name} should not exist"));
                }
            })?;
            if !is_there {
                example(&mut check, format!("{directory} does not exist"));
            }
        }
        let mut missing: Vec<FileName> = all.values().flat_map(Metadata::missing).collect();
        missing.sort_unstable();
        check.missing = missing.len() as u64;
        missing.iter().for_each(|file| example(&mut check, format!("{file} is missing")));
        Ok(check)
    }

    /// Removes the directories and all files in them.
    ///
    /// # Errors
    /// If a file or directory cannot be removed.
    pub(super) fn remove(mut self) -> Result<(), TargetError> {
        self.is_removed = true;
        remove(self.tree, self.client)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if !self.is_removed {
            // The load has failed with another error, which is reported.
            remove(self.tree, self.client).ok();
        }
    }
}

fn example(check: &mut FilesCheck, text: String) {
    if check.examples.len() < EXAMPLES_MAX {
        check.examples.push(text);
    }
}

#[cfg(test)]
mod tests;
