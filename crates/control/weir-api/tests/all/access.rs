//! Tests of access rights: calls every operation of the OpenAPI document as every kind of caller,
//! over real sockets.
//!
//! The tested code is the check of rights in weir-api; the handlers of a fake server answer the
//! authorized calls.
//!
//! Invariants:
//! - each operation of the OpenAPI document is in the table of [`Operation`], or the test panics;
//! - each authorized request is valid and reaches its handler: no response is `400`. For an
//!   operation without an entry in [`body`], the test sends `{}`, so that a missing required field
//!   causes a `400`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::thread::{Gid, Uid};
use serde_json::{Value, json};
use weir_api::access::{Files, Rights, Role, Scope};
use weir_api::caller::Caller;
use weir_api::token::{Authority, NoTokens};
use weir_api::unix_access::UnixAccess;
use weir_api::{Address, ApiError, Listener, Operation, Resources};

use crate::fake::Fake;

/// GIDs and UIDs that do not exist on any test machine.
const GROUP: u32 = 54_321;
const OTHER: u32 = 65_534;

/// Tokens whose text states the rights of their holder: `ROLE` or `ROLE,SCOPE`.
#[derive(Default)]
struct Tokens {
    refused: AtomicU64,
    denied: Mutex<Vec<String>>,
}

impl Authority for Tokens {
    fn caller(&self, token: &str, from: &str) -> Result<Caller, ApiError> {
        let (role, scope) = token.split_once(',').unwrap_or((token, ""));
        let role = Role::ALL.into_iter().find(|known| known.name() == role);
        let Some(role) = role else { return NoTokens.caller(token, from) };
        let entries: Vec<String> = scope.split_terminator(',').map(str::to_owned).collect();
        let rights = Rights { role, scope: Scope::parse(&entries)?, files: Files::Named };
        Ok(Caller::new(format!("token {role:?}"), rights))
    }

    fn refused(&self, _from: &str, _times: u64) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn denied(&self, caller: &Caller, call: &str) {
        self.denied.lock().unwrap().push(format!("{caller}: {call}"));
    }
}

struct Server {
    unix: PathBuf,
    tcp: String,
    tokens: Arc<Tokens>,
    _dir: tempfile::TempDir,
}

/// Starts a server on a thread of its own, so that the test may block.
fn start() -> Server {
    let dir = tempfile::tempdir().unwrap();
    let unix = dir.path().join("api.sock");
    // The user that runs the test must not be the owner of this server, so that owner and caller
    // are different users.
    let unix_access = UnixAccess::new(OTHER - 1, Some(GROUP));
    let by_socket = Listener::bind_behind(&unix, unix_access).unwrap();
    let by_port = Listener::bind(&Address::loopback(0)).unwrap();
    let tcp = by_port.address().to_string();
    let tokens = Arc::<Tokens>::default();
    let authority = Arc::clone(&tokens);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let all = vec![by_socket, by_port];
        let never = std::future::pending();
        runtime
            .block_on(weir_api::serve(all, Arc::new(Fake::default()), authority, never))
            .unwrap();
    });
    // All users may enter this directory; otherwise users without rights could not even connect.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    Server { unix, tcp, tokens, _dir: dir }
}

/// A kind of caller in the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// A caller over TCP without a token.
    Nobody,
    /// A caller over TCP with this token.
    Token(&'static str),
    /// A caller over the unix socket with this user and group.
    User(u32, u32),
}

fn request(operation: &Call, who: Who, names: &Names) -> String {
    let token = match who {
        Who::Token(token) => format!("authorization: Bearer {token}\r\n"),
        _ => String::new(),
    };
    let (path, body) = operation.fill(names);
    let body = if operation.method == "GET" { String::new() } else { body };
    format!(
        "{} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        operation.method,
        body.len()
    )
}

fn exchange(mut stream: impl Read + Write, request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // The stream of a snapshot may break, but then the status has already arrived.
    drop(stream.read_to_end(&mut answer));
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no answer to {request}")), text)
}

/// Makes a request as another user, on a thread that becomes that user; `None` if this process may
/// not change its user.
fn as_user(socket: &Path, uid: u32, gid: u32, request: &str) -> Option<(u16, String)> {
    let (socket, request) = (socket.to_owned(), request.to_owned());
    let become_user = move || {
        if uid != 0 {
            rustix::thread::set_thread_groups(&[]).ok()?;
            rustix::thread::set_thread_gid(Gid::from_raw(gid)).ok()?;
            rustix::thread::set_thread_uid(Uid::from_raw(uid)).ok()?;
        }
        Some(exchange(UnixStream::connect(&socket).unwrap(), &request))
    };
    std::thread::spawn(become_user).join().unwrap()
}

fn ask(server: &Server, who: Who, request: &str) -> Option<(u16, String)> {
    match who {
        Who::User(uid, gid) => as_user(&server.unix, uid, gid, request),
        _ => Some(exchange(TcpStream::connect(&server.tcp).unwrap(), request)),
    }
}

/// The names of objects in a request.
struct Names {
    pool: &'static str,
    volume: &'static str,
    /// Name of the second object, for calls that name two objects.
    second: &'static str,
}

const INSIDE: Names = Names { pool: "tank", volume: "k8s-a", second: "tank/k8s-b" };
const OUTSIDE: Names = Names { pool: "tank", volume: "other", second: "tank/other2" };
const HALF: Names = Names { pool: "tank", volume: "k8s-a", second: "tank/other2" };

/// An operation of the OpenAPI document.
struct Call {
    operation: &'static Operation,
    method: String,
    path: String,
}

impl Call {
    fn fill(&self, names: &Names) -> (String, String) {
        let Names { pool, volume, second } = names;
        let full = format!("{pool}/{volume}");
        let path = self
            .path
            .replace("{pool}", pool)
            .replace("{volume}", volume)
            .replace("{filesystem}", volume)
            .replace("{session}", "0123456789abcdef0123456789abcdef")
            .replace("/shares/{protocol}", "/shares/nfs")
            .replace("{protocol}", "nbd")
            .replace("{target}", "iqn.2026-01.org.weir:vms")
            .replace("{initiator}", "iqn.2026-01.org.example:a")
            .replace("{number}", "1")
            .replace("{id}", "1");
        let id = self.operation.name;
        let named = match id {
            "token_revoke" => "ci".to_owned(),
            "target_show" | "target_delete" => "iqn.2026-01.org.weir:vms".to_owned(),
            _ => full.replace('/', "%2F"),
        };
        let query = match id {
            "pool_destroy" => format!("?confirm={pool}"),
            "property_get" => format!("?of={full}&properties=compression"),
            "volume_list" | "filesystem_list" => format!("?pool={pool}"),
            "snapshot_list" | "bookmark_list" => format!("?of={full}"),
            "events" => "?after=0&wait_ms=0".to_owned(),
            _ => String::new(),
        };
        (path.replace("{name}", &named) + &query, body(id, pool, &full, second).to_string())
    }

    /// True if the request of this operation has two names.
    fn names_two(&self) -> bool {
        let [one, other] = [&INSIDE, &HALF].map(|names| self.fill(names));
        one != other
    }
}

/// Returns a valid body for each operation that has one.
fn body(id: &str, pool: &str, full: &str, second: &str) -> Value {
    let (vdevs, target) = (json!([{"kind": "disk", "disks": ["/d"]}]), "iqn.2026-01.org.weir:vms");
    let snapshot = format!("{full}@s");
    match id {
        "pool_create" => json!({"name": pool, "vdevs": vdevs}),
        "pool_add" => json!({"vdevs": vdevs}),
        "pool_import" => json!({"pool": pool}),
        "pool_scrub" => json!({"action": "start"}),
        "pool_offline" | "pool_online" | "pool_detach" => json!({"disk": "/d"}),
        "pool_attach" | "pool_replace" => json!({"disk": "/d", "new": "/e"}),
        "pool_remove" => json!({"vdev": "mirror-0"}),
        "property_set" => json!({"name": full, "properties": {"compression": "lz4"}}),
        "property_inherit" => json!({"name": full, "property": "compression"}),
        "volume_create" => json!({"name": full, "size_bytes": 4096}),
        "volume_set" => json!({"compression": "lz4"}),
        "volume_resize" => json!({"size_bytes": 8192}),
        "volume_rename" | "filesystem_rename" => json!({"to": second}),
        "filesystem_create" | "filesystem_unmount" | "volume_advise" => json!({"name": full}),
        "filesystem_quota" => json!({"owner": "user", "id": 1000, "quota_bytes": 4096}),
        "filesystem_mount" => json!({"name": full, "directory": "/srv/home"}),
        "volume_copy" => json!({"name": full, "to": second}),
        "dedupe_estimate" => json!({"names": [full, second]}),
        "snapshot_create" | "snapshot_destroy" => {
            json!({"names": [snapshot, format!("{second}@s")]})
        }
        "snapshot_hold" | "snapshot_release" => json!({"name": snapshot, "tag": "t"}),
        "snapshot_rename" => json!({"name": snapshot, "to": format!("{full}@t")}),
        "snapshot_rollback" => json!({"name": snapshot}),
        "snapshot_clone" => json!({"name": snapshot, "volume": second}),
        "snapshot_digest" => json!({"snapshot": snapshot, "first": 0, "count": 1}),
        "bookmark_create" => json!({"snapshot": snapshot, "name": format!("{full}#b")}),
        "bookmark_destroy" => json!({"name": format!("{full}#b")}),
        "send_start" => json!({"snapshot": snapshot, "from": format!("{full}@r")}),
        "receive_start" => json!({"volume": full}),
        "replication_create" => json!({
            "volume": full, "to": "https://h/back/v", "every_seconds": 60,
            "ca_file": "/etc/weir/ca", "secret_file": "/etc/weir/s",
        }),
        "replication_act" => json!({"volume": full, "action": "run"}),
        "schedule_set" => json!({"name": full, "keep": {"daily": 1}}),
        "export_create" => json!({"protocol": "nbd", "volume": full, "name": second}),
        "export_set" => json!({"allow": ["10.0.0.0/24"]}),
        "share_create" => json!({"protocol": "nfs", "filesystem": full, "name": second}),
        "share_allow" => json!({"rules": ["10.0.0.0/24:ro"]}),
        "share_deny" => json!({"clients": ["10.0.0.0/24"]}),
        "target_create" => json!({"name": target}),
        "target_allow" => {
            json!({"target": target, "initiator": "iqn.2026-01.org.example:a"})
        }
        "lun_add" => json!({"target": target, "volume": full}),
        "token_create" => json!({"name": "ci", "role": "viewer"}),
        _ => json!({}),
    }
}

/// Returns every operation of the OpenAPI document, with the role that the document requires.
fn calls() -> Vec<(Call, Role)> {
    let document = serde_json::to_value(weir_api::openapi()).unwrap();
    let mut calls = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, about) in methods.as_object().unwrap() {
            let id = about["operationId"].as_str().unwrap();
            let role: Role = serde_json::from_value(about["x-weir-role"].clone())
                .unwrap_or_else(|_| panic!("{id} says no role"));
            let operation = Operation::find(id).unwrap();
            let (method, path) = (method.to_uppercase(), path.clone());
            calls.push((Call { operation, method, path }, role));
        }
    }
    calls
}

#[test]
fn document_has_every_operation_with_its_role() {
    let mut in_document: Vec<&str> = calls().iter().map(|(call, _)| call.operation.name).collect();
    let mut in_table: Vec<&str> = Operation::all().map(|operation| operation.name).collect();
    in_document.sort_unstable();
    in_table.sort_unstable();
    assert_eq!(in_document, in_table);
    for (call, role) in calls() {
        let id = call.operation.name;
        assert_eq!(role, call.operation.role, "{id}");
        let looks = call.method == "GET";
        // The call that lists tokens changes nothing, but viewers may not make it.
        if id != "token_list" {
            assert_eq!(looks, role == Role::Viewer, "{id} is {} for a {role:?}", call.method);
        }
        let destroys = ["destroy", "token", "property_set", "offline", "detach", "rollback"];
        if !looks && destroys.iter().any(|word| id.contains(word)) {
            assert_eq!(role, Role::Admin, "{id}");
        }
    }
}

/// Returns a word for the meaning of an HTTP status: whether the rights of the caller were
/// sufficient.
fn verdict(status: u16) -> &'static str {
    match status {
        401 => "unknown",
        403 => "refused",
        _ => "passed",
    }
}

#[test]
fn operations_are_open_only_to_callers_with_their_role() {
    let server = start();
    let is_root = rustix::process::geteuid().is_root();
    let callers = [
        (Who::Nobody, None),
        (Who::Token("viewer"), Some(Role::Viewer)),
        (Who::Token("operator"), Some(Role::Operator)),
        (Who::Token("admin"), Some(Role::Admin)),
        (Who::User(0, 0), is_root.then_some(Role::Admin)),
        (Who::User(OTHER, GROUP), Some(Role::Admin)),
        // If the mode of the socket lets every user connect, the server still checks the user.
        (Who::User(OTHER, OTHER), None),
    ];
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&server.unix, open).unwrap();
    let mut walked = BTreeMap::new();
    for (call, needed) in calls() {
        for (who, role) in callers {
            if matches!(who, Who::User(uid, _) if uid != 0) && !is_root {
                continue;
            }
            let request = request(&call, who, &INSIDE);
            let (status, answer) = ask(&server, who, &request).unwrap();
            let wanted = match role {
                None => "unknown",
                Some(role) if role < needed => "refused",
                Some(_) => "passed",
            };
            assert_eq!(verdict(status), wanted, "{who:?}\n{request}\n{answer}");
            assert_ne!(status, 400, "the walk asks for it wrongly: {request}\n{answer}");
            assert!(!answer.contains("panicked"), "{answer}");
            *walked.entry(wanted).or_insert(0) += 1;
        }
    }
    assert!(walked["passed"] > 100 && walked["refused"] > 50, "{walked:?}");
}

#[test]
fn scope_must_cover_every_name_of_a_call() {
    let server = start();
    let who = Who::Token("admin,tank/k8s-*");
    for (call, _) in calls() {
        let (id, reach) = (call.operation.name, call.operation.reach);
        let ask = |names: &Names| {
            let request = request(&call, who, names);
            let (status, answer) = ask(&server, who, &request).unwrap();
            assert_ne!(status, 400, "{request}\n{answer}");
            (verdict(status), request)
        };
        let (inside, _) = ask(&INSIDE);
        let (outside, request) = ask(&OUTSIDE);
        let of_pool = call.path.contains("/v1/pools/");
        match reach {
            Resources::Machine => assert_eq!((inside, outside), ("refused", "refused"), "{id}"),
            Resources::Any | Resources::Session | Resources::Filtered => {
                assert_eq!(inside, "passed", "{id}");
            }
            // The stream in the request does not exist.
            Resources::LookedUp if id == "stream_cancel" => assert_eq!(inside, "passed", "{id}"),
            // A scope with a prefix of volume names does not cover the pool.
            Resources::Named if of_pool => assert_eq!(inside, "refused", "{id}"),
            Resources::LookedUp if id == "target_show" => assert_eq!(inside, "refused", "{id}"),
            Resources::Named | Resources::LookedUp => {
                assert_eq!((inside, outside), ("passed", "refused"), "{id}: {request}");
                if call.names_two() {
                    let (half, request) = ask(&HALF);
                    assert_eq!(half, "refused", "{id}: {request}");
                }
            }
        }
    }
}

/// Creates volumes inside and outside the scope `tank/k8s-*`, each with all kinds of objects that a
/// volume can have, and clones across the border of the scope in both directions.
fn populate(server: &Server) {
    let names = |volume, second| Names { pool: "tank", volume, second };
    let both = [("k8s-a", "tank/k8s-b"), ("other", "tank/other2")].map(|(v, s)| names(v, s));
    let mut made = vec![("pool_create", INSIDE)];
    made.extend(["k8s-a", "k8s-b", "other", "other2"].map(|v| ("volume_create", names(v, ""))));
    let of_each = [
        "snapshot_create",
        "bookmark_create",
        "schedule_set",
        "replication_create",
        "export_create",
        "share_create",
        "receive_start",
    ];
    for Names { volume, second, .. } in both {
        made.extend(of_each.map(|id| (id, names(volume, second))));
    }
    made.push(("snapshot_clone", names("k8s-a", "tank/other3")));
    made.push(("snapshot_clone", names("other", "tank/k8s-c")));
    // An export may have a name that is also the name of another volume.
    made.push(("export_create", names("other", "tank/k8s-x")));
    made.push(("share_create", names("other", "tank/k8s-x")));
    made.push(("target_create", OUTSIDE));
    made.push(("lun_add", OUTSIDE));
    let calls = calls();
    for (id, names) in made {
        let (call, _) = calls.iter().find(|(call, _)| call.operation.name == id).unwrap();
        let request = request(call, Who::Token("admin"), &names);
        let (status, answer) = ask(server, Who::Token("admin"), &request).unwrap();
        assert!((200..300).contains(&status), "{request}\n{answer}");
    }
}

fn get(server: &Server, who: Who, path: &str) -> String {
    let Who::Token(token) = who else { panic!("{who:?} has no token") };
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         authorization: Bearer {token}\r\n\r\n"
    );
    ask(server, who, &request).unwrap().1
}

// Regression: a viewer whose scope was one prefix could read the properties of every volume. Tests
// of status codes do not find such a fault.
#[test]
fn responses_name_no_object_outside_the_scope() {
    let scoped = Who::Token("admin,tank/k8s-*");
    for (call, _) in calls() {
        // Each call gets a new server, because calls change the state of the server.
        let server = start();
        populate(&server);
        for names in [INSIDE, Names { volume: "k8s-c", ..INSIDE }] {
            let request = request(&call, scoped, &names);
            let (_, answer) = ask(&server, scoped, &request).unwrap();
            assert!(!answer.contains("tank/other"), "{}\n{answer}", call.operation.name);
        }
    }
    let server = start();
    populate(&server);
    for path in [
        "/v1/properties",
        "/v1/properties?of=tank%2Fk8s-c&properties=origin",
        "/v1/volumes",
        "/v1/volumes?pool=tank",
        "/v1/volumes/tank/k8s-c",
        "/v1/snapshots",
        "/v1/snapshots?of=tank",
        "/v1/snapshots?of=tank%2Fk8s-a",
        "/v1/bookmarks",
        "/v1/schedules",
        "/v1/replications",
        "/v1/exports",
        "/v1/exports/nbd/tank%2Fk8s-x",
        "/v1/shares",
        "/v1/shares/nfs/tank%2Fk8s-x",
        "/v1/targets",
        "/v1/targets/iqn.2026-01.org.weir:vms",
        "/v1/events",
        "/v1/pools/tank/history",
        "/v1/history",
    ] {
        let whole = get(&server, Who::Token("admin"), path);
        assert!(whole.contains("tank/other"), "nothing to hide in {path}: {whole}");
        let answer = get(&server, scoped, path);
        assert!(!answer.contains("tank/other"), "{path}\n{answer}");
        // A target with a logical unit outside the scope is hidden, and an export or share of a
        // dataset outside it too.
        let is_hidden =
            ["/v1/targets", "/v1/exports/", "/v1/shares/"].iter().any(|part| path.contains(part));
        assert!(is_hidden || answer.contains("k8s-"), "{path}\n{answer}");
    }
}

// Regression: an unauthenticated caller kept its connection by repeating its request after each
// 401.
#[test]
fn caller_without_rights_loses_its_connection() {
    let server = start();
    for head in ["", "authorization: Bearer weir_0123\r\n"] {
        let mut stream = TcpStream::connect(&server.tcp).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET /v1/pools HTTP/1.1\r\nhost: localhost\r\n{head}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server closes");
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
}

// A large body needs a permit. An admin must not wait for permits of callers with fewer rights.
#[test]
fn incomplete_bodies_of_viewers_delay_no_admin() {
    let server = start();
    let begun = |token: &str| {
        format!(
            "POST /v1/pools HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\nconnection: close\r\ncontent-length: 100000\r\n\r\n"
        )
    };
    let viewers: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(&server.tcp).unwrap();
            write!(stream, "{}{{", begun("viewer")).unwrap();
            stream
        })
        .collect();
    std::thread::sleep(Duration::from_millis(100));
    let before = Instant::now();
    let whole = begun("admin") + &" ".repeat(100_000);
    let (status, answer) = exchange(TcpStream::connect(&server.tcp).unwrap(), &whole);
    // The server has read the body, which is not valid for this call.
    assert_eq!(status, 400, "{answer}");
    let waited = before.elapsed();
    assert!(waited < Duration::from_secs(5), "{waited:?}: half the time that a body may take");
    drop(viewers);
}

#[test]
fn denied_calls_are_recorded_with_their_caller() {
    let server = start();
    let call = |token: &str, call: &str| {
        let text = format!(
            "{call} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             authorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             content-length: 0\r\n\r\n"
        );
        exchange(TcpStream::connect(&server.tcp).unwrap(), &text).0
    };
    let long = format!("DELETE /v1/sends/{}", "x".repeat(1000));
    assert_eq!(call("viewer", "DELETE /v1/tokens/ci?a=b"), 403);
    assert_eq!(call("admin,tank/a", "GET /v1/pools/other"), 403);
    assert_eq!(call("viewer", &long), 403);
    assert_eq!(call("viewer", "GET /v1/pools"), 200);
    let noted = server.tokens.denied.lock().unwrap();
    let expected = ["token Viewer: DELETE /v1/tokens/ci", "token Admin: GET /v1/pools/other"];
    assert_eq!(noted[..2], expected);
    assert_eq!((noted.len(), noted[2].len()), (3, "token Viewer: DELETE ".len() + 200));
}

#[test]
fn refusal_names_the_remedy_and_wrong_tokens_are_counted() {
    let server = start();
    let list =
        |head: &str| format!("GET /v1/pools{head}\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let tcp = |text: &str| exchange(TcpStream::connect(&server.tcp).unwrap(), text);
    let (status, answer) = tcp(&list(" HTTP/1.1"));
    assert_eq!(status, 401);
    assert!(answer.contains("weir token create") && answer.contains("usermod"), "{answer}");
    for header in ["Bearer weir_0123", "Basic YTpi", "Bearer", "Bearer admin\r\nauthorization: x"] {
        let (status, answer) = tcp(&list(&format!(" HTTP/1.1\r\nauthorization: {header}")));
        assert_eq!(status, 401, "{answer}");
        assert!(!answer.contains("0123"), "the token is in the answer: {answer}");
    }
    assert_eq!(server.tokens.refused.load(Ordering::Relaxed), 4);
    let (status, answer) = tcp(&list("?token=admin HTTP/1.1"));
    assert_eq!(status, 400);
    assert!(answer.contains("URL") && answer.contains("revoke"), "{answer}");
    // The server refuses a request that a page of another site makes, even with a valid token.
    for header in ["origin: https://evil.example", "origin: null", "sec-fetch-site: cross-site"] {
        let head = format!(" HTTP/1.1\r\nauthorization: Bearer admin\r\n{header}");
        assert_eq!(tcp(&list(&head)).0, 403, "{header}");
    }
    for header in ["origin: http://localhost", "sec-fetch-site: same-origin"] {
        let head = format!(" HTTP/1.1\r\nauthorization: Bearer admin\r\n{header}");
        assert_eq!(tcp(&list(&head)).0, 200, "{header}");
    }
}
