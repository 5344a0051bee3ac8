//! Mounted directories of an NFS target, one in each share, with the handles of the files of a
//! dataset.
//!
//! `lane` sends the measured calls; `tree` prepares the directories of metadata operations.
//!
//! Invariants: the target opens and changes only files whose names `parts` and `metadata` assign;
//! it follows no name that is no regular file or directory.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use weir_base::size::Human;
use weir_nfs_client::limits::{DIRECTORY_BYTES, TRANSFER_BYTES_MAX, TRANSFER_BYTES_MIN};
use weir_nfs_client::{Client, Handle, Identity, Mounted, NfsError, SourcePort, Stability, Url};
use weir_nfs_wire::nfs3::{Ftype3, Nfsstat3};

use crate::spec::DatasetSpec;
use crate::target::error::TargetError;
use crate::target::parts::file_name;

/// The mounted directory, which all lanes share.
pub(super) struct Mount {
    pub(super) url: Url,
    pub(super) address: String,
    pub(super) identity: Identity,
    /// Shares of the address; at least one. All are on one server, so that one connection has the
    /// calls for all.
    pub(super) shares: Vec<Share>,
    /// Number of listings of a root so far, for the choice of the next root.
    pub(super) listings: AtomicUsize,
    /// Number of lanes that were opened so far, for the choice of the next source address.
    pub(super) lanes: AtomicUsize,
    /// Files of the dataset in address order, each `part_bytes` long.
    pub(super) files: Vec<Handle>,
    pub(super) part_bytes: u64,
    /// Maximum length of a READ and of a WRITE in bytes; multiples of 512.
    pub(super) read_bytes: u32,
    pub(super) write_bytes: u32,
    /// Length of a reply to READDIR or READDIRPLUS in bytes.
    pub(super) directory_bytes: u32,
    /// Directories that the run created, by their path below the root.
    pub(super) directories: RwLock<HashMap<String, Handle>>,
}

/// Adds the address of the target to an error of the client.
pub(super) fn failed(address: &str) -> impl Fn(NfsError) -> TargetError + '_ {
    move |source| TargetError::Nfs { address: address.to_owned(), source }
}

/// Directory of the target in one share.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub(super) url: Url,
    pub(super) mounted: Mounted,
    pub(super) root: Handle,
}

impl Share {
    /// Client with a connection of its own.
    pub(super) fn client(&self) -> Result<Client, NfsError> {
        Client::connect(&self.url, &self.mounted)
    }
}

impl Mount {
    /// Opens the files of the dataset, in the order of the shares: each share has the quotient of
    /// files and shares, rounded up, as long as files are left. If `create` is set, creates files
    /// that do not exist, and extends files that are too short.
    pub(super) fn open(
        url: &Url,
        shares: Vec<Share>,
        dataset: &DatasetSpec,
        create: bool,
    ) -> Result<Self, NfsError> {
        let identity = Identity::of(url);
        let identity = identity.map_err(|source| NfsError::Reply { what: "AUTH_SYS", source })?;
        let count = dataset.files.max(1) as usize;
        let each = count.div_ceil(shares.len());
        let mut files = Vec::with_capacity(count);
        let (mut read_bytes, mut write_bytes, mut directory_bytes) = (u32::MAX, u32::MAX, u32::MAX);
        for share in &shares {
            let mut client = share.client()?;
            let limits = client.limits()?;
            read_bytes = read_bytes.min(transfer_bytes(limits.rtmax)?);
            write_bytes = write_bytes.min(transfer_bytes(limits.wtmax)?);
            directory_bytes = directory_bytes.min(limits.dtpref);
            for number in files.len()..count.min(files.len() + each) {
                let number = number as u32;
                files.push(open_file(&mut client, &share.root, number, dataset, create)?);
            }
        }
        Ok(Self {
            url: url.clone(),
            address: url.to_string(),
            identity,
            shares,
            listings: AtomicUsize::new(0),
            lanes: AtomicUsize::new(0),
            files,
            part_bytes: dataset.file_bytes,
            read_bytes,
            write_bytes,
            directory_bytes: directory_bytes.clamp(DIRECTORY_BYTES.0, DIRECTORY_BYTES.1),
            directories: RwLock::default(),
        })
    }

    /// Root of the share that has a file of the dataset.
    pub(super) fn root_of_file(&self, file: usize) -> Handle {
        let each = self.files.len().div_ceil(self.shares.len()).max(1);
        self.root((file / each).min(self.shares.len() - 1))
    }

    /// Root of a share; indexes beyond the last share begin again at the first.
    pub(super) fn root(&self, share: usize) -> Handle {
        self.shares[share % self.shares.len()].root
    }

    /// Root for the next listing: each share in turn.
    pub(super) fn next_root(&self) -> Handle {
        self.root(self.listings.fetch_add(1, Ordering::Relaxed))
    }

    /// Properties of the mount, for the report.
    pub(super) fn facts(&self, source: SourcePort) -> BTreeMap<String, String> {
        let port = if source.is_reserved() { "reserved" } else { "not reserved" };
        let stability = match self.url.stability {
            Stability::Unstable => "UNSTABLE, COMMIT at a flush",
            Stability::Data => "DATA_SYNC",
            Stability::File => "FILE_SYNC",
        };
        let mounted = self.shares.iter().map(|share| &share.mounted);
        let paths: Vec<&str> = mounted.clone().map(|mounted| mounted.path.as_str()).collect();
        let mut ports: Vec<String> = mounted.map(|mounted| mounted.port.to_string()).collect();
        ports.dedup();
        let facts = [
            ("server", self.url.server()),
            ("export", paths.join(", ")),
            ("mount port", ports.join(", ")),
            ("read size", Human(self.read_bytes.into()).to_string()),
            ("write size", Human(self.write_bytes.into()).to_string()),
            ("write stability", stability.to_owned()),
            ("source port", port.to_owned()),
            ("credential", self.identity.text().to_owned()),
        ];
        facts.map(|(name, fact)| (name.to_owned(), fact)).into()
    }

    /// Index of the file that holds the byte at `offset`, and the offset within that file.
    pub(super) fn place(&self, offset: u64) -> (usize, u64) {
        let index = offset / self.part_bytes.max(1);
        ((index as usize).min(self.files.len() - 1), offset % self.part_bytes.max(1))
    }

    /// Handle of a directory that the run created.
    pub(super) fn directory(&self, path: &str) -> Option<Handle> {
        self.directories.read().get(path).copied()
    }
}

/// Opens one file of the dataset.
fn open_file(
    client: &mut Client,
    root: &Handle,
    number: u32,
    dataset: &DatasetSpec,
    create: bool,
) -> Result<Handle, NfsError> {
    let name = file_name(number);
    let found = match client.lookup(root, &name)? {
        Some(found) => found,
        None if create => client.create(root, &name)?,
        None => {
            let (what, status) = ("LOOKUP", Nfsstat3::Noent);
            return Err(NfsError::Failed { what, status, unreserved_port: None });
        }
    };
    let attributes = match found.attributes {
        Some(attributes) => attributes,
        None => client.attributes(&found.handle)?,
    };
    if attributes.kind != Ftype3::Reg {
        let why = "a file of the dataset is no regular file";
        return Err(NfsError::Protocol { why });
    }
    if attributes.size < dataset.file_bytes && create {
        client.set_size(&found.handle, dataset.file_bytes)?;
    }
    Ok(found.handle)
}

/// Length of READ or WRITE, from the maximum of the server.
fn transfer_bytes(max: u32) -> Result<u32, NfsError> {
    if max < TRANSFER_BYTES_MIN {
        let why = "the maximum length of READ or WRITE is below 512 bytes";
        return Err(NfsError::Protocol { why });
    }
    Ok(max.min(TRANSFER_BYTES_MAX) / TRANSFER_BYTES_MIN * TRANSFER_BYTES_MIN)
}
