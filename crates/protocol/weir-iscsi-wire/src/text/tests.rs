//! Tests of key=value text.

use proptest::prelude::*;

use super::*;

#[test]
fn text_is_parsed_into_pairs() {
    let found = pairs(b"A=1\0B=\0X-com.example.key=a=b,c\0\0").expect("text");
    assert_eq!(found, [("A", "1"), ("B", ""), ("X-com.example.key", "a=b,c")]);
    assert_eq!(pairs(b"A=1"), Ok(vec![("A", "1")]), "the last NUL may be missing");
    assert_eq!(pairs(b""), Ok(vec![]));
    let long = format!("{}=1\0", "k".repeat(64));
    for bad in [&b"A\0"[..], b"=1\0", b"A B=1\0", b"A=\xff\xfe\0", long.as_bytes()] {
        assert_eq!(pairs(bad), Err(TextError::Malformed), "{bad:?}");
    }
    let many = "A=1\0".repeat(KEYS_MAX + 1);
    assert_eq!(pairs(many.as_bytes()), Err(TextError::TooManyKeys));
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    assert_eq!((boolean("Yes"), boolean("No"), boolean("yes")), (Some(true), Some(false), None));
    for (text, expected) in [
        ("0", Some(0)),
        ("512", Some(512)),
        ("0x200", Some(512)),
        ("0X1f", Some(31)),
        ("1000", None),
        ("4294967296", None),
        ("-1", None),
        ("+1", None),
        ("", None),
        ("0x", None),
        ("1e3", None),
    ] {
        assert_eq!(number(text, 0..=600), expected, "{text}");
    }
    assert_eq!(choose("A,CRC32C,None", &["None", "CRC32C"]), Some("CRC32C"));
    assert_eq!(choose("", &["None"]), None);
    assert_eq!(binary("0x0fA0"), Some(vec![0x0f, 0xa0]));
    assert_eq!(binary("0xfa0"), Some(vec![0x0f, 0xa0]), "an odd number of digits");
    assert_eq!(binary("0bD6A="), Some(vec![0x0f, 0xa0]));
    for bad in ["", "0x", "0b", "0xzz", "0b*", "12", "é"] {
        assert_eq!(binary(bad), None, "{bad}");
    }
    assert_eq!(binary(&format!("0x{}", "00".repeat(1025))), None);
}

#[test]
fn gathered_text_is_bounded() {
    let mut gathered = Gathered::default();
    for _ in 0..2 {
        gathered.add(&[b'a'; TEXT_BYTES_MAX / 2]).expect("room");
    }
    assert_eq!(gathered.add(b"a"), Err(TextError::TooLong));
    assert_eq!(gathered.take().len(), TEXT_BYTES_MAX);
    assert!(gathered.is_empty());
}

proptest! {
    #[test]
    fn encoded_text_is_parsed_back(
        all in prop::collection::vec(("[A-Za-z.#]{1,63}", "[ -~]{0,99}"), 0..9),
    ) {
        let mut out = Vec::new();
        all.iter().for_each(|(key, value)| put(&mut out, key, value));
        let found = pairs(&out).expect("text");
        prop_assert!(found.iter().copied().eq(all.iter().map(|(k, v)| (k.as_str(), v.as_str()))));
    }

    #[test]
    fn binary_values_round_trip(bytes in prop::collection::vec(any::<u8>(), 1..1024)) {
        prop_assert_eq!(binary(&to_hex(&bytes)), Some(bytes));
    }

    #[test]
    fn any_text_is_parsed_without_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(found) = pairs(&text) {
            for (_, value) in found {
                binary(value);
                number(value, 0..=u32::MAX);
            }
        }
    }
}
