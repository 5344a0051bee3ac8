//! Tests of key negotiation.

use proptest::prelude::*;

use super::*;

fn say(key: &str, value: &str) -> Answer {
    Negotiated::default().offer(key, value, false)
}

#[test]
fn each_key_follows_its_result_function() {
    for (key, value, answer) in [
        ("HeaderDigest", "CRC32C,None", "CRC32C"),
        ("HeaderDigest", "None,CRC32C", "None"),
        ("DataDigest", "SHA1", REJECT),
        ("MaxBurstLength", "16777215", "1048576"),
        ("MaxBurstLength", "512", "512"),
        ("MaxBurstLength", "511", REJECT),
        ("MaxBurstLength", "16777216", REJECT),
        ("FirstBurstLength", "262144", "65536"),
        ("MaxOutstandingR2T", "65535", "4"),
        ("MaxOutstandingR2T", "0", REJECT),
        ("InitialR2T", "No", "No"),
        ("ImmediateData", "No", "No"),
        ("ImmediateData", "Maybe", REJECT),
        ("DataPDUInOrder", "No", "Yes"),
        ("DataSequenceInOrder", "No", "Yes"),
        ("MaxConnections", "8", "1"),
        ("ErrorRecoveryLevel", "2", "0"),
        ("ErrorRecoveryLevel", "3", REJECT),
        ("DefaultTime2Wait", "2", "2"),
        ("DefaultTime2Retain", "20", "0"),
        ("IFMarker", "Yes", "No"),
        ("OFMarkInt", "2048~65535", IRRELEVANT),
        ("iSCSIProtocolLevel", "2", "1"),
        ("TaskReporting", "FastAbort,RFC3720", "RFC3720"),
        ("X-org.example.key", "1", NOT_UNDERSTOOD),
        ("maxburstlength", "512", NOT_UNDERSTOOD),
        ("MaxRecvDataSegmentLength", "0", REJECT),
    ] {
        assert_eq!(say(key, value), answer.into(), "{key}={value}");
    }
    assert_eq!(say("MaxRecvDataSegmentLength", "8192"), Answer::Nothing);
    assert_eq!(Negotiated::default().offer("InitialR2T", "No", true), IRRELEVANT.into());
}

#[test]
fn first_burst_is_limited_to_max_burst() {
    let mut negotiated = Negotiated::default();
    negotiated.offer("MaxBurstLength", "4096", false);
    assert_eq!(negotiated.settled().first_burst_bytes, 4096);
}

proptest! {
    #[test]
    fn negotiated_values_are_within_limits_for_any_offer(
        offers in prop::collection::vec(
            (prop::sample::select(vec![
                "MaxBurstLength", "FirstBurstLength", "MaxRecvDataSegmentLength",
                "MaxOutstandingR2T", "InitialR2T", "HeaderDigest",
            ]), "[0-9xYesNoCR32,]{0,9}"), 0..20),
    ) {
        let mut negotiated = Negotiated::default();
        for (key, value) in offers {
            negotiated.offer(key, &value, false);
        }
        let negotiated = negotiated.settled();
        prop_assert!((512..=MAX_BURST_BYTES).contains(&negotiated.max_burst_bytes));
        let limit = negotiated.max_burst_bytes.min(FIRST_BURST_BYTES);
        prop_assert!(negotiated.first_burst_bytes <= limit);
        prop_assert!((512..=SEND_DATA_BYTES_MAX).contains(&negotiated.send_data_bytes_max));
        prop_assert!(negotiated.send_data_bytes_max.is_multiple_of(4));
        prop_assert!((1..=OUTSTANDING_R2T_MAX).contains(&negotiated.outstanding_r2t_max));
    }
}
