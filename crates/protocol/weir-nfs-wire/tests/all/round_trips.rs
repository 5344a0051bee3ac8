//! Round trips of all arguments and results, and truncated messages.
//!
//! `layouts` and `captured` compare the bytes with other sources.
//!
//! Invariant: each procedure of each program is tested.

use proptest::prelude::*;
use weir_nfs_wire::nfsacl::{AclEntries, AclEntry, Secattr};
use weir_nfs_wire::{mount, nfs3, nfsacl, rquota};
use weir_oncrpc::{Decoder, Xdr, XdrError};

use crate::generate::{encoded, message};

/// Generates a message, encodes the decoded value, and decodes it again.
macro_rules! round_trip {
    ($seed:expr, $decode:expr) => {{
        let bytes = message($seed, |input| $decode(input).map(|_| ()));
        if let Some(bytes) = &bytes {
            let value = $decode(&mut Decoder::new(bytes)).expect("a valid message");
            let again = encoded(|out| value.encode(out));
            // Encoding only clears the padding.
            prop_assert_eq!(again.len(), bytes.len());
            prop_assert!(again.iter().zip(bytes).all(|(new, old)| new == old || *new == 0));
            let mut input = Decoder::new(&again);
            let decoded = $decode(&mut input);
            prop_assert_eq!(decoded.as_ref(), Ok(&value));
            prop_assert_eq!(input.finish(), Ok(()));
            for len in 0..again.len() {
                let result = $decode(&mut Decoder::new(&again[..len]));
                prop_assert_eq!(result.err(), Some(XdrError::Truncated), "{} bytes", len);
            }
        }
        u32::from(bytes.is_some())
    }};
}

/// Runs a round trip for each message of an enumeration. Returns the number of generated messages.
macro_rules! round_trips {
    ($seed:expr, $program:path, $messages:ident) => {{
        use $program::{Procedure, $messages};
        let mut count = 0;
        for procedure in Procedure::ALL {
            count += round_trip!($seed, |input| $messages::decode(*procedure, input));
        }
        prop_assert!(count > Procedure::ALL.len() as u32 / 2, "{} messages", count);
    }};
}

fn check_nfs3(seed: u64) -> Result<(), TestCaseError> {
    round_trips!(seed, nfs3, Args);
    round_trips!(seed, nfs3, Results);
    Ok(())
}

fn check_others(seed: u64) -> Result<(), TestCaseError> {
    round_trips!(seed, mount::v1, Args);
    round_trips!(seed, mount::v1, Results);
    round_trips!(seed, mount::v3, Args);
    round_trips!(seed, mount::v3, Results);
    let count = round_trip!(seed, nfsacl::GetaclArgs::decode)
        + round_trip!(seed, |input| { nfsacl::Results::decode(nfsacl::Procedure::Setacl, input) })
        + round_trip!(seed, rquota::GetquotaArgs::decode)
        + round_trip!(seed, rquota::ExtGetquotaArgs::decode)
        + round_trip!(seed, rquota::GetquotaResult::decode);
    prop_assert!(count >= 4, "{count} messages");
    Ok(())
}

#[test]
fn generator_reaches_success_and_failure_of_each_procedure() {
    for procedure in nfs3::Procedure::ALL.iter().skip(1) {
        let decode = |input: &mut Decoder<'_>| nfs3::Results::decode(*procedure, input).map(|_| ());
        let messages: Vec<Vec<u8>> = (0..200).filter_map(|seed| message(seed, decode)).collect();
        assert!(messages.len() > 150, "{procedure:?}: {} messages", messages.len());
        let successes = messages.iter().filter(|bytes| bytes.starts_with(&[0; 4])).count();
        assert!((1..messages.len()).contains(&successes), "{procedure:?}: {successes} successes");
    }
}

fn entries() -> impl Strategy<Value = AclEntries> {
    let entry = |(tag, id, permissions)| AclEntry { tag, id, permissions };
    let entries = prop::collection::vec(any::<(u32, u32, u32)>().prop_map(entry), 0..20);
    entries.prop_map(|entries| AclEntries::new(entries).expect("fewer than 1,024 entries"))
}

proptest! {
    #[test]
    fn messages_of_nfs3_round_trip(seed in any::<u64>()) {
        check_nfs3(seed)?;
    }

    #[test]
    fn messages_of_side_protocols_round_trip(seed in any::<u64>()) {
        check_others(seed)?;
    }

    #[test]
    fn acls_round_trip(mask in 0..16_u32, acl in entries(), default_acl in entries()) {
        let acls = Secattr::new(mask, acl, default_acl);
        let bytes = encoded(|out| acls.encode(out));
        prop_assert_eq!(Secattr::decode_whole(&bytes), Ok(acls));
        for len in 0..bytes.len() {
            prop_assert_eq!(Secattr::decode_whole(&bytes[..len]), Err(XdrError::Truncated));
        }
    }

    #[test]
    fn hostile_bytes_are_decoded_or_rejected(
        number in 0..22_u32,
        // Words with small numbers reach deeper into the messages than random bytes.
        words in prop::collection::vec(prop_oneof![0..4_u32, any::<u32>()], 0..60),
        rest in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend(rest);
        let procedure = nfs3::Procedure::from_number(number).expect("22 procedures");
        let mut input = Decoder::new(&bytes);
        if let Ok(args) = nfs3::Args::decode(procedure, &mut input) {
            let used = bytes.len() - input.rest().len();
            prop_assert_eq!(encoded(|out| args.encode(out)).len(), used);
        }
        let mut input = Decoder::new(&bytes);
        if let Ok(results) = nfs3::Results::decode(procedure, &mut input) {
            let used = bytes.len() - input.rest().len();
            prop_assert_eq!(encoded(|out| results.encode(out)).len(), used);
        }
        if let Ok(acls) = Secattr::decode_whole(&bytes) {
            prop_assert_eq!(encoded(|out| acls.encode(out)).len(), bytes.len());
        }
    }
}
