//! `weir volume`: the verbs of volumes.
//!
//! Not here: their data; that goes through exports.
//!
//! Invariant: a verb is one call; whatever can be judged here is judged before the call.

use clap::Subcommand;
use weir_api::types::{
    Volume, VolumeChange, VolumeCreate, VolumeProperties, VolumeResize, VolumeSet,
    check_volume_size,
};
use weir_api::{ApiError, Control};
use weir_base::{ErrorKind, names, size};

use crate::confirm;
use crate::output::{self, Style};
use crate::pool::split_property;
use crate::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeVerb {
    /// Make a thin volume
    Create {
        /// Full name, such as tank/vm1
        name: String,
        /// Size clients see, such as 10GiB; a multiple of 4096 bytes
        #[arg(long, allow_hyphen_values = true)]
        size: String,
        /// Set a property: compression=lz4|auto|off|zstd|zstd-1..19
        #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
    },
    /// List volumes
    List {
        /// Only those of this pool
        pool: Option<String>,
        /// For scripts: no header, tabs, sizes in bytes
        #[arg(short = 'H')]
        script: bool,
    },
    /// Show everything about a volume
    Show {
        /// Full name, such as tank/vm1
        name: String,
    },
    /// Change properties of a volume
    Set {
        /// Properties to set: compression=lz4|auto|off|zstd|zstd-1..19
        #[arg(required = true, value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
        /// Full name, such as tank/vm1
        name: String,
    },
    /// Change the size of a volume; it never shrinks below written data
    Resize {
        /// Full name, such as tank/vm1
        name: String,
        /// Size clients see, such as 10GiB; a multiple of 4096 bytes
        #[arg(long, allow_hyphen_values = true)]
        size: String,
    },
    /// Destroy a volume and its data
    Destroy {
        /// Full name, such as tank/vm1
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

pub(crate) fn run(verb: VolumeVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        VolumeVerb::Create { name, size, properties } => {
            check_name(&name)?;
            let size_bytes = parse_size(&size)?;
            let properties = self::properties(&properties)?;
            let request = VolumeCreate { name, size_bytes, properties };
            changed(session, &session.call(|client| client.volume_create(request))?)
        }
        VolumeVerb::List { pool, script } => list(session, pool, Style::new(script)),
        VolumeVerb::Show { name } => {
            session.print(&session.call(|client| client.volume_show(name))?, show)
        }
        VolumeVerb::Set { properties, name } => {
            check_name(&name)?;
            let properties = self::properties(&properties)?;
            let request = VolumeSet { name, properties };
            changed(session, &session.call(|client| client.volume_set(request))?)
        }
        VolumeVerb::Resize { name, size } => {
            check_name(&name)?;
            let request = VolumeResize { name, size_bytes: parse_size(&size)? };
            changed(session, &session.call(|client| client.volume_resize(request))?)
        }
        VolumeVerb::Destroy { name, yes } => {
            check_name(&name)?;
            confirm::destruction("volume", &name, yes)?;
            let answer = session.call(|client| client.volume_destroy(name))?;
            session.say(&output::outcome("volume", &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
    }
}

fn check_name(name: &str) -> Result<(), ApiError> {
    names::volume(name).map_err(weir_api::Error::from)?;
    Ok(())
}

fn parse_size(text: &str) -> Result<u64, ApiError> {
    let bytes =
        size::parse(text).map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))?;
    check_volume_size(bytes)?;
    Ok(bytes)
}

fn properties(given: &[String]) -> Result<VolumeProperties, ApiError> {
    let mut properties = VolumeProperties::default();
    let mut seen = Vec::new();
    for text in given {
        let (name, value) = split_property(text)?;
        if seen.contains(&name) {
            let message = format!("property {name:?} is given twice");
            return Err(ApiError::new(ErrorKind::Invalid, message));
        }
        seen.push(name);
        properties.set(name, value)?;
    }
    Ok(properties)
}

fn changed(session: &Session, change: &VolumeChange) -> Result<(), ApiError> {
    session.say(&output::outcome("volume", &change.volume.name, change.outcome));
    session.print(change, |_| String::new())
}

fn list(session: &Session, pool: Option<String>, style: Style) -> Result<(), ApiError> {
    let answer = session.call(|client| client.volume_list(pool))?;
    if answer.volumes.is_empty() {
        session.say("there are no volumes");
    }
    let row = |volume: &Volume| {
        [
            volume.name.clone(),
            style.size(volume.size_bytes),
            style.size(volume.used_bytes),
            style.size(volume.stored_bytes),
            format!("{:.2}", volume.compression_ratio),
            volume.compression.name().to_owned(),
            volume.exports.len().to_string(),
        ]
    };
    session.print(&answer, |all| {
        let rows: Vec<_> = all.volumes.iter().map(row).collect();
        let header = ["NAME", ">SIZE", ">USED", ">STORED", ">RATIO", "COMPRESS", ">EXPORTS"];
        if rows.is_empty() { String::new() } else { output::table(header, &rows, style) }
    })
}

fn show(volume: &Volume) -> String {
    let human = |bytes: u64| format!("{} ({bytes} bytes)", size::Human(bytes));
    let exports =
        if volume.exports.is_empty() { "none".to_owned() } else { volume.exports.join(" ") };
    output::labelled(&[
        ("volume", &volume.name),
        ("size", &human(volume.size_bytes)),
        ("block", &format!("{} bytes", volume.block_bytes)),
        ("compression", volume.compression.name()),
        ("used", &human(volume.used_bytes)),
        ("stored", &human(volume.stored_bytes)),
        ("ratio", &format!("{:.2}", volume.compression_ratio)),
        ("created", &output::date(volume.created_unix_ms)),
        ("exports", &exports),
    ])
}
