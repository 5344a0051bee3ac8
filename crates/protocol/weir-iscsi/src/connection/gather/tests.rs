//! Tests of the assembly of write data.

use proptest::prelude::*;

use super::*;

proptest! {
    /// An initiator that obeys the negotiated parameters delivers all data once, without errors.
    #[test]
    fn all_data_arrives_once(
        len in 1_usize..5000,
        immediate in 0_usize..600,
        first_burst in 512_usize..2000,
        burst in 512_usize..1500,
        segment in 1_usize..900,
        open in 1_u32..5,
        unasked in any::<bool>(),
    ) {
        let negotiated = Negotiated {
            first_burst_bytes: first_burst.min(burst),
            max_burst_bytes: burst,
            outstanding_r2t_max: open,
            ..Negotiated::default()
        };
        let data: Vec<u8> = (0..len).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let first_end = negotiated.first_burst_bytes.min(len);
        let immediate = immediate.min(first_end);
        let unasked = unasked && immediate < first_end;
        let mut gather = Gather::new(&data[..immediate], len, !unasked, &negotiated);
        let mut ranges = VecDeque::new();
        if unasked {
            prop_assert!(!gather.needs_r2t());
            ranges.push_back((NO_TAG, immediate, first_end));
        }
        let mut ttt = 0;
        loop {
            ttt += 1;
            while let Some(Ask { offset, len }) = gather.ask(ttt, &negotiated) {
                prop_assert!(len > 0 && len <= burst);
                ranges.push_back((ttt, offset, offset + len));
                ttt += 1;
            }
            prop_assert!(ranges.len() <= open as usize);
            let Some((ttt, mut offset, end)) = ranges.pop_front() else { break };
            let mut data_sn = 0;
            while offset < end {
                let next = (offset + segment).min(end);
                let is_final = next == end;
                let pdu = DataOut { is_final, itt: 1, ttt, data_sn, offset: offset as u32 };
                prop_assert_eq!(gather.take(&pdu, &data[offset..next]), Taken::Data);
                data_sn += 1;
                offset = next;
            }
        }
        prop_assert!(gather.is_whole());
        prop_assert_eq!(gather.into_data(), data);
    }

    /// For any input, the assembled data never exceeds the Expected Data Transfer Length.
    #[test]
    fn gathered_data_never_exceeds_the_expected_length(
        pdus in prop::collection::vec(
            (any::<bool>(), 0_u32..4, 0_u32..3, 0_u32..2000, 0_usize..600), 0..30),
        len in 0_usize..2000,
    ) {
        let (max_burst_bytes, outstanding_r2t_max) = (512, 2);
        let negotiated =
            Negotiated { max_burst_bytes, outstanding_r2t_max, ..Negotiated::default() };
        let mut gather = Gather::new(&[], len, false, &negotiated);
        for (is_final, ttt, data_sn, offset, bytes) in pdus {
            let ttt = if ttt == 3 { NO_TAG } else { ttt };
            let pdu = DataOut { is_final, itt: 1, ttt, data_sn, offset };
            gather.take(&pdu, &vec![0; bytes]);
            gather.ask(data_sn, &negotiated);
            prop_assert!(gather.data.len() <= len);
        }
    }
}
