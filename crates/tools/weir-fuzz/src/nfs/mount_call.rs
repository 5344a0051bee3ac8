//! Fuzzes the arguments and results of MOUNT, rquota and NLM. The first byte of the input selects
//! the program and the direction, the second the procedure.
//!
//! `nfsacl_call` fuzzes the other side protocol of NFSv3.
//!
//! Invariants: no panic; a decoded message survives encoding; the refusal of a lock repeats the
//! cookie of the request.

use weir_nfs_wire::mount::{self, v1, v3};
use weir_nfs_wire::nlm4::{Netobj, Procedure as NlmProcedure, Refusal};
use weir_nfs_wire::rquota::{ExtGetquotaArgs, GetquotaArgs, GetquotaResult, Rquota};
use weir_oncrpc::{Array, Decoder, Failed, List, Xdr};

use super::samples::{bytes_of, check_message, encoded, handle, opaque};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let [choice, number, bytes @ ..] = data else { return };
    let number = u32::from(*number);
    match choice % 8 {
        0 | 1 => {
            let Some(procedure) = v3::Procedure::from_number(number) else { return };
            if choice % 8 == 0 {
                check_message!(bytes, |input| v3::Args::decode(procedure, input));
            } else {
                check_message!(bytes, |input| v3::Results::decode(procedure, input));
            }
        }
        2 | 3 => {
            let Some(procedure) = v1::Procedure::from_number(number) else { return };
            if choice % 8 == 2 {
                check_message!(bytes, |input| v1::Args::decode(procedure, input));
            } else {
                check_message!(bytes, |input| v1::Results::decode(procedure, input));
            }
        }
        4 => check_message!(bytes, GetquotaArgs::decode),
        5 => check_message!(bytes, ExtGetquotaArgs::decode),
        6 => check_message!(bytes, GetquotaResult::decode),
        _ => refuse_lock(number, bytes),
    }
}

fn refuse_lock(number: u32, bytes: &[u8]) {
    let Some(procedure) = NlmProcedure::from_number(number) else { return };
    let Ok(refusal) = Refusal::of(procedure, &mut Decoder::new(bytes)) else { return };
    let result = encoded(|out| refusal.encode(out));
    let cookie = Netobj::decode(&mut Decoder::new(bytes));
    match refusal {
        Refusal::Void => assert!(result.is_empty()),
        Refusal::Denied(repeated) | Refusal::DeniedShare(repeated) => {
            assert_eq!(Ok(repeated), cookie);
            assert_eq!(Netobj::decode(&mut Decoder::new(&result)), cookie);
        }
    }
}

/// Messages of each program.
pub fn seeds() -> Vec<Vec<u8>> {
    let seed = |choice: u8, number: u8, bytes: Vec<u8>| [&[choice, number], &bytes[..]].concat();
    let path: mount::DirPath<'_> = opaque(b"/tank/home");
    let flavors = Array::new(vec![1]).expect("one flavor");
    let mounted: Result<_, Failed<v3::Mountstat3, ()>> =
        Ok(v3::MountResok { handle: handle(), flavors });
    let denied = Failed { status: v3::Mountstat3::Acces, info: () };
    let denied = v3::Results::Mnt(Err(denied));
    let mounts = List(vec![mount::MountEntry { hostname: opaque(b"host"), directory: path }]);
    let groups = List(vec![opaque(b"10.0.0.0/8"), opaque(b"host")]);
    let exports = List(vec![mount::Export { directory: path, groups }]);
    let quota = Rquota { block_bytes: 4096, active: true, blocks: 9, ..Rquota::default() };
    vec![
        seed(0, 1, bytes_of(&path)),
        seed(1, 1, bytes_of(&mounted)),
        seed(1, 1, encoded(|out| denied.encode(out))),
        seed(1, 2, bytes_of(&mounts)),
        seed(1, 5, bytes_of(&exports)),
        seed(2, 3, bytes_of(&path)),
        seed(3, 1, bytes_of(&v1::FhStatus::Ok([7; 32]))),
        seed(3, 1, bytes_of(&v1::FhStatus::Error(13))),
        seed(3, 5, bytes_of(&exports)),
        seed(4, 0, bytes_of(&GetquotaArgs { path: opaque(b"/tank"), uid: 1000 })),
        seed(5, 0, bytes_of(&ExtGetquotaArgs { path: opaque(b"/tank"), kind: 1, id: 100 })),
        seed(6, 0, bytes_of(&GetquotaResult::Ok(quota))),
        seed(6, 0, bytes_of(&GetquotaResult::NoQuota)),
        seed(7, 2, b"\0\0\0\x04cook and a lock".to_vec()),
        seed(7, 20, b"\0\0\0\x04cook and a share".to_vec()),
    ]
}
