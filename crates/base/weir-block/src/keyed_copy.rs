//! Copy of words XORed with a key: the loop that fills the blocks of a benchmark.
//!
//! weir-bench has the layout of these blocks. The loop is in this crate, because `make run` builds
//! weir-bench without optimisation.
//!
//! Invariant: the filled bytes depend only on the words and the key.

/// Fills `target` with `words` in little-endian order, each XORed with `key`. The last word may be
/// copied only in part.
///
/// # Panics
/// `words` has fewer bytes than `target`.
#[inline(never)]
pub fn copy_with_key(target: &mut [u8], words: &[u64], key: u64) {
    assert!(words.len() >= target.len().div_ceil(size_of::<u64>()), "a word for each 8 bytes");
    // Process the whole words in a separate loop, which the compiler can vectorise.
    let (whole, rest) = target.as_chunks_mut::<8>();
    for (out, word) in whole.iter_mut().zip(words) {
        *out = (word ^ key).to_le_bytes();
    }
    if let Some(last) = words.get(whole.len()) {
        let last = (last ^ key).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::copy_with_key;

    #[test]
    fn each_word_is_xored_and_the_last_one_cut() {
        let words = [0x0102_0304_0506_0708, 0x1112_1314_1516_1718, 3];
        let mut target = [0; 11];
        copy_with_key(&mut target, &words, 0xff);
        assert_eq!(target, [0xf7, 7, 6, 5, 4, 3, 2, 1, 0xe7, 0x17, 0x16]);
        let mut whole = [0; 8];
        copy_with_key(&mut whole, &words[2..], 1);
        assert_eq!(whole, [2, 0, 0, 0, 0, 0, 0, 0]);
        copy_with_key(&mut [], &[], 0);
    }
}
