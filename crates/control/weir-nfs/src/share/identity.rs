//! User on whose behalf the server acts for a call: the only constructor of an [`Identity`].
//!
//! Invariants:
//! - the rules replace user, group and supplementary groups before anything uses them;
//! - with `manage_gids`, the supplementary groups of a call are used only if the server cannot look
//!   up the groups of the user.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_fs::Credentials;
use weir_oncrpc::message::{AuthStat, Credential, OpaqueAuth};

use super::groups::Groups;
use super::rules::{Decision, Rights, Rules, Squash};

/// Highest port that only privileged programs of a client may use.
const RESERVED_PORT_MAX: u16 = 1023;

/// User of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
    role: Role,
    /// True if the server must look up the groups of the user.
    is_managed: bool,
    /// Group that replaces group 0.
    root_group: Option<u32>,
    /// True if the user's client may change files.
    pub writes: bool,
}

/// Kind of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Superuser,
    User,
    /// The anonymous user, in place of a user of the client.
    Squashed,
    /// The anonymous user, because the call has no user.
    Anonymous,
}

/// Reason why a call has no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No rule names the client, or its port is not reserved: NFS3ERR_ACCES or MNT3ERR_ACCES.
    Access,
    /// The server is still looking up a name that may name the client: NFS3ERR_JUKEBOX or
    /// MNT3ERR_SERVERFAULT.
    Waits,
    /// The server denies the call.
    Auth(AuthStat),
}

impl Identity {
    /// The user for weir-fs.
    pub fn credentials(&self) -> Credentials<'_> {
        Credentials {
            uid: self.uid,
            gid: self.gid,
            groups: &self.groups,
            is_privileged: self.role == Role::Superuser,
        }
    }

    /// True if the rules replace the user of the call with the anonymous user.
    pub fn is_squashed(&self) -> bool {
        self.role == Role::Squashed
    }

    fn anonymous(rights: &Rights, role: Role) -> Self {
        Self {
            uid: rights.anonymous_uid,
            gid: rights.anonymous_gid,
            groups: Arc::default(),
            role,
            is_managed: false,
            root_group: None,
            writes: rights.writes,
        }
    }
}

/// Returns the user of a call from a client.
///
/// # Errors
/// The client has no rights, or the server does not accept its credential.
pub fn identify(
    rules: &Rules,
    client: SocketAddr,
    credential: &OpaqueAuth<'_>,
) -> Result<Identity, Refusal> {
    let rights = match rules.decide(client.ip()) {
        Decision::Allowed(rights) => rights,
        Decision::Waits => return Err(Refusal::Waits),
        Decision::Refused => return Err(Refusal::Access),
    };
    if !rights.insecure && client.port() > RESERVED_PORT_MAX {
        return Err(Refusal::Access);
    }
    match credential.credential().map_err(Refusal::Auth)? {
        Credential::None => Ok(Identity::anonymous(&rights, Role::Anonymous)),
        Credential::Sys(sys) => {
            let squashes_root = rights.squash == Squash::Root;
            if rights.squash == Squash::All || squashes_root && sys.uid == 0 {
                return Ok(Identity::anonymous(&rights, Role::Squashed));
            }
            let root_group = squashes_root.then_some(rights.anonymous_gid);
            let gid = root_group.filter(|_| sys.gid == 0).unwrap_or(sys.gid);
            Ok(Identity {
                uid: sys.uid,
                gid,
                groups: replaced(sys.gids.as_slice().into(), root_group),
                role: if sys.uid == 0 { Role::Superuser } else { Role::User },
                is_managed: rights.manage_gids,
                root_group,
                writes: rights.writes,
            })
        }
        Credential::RpcsecGss | Credential::Unknown(_) => Err(Refusal::Auth(AuthStat::BadCred)),
    }
}

/// Groups with another group in place of group 0.
fn replaced(groups: Arc<[u32]>, root_group: Option<u32>) -> Arc<[u32]> {
    match root_group {
        Some(other) if groups.contains(&0) => {
            groups.iter().map(|gid| if *gid == 0 { other } else { *gid }).collect()
        }
        _ => groups,
    }
}

/// As [`identify`]. For a rule with `manage_gids`, the user has the groups that `known` finds. If
/// it finds none in time, the user has the groups of the call.
pub(crate) async fn identify_caller(
    (rules, known): (&Rules, &Groups),
    client: SocketAddr,
    credential: &OpaqueAuth<'_>,
) -> Result<Identity, Refusal> {
    let mut user = identify(rules, client, credential)?;
    if user.is_managed
        && let Some(groups) = known.of(user.uid).await
    {
        user.groups = replaced(groups, user.root_group);
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use weir_block::OutBuf;
    use weir_oncrpc::message::{AuthSys, Gids};
    use weir_oncrpc::{Encoder, Opaque, Xdr};

    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::new(vec![text.parse().unwrap()]).unwrap()
    }

    fn sys(uid: u32, gid: u32, gids: &[u32]) -> Vec<u8> {
        let mut out = OutBuf::default();
        let sys = AuthSys {
            stamp: 1,
            machine_name: Opaque::new(b"client").unwrap(),
            uid,
            gid,
            gids: Gids::new(gids).unwrap(),
        };
        sys.encode(&mut Encoder::new(&mut out));
        out.filled().to_vec()
    }

    fn of(rule: &str, client: &str, flavor: u32, body: &[u8]) -> Result<Identity, Refusal> {
        let credential = OpaqueAuth { flavor, body: Opaque::new(body).unwrap() };
        identify(&rules(rule), client.parse().unwrap(), &credential)
    }

    fn numbers(identity: &Identity) -> (u32, u32, &[u32], bool) {
        (identity.uid, identity.gid, &identity.groups, identity.role == Role::Superuser)
    }

    #[test]
    fn root_is_squashed_with_its_groups_unless_the_rule_says_otherwise() {
        let client = "10.0.0.1:700";
        let root = of("*", client, 1, &sys(0, 0, &[0, 4])).unwrap();
        assert_eq!(numbers(&root), (65_534, 65_534, &[][..], false));
        let user = of("*", client, 1, &sys(7, 0, &[0, 4])).unwrap();
        assert_eq!(numbers(&user), (7, 65_534, &[65_534, 4][..], false));
        let root = of("*:no_root_squash", client, 1, &sys(0, 0, &[0, 4])).unwrap();
        assert_eq!(numbers(&root), (0, 0, &[0, 4][..], true));
        let all = of("*:all_squash,anonuid=5,anongid=6", client, 1, &sys(7, 8, &[9])).unwrap();
        assert_eq!(numbers(&all), (5, 6, &[][..], false));
        assert!(all.is_squashed() && !root.is_squashed() && !user.is_squashed());
    }

    #[test]
    fn auth_none_is_the_anonymous_user_even_if_root_is_not_squashed() {
        let nobody = of("*:no_root_squash", "10.0.0.1:700", 0, b"").unwrap();
        assert_eq!(numbers(&nobody), (65_534, 65_534, &[][..], false));
    }

    #[test]
    fn ports_of_ordinary_programs_need_an_insecure_rule() {
        let call = |rule, client| of(rule, client, 1, &sys(7, 8, &[]));
        assert_eq!(call("*", "10.0.0.1:1024"), Err(Refusal::Access));
        assert!(call("*", "10.0.0.1:1023").is_ok());
        assert!(call("*:insecure", "10.0.0.1:40000").is_ok());
        assert_eq!(call("10.0.0.2", "10.0.0.1:700"), Err(Refusal::Access));
    }

    #[test]
    fn broken_and_unknown_credentials_are_denied() {
        let bad = Err(Refusal::Auth(AuthStat::BadCred));
        let mut long = sys(7, 8, &[]);
        long.extend([0; 4]);
        for (flavor, body) in [(1, &long[..]), (1, b"abc"), (2, b""), (6, b""), (99, b"")] {
            assert_eq!(of("*:insecure", "10.0.0.1:700", flavor, body), bad, "{flavor}");
        }
    }
}
