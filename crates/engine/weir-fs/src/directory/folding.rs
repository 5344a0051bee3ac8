//! Folding of names for case-insensitive filesystems.
//!
//! The folded form of a name is NFC(F(NFC(name))). F replaces each character by its simple case
//! folding (CaseFolding.txt, statuses C and S). The second NFC composes what F made composable:
//! U+0130 stays, J + caron becomes U+01F0. So names that are canonically equivalent have the same
//! form, and a character has the form of its simple folding.
//!
//! Two crates with exact versions have the tables of Unicode 16 (decision 0035).
//!
//! Invariant: the form of a name never changes: a test has a checksum over the forms of all
//! characters. Spec: Unicode 16.0 §3.13 (D145), UAX #15.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

/// Returns the folded form of a name; `None` if the name is not UTF-8. The form can have more bytes
/// than the name, and is never stored.
pub fn fold(name: &[u8]) -> Option<Cow<'_, [u8]>> {
    if name.is_ascii() {
        let has_upper = name.iter().any(u8::is_ascii_uppercase);
        return Some(if has_upper { name.to_ascii_lowercase().into() } else { name.into() });
    }
    let name = std::str::from_utf8(name).ok()?;
    let folded: String = name.nfc().map(simple_folding).nfc().collect();
    Some(folded.into_bytes().into())
}

/// Simple case folding of a character.
fn simple_folding(c: char) -> char {
    let folded = unicode_case_mapping::case_folded(c);
    folded.and_then(|folded| char::from_u32(folded.get())).unwrap_or(c)
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use proptest::prelude::*;
    use siphasher::sip::SipHasher24;
    use unicode_normalization::char::canonical_combining_class;

    use super::*;

    fn form(name: &str) -> String {
        String::from_utf8(fold(name.as_bytes()).unwrap().into_owned()).unwrap()
    }

    /// A change of a table makes names of existing filesystems unreachable. If this test fails, the
    /// update of a crate must wait for a new version in the layout of filesystems.
    #[test]
    fn tables_have_the_content_of_unicode_16() {
        let major = u64::from(weir_format::files::UNICODE_VERSION);
        assert_eq!(unicode_case_mapping::UNICODE_VERSION, (major, 0, 0));
        assert_eq!(unicode_normalization::UNICODE_VERSION, (major as u8, 0, 0));
        let (mut sip, mut folded, mut composed) = (SipHasher24::new(), 0, 0);
        for c in '\0'..=char::MAX {
            let name = c.to_string();
            let decomposed: String = name.nfd().collect();
            let again: String = decomposed.nfc().collect();
            for text in [simple_folding(c).to_string(), decomposed.clone(), again, form(&name)] {
                sip.write(text.as_bytes());
                sip.write_u8(0xFF);
            }
            sip.write_u8(canonical_combining_class(c));
            folded += u32::from(simple_folding(c) != c);
            composed += u32::from(decomposed != name);
        }
        assert_eq!((folded, composed, sip.finish()), (1_484, 13_253, 4_485_806_835_055_503_980));
    }

    #[test]
    fn names_with_one_form() {
        for (one, other) in [
            ("README", "readme"),
            ("\u{c4}PFEL", "\u{e4}pfel"),
            // Composed and decomposed e with acute.
            ("\u{e9}", "e\u{301}"),
            ("\u{c9}", "e\u{301}"),
            // The Kelvin and Angstrom signs.
            ("\u{212a}", "k"),
            ("\u{212b}", "a\u{30a}"),
            // Final and other sigma.
            ("\u{3a3}", "\u{3c2}"),
            ("\u{3c3}", "\u{3c2}"),
            // Capital sharp s, and micro sign.
            ("\u{1e9e}", "\u{df}"),
            ("\u{b5}", "\u{3bc}"),
            // J with caron has no composed capital letter.
            ("J\u{30c}", "\u{1f0}"),
            ("\u{391}\u{342}", "\u{1fb6}"),
            // Marks in another order.
            ("a\u{323}\u{307}", "A\u{307}\u{323}"),
            // Cherokee letters fold to the capital letters.
            ("\u{ab70}", "\u{13a0}"),
            ("\u{10400}", "\u{10428}"),
        ] {
            assert_eq!(form(one), form(other), "{one} and {other}");
        }
    }

    #[test]
    fn names_with_different_forms() {
        for (one, other) in [
            // Full folding, which changes the length, would make these equal.
            ("\u{df}", "ss"),
            ("\u{fb01}", "fi"),
            // The Turkish letters are four letters: I folds to i, and the other two stay.
            ("\u{130}", "i"),
            ("\u{131}", "i"),
            ("\u{130}", "\u{131}"),
            // Compatibility forms differ: superscript two, full-width a.
            ("\u{b2}", "2"),
            ("\u{ff41}", "a"),
            // An invisible character is a character.
            ("a\u{200d}", "a"),
        ] {
            assert_ne!(form(one), form(other), "{one} and {other}");
        }
    }

    #[test]
    fn names_that_are_not_utf_8_have_no_form() {
        for name in [&b"\xff"[..], b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"] {
            assert_eq!(fold(name), None, "{name:?}");
        }
    }

    /// The form of a name has no limit: only its hash is stored.
    #[test]
    fn form_can_be_longer_than_the_name() {
        let name = "\u{23a}".repeat(127);
        assert_eq!((name.len(), form(&name).len()), (254, 381));
    }

    proptest! {
        #[test]
        fn equivalent_names_have_one_form(name in "\\PC{0,40}") {
            let decomposed: String = name.nfd().collect();
            let composed: String = name.nfc().collect();
            prop_assert_eq!(form(&name), form(&decomposed));
            prop_assert_eq!(form(&name), form(&composed));
            prop_assert_eq!(form(&form(&name)), form(&name));
            let folded: String = composed.chars().map(simple_folding).collect();
            prop_assert_eq!(form(&name), form(&folded));
        }

        #[test]
        fn only_utf_8_is_folded(name in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(fold(&name).is_some(), std::str::from_utf8(&name).is_ok());
        }
    }
}
