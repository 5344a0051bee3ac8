//! Targets under test: Weir and tgt, each with one durable volume and one volume with a volatile
//! write cache.
//!
//! `load` generates the load.
//!
//! Invariants: all data is on one file system; the servers listen on loopback and end with this
//! process.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use weir_command::command;
use weir_command::process::{Process, guarded};

use super::rows::Row;
use crate::place::wait;

/// Size of the volumes: they fit into every cache, so that reads measure the server instead of the
/// disk.
pub(super) const VOLUME_BYTES: u64 = 1 << 30;
/// Memory of the Weir server: its default on a machine of 24 GiB.
const MEMORY_BYTES: u64 = 6 << 30;
/// Size of each leg of Weir's mirror; the legs are sparse files.
const LEG_BYTES: u64 = 80 << 30;
/// Number of the control channel of tgt. It differs from the default, so that the benchmark does
/// not disturb another tgt on the machine.
const TGT_CONTROL: &str = "60";
const TGT_TARGET: &str = "iqn.2026-01.org.example:peer";
/// Full name that `weir target create` gives to the target `bench`.
const WEIR_TARGET: &str = "iqn.2026-01.org.weir:bench";

/// Target under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contestant {
    TgtVolatile,
    WeirVolatile,
    WeirNbd,
    TgtDurable,
    WeirDurable,
}

impl Contestant {
    pub(super) const ALL: [Self; 5] =
        [Self::TgtVolatile, Self::WeirVolatile, Self::WeirNbd, Self::TgtDurable, Self::WeirDurable];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::TgtVolatile => "tgt, cache on",
            Self::WeirVolatile => "Weir, cache on",
            Self::WeirNbd => "Weir, NBD",
            Self::TgtDurable => "tgt, cache off",
            Self::WeirDurable => "Weir, cache off",
        }
    }

    /// True if this target runs a row. The write cache setting does not affect reads, so the
    /// durable targets run only rows with writes.
    pub(super) fn runs(self, row: &Row) -> bool {
        match self {
            Self::TgtVolatile | Self::WeirVolatile => true,
            Self::WeirNbd => row.depth > 1,
            Self::TgtDurable | Self::WeirDurable => row.read_pct == 0,
        }
    }
}

/// The running Weir server and the running tgt.
pub(super) struct Servers {
    weir: Process,
    tgt: Process,
    weir_portal: String,
    tgt_portal: String,
    nbd: String,
    api: String,
}

impl Servers {
    pub(super) fn start(program: &Path, data: &Path) -> Result<Self> {
        let (weir_portal, nbd, tgt_portal) = (free_address()?, free_address()?, free_address()?);
        let api = format!("unix:{}", data.join("api.sock").display());
        let mut command = guarded(&program.display().to_string());
        command.arg("serve").arg("--state").arg(data.join("state"));
        command.args(["--nbd", &nbd, "--nbd-allow", "127.0.0.1"]);
        command.args(["--api", &api, "--iscsi", &weir_portal]);
        command.args(["--memory", &MEMORY_BYTES.to_string(), "--log", "warn"]);
        let weir = Process::launch(command, &data.join("weir.log"))?;
        let mut command = guarded("tgtd");
        command.args(["--foreground", "--control-port", TGT_CONTROL]);
        command.args(["--iscsi", &format!("portal={tgt_portal}")]);
        let tgt = Process::launch(command, &data.join("tgt.log"))?;
        let servers = Self { weir, tgt, weir_portal, tgt_portal, nbd, api };
        servers.set_up_weir(program, data)?;
        set_up_tgt(data)?;
        Ok(servers)
    }

    pub(super) fn process(&self, of: Contestant) -> &Process {
        match of {
            Contestant::TgtVolatile | Contestant::TgtDurable => &self.tgt,
            _ => &self.weir,
        }
    }

    /// Address of a target, in the form that `weir bench` needs.
    pub(super) fn address(&self, of: Contestant) -> String {
        let (weir, tgt) = (&self.weir_portal, &self.tgt_portal);
        match of {
            Contestant::WeirVolatile => format!("iscsi://{weir}/{WEIR_TARGET}/0"),
            Contestant::WeirDurable => format!("iscsi://{weir}/{WEIR_TARGET}/1"),
            Contestant::WeirNbd => format!("nbd://{}/bench/nbd", self.nbd),
            Contestant::TgtVolatile => format!("iscsi://{tgt}/{TGT_TARGET}/1"),
            Contestant::TgtDurable => format!("iscsi://{tgt}/{TGT_TARGET}/2"),
        }
    }

    /// Runs a command of `weir` on the server under test.
    pub(super) fn weir(&self, program: &Path, words: &[&str]) -> Result<String> {
        command::output(Command::new(program).env("WEIR_API", &self.api).args(words))
    }

    fn set_up_weir(&self, program: &Path, data: &Path) -> Result<()> {
        wait("weir", || self.weir(program, &["pool", "list"]).map(drop))?;
        let legs = ["leg-a.img", "leg-b.img"].map(|name| data.join(name));
        for leg in &legs {
            File::create(leg)?.set_len(LEG_BYTES)?;
        }
        let legs = legs.map(|leg| leg.display().to_string());
        self.weir(program, &["pool", "create", "bench", "mirror", &legs[0], &legs[1]])?;
        self.weir(program, &["target", "create", "bench", "--allow", "*"])?;
        let size = VOLUME_BYTES.to_string();
        for (name, cache) in [("bench/volatile", "on"), ("bench/durable", "off")] {
            self.weir(program, &["volume", "create", name, "--size", &size])?;
            self.weir(program, &["lun", "add", "bench", name, "--write-cache", cache])?;
        }
        self.weir(program, &["volume", "create", "bench/nbd", "--size", &size])?;
        self.weir(program, &["export", "create", "nbd", "bench/nbd"]).map(drop)
    }
}

fn set_up_tgt(data: &Path) -> Result<()> {
    let admin = |words: &[&str]| {
        let mut command = Command::new("tgtadm");
        command.args(["--control-port", TGT_CONTROL, "--lld", "iscsi"]).args(words);
        command::output(&mut command).map(drop)
    };
    wait("tgtd", || admin(&["--mode", "target", "--op", "show"]))?;
    let target = ["--mode", "target", "--tid", "1"];
    admin(&[&target[..], &["--op", "new", "--targetname", TGT_TARGET]].concat())?;
    let unit = ["--mode", "logicalunit", "--tid", "1", "--op", "new"];
    for (number, name, flags) in
        [("1", "volatile.img", None), ("2", "durable.img", Some(["--bsoflags", "sync"]))]
    {
        let file = data.join(name);
        File::create(&file)?.set_len(VOLUME_BYTES)?;
        let file = file.display().to_string();
        let mut words = unit.to_vec();
        words.extend(["--lun", number, "--backing-store", &file]);
        words.extend(flags.iter().flatten());
        admin(&words)?;
    }
    admin(&[&target[..], &["--op", "bind", "--initiator-address", "ALL"]].concat())
}

/// Returns a free address on loopback.
fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
