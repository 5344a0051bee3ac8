//! Login options: names, credentials, offered parameters and time limits.
//!
//! [`Url`] is the address of the logical unit.
//!
//! Invariants: secrets come from files and are never printed; the initiator and the target have
//! different secrets.

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

/// CHAP credentials of a login.
#[derive(Clone, Debug)]
pub struct Chap {
    /// Credentials of the initiator.
    pub initiator: Credentials,
    /// Secret with which the target must authenticate (mutual CHAP), with the CHAP name that the
    /// target must use, if one is required.
    pub target: Option<(Secret, Option<String>)>,
}

/// Login options.
#[derive(Clone)]
pub struct LoginOptions {
    /// Name of the initiator.
    pub initiator: String,
    /// Initiator session identifier; `None` for a random identifier, so that the login reinstates
    /// no other session.
    pub isid: Option<[u8; 6]>,
    /// CHAP credentials. If they include a target secret, the initiator refuses a target that does
    /// not authenticate.
    pub chap: Option<Chap>,
    /// Digests that the session must use.
    pub digests: Digests,
    /// Offered MaxBurstLength, 512 to 2^24 - 1.
    pub max_burst_bytes: u32,
    /// Offered FirstBurstLength (unsolicited data of one command), 512 to 2^24 - 1.
    pub first_burst_bytes: u32,
    /// Declared MaxRecvDataSegmentLength, 512 to 256 KiB.
    pub receive_data_bytes_max: u32,
    /// Offered InitialR2T: if true, no unsolicited Data-Out follows a command.
    pub initial_r2t: bool,
    /// Offered ImmediateData: if true, commands may carry data.
    pub immediate_data: bool,
    /// Time limit for connecting and logging in.
    pub login_limit: Duration,
    /// Time limit of each command.
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
    /// Login options from a URL. Reads the secret files that the URL names.
    ///
    /// # Errors
    /// A secret file cannot be read, or does not contain a valid secret.
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

    /// Returns the session identifier: the given identifier, or a random one (RFC 7143 11.12.5,
    /// format 10b).
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

/// Reads a secret file, in the format of `weir target allow`: 12 to 255 bytes, without trailing
/// line ends.
fn read_secret(path: &Path) -> Result<Secret, InitiatorError> {
    let bad = |why: String| InitiatorError::Secret { file: path.display().to_string(), why };
    let mut bytes =
        read_secret_file(path).map_err(|error| bad(format!("{error}; try: {}", error.action())))?;
    while bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        bytes.pop();
    }
    let fits = (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len());
    // `Secret` clears its memory on drop, so create a `Secret` even if the length is invalid.
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
