//! Mounted directory of an NFS target, with the handles of the files of a dataset.
//!
//! `lane` sends the measured calls.
//!
//! Invariants: the target opens and changes only files whose names `parts` and `metadata` assign;
//! it follows no name that is no regular file or directory.

use std::collections::{BTreeMap, HashMap};

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
    pub(super) mounted: Mounted,
    /// Directory of the target.
    pub(super) root: Handle,
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

/// Directory and name of an entry; `None` if the directory does not exist.
type Place<'p> = Option<(Handle, &'p str)>;

impl Mount {
    /// Opens the files of the dataset in the directory `root`. If `create` is set, creates files
    /// that do not exist, and extends files that are too short.
    pub(super) fn open(
        client: &mut Client,
        (url, root): (&Url, Handle),
        dataset: &DatasetSpec,
        create: bool,
    ) -> Result<Self, NfsError> {
        let identity = Identity::of(url);
        let identity = identity.map_err(|source| NfsError::Reply { what: "AUTH_SYS", source })?;
        let limits = client.limits()?;
        let numbers = 0..dataset.files.max(1);
        let files = numbers.map(|number| open_file(client, &root, number, dataset, create));
        let files = files.collect::<Result<_, _>>()?;
        Ok(Self {
            url: url.clone(),
            address: url.to_string(),
            identity,
            mounted: client.mounted().clone(),
            root,
            files,
            part_bytes: dataset.file_bytes,
            read_bytes: transfer_bytes(limits.rtmax)?,
            write_bytes: transfer_bytes(limits.wtmax)?,
            directory_bytes: limits.dtpref.clamp(DIRECTORY_BYTES.0, DIRECTORY_BYTES.1),
            directories: RwLock::default(),
        })
    }

    /// Properties of the mount, for the report.
    pub(super) fn facts(&self, source: SourcePort) -> BTreeMap<String, String> {
        let port = if source.is_reserved() { "reserved" } else { "not reserved" };
        let stability = match self.url.stability {
            Stability::Unstable => "UNSTABLE, COMMIT at a flush",
            Stability::Data => "DATA_SYNC",
            Stability::File => "FILE_SYNC",
        };
        let facts = [
            ("server", self.url.server()),
            ("export", self.mounted.path.clone()),
            ("mount port", self.mounted.port.to_string()),
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

    /// Handle of a directory below the root, and the last component of its path.
    fn parent<'p>(&self, client: &mut Client, path: &'p str) -> Result<Place<'p>, NfsError> {
        let Some((parent, name)) = path.rsplit_once('/') else {
            return Ok(Some((self.root, path)));
        };
        let found = self.find(client, parent)?;
        Ok(found.map(|handle| (handle, name)))
    }

    /// Handle of the directory with a path below the root; `None` if it does not exist.
    fn find(&self, client: &mut Client, path: &str) -> Result<Option<Handle>, NfsError> {
        let mut handle = self.root;
        for name in path.split('/') {
            let Some(found) = client.lookup(&handle, name)? else { return Ok(None) };
            handle = found.handle;
        }
        Ok(Some(handle))
    }

    fn client(&self) -> Result<Client, NfsError> {
        Client::connect(&self.url, &self.mounted)
    }

    pub(super) fn make_directory(&self, path: &str) -> Result<(), NfsError> {
        let mut client = self.client()?;
        let missing =
            NfsError::Failed { what: "LOOKUP", status: Nfsstat3::Noent, unreserved_port: None };
        let (parent, name) = self.parent(&mut client, path)?.ok_or(missing)?;
        let handle = client.make_directory(&parent, name)?;
        if client.attributes(&handle)?.kind != Ftype3::Dir {
            // A file or a link is not a directory of this program.
            let (what, status) = ("MKDIR", Nfsstat3::Notdir);
            return Err(NfsError::Failed { what, status, unreserved_port: None });
        }
        self.directories.write().insert(path.to_owned(), handle);
        Ok(())
    }

    pub(super) fn remove_directory(&self, path: &str) -> Result<(), NfsError> {
        self.directories.write().remove(path);
        let mut client = self.client()?;
        match self.parent(&mut client, path)? {
            Some((parent, name)) => client.remove_directory(&parent, name),
            None => Ok(()),
        }
    }

    pub(super) fn list(&self, path: &str, each: &mut dyn FnMut(&str)) -> Result<bool, NfsError> {
        let mut client = self.client()?;
        let Some(directory) = self.find(&mut client, path)? else { return Ok(false) };
        // A run that removes files of an earlier run uses this handle for its lanes.
        self.directories.write().insert(path.to_owned(), directory);
        client.list(&directory, &mut |name| each(&String::from_utf8_lossy(name)))?;
        Ok(true)
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
