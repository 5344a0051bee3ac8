//! Client that runs one call after the other, for the preparation and the end of a benchmark.
//!
//! [`Connection`] can run many calls at once.
//!
//! Invariants: no call waits beyond the time limits in `limits`; a failed call leaves the client
//! usable, a lost connection does not.

use std::thread::sleep;
use std::time::Instant;

use weir_nfs_wire::nfs3::{
    Args, CreateArgs, CreateHow, DirOpArgs, Fattr3, FileArgs, FileHandle, FileName, FsinfoResok,
    LookupResok, MkdirArgs, Nfsstat3, ReaddirArgs, Results, Sattr3, SetattrArgs,
};

use crate::connection::Connection;
use crate::error::NfsError;
use crate::exchange::{Identity, Reply, Request};
use crate::handle::Handle;
use crate::limits::{CALL_LIMIT, DIRECTORY_BYTES, ENTRIES_MAX, JUKEBOX_INTERVAL, JUKEBOX_LIMIT};
use crate::mount::{self, Mounted, NoBuffers};
use crate::refusal::Refusal;
use crate::url::Url;

/// An object that LOOKUP found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Handle of the object.
    pub handle: Handle,
    /// Attributes, if the server returned them.
    pub attributes: Option<Fattr3>,
}

/// A mounted directory, and a connection for one call at a time.
///
/// ```no_run
/// # fn main() -> Result<(), weir_nfs_client::NfsError> {
/// use weir_nfs_client::{Client, Url};
/// let url = Url::parse("nfs://storage/tank/home")?;
/// let mut client = Client::mount(&url)?;
/// let directory = client.directory(&url, false)?;
/// client.list(&directory, &mut |name| println!("{}", String::from_utf8_lossy(name)))?;
/// # Ok(())
/// # }
/// ```
pub struct Client {
    connection: Connection,
    mounted: Mounted,
}

impl Client {
    /// Connects to the server of a URL and mounts the longest part of its path that the server
    /// allows.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses the mount.
    pub fn mount(url: &Url) -> Result<Self, NfsError> {
        let identity = Identity::of(url);
        let identity = identity.map_err(|source| NfsError::Reply { what: "AUTH_SYS", source })?;
        let mut connection =
            Connection::open(&url.host, url.port, url.source(0), identity.clone(), 1)?;
        let mounted = mount::mount(&mut connection, url, &identity)?;
        Ok(Self { connection, mounted })
    }

    /// Connects to the server of a mount that exists already.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn connect(url: &Url, mounted: &Mounted) -> Result<Self, NfsError> {
        let identity = Identity::of(url);
        let identity = identity.map_err(|source| NfsError::Reply { what: "AUTH_SYS", source })?;
        let connection = Connection::open(&url.host, url.port, url.source(0), identity, 1)?;
        Ok(Self { connection, mounted: mounted.clone() })
    }

    /// The mount.
    pub const fn mounted(&self) -> &Mounted {
        &self.mounted
    }

    /// Connection of the client.
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Runs a procedure and returns its reply. Repeats the call each second while the server
    /// replies NFS3ERR_JUKEBOX, for at most 100 s ([`JUKEBOX_LIMIT`]).
    ///
    /// # Errors
    /// The connection is lost, the server did not reply in time, or it refused the call.
    pub fn call(&mut self, args: &Args<'_>) -> Result<Reply, NfsError> {
        let deadline = Instant::now() + JUKEBOX_LIMIT;
        loop {
            match self.call_once(args)? {
                Reply::Failed(Nfsstat3::Jukebox) if Instant::now() < deadline => {
                    sleep(JUKEBOX_INTERVAL);
                }
                reply => return Ok(reply),
            }
        }
    }

    fn call_once(&mut self, args: &Args<'_>) -> Result<Reply, NfsError> {
        let done = self.connection.call(&Request::Nfs(args), &mut NoBuffers, CALL_LIMIT)?;
        match done.reply {
            Reply::Refused(refusal) => {
                let unreserved_port = match refusal {
                    Refusal::Auth(_) => self.connection.source().unreserved(),
                    _ => None,
                };
                Err(NfsError::Refused { what: done.name, refusal, unreserved_port })
            }
            reply => Ok(reply),
        }
    }

    /// Runs a procedure that must succeed, and passes its results to `decode`.
    pub(crate) fn run<T>(
        &mut self,
        what: &'static str,
        args: &Args<'_>,
        decode: impl FnOnce(Results<'_>) -> Option<T>,
    ) -> Result<T, NfsError> {
        match self.call(args)? {
            Reply::Other(body) => {
                let why = "results of another procedure";
                decode(body.results()?).ok_or(NfsError::Protocol { why })
            }
            Reply::Failed(status) => {
                let may_be_port = [Nfsstat3::Perm, Nfsstat3::Acces].contains(&status);
                let unreserved_port = self.connection.source().unreserved().filter(|_| may_be_port);
                Err(NfsError::Failed { what, status, unreserved_port })
            }
            _ => Err(NfsError::Protocol { why: "results of another procedure" }),
        }
    }

    /// Limits of the server (FSINFO).
    ///
    /// # Errors
    /// The call failed.
    pub fn limits(&mut self) -> Result<FsinfoResok, NfsError> {
        let root = self.mounted.root;
        let args = Args::Fsinfo(FileArgs { object: root.wire() });
        self.run("FSINFO", &args, |results| match results {
            Results::Fsinfo(Ok(limits)) => Some(limits),
            _ => None,
        })
    }

    /// Handle of the directory of the URL with which the client was mounted. If `create` is set,
    /// creates the components that do not exist below the mounted path.
    ///
    /// # Errors
    /// A component does not exist or cannot be created.
    pub fn directory(&mut self, url: &Url, create: bool) -> Result<Handle, NfsError> {
        let mounted = self.mounted.path.split('/').filter(|name| !name.is_empty()).count();
        let mut handle = self.mounted.root;
        for name in url.components().skip(mounted) {
            handle = match self.lookup(&handle, name)? {
                Some(found) => found.handle,
                None if create => self.make_directory(&handle, name)?,
                None => {
                    let (what, status) = ("LOOKUP", Nfsstat3::Noent);
                    return Err(NfsError::Failed { what, status, unreserved_port: None });
                }
            };
        }
        Ok(handle)
    }

    /// LOOKUP; `None` if the name does not exist.
    ///
    /// # Errors
    /// The call failed for another reason.
    pub fn lookup(&mut self, dir: &Handle, name: &str) -> Result<Option<Listed>, NfsError> {
        let args = Args::Lookup(place(dir, name)?);
        let found = self.run("LOOKUP", &args, |results| match results {
            Results::Lookup(Ok(LookupResok { object, attributes, .. })) => {
                Some(Listed { handle: Handle::new(&object), attributes })
            }
            _ => None,
        });
        match found {
            Err(NfsError::Failed { status: Nfsstat3::Noent, .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    /// MKDIR with mode 0755; an existing name is no error. Returns the handle of the name.
    ///
    /// # Errors
    /// The call failed for another reason.
    pub fn make_directory(&mut self, dir: &Handle, name: &str) -> Result<Handle, NfsError> {
        let attributes = Sattr3 { mode: Some(0o755), ..Sattr3::default() };
        let args = Args::Mkdir(MkdirArgs { place: place(dir, name)?, attributes });
        let made = self.run("MKDIR", &args, |results| match results {
            Results::Mkdir(Ok(made)) => Some(made.object.map(|object| Handle::new(&object))),
            _ => None,
        });
        match made {
            Ok(Some(handle)) => Ok(handle),
            Ok(None) | Err(NfsError::Failed { status: Nfsstat3::Exist, .. }) => {
                self.must_exist(dir, name)
            }
            Err(error) => Err(error),
        }
    }

    /// CREATE (UNCHECKED) with mode 0644; an existing file is no error, and keeps its content.
    ///
    /// # Errors
    /// The call failed.
    pub fn create(&mut self, dir: &Handle, name: &str) -> Result<Listed, NfsError> {
        let attributes = Sattr3 { mode: Some(0o644), ..Sattr3::default() };
        let how = CreateHow::Unchecked(attributes);
        let args = Args::Create(CreateArgs { place: place(dir, name)?, how });
        let made = self.run("CREATE", &args, |results| match results {
            Results::Create(Ok(made)) => {
                Some((made.object.map(|object| Handle::new(&object)), made.attributes))
            }
            _ => None,
        })?;
        match made {
            (Some(handle), attributes) => Ok(Listed { handle, attributes }),
            (None, attributes) => Ok(Listed { handle: self.must_exist(dir, name)?, attributes }),
        }
    }

    pub(crate) fn must_exist(&mut self, dir: &Handle, name: &str) -> Result<Handle, NfsError> {
        let (what, status) = ("LOOKUP", Nfsstat3::Noent);
        let missing = NfsError::Failed { what, status, unreserved_port: None };
        Ok(self.lookup(dir, name)?.ok_or(missing)?.handle)
    }

    /// GETATTR.
    ///
    /// # Errors
    /// The call failed.
    pub fn attributes(&mut self, object: &Handle) -> Result<Fattr3, NfsError> {
        let args = Args::Getattr(FileArgs { object: object.wire() });
        self.run("GETATTR", &args, |results| match results {
            Results::Getattr(Ok(found)) => Some(found.attributes),
            _ => None,
        })
    }

    /// SETATTR of the size in bytes.
    ///
    /// # Errors
    /// The call failed.
    pub fn set_size(&mut self, object: &Handle, bytes: u64) -> Result<(), NfsError> {
        let new_attributes = Sattr3 { size: Some(bytes), ..Sattr3::default() };
        let (object, guard) = (object.wire(), None);
        let args = Args::Setattr(SetattrArgs { object, new_attributes, guard });
        self.run("SETATTR", &args, |_| Some(()))
    }

    /// RMDIR; a missing name is no error.
    ///
    /// # Errors
    /// The directory is not empty, or the call failed for another reason.
    pub fn remove_directory(&mut self, dir: &Handle, name: &str) -> Result<(), NfsError> {
        let args = Args::Rmdir(place(dir, name)?);
        match self.run("RMDIR", &args, |_| Some(())) {
            Err(NfsError::Failed { status: Nfsstat3::Noent, .. }) => Ok(()),
            removed => removed,
        }
    }

    /// Passes the name of each entry of a directory to `each`, without `.` and `..`.
    ///
    /// # Errors
    /// A call failed, or there are more than 16,777,216 entries ([`ENTRIES_MAX`]).
    pub fn list(&mut self, dir: &Handle, each: &mut dyn FnMut(&[u8])) -> Result<(), NfsError> {
        let (mut cookie, mut cookieverf, mut entries) = (0, [0; 8], 0_u64);
        loop {
            let count = DIRECTORY_BYTES.1;
            let args = Args::Readdir(ReaddirArgs { dir: dir.wire(), cookie, cookieverf, count });
            let page = self.run("READDIR", &args, |results| {
                let Results::Readdir(Ok(page)) = results else { return None };
                for entry in &page.entries.0 {
                    if ![&b"."[..], b".."].contains(&entry.name.bytes()) {
                        each(entry.name.bytes());
                    }
                    cookie = entry.cookie;
                }
                cookieverf = page.cookieverf;
                Some((page.entries.0.len() as u64, page.eof))
            })?;
            entries += page.0;
            match page {
                (_, true) => return Ok(()),
                (0, false) => {
                    let why = "an empty reply to READDIR before the end of the directory";
                    return Err(NfsError::Protocol { why });
                }
                _ if entries > ENTRIES_MAX => {
                    return Err(NfsError::TooManyEntries { max: ENTRIES_MAX });
                }
                _ => {}
            }
        }
    }
}

/// Directory and name as arguments.
pub(crate) fn place<'a>(dir: &'a Handle, name: &'a str) -> Result<DirOpArgs<'a>, NfsError> {
    let dir: FileHandle<'a> = dir.wire();
    let name = FileName::new(name.as_bytes()).map_err(|_| NfsError::Url {
        text: name.to_owned(),
        why: "a name has more than 1,024 bytes".to_owned(),
    })?;
    Ok(DirOpArgs { dir, name })
}
