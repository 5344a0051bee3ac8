//! Fuzzes calls of NFSv3. The first byte of the input selects a procedure, whose header the target
//! builds, and the rest are its arguments. With 22 or more, the rest is a whole message.
//!
//! `nfs3_reply` fuzzes the replies.
//!
//! Invariants: no panic; decoded arguments survive encoding and are within the bounds of their
//! types; the head of a WRITE agrees with its arguments.

use weir_nfs_wire::limits::{HANDLE_BYTES_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX};
use weir_nfs_wire::nfs3::{Args, PROGRAM, Procedure, VERSION, WriteHead};
use weir_oncrpc::Decoder;
use weir_oncrpc::message::{Call, Credential};

use super::samples::{self, check_message};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let Some((number, rest)) = data.split_first() else { return };
    let message = match Procedure::from_number(u32::from(*number)) {
        Some(procedure) => {
            let mut message = samples::call(PROGRAM, VERSION, procedure.number());
            message.extend_from_slice(rest);
            message
        }
        None => rest.to_vec(),
    };
    let Ok((call, input)) = Call::decode(&message) else { return };
    if let Ok(Credential::Sys(sys)) = call.credential.credential() {
        assert!(sys.gids.as_slice().len() <= 16);
    }
    let Some(procedure) = Procedure::from_number(call.procedure) else { return };
    let bytes = input.rest();
    check_message!(bytes, |input| Args::decode(procedure, input));
    let Ok(args) = Args::decode(procedure, &mut Decoder::new(bytes)) else { return };
    match args {
        Args::Lookup(args) => {
            assert!(args.dir.bytes().len() <= HANDLE_BYTES_MAX);
            assert!(args.name.bytes().len() <= NAME_BYTES_MAX);
        }
        Args::Symlink(args) => assert!(args.target.bytes().len() <= PATH_BYTES_MAX),
        Args::Write(args) => {
            let mut input = Decoder::new(bytes);
            let head = WriteHead::decode(&mut input).expect("the arguments are valid");
            assert_eq!((head.file, head.offset, head.count), (args.file, args.offset, args.count));
            assert_eq!((head.stable, head.data_bytes), (args.stable, args.data.bytes().len()));
            assert_eq!(input.rest().get(..head.data_bytes), Some(args.data.bytes()));
        }
        _ => {}
    }
}

/// Arguments of each procedure, and a whole message.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for args in samples::arguments() {
        let number = args.procedure().number() as u8;
        let bytes = samples::encoded(|out| args.encode(out));
        seeds.push([&[number], &bytes[..]].concat());
    }
    let call = samples::call(PROGRAM, VERSION, Procedure::Getattr.number());
    let argument = samples::bytes_of(&samples::handle());
    seeds.push([&[255], &call[..], &argument].concat());
    seeds
}
