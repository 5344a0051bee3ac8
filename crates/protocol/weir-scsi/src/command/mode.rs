//! MODE SENSE and MODE SELECT, with the encoding of the mode pages.
//!
//! Code that depends on a mode parameter reads the parameter from `unit::mode`.
//!
//! Spec: SPC-4 6.11 to 6.14 and 7.5, SBC-3 6.5.
//!
//! Invariants:
//! - all nexuses share one set of mode parameters. The parameters are lost with the logical unit,
//!   except a saved write cache setting (SP), because an initiator that turned the cache off relies
//!   on this setting;
//! - MODE SELECT applies its whole parameter list or changes nothing.

use std::sync::atomic::Ordering;

use weir_block::OutBuf;

use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{LIST_LENGTH, Sense, invalid_cdb, invalid_cdb_bit, invalid_parameter};
use crate::command::task::{Task, reply};
use crate::fields::{be16, be32, bit, byte};
use crate::unit::attention::Attention;
use crate::unit::logical_unit::Unit;
use crate::unit::mode::{D_SENSE, SWP, Settings, TAS, WCE};

const ERROR_RECOVERY: u8 = 0x01;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0A;
const EXCEPTIONS: u8 = 0x1C;
/// Supported mode pages.
const CODES: [u8; 4] = [ERROR_RECOVERY, CACHING, CONTROL, EXCEPTIONS];

/// Kind of values that MODE SENSE requests: the PC field (SPC-4 6.13.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Current,
    Changeable,
    Default,
    Saved,
}

/// PS (parameters savable), in byte 0 of a page. Only the caching page is savable.
const PS: u8 = 0x80;

/// Encodes a page with its header.
fn encode(unit: &Unit, code: u8, values: Values) -> Vec<u8> {
    let settings = match values {
        Values::Current => unit.mode.settings(),
        Values::Changeable => Settings::ALL,
        Values::Default => unit.mode.default,
        Values::Saved => unit.mode.saved(),
    };
    let mut bytes = encode_as(settings, code, values);
    if code == CACHING && unit.store.is_some() {
        crate::fields::set(&mut bytes, 0, &[code | PS]);
    }
    bytes
}

fn encode_as(settings: Settings, code: u8, values: Values) -> Vec<u8> {
    let fixed = |value: u8| if values == Values::Changeable { 0 } else { value };
    let content = match code {
        CACHING => {
            let mut content = vec![settings.flag(Settings::WRITE_CACHE, WCE)];
            content.resize(18, 0);
            content
        }
        CONTROL => vec![
            // TST 001b: each I_T nexus has its own task set.
            fixed(0x20) | settings.flag(Settings::DESCRIPTOR_SENSE, D_SENSE),
            // QUEUE ALGORITHM MODIFIER 1h: unrestricted reordering. An initiator that needs an
            // order waits for each command.
            fixed(0x10),
            settings.flag(Settings::WRITE_PROTECT, SWP),
            settings.flag(Settings::TELLS_ABORTED, TAS),
            0,
            0,
            0,
            0,
            0,
            0,
        ],
        // The pages for read-write error recovery and informational exceptions control are all
        // zeros: only the failed command itself reports an error.
        _ => vec![0; 10],
    };
    let mut bytes = vec![code, content.len() as u8];
    bytes.extend(content);
    bytes
}

/// MODE SENSE (6) and (10).
pub(crate) fn sense(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let cdb = task.cdb;
    let is_long = byte(cdb, 0) == 0x5A;
    let values = match byte(cdb, 2) >> 6 {
        0 => Values::Current,
        1 => Values::Changeable,
        2 => Values::Default,
        _ if task.unit.store.is_some() => Values::Saved,
        // SAVING PARAMETERS NOT SUPPORTED.
        _ => return Err(Sense::new(crate::codec::sense::key::ILLEGAL_REQUEST, 0x39, 0).into()),
    };
    let (code, subpage) = (byte(cdb, 2) & 0x3F, byte(cdb, 3));
    if !matches!(subpage, 0x00 | 0xFF) {
        return Err(invalid_cdb(3).into());
    }
    let mut parts = Vec::new();
    for known in CODES {
        if code == known || code == 0x3F {
            parts.extend(encode(task.unit, known, values));
        }
    }
    if parts.is_empty() {
        return Err(invalid_cdb_bit(2, 5).into());
    }
    let long_address = is_long && bit(cdb, 1, 0x10);
    let descriptor =
        if bit(cdb, 1, 0x08) { Vec::new() } else { descriptor(task.unit, long_address) };
    let mut bytes = header(task.unit, is_long, long_address, descriptor.len());
    bytes.extend(descriptor);
    bytes.extend(parts);
    if is_long {
        let len = bytes.len() as u16 - 2;
        crate::fields::set(&mut bytes, 0, &len.to_be_bytes());
    } else {
        let len = bytes.len() as u8 - 1;
        crate::fields::set(&mut bytes, 0, &[len]);
    }
    reply(out, &bytes, task.allocation());
    Ok(())
}

/// Mode parameter header (SPC-4 7.5.5). The caller fills in the MODE DATA LENGTH field.
fn header(unit: &Unit, is_long: bool, long_address: bool, descriptor_len: usize) -> Vec<u8> {
    let protected = unit.medium.read_only() || unit.mode.software_write_protect();
    // Bits of the device-specific parameter: WP (write protected) and DPOFUA.
    let specific = if protected { 0x90 } else { 0x10 };
    if is_long {
        vec![0, 0, 0, specific, u8::from(long_address), 0, 0, descriptor_len as u8]
    } else {
        vec![0, 0, specific, descriptor_len as u8]
    }
}

/// Block descriptor (SBC-3 6.5.2).
fn descriptor(unit: &Unit, long_address: bool) -> Vec<u8> {
    let block = unit.options.block_bytes.to_be_bytes();
    let mut bytes = Vec::with_capacity(16);
    if long_address {
        bytes.extend(unit.blocks().to_be_bytes());
        bytes.extend([0; 4]);
    } else {
        bytes.extend(u32::try_from(unit.blocks()).unwrap_or(u32::MAX).to_be_bytes());
    }
    bytes.extend(block);
    bytes
}

/// Returns true if MODE SELECT requests that the unit saves the parameters (SP).
pub(crate) fn saves(cdb: &[u8]) -> bool {
    bit(cdb, 1, 0x01)
}

/// Runs MODE SELECT (6) or (10) without SP.
pub(crate) fn select(task: &Task<'_>) -> Outcome {
    if let Some((before, after)) = wanted(task)? {
        change(task, before, after);
    }
    Ok(())
}

/// Runs MODE SELECT (6) or (10) with SP. Saves the write cache setting before any current parameter
/// changes.
pub(crate) async fn select_and_save(task: &Task<'_>) -> Outcome {
    // SP is an invalid field if the unit has no store.
    let store = task.unit.store.as_ref().ok_or(invalid_cdb_bit(1, 0))?;
    let Some((before, after)) = wanted(task)? else { return Ok(()) };
    let mode = &task.unit.mode;
    let write_cache = after.has(Settings::WRITE_CACHE);
    if !write_cache && before.has(Settings::WRITE_CACHE) {
        // An initiator that saved "cache off" relies on the durability of all completed writes,
        // also of the writes before this command. So flush these writes first.
        task.unit.medium.flush().await?;
    }
    store.save_write_cache(write_cache).await?;
    let saved = mode.saved().with(Settings::WRITE_CACHE, write_cache);
    mode.saved.store(saved.0, Ordering::SeqCst);
    change(task, before, after);
    Ok(())
}

/// Returns the settings before and after MODE SELECT; `None` for an empty parameter list.
fn wanted(task: &Task<'_>) -> Result<Option<(Settings, Settings)>, Refusal> {
    let cdb = task.cdb;
    if !bit(cdb, 1, 0x10) {
        return Err(invalid_cdb_bit(1, 4).into());
    }
    let len = task.allocation();
    if len == 0 {
        return Ok(None);
    }
    let list = task.data(len as u64)?;
    let before = task.unit.mode.settings();
    let after = selected(task.unit, list, byte(cdb, 0) == 0x55, before)?;
    Ok(Some((before, after)))
}

fn change(task: &Task<'_>, before: Settings, after: Settings) {
    if after != before {
        task.unit.mode.current.store(after.0, Ordering::SeqCst);
        task.unit.raise(Attention::MODE_CHANGED, |itl_nexus| itl_nexus.id != task.itl_nexus.id);
    }
}

/// Decodes the settings that a parameter list of MODE SELECT selects.
fn selected(
    unit: &Unit,
    list: &[u8],
    is_long: bool,
    mut settings: Settings,
) -> Result<Settings, Refusal> {
    let (header_len, descriptor_len, long_address) = if is_long {
        (8, usize::from(be16(list, 6)), bit(list, 4, 1))
    } else {
        (4, usize::from(byte(list, 3)), false)
    };
    let (head, rest) = list.split_at_checked(header_len).ok_or(LIST_LENGTH)?;
    let (block, mut parts) = rest.split_at_checked(descriptor_len).ok_or(LIST_LENGTH)?;
    check_descriptor(unit, block, long_address, head.len())?;
    while !parts.is_empty() {
        let at = (list.len() - parts.len()) as u16;
        if parts.len() < 2 {
            return Err(LIST_LENGTH.into());
        }
        let code = byte(parts, 0) & 0x7F;
        // Refuse a page that has the sub_page format or is not supported.
        if !CODES.contains(&code) {
            return Err(invalid_parameter(at).into());
        }
        let len = 2 + usize::from(byte(parts, 1));
        let expected = encode_as(settings, code, Values::Current);
        if len != expected.len() {
            return Err(invalid_parameter(at + 1).into());
        }
        let (here, next) = parts.split_at_checked(len).ok_or(LIST_LENGTH)?;
        settings = apply(settings, here, &expected, at)?;
        parts = next;
    }
    Ok(settings)
}

/// Checks the block descriptor: capacity and block length cannot be changed (SBC-3 6.5.2).
fn check_descriptor(
    unit: &Unit,
    block: &[u8],
    long_address: bool,
    at: usize,
) -> Result<(), Refusal> {
    let expected_len = if long_address { 16 } else { 8 };
    if block.is_empty() {
        return Ok(());
    }
    if block.len() != expected_len {
        return Err(invalid_parameter(at as u16 - 1).into());
    }
    let length = be32(block, expected_len - 4) & 0x00FF_FFFF;
    if length != unit.options.block_bytes {
        return Err(invalid_parameter((at + expected_len - 3) as u16).into());
    }
    Ok(())
}

/// Applies one mode page. Bits of the page that are not changeable must have their current values.
fn apply(settings: Settings, here: &[u8], current: &[u8], at: u16) -> Result<Settings, Refusal> {
    let code = byte(here, 0) & 0x7F;
    let changeable = encode_as(Settings::ALL, code, Values::Changeable);
    for (place, mask) in changeable.iter().enumerate().skip(2) {
        if (byte(here, place) ^ byte(current, place)) & !mask != 0 {
            return Err(invalid_parameter(at + place as u16).into());
        }
    }
    Ok(match code {
        CACHING => settings.with(Settings::WRITE_CACHE, bit(here, 2, WCE)),
        CONTROL => settings
            .with(Settings::DESCRIPTOR_SENSE, bit(here, 2, D_SENSE))
            .with(Settings::WRITE_PROTECT, bit(here, 4, SWP))
            .with(Settings::TELLS_ABORTED, bit(here, 5, TAS)),
        _ => settings,
    })
}
