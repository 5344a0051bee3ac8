//! MOUNT versions 3 and 1.
//!
//! Spec: RFC 1813 section 5, RFC 1094 appendix A.
//!
//! Invariants:
//! - a handle alone gives no right: each later call is checked again;
//! - a client sees only the shares that it may mount.

use std::collections::VecDeque;
use std::net::IpAddr;

use parking_lot::Mutex;
use weir_nfs_wire::mount::{DirPath, Export, MountEntry, MountName, v1, v3};
use weir_oncrpc::message::{AcceptStat, flavor};
use weir_oncrpc::{Array, Decoder, Encoder, Failed, List, Opaque};

use crate::handle::Handle;
use crate::limits::MOUNTS_MAX;
use crate::procedures::dispatch::Caller;
use crate::procedures::paths::find_place;
use crate::programs::outcome::Outcome;
use crate::share::{ClientName, Found, Incident, Refusal, Shares, identify};
use crate::status::mount_status;

/// Error number of MNT in version 1.
const EACCES: u32 = 13;

/// Clients that mounted a share, for `showmount`. A client that leaves without a word stays in the
/// list, as with other servers.
#[derive(Default)]
pub struct Mounts(Mutex<VecDeque<(IpAddr, Vec<u8>)>>);

impl Mounts {
    /// Addresses and paths, oldest first.
    pub fn entries(&self) -> Vec<(IpAddr, Vec<u8>)> {
        self.0.lock().iter().cloned().collect()
    }

    fn add(&self, client: IpAddr, path: &[u8]) {
        let mut entries = self.0.lock();
        entries.retain(|(address, mounted)| (*address, &**mounted) != (client, path));
        if entries.len() >= MOUNTS_MAX {
            entries.pop_front();
        }
        entries.push_back((client, path.to_vec()));
    }

    fn remove(&self, client: IpAddr, path: Option<&[u8]>) {
        let is_removed = |(address, mounted): &(IpAddr, Vec<u8>)| {
            *address == client && path.is_none_or(|path| path == &**mounted)
        };
        self.0.lock().retain(|entry| !is_removed(entry));
    }
}

/// Runs a procedure of MOUNT and appends its results.
pub(crate) async fn run(
    (shares, mounts): (&Shares, &Mounts),
    caller: &Caller<'_>,
    (version, procedure): (u32, u32),
    mut input: Decoder<'_>,
    out: &mut Encoder<'_>,
) -> Outcome {
    let client = caller.address.ip().to_canonical();
    if version == v1::VERSION {
        let Some(procedure) = v1::Procedure::from_number(procedure) else {
            return Outcome::Failed(AcceptStat::ProcUnavail);
        };
        let Ok(args) = v1::Args::decode(procedure, &mut input) else {
            return Outcome::Failed(AcceptStat::GarbageArgs);
        };
        let texts = Texts::of((shares, mounts), caller);
        let results = match args {
            v1::Args::Null(()) => v1::Results::Null(()),
            // The handles of version 1 are for NFSv2.
            v1::Args::Mnt(_) => v1::Results::Mnt(v1::FhStatus::Error(EACCES)),
            v1::Args::Dump(()) => v1::Results::Dump(texts.mounts()),
            v1::Args::Umnt(path) => {
                mounts.remove(client, Some(path.bytes()));
                v1::Results::Umnt(())
            }
            v1::Args::Umntall(()) => {
                mounts.remove(client, None);
                v1::Results::Umntall(())
            }
            v1::Args::Export(()) => v1::Results::Export(texts.exports()),
        };
        results.encode(out);
        return Outcome::Done;
    }
    let Some(procedure) = v3::Procedure::from_number(procedure) else {
        return Outcome::Failed(AcceptStat::ProcUnavail);
    };
    let Ok(args) = v3::Args::decode(procedure, &mut input) else {
        return Outcome::Failed(AcceptStat::GarbageArgs);
    };
    let texts = Texts::of((shares, mounts), caller);
    let handle;
    let results = match args {
        v3::Args::Null(()) => v3::Results::Null(()),
        v3::Args::Mnt(path) => match mount(shares, caller, &path).await {
            Ok(bytes) => {
                mounts.add(client, path.bytes());
                handle = bytes;
                let flavors = Array::new(vec![flavor::AUTH_SYS]).expect("one flavor");
                let handle = Opaque::new(&handle).expect("handles have 48 bytes");
                v3::Results::Mnt(Ok(v3::MountResok { handle, flavors }))
            }
            Err(status) => v3::Results::Mnt(Err(Failed { status, info: () })),
        },
        v3::Args::Dump(()) => v3::Results::Dump(texts.mounts()),
        v3::Args::Umnt(path) => {
            mounts.remove(client, Some(path.bytes()));
            v3::Results::Umnt(())
        }
        v3::Args::Umntall(()) => {
            mounts.remove(client, None);
            v3::Results::Umntall(())
        }
        v3::Args::Export(()) => v3::Results::Export(texts.exports()),
    };
    results.encode(out);
    Outcome::Done
}

/// Returns the handle of the directory with a path.
async fn mount(
    shares: &Shares,
    caller: &Caller<'_>,
    path: &DirPath<'_>,
) -> Result<[u8; Handle::BYTES], v3::Mountstat3> {
    // A client without rights does not learn which paths exist.
    let (share, rest) = match shares.of_path(path.bytes()) {
        (Found::Share(share), rest) => (share, rest),
        (Found::Waits, _) => return Err(v3::Mountstat3::Serverfault),
        (Found::Nothing, _) => {
            shares.incidents.add(caller.address.ip(), Incident::Refused);
            return Err(v3::Mountstat3::Acces);
        }
    };
    let check = || match identify(&share.rules, caller.address, &caller.credential) {
        // A mount of Linux has AUTH_NONE credentials at times; the calls on files are checked.
        Ok(_) | Err(Refusal::Auth(_)) => Ok(()),
        Err(Refusal::Access) => Err(v3::Mountstat3::Acces),
        Err(Refusal::Waits) => Err(v3::Mountstat3::Serverfault),
    };
    let mut checked = check();
    if checked.is_err() {
        let names: Vec<ClientName> = share.rules.names().cloned().collect();
        if !names.is_empty() {
            // The client may have a new address since the last lookup.
            shares.names.refresh(&names).await;
            checked = check();
        }
    }
    checked.inspect_err(|status| {
        if *status == v3::Mountstat3::Acces {
            share.statistics.incidents.add(caller.address.ip(), Incident::Refused);
        }
    })?;
    find_place(&share, rest).await.map_err(|error| mount_status(&error))
}

/// Text of the lists of mounts and exports.
struct Texts {
    mounts: Vec<(String, Vec<u8>)>,
    /// Paths of shares, with the clients of the rule that allows the caller.
    exports: Vec<(String, String)>,
}

impl Texts {
    fn of((shares, mounts): (&Shares, &Mounts), caller: &Caller<'_>) -> Self {
        let client = caller.address.ip();
        let mounts = mounts.entries().into_iter();
        let own = mounts.filter(|(address, _)| *address == client.to_canonical());
        let exports = shares.all().into_iter().filter_map(|share| {
            let clients = share.rules.clients_of(client)?;
            Some((share.path.clone(), clients))
        });
        Self {
            mounts: own.map(|(address, path)| (address.to_string(), path)).collect(),
            exports: exports.collect(),
        }
    }

    fn mounts(&self) -> List<MountEntry<'_>> {
        fn entry((client, path): &(String, Vec<u8>)) -> Option<MountEntry<'_>> {
            let hostname = MountName::new(client.as_bytes()).ok()?;
            Some(MountEntry { hostname, directory: DirPath::new(path).ok()? })
        }
        List(self.mounts.iter().filter_map(entry).collect())
    }

    fn exports(&self) -> List<Export<'_>> {
        fn export((path, clients): &(String, String)) -> Option<Export<'_>> {
            let directory = DirPath::new(path.as_bytes()).ok()?;
            let group = MountName::new(clients.as_bytes()).ok()?;
            Some(Export { directory, groups: List(vec![group]) })
        }
        List(self.exports.iter().filter_map(export).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_mounts_forgets_the_oldest() {
        let mounts = Mounts::default();
        let client = |number: usize| IpAddr::from((number as u128).to_be_bytes());
        for number in 0..=MOUNTS_MAX {
            mounts.add(client(number), b"/tank/home");
            mounts.add(client(number), b"/tank/home");
        }
        let entries = mounts.entries();
        assert_eq!(entries.len(), MOUNTS_MAX);
        assert_eq!(entries.first().unwrap().0, client(1));
        mounts.remove(client(1), Some(b"/tank/other"));
        mounts.remove(client(2), None);
        assert_eq!(mounts.entries().len(), MOUNTS_MAX - 1);
    }
}
