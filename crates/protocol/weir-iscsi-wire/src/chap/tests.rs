//! Tests of CHAP.

use super::*;

#[test]
fn chap_responses_match_other_implementations() {
    let secret = Secret::new(b"correct horse".to_vec());
    let challenge: Vec<u8> = (0..16).collect();
    let response =
        |algorithm: Algorithm| crate::text::to_hex(&algorithm.response(0x17, &secret, &challenge));
    assert_eq!(response(Algorithm::Md5), "0x97b78ac1eb5d2a4d48511d98a93a5db9");
    assert_eq!(
        response(Algorithm::Sha256),
        "0xcf5a0a2a9008ec799bc84db96a29d3d51aae668aad554bfc7d44dc71d0d96688"
    );
}

#[test]
fn challenge_accepts_only_the_right_secret() {
    let (right, wrong) = (Secret::new(b"right".to_vec()), Secret::new(b"wrong".to_vec()));
    for algorithm in [Algorithm::Md5, Algorithm::Sha256] {
        let challenge = Challenge::new(algorithm).expect("randomness");
        let response = algorithm.response(challenge.identifier, &right, &challenge.bytes);
        assert!(challenge.is_met(&right, &response));
        assert!(!challenge.is_met(&wrong, &response));
        assert!(!challenge.is_met(&right, &response[1..]));
        assert!(!challenge.is_met(&right, &[]));
        let other = Challenge::new(algorithm).expect("randomness");
        assert_ne!(challenge.bytes, other.bytes);
    }
}

#[test]
fn strongest_algorithm_is_chosen_and_secrets_are_not_printed() {
    assert_eq!(Algorithm::choose("5,7"), Some(Algorithm::Sha256));
    assert_eq!(Algorithm::choose("5"), Some(Algorithm::Md5));
    assert_eq!(Algorithm::choose("6,55"), None);
    let credentials = crate::secret::Credentials {
        name: "alice".to_owned(),
        secret: Secret::new(b"hush".to_vec()),
    };
    let printed = format!("{credentials:?} {:?}", Secret::new(b"hush".to_vec()));
    assert!(!printed.contains("hush") && !printed.contains("104"), "{printed}");
}
