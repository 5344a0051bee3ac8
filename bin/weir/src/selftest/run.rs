//! `weir target selftest`: tests the four offload primitives on a target of the server.
//!
//! Not here: the SCSI commands and the test of each primitive (`primitives`).
//!
//! Invariants:
//! - the test writes only to volumes that it created, and removes these volumes and their target at
//!   the end, whatever the result;
//! - no other initiator can log in to that target: only the test knows the random initiator name.

use std::fmt::Write as _;
use std::net::SocketAddr;

use clap::Args;
use serde::Serialize;
use weir_api::ApiError;
use weir_api::types::{
    InitiatorAllow, ListPools, LunAdd, PropertyValues, Removed, Target, TargetCreate, TargetDelete,
    VolumeCreate, VolumeDestroy, target_name,
};
use weir_base::{ErrorKind, size};
use weir_initiator::{InitiatorError, Url};

use crate::cli::base::output;
use crate::cli::base::output::Style;
use crate::cli::base::session::Session;
use crate::selftest::primitives::{BLOCK_BYTES, Bench, Primitive, Unproved};

/// Default size of each scratch volume: large enough to measure the time of ordinary commands.
const SIZE_DEFAULT: &str = "1GiB";
/// Minimum size of each scratch volume. A smaller volume would have too few blocks to read back.
const SIZE_MIN_BYTES: u64 = 16 << 20;
/// Unit of the volume size: the size of an ordinary write.
const SIZE_UNIT_BYTES: u64 = 1 << 20;

#[derive(Debug, Args)]
pub(crate) struct SelftestArgs {
    /// Pool for the two scratch volumes; required if the server has several pools
    #[arg(long)]
    pool: Option<String>,
    /// Size of each volume; the volumes are thin, and equal blocks are stored once
    #[arg(long, value_name = "SIZE", default_value = SIZE_DEFAULT)]
    size: String,
    /// Portal to log in to [default: the server's first portal]
    #[arg(long, value_name = "HOST:PORT")]
    portal: Option<String>,
}

/// Result of the self-test.
#[derive(Debug, Serialize)]
struct Report {
    pool: String,
    portal: String,
    size_bytes: u64,
    primitives: Vec<Primitive>,
}

/// Objects that the test creates and must remove.
struct Scratch<'a> {
    session: &'a Session,
    target: String,
    volumes: [String; 2],
    initiator: String,
}

pub(crate) fn run(arguments: SelftestArgs, session: &Session) -> Result<(), ApiError> {
    let size_bytes = size(&arguments.size)?;
    let pool = match arguments.pool {
        Some(pool) => pool,
        None => only_pool(session)?,
    };
    let scratch = Scratch::new(session, &pool)?;
    let tested = scratch.make(size_bytes).and_then(|target| {
        let portal = arguments.portal.map_or_else(|| first_portal(&target), Ok)?;
        let primitives = prove(&scratch, &portal, size_bytes)?;
        Ok(Report { pool, portal, size_bytes, primitives })
    });
    let removed = scratch.remove();
    let report = tested?;
    removed?;
    session.print(&report, |report| table(&report.primitives))
}

fn size(text: &str) -> Result<u64, ApiError> {
    let bad = |why: &str| {
        let message = format!("bad size {text:?}: {why}");
        Err(ApiError::new(ErrorKind::Invalid, message).with_action("write 1GiB, for example"))
    };
    match size::parse(text) {
        Err(error) => bad(&error.to_string()),
        Ok(bytes) if bytes < SIZE_MIN_BYTES => bad("at least 16 MiB"),
        Ok(bytes) if !bytes.is_multiple_of(SIZE_UNIT_BYTES) => bad("whole MiB"),
        Ok(bytes) => Ok(bytes),
    }
}

fn only_pool(session: &Session) -> Result<String, ApiError> {
    let mut pools = session.call(ListPools {})?.pools;
    match (pools.pop(), pools.is_empty()) {
        (Some(pool), true) => Ok(pool.name),
        (None, _) => Err(ApiError::new(ErrorKind::NotFound, "the server has no pool")
            .with_action("create one: weir pool create")),
        (Some(_), false) => Err(ApiError::new(ErrorKind::Invalid, "the server has several pools")
            .with_action("name the pool for the test: --pool POOL")),
    }
}

/// Returns the first portal of a target, with an address that this machine can reach.
fn first_portal(target: &Target) -> Result<String, ApiError> {
    let portal = target.portals.first().and_then(|portal| portal.split(',').next());
    let Some(portal) = portal else {
        return Err(ApiError::new(ErrorKind::Unavailable, "the server has no iSCSI portal")
            .with_action("start it with --iscsi ADDRESS"));
    };
    Ok(match portal.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() && address.is_ipv4() => {
            format!("127.0.0.1:{}", address.port())
        }
        Ok(address) if address.ip().is_unspecified() => format!("[::1]:{}", address.port()),
        _ => portal.to_owned(),
    })
}

impl<'a> Scratch<'a> {
    fn new(session: &'a Session, pool: &str) -> Result<Self, ApiError> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| {
            ApiError::new(ErrorKind::Unavailable, format!("no random numbers: {error}"))
        })?;
        let tag = format!("{:016x}", u64::from_be_bytes(random));
        let name = format!("selftest-{tag}");
        Ok(Self {
            session,
            target: target_name(&name),
            volumes: ["source", "destination"].map(|end| format!("{pool}/{name}-{end}")),
            initiator: format!("iqn.2026-01.org.weir:{name}"),
        })
    }

    /// Creates two volumes as LUN 0 and LUN 1 of a target that accepts only the test's initiator.
    fn make(&self, size_bytes: u64) -> Result<Target, ApiError> {
        let Self { session, target, volumes, initiator } = self;
        let request = TargetCreate { name: target.clone() };
        session.call(request)?;
        for (number, volume) in (0..).zip(volumes) {
            let request = VolumeCreate {
                name: volume.clone(),
                size_bytes,
                record_bytes: BLOCK_BYTES.into(),
                properties: PropertyValues::default(),
            };
            session.call(request)?;
            let request = LunAdd {
                target: target.clone(),
                volume: volume.clone(),
                number: Some(number),
                block_bytes: Some(BLOCK_BYTES),
                write_cache: Some(true),
                shared: false,
            };
            session.call(request)?;
        }
        let request = InitiatorAllow {
            target: target.clone(),
            initiator: initiator.clone(),
            chap: None,
            mutual: None,
            no_chap: false,
        };
        Ok(session.call(request)?.target)
    }

    /// Removes all objects that the test created; returns the first error.
    fn remove(&self) -> Result<(), ApiError> {
        let delete = TargetDelete { name: self.target.clone(), force: true };
        let mut result = removed(self.session.call(delete));
        for volume in &self.volumes {
            // A schedule of the pool may have taken snapshots of the scratch volumes.
            let request = VolumeDestroy { name: volume.clone(), recursive: true };
            let gone = removed(self.session.call(request));
            result = result.and(gone);
        }
        result
    }
}

/// Accepts the error for an object that does not exist: the test may have failed before it created
/// the object.
fn removed(answer: Result<Removed, ApiError>) -> Result<(), ApiError> {
    match answer {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn prove(scratch: &Scratch<'_>, portal: &str, bytes: u64) -> Result<Vec<Primitive>, ApiError> {
    let url = |lun: u16| {
        let (target, initiator) = (&scratch.target, &scratch.initiator);
        let text = format!("iscsi://{portal}/{target}/{lun}?initiator={initiator}");
        Url::parse(&text).map_err(|error| unproved(error.into()))
    };
    let bench = Bench::open(&url(0)?, &url(1)?, bytes).map_err(unproved)?;
    let tests = [Bench::write_same, Bench::copy, Bench::unmap, Bench::compare_and_write];
    let mut primitives = Vec::new();
    for test in tests {
        let primitive = test(&bench).map_err(unproved)?;
        scratch.session.say(&format!("{}: {}", primitive.title, primitive.proof));
        primitives.push(primitive);
    }
    Ok(primitives)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
fn unproved(error: Unproved) -> ApiError {
    let message = format!("the self-test failed: {error}");
    match &error {
        Unproved::Initiator(InitiatorError::Connect { .. }) => {
            ApiError::new(ErrorKind::Unavailable, message).with_action(
                "run it on a host that can reach the portal, or name a portal: --portal",
            )
        }
        Unproved::Initiator(error) => {
            ApiError::new(error.kind(), message).with_action(error.action())
        }
        Unproved::Wrong { .. } => ApiError::new(ErrorKind::Internal, message)
            .with_action("do not use this target; report the error with the server's log"),
    }
}

fn table(primitives: &[Primitive]) -> String {
    let style = Style::new(false);
    let time = |seconds: f64| {
        if seconds < 10.0 { format!("{seconds:.3}s") } else { format!("{seconds:.0}s") }
    };
    let signed = |bytes: i64| {
        let sign = if bytes < 0 { "-" } else { "" };
        format!("{sign}{}", style.size(bytes.unsigned_abs()))
    };
    let row = |primitive: &Primitive| {
        [
            primitive.title.to_owned(),
            style.size(primitive.covered_bytes),
            time(primitive.seconds),
            style.size(primitive.wire_bytes),
            time(primitive.plain_seconds),
            style.size(primitive.plain_wire_bytes),
            time(primitive.saved_seconds),
            signed(primitive.saved_wire_bytes),
        ]
    };
    let header = [
        "PRIMITIVE",
        ">COVERS",
        ">TIME",
        ">WIRE",
        ">TIME WITHOUT",
        ">WIRE WITHOUT",
        ">TIME SAVED",
        ">WIRE SAVED",
    ];
    let rows: Vec<_> = primitives.iter().map(row).collect();
    let mut text = output::table(header, &rows, style);
    let scaled = primitives.iter().find(|one| one.plain_measured_bytes < one.covered_bytes);
    if let Some(one) = scaled {
        let measured = style.size(one.plain_measured_bytes);
        writeln!(text, "ordinary commands ran on {measured}, and their figures are scaled")
            .expect("a String takes every write");
    }
    text
}
