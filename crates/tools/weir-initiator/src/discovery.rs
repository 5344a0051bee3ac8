//! Discovery: SendTargets lists the targets of a host.
//!
//! `handshake` and `exchange` provide the discovery session.
//!
//! Invariant: each result is valid text from the target; invalid target names are omitted.
//!
//! Spec: RFC 7143 4.3 and appendix C.

use weir_iscsi_wire::limits::NAME_BYTES_MAX;

use crate::connection::{Connection, Nothing};
use crate::error::InitiatorError;
use crate::handshake::{self, Deadline};
use crate::login::Purpose;
use crate::options::LoginOptions;
use crate::url::portal_of;

/// A target that a host reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    /// Name of the target.
    pub name: String,
    /// Portals of the target: `HOST:PORT,GROUP` as the host reports them.
    pub portals: Vec<String>,
}

/// Lists the targets of a host (`HOST[:PORT]`).
///
/// # Errors
/// The login or the request failed.
pub fn discover(portal: &str, options: &LoginOptions) -> Result<Vec<Discovered>, InitiatorError> {
    let (host, port) = portal_of(portal)
        .map_err(|why| InitiatorError::Url { text: portal.to_owned(), why: why.to_owned() })?;
    let mut connection = handshake::connect(&host, port, options, &Purpose::Discovery, (0, 0))?;
    let text = ask(&mut connection, options)?;
    // The list of targets is already complete, so the result of the logout does not matter.
    drop(connection.log_out());
    Ok(targets_in(&text))
}

fn ask(connection: &mut Connection, options: &LoginOptions) -> Result<Vec<u8>, InitiatorError> {
    let deadline = Deadline::new(options.command_limit, "the list of targets");
    let mut nothing = Nothing;
    connection.exchange_mut().send_text(b"SendTargets=All\0");
    loop {
        connection.send(&nothing)?;
        if let Some(text) = connection.exchange_mut().text_answer() {
            return Ok(text);
        }
        if !connection.receive(&mut nothing, &mut Vec::new())? {
            connection.wait(Some(deadline.left()?))?;
        }
        deadline.left()?;
    }
}

/// Parses the list of targets in a Text Response. The addresses of a target follow its name.
fn targets_in(text: &[u8]) -> Vec<Discovered> {
    let mut found: Vec<Discovered> = Vec::new();
    for part in text.split(|byte| *byte == 0) {
        let Ok(part) = std::str::from_utf8(part) else { continue };
        match part.split_once('=') {
            Some(("TargetName", name)) if !name.is_empty() && name.len() <= NAME_BYTES_MAX => {
                found.push(Discovered { name: name.to_owned(), portals: Vec::new() });
            }
            Some(("TargetAddress", address)) => {
                let shown = |c: char| !c.is_control();
                if let Some(last) = found.last_mut().filter(|_| address.chars().all(shown)) {
                    last.portals.push(address.to_owned());
                }
            }
            _ => {}
        }
    }
    found.retain(|target| !target.name.contains(char::is_control));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_belong_to_the_name_before_them() {
        let text = b"TargetAddress=x\0TargetName=iqn.a\0TargetAddress=1.2.3.4:3260,1\0\
            TargetAddress=[::1]:3260,2\0TargetName=iqn.b\0TargetName=\0X=y\0\xff\0";
        let found = targets_in(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].portals, ["1.2.3.4:3260,1", "[::1]:3260,2"]);
        assert_eq!((found[1].name.as_str(), found[1].portals.len()), ("iqn.b", 0));
    }
}
