//! Calls and replies of other implementations, decoded and encoded again.
//!
//! The files in `tests/data` state where their bytes come from.
//!
//! Invariant: encoding reproduces each byte, including the record mark and the RPC header.

use weir_block::OutBuf;
use weir_nfs_wire::mount::{self, v3};
use weir_nfs_wire::nfs3::{self, Args, CreateHow, Results, SetTime};
use weir_nfs_wire::nfsacl::{self, AclEntry, tag};
use weir_oncrpc::message::{AcceptStat, Call, Credential, Reply, ReplyBody};
use weir_oncrpc::record::{Framed, RecordStart, frame};
use weir_oncrpc::{Decoder, Encoder, Xdr};

const LINUX_KNFSD: &str = include_str!("../data/linux-knfsd.hex");
const LIBNFS_GANESHA: &str = include_str!("../data/libnfs-ganesha.hex");

/// A call and its reply, with their record marks.
struct Exchange {
    title: String,
    call: Vec<u8>,
    reply: Vec<u8>,
}

/// Reads the exchanges of a file.
fn exchanges(text: &str) -> Vec<Exchange> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut exchanges: Vec<Exchange> = Vec::new();
    let mut is_reply = false;
    for line in lines {
        match line {
            "call" => is_reply = false,
            "reply" => is_reply = true,
            title if title.contains(' ') => {
                let title = title.to_owned();
                exchanges.push(Exchange { title, call: Vec::new(), reply: Vec::new() });
            }
            hex => {
                let exchange = exchanges.last_mut().expect("a title is before the bytes");
                let bytes = if is_reply { &mut exchange.reply } else { &mut exchange.call };
                let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
                bytes.extend((0..hex.len()).step_by(2).map(byte));
            }
        }
    }
    exchanges
}

/// Returns the only record of a stream, and checks that every shorter stream is incomplete.
fn record(stream: &[u8]) -> Vec<u8> {
    for len in 0..stream.len() {
        let mut part = stream[..len].to_vec();
        let framed = frame(&mut part, 1 << 20).expect("a short record");
        assert!(matches!(framed, Framed::Need { bytes, .. } if bytes > len));
    }
    let mut stream = stream.to_vec();
    let len = stream.len();
    match frame(&mut stream, 1 << 20).expect("a short record") {
        Framed::Record { record, used } if used == len => record.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Encodes a record with its mark.
fn stream(encode: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut out = OutBuf::default();
    let start = RecordStart::begin(&mut out);
    encode(&mut Encoder::new(&mut out));
    start.finish(&mut out, 0);
    out.filled().to_vec()
}

/// Decodes an exchange, encodes it again, and compares the bytes. Truncated messages are rejected.
macro_rules! check {
    ($exchange:expr, $call:expr, $program:path) => {{
        use $program as program;
        let exchange = $exchange;
        let call: Call<'_> = $call;
        let procedure = program::Procedure::from_number(call.procedure).expect("a procedure");
        let (family, name) = exchange.title.split_once(' ').expect("two words");
        assert_eq!(procedure.name(), name, "{family}");
        let call_record = record(&exchange.call);
        let (_, input) = Call::decode(&call_record).expect("a call");
        let mut rest = input.clone();
        let args = program::Args::decode(procedure, &mut rest).expect("arguments");
        assert_eq!(rest.finish(), Ok(()));
        let again = stream(|out| {
            call.encode(out);
            args.encode(out);
        });
        assert_eq!(again, exchange.call, "{}", exchange.title);
        for len in 0..input.rest().len() {
            let part = &input.rest()[..len];
            assert!(program::Args::decode(procedure, &mut Decoder::new(part)).is_err());
        }

        let reply_record = record(&exchange.reply);
        let (reply, input) = Reply::decode(&reply_record).expect("a reply");
        assert_eq!(reply, Reply::accepted(call.xid, AcceptStat::Success));
        let mut rest = input.clone();
        let results = program::Results::decode(procedure, &mut rest).expect("results");
        assert_eq!(rest.finish(), Ok(()));
        let again = stream(|out| {
            reply.encode(out);
            results.encode(out);
        });
        assert_eq!(again, exchange.reply, "{}", exchange.title);
        for len in 0..input.rest().len() {
            let part = &input.rest()[..len];
            assert!(program::Results::decode(procedure, &mut Decoder::new(part)).is_err());
        }
    }};
}

/// Checks all exchanges of a file. Returns their titles.
fn check_all(text: &str) -> Vec<String> {
    let exchanges = exchanges(text);
    for exchange in &exchanges {
        let record = record(&exchange.call);
        let (call, _) = Call::decode(&record).expect("a call");
        match call.credential.credential() {
            Ok(Credential::Sys(sys)) => assert_eq!((sys.uid, sys.gid), (0, 0)),
            Ok(Credential::None) => assert_eq!(call.procedure, 0),
            other => panic!("{}: {other:?}", exchange.title),
        }
        match (call.program, call.version) {
            (nfs3::PROGRAM, nfs3::VERSION) => check!(exchange, call, weir_nfs_wire::nfs3),
            (mount::PROGRAM, v3::VERSION) => check!(exchange, call, weir_nfs_wire::mount::v3),
            (nfsacl::PROGRAM, nfsacl::VERSION) => check!(exchange, call, weir_nfs_wire::nfsacl),
            other => panic!("program {other:?}"),
        }
    }
    exchanges.into_iter().map(|exchange| exchange.title).collect()
}

#[test]
fn exchanges_of_libnfs_and_ganesha_are_reproduced() {
    let titles = check_all(LIBNFS_GANESHA);
    // All procedures but READDIR and PATHCONF, which libnfs does not call.
    for procedure in nfs3::Procedure::ALL {
        let title = format!("nfs {}", procedure.name());
        let is_missing = matches!(procedure.name(), "readdir" | "pathconf");
        assert_eq!(!titles.contains(&title), is_missing, "{title}");
    }
    for title in ["mount null", "mount mnt", "mount export"] {
        assert!(titles.iter().any(|found| found == title), "{title}");
    }
}

#[test]
fn exchanges_of_the_linux_client_and_server_are_reproduced() {
    let titles = check_all(LINUX_KNFSD);
    for title in
        ["nfs readdir", "nfs readdirplus", "nfs pathconf", "nfsacl getacl", "nfsacl setacl"]
    {
        assert!(titles.iter().any(|found| found == title), "{title}");
    }
}

#[test]
fn acls_of_the_linux_client_and_server_have_the_values_of_setfacl() {
    // setfacl -m u:7:rw on a file, and setfacl -d -m g:8:rx on a directory.
    let named = |entry: &&AclEntry| entry.id != 0;
    let (mut users, mut groups) = (0, 0);
    for exchange in exchanges(LINUX_KNFSD) {
        let record = record(if exchange.title == "nfsacl setacl" {
            &exchange.call
        } else if exchange.title == "nfsacl getacl" {
            &exchange.reply
        } else {
            continue;
        });
        let acls = if exchange.title == "nfsacl setacl" {
            let (_, mut input) = Call::decode(&record).expect("a call");
            let args = nfsacl::Args::decode(nfsacl::Procedure::Setacl, &mut input);
            let Ok(nfsacl::Args::Setacl(args)) = args else { panic!("{args:?}") };
            args.acls
        } else {
            let (_, mut input) = Reply::decode(&record).expect("a reply");
            let results = nfsacl::Results::decode(nfsacl::Procedure::Getacl, &mut input);
            let Ok(nfsacl::Results::Getacl(Ok(results))) = results else { panic!("{results:?}") };
            results.acls
        };
        for entry in acls.acl.items().iter().filter(named) {
            assert_eq!(*entry, AclEntry { tag: tag::USER, id: 7, permissions: 6 });
            users += 1;
        }
        for entry in acls.default_acl.items().iter().filter(named) {
            let tag = tag::DEFAULT | tag::GROUP;
            assert_eq!(*entry, AclEntry { tag, id: 8, permissions: 5 });
            groups += 1;
        }
    }
    assert!(users >= 2 && groups >= 2, "{users} users, {groups} groups");
}

/// Runs `check` on the arguments and results of the first exchange of a procedure.
fn with(title: &str, index: usize, check: impl FnOnce(Args<'_>, Results<'_>)) {
    let exchanges = exchanges(LIBNFS_GANESHA);
    let mut named = exchanges.iter().filter(|exchange| exchange.title == title);
    let exchange = named.nth(index).expect("an exchange");
    let call_record = record(&exchange.call);
    let (call, mut args) = Call::decode(&call_record).expect("a call");
    let procedure = nfs3::Procedure::from_number(call.procedure).expect("a procedure");
    let reply_record = record(&exchange.reply);
    let (reply, mut results) = Reply::decode(&reply_record).expect("a reply");
    assert!(matches!(reply.body, ReplyBody::Accepted { stat: AcceptStat::Success, .. }));
    check(
        Args::decode(procedure, &mut args).expect("arguments"),
        Results::decode(procedure, &mut results).expect("results"),
    );
}

/// Content of the file that libnfs wrote and read.
const CONTENT: &[u8] = b"hello from libnfs\n";

#[test]
fn fields_of_captured_exchanges_have_the_values_of_the_client() {
    with("nfs write", 0, |args, results| {
        let (Args::Write(args), Results::Write(Ok(result))) = (args, results) else { panic!() };
        assert_eq!((args.data.bytes(), args.offset, args.count), (CONTENT, 0, 18));
        assert_eq!(result.count, 18);
        assert_eq!(result.wcc.after.expect("attributes").size, 18);
    });
    with("nfs read", 0, |args, results| {
        let (Args::Read(args), Results::Read(Ok(result))) = (args, results) else { panic!() };
        assert_eq!((result.data.bytes(), result.count, result.eof), (CONTENT, 18, true));
        assert_eq!(args.offset, 0);
    });
    with("nfs lookup", 0, |args, results| {
        let (Args::Lookup(args), Results::Lookup(Ok(result))) = (args, results) else { panic!() };
        assert_eq!(args.name.bytes(), b"file.txt");
        assert_eq!(result.attributes.expect("attributes").kind, nfs3::Ftype3::Reg);
        assert_eq!(result.dir_attributes.expect("attributes").kind, nfs3::Ftype3::Dir);
    });
    with("nfs create", 0, |args, results| {
        let (Args::Create(args), Results::Create(Ok(result))) = (args, results) else { panic!() };
        assert!(matches!(args.how, CreateHow::Unchecked(_) | CreateHow::Guarded(_)));
        assert!(result.object.is_some() && result.dir_wcc.after.is_some());
    });
    with("nfs readdirplus", 0, |_, results| {
        let Results::Readdirplus(Ok(listing)) = results else { panic!() };
        let mut names: Vec<&[u8]> = listing.entries.0.iter().map(|e| e.name.bytes()).collect();
        names.sort_unstable();
        assert_eq!(names, [&b"."[..], b"..", b"dir", b"file.txt"]);
        assert!(listing.eof);
    });
    with("nfs setattr", 2, |args, _| {
        let Args::Setattr(args) = args else { panic!() };
        let time = |seconds, nanos| SetTime::ClientTime(nfs3::Nfstime3 { seconds, nanos });
        assert_eq!(args.new_attributes.atime, time(1_000_000_000, 5000));
        assert_eq!(args.new_attributes.mtime, time(1_100_000_000, 7000));
    });
    with("nfs fsinfo", 0, |_, results| {
        let Results::Fsinfo(Ok(info)) = results else { panic!() };
        assert_eq!((info.rtmax, info.wtmax, info.properties), (64 << 20, 64 << 20, 0x1b));
    });
    with("nfs remove", 0, |args, results| {
        let (Args::Remove(args), Results::Remove(Err(failed))) = (args, results) else { panic!() };
        assert_eq!((args.name.bytes(), failed.status), (&b"missing"[..], nfs3::Nfsstat3::Noent));
    });
}

#[test]
fn mount_of_libnfs_names_the_path_and_gets_a_handle() {
    let exchanges = exchanges(LIBNFS_GANESHA);
    let exchange = exchanges.iter().find(|exchange| exchange.title == "mount mnt").expect("one");
    let call_record = record(&exchange.call);
    let (_, mut input) = Call::decode(&call_record).expect("a call");
    assert_eq!(mount::DirPath::decode(&mut input).map(|path| path.bytes()), Ok(&b"/vfs"[..]));
    let reply_record = record(&exchange.reply);
    let (_, mut input) = Reply::decode(&reply_record).expect("a reply");
    match v3::Results::decode(v3::Procedure::Mnt, &mut input).expect("results") {
        v3::Results::Mnt(Ok(mounted)) => {
            assert!(mounted.handle.bytes().len() > 8);
            assert_eq!(mounted.flavors.items(), [1]);
        }
        other => panic!("{other:?}"),
    }
}
