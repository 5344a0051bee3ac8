//! How a session is logged in: names, proofs, what is offered, how long things may take.
//!
//! Not here: where to ([`Url`]).
//!
//! Invariants: a secret comes from a file and is never printed; both directions have secrets of
//! their own.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use weir_base::private::read_secret as read_secret_file;
use weir_iscsi_wire::pdu::Digests;
use weir_iscsi_wire::{Credentials, Secret};

use crate::error::InitiatorError;
use crate::limits::{
    COMMAND_LIMIT, FIRST_BURST_BYTES, LOGIN_LIMIT, MAX_BURST_BYTES, RECEIVE_DATA_BYTES_MAX,
    SECRET_BYTES_MAX, SECRET_BYTES_MIN,
};
use crate::url::Url;

/// Proofs by CHAP.
#[derive(Clone, Debug)]
pub struct Chap {
    /// What this side proves.
    pub initiator: Credentials,
    /// What the target must prove (mutual CHAP): its secret, and its name where only one will do.
    pub target: Option<(Secret, Option<String>)>,
}

/// How a session is logged in.
#[derive(Clone)]
pub struct LoginOptions {
    /// The name of this side.
    pub initiator: String,
    /// Initiator session identifier; `None`: a random one, so that no other session is ended.
    pub isid: Option<[u8; 6]>,
    /// Proofs; with those of the target, a target that proves nothing is not used.
    pub chap: Option<Chap>,
    /// Digests without which there is to be no session.
    pub digests: Digests,
    /// Offered: data of one sequence, 512 to 2^24 - 1.
    pub max_burst_bytes: u32,
    /// Offered: unasked data of one command, 512 to 2^24 - 1.
    pub first_burst_bytes: u32,
    /// Declared: longest data segment this side takes, 512 to 256 KiB.
    pub receive_data_bytes_max: u32,
    /// Offered: no data goes unasked behind a command.
    pub initial_r2t: bool,
    /// Offered: data goes with commands.
    pub immediate_data: bool,
    /// For connecting and logging in.
    pub login_limit: Duration,
    /// For each command.
    pub command_limit: Duration,
}

impl Default for LoginOptions {
    fn default() -> Self {
        Self {
            initiator: crate::INITIATOR_NAME.to_owned(),
            isid: None,
            chap: None,
            digests: Digests::default(),
            max_burst_bytes: MAX_BURST_BYTES,
            first_burst_bytes: FIRST_BURST_BYTES,
            receive_data_bytes_max: RECEIVE_DATA_BYTES_MAX as u32,
            initial_r2t: false,
            immediate_data: true,
            login_limit: LOGIN_LIMIT,
            command_limit: COMMAND_LIMIT,
        }
    }
}

impl LoginOptions {
    /// As a URL says it; files of secrets are read now.
    ///
    /// # Errors
    /// A file cannot be read, or holds no secret.
    pub fn of(url: &Url) -> Result<Self, InitiatorError> {
        let mut options = Self { digests: url.digests, ..Self::default() };
        if let Some(name) = &url.initiator {
            options.initiator.clone_from(name);
        }
        if let Some(file) = &url.chap_file {
            let name = url.chap_user.as_ref().unwrap_or(&options.initiator).clone();
            let initiator = Credentials { name, secret: read_secret(file)? };
            let mutual = url.mutual_file.as_deref().map(read_secret).transpose()?;
            if mutual.as_ref().is_some_and(|secret| secret.is_same(&initiator.secret)) {
                let why = "both sides have the same secret: each could answer for the other";
                return Err(InitiatorError::Authentication { why });
            }
            let target = mutual.map(|secret| (secret, url.mutual_user.clone()));
            options.chap = Some(Chap { initiator, target });
        }
        Ok(options)
    }

    /// The session identifier: as given, or a random one (RFC 7143 11.12.5, format 10b).
    pub(crate) fn isid(&self) -> Result<[u8; 6], InitiatorError> {
        if let Some(isid) = self.isid {
            return Ok(isid);
        }
        let mut isid = [0; 6];
        getrandom::fill(&mut isid).map_err(|_| InitiatorError::NoRandomness)?;
        let [format, ..] = &mut isid;
        *format = 0x80;
        Ok(isid)
    }
}

impl fmt::Debug for LoginOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { initiator, digests, chap, .. } = self;
        write!(f, "LoginOptions({initiator}, {digests:?}, chap {})", chap.is_some())
    }
}

/// Reads the file of a secret, in the form that `weir target allow` takes: 12 to 255 bytes, line
/// ends behind them not counted.
fn read_secret(path: &Path) -> Result<Secret, InitiatorError> {
    let bad = |why: String| InitiatorError::Secret { file: path.display().to_string(), why };
    let mut bytes =
        read_secret_file(path).map_err(|error| bad(format!("{error}; try: {}", error.action())))?;
    while bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        bytes.pop();
    }
    let fits = (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len());
    // Even one that does not fit is cleared when it goes.
    let secret = Secret::new(bytes);
    if fits {
        Ok(secret)
    } else {
        Err(bad(format!("holds no {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_from_files_and_are_not_printed() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).expect("written");
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, private).expect("closed to others");
            path
        };
        let (good, other) = (file("a", b"0123456789ab\n"), file("b", b"ba9876543210\r\n"));
        let url = |query: String| Url::parse(&format!("iscsi://h/iqn.a/1?{query}")).expect("a URL");
        let one = url(format!("chap={}&chap-user=me", good.display()));
        let options = LoginOptions::of(&one).expect("it fits");
        let chap = options.chap.as_ref().expect("CHAP");
        assert_eq!(chap.initiator.name, "me");
        assert!(chap.initiator.secret.is_same(&Secret::new(b"0123456789ab".to_vec())));
        assert!(!format!("{options:?} {chap:?}").contains("0123456789ab"));
        let both = |a: &Path, b: &Path| url(format!("chap={}&mutual={}", a.display(), b.display()));
        assert!(LoginOptions::of(&both(&good, &other)).is_ok());
        assert!(LoginOptions::of(&both(&good, &good)).is_err(), "the same secret both ways");
        for bad in [file("short", b"0123456789a"), file("long", &[7; 600]), dir.path().into()] {
            let query = format!("chap={}", bad.display());
            assert!(LoginOptions::of(&url(query)).is_err(), "{}", bad.display());
        }
    }
}
