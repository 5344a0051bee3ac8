//! Search for an input that makes a target panic: runs the corpus first, then mutations of the
//! corpus.
//!
//! `mutate` mutates an input; tests/smoke.rs saves an input that fails.
//!
//! Invariants: the seed determines the inputs and their order; a failure contains the input that
//! caused it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::Target;
use crate::mutate::mutate;
use crate::watchdog::Watchdog;

/// Time after which a search ends even if it has tried fewer inputs than its minimum.
const SEARCH_TIME_MAX: Duration = Duration::from_mins(1);

/// Duration and seed of a search.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Time for mutated inputs. If the search has tried fewer inputs than the target's minimum by
    /// then, it continues, up to 60 s in total.
    pub time: Duration,
    /// Seed of the mutations.
    pub seed: u64,
}

/// Numbers of inputs of a search that found no failure.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    /// Number of inputs of the corpus.
    pub replayed: usize,
    /// Number of mutated inputs.
    pub mutated: u64,
}

/// Failure: an input that made the target panic.
#[derive(Debug)]
pub struct Failure {
    /// Input that caused the panic.
    pub input: Vec<u8>,
    /// Message of the panic.
    pub message: String,
}

/// Runs a target on its corpus, and then on mutations of the corpus.
pub fn search(
    target: &Target,
    corpus: &[Vec<u8>],
    plan: Plan,
    watchdog: &Watchdog,
) -> Result<Tried, Failure> {
    // Run the first input without a watchdog: it builds state that all inputs share, such as pools.
    try_input(target, &[])?;
    let mut tried = Tried { replayed: 0, mutated: 0 };
    for input in corpus {
        watchdog.run(input, || try_input(target, input))?;
        tried.replayed += 1;
    }
    let mut rng = Rng::with_seed(plan.seed);
    let pick = |rng: &mut Rng| rng.choice(corpus).map_or(&[][..], Vec::as_slice);
    let started = Instant::now();
    let mut input = Vec::new();
    loop {
        let elapsed = started.elapsed();
        let is_enough = tried.mutated >= target.inputs_min || elapsed >= SEARCH_TIME_MAX;
        if elapsed >= plan.time && is_enough {
            return Ok(tried);
        }
        input.clear();
        input.extend_from_slice(pick(&mut rng));
        let other = pick(&mut rng);
        mutate(&mut rng, &mut input, other, target.len_max);
        watchdog.run(&input, || try_input(target, &input))?;
        tried.mutated += 1;
    }
}

fn try_input(target: &Target, input: &[u8]) -> Result<(), Failure> {
    // The search ends at the first panic. So state that the panic left half changed affects no
    // later input.
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Failure { input: input.to_vec(), message: text.unwrap_or("no message").to_owned() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parser with a planted bug: it trusts a length that follows its magic number.
    fn toy(data: &[u8]) {
        let Some((b"TOY!", rest)) = data.split_first_chunk() else { return };
        let Some((len, rest)) = rest.split_first_chunk() else { return };
        let len = u32::from_be_bytes(*len) as usize;
        if len < 0x8000_0000 {
            assert!(rest.get(..len).is_none_or(|name| name.len() == len));
        } else {
            panic!("a name of {len} bytes");
        }
    }

    fn search_toy(corpus: &[Vec<u8>], seed: u64) -> Result<Tried, Failure> {
        let target =
            Target { name: "toy", run: toy, seeds: Vec::new, len_max: 64, inputs_min: 100_000 };
        let watchdog = Watchdog::start(SEARCH_TIME_MAX, u64::MAX, |_, what| panic!("{what}"));
        search(&target, corpus, Plan { time: Duration::ZERO, seed }, &watchdog)
    }

    #[test]
    fn planted_bug_is_found_and_repeats_with_its_seed() {
        let corpus = [b"TOY!\0\0\0\x04name".to_vec(), b"TOY!\0\0\0\0".to_vec()];
        for seed in 0..5 {
            let found = search_toy(&corpus, seed).expect_err("a fault is planted");
            assert!(found.message.starts_with("a name of "), "{}", found.message);
            assert!(found.input.starts_with(b"TOY!") && found.input[4] >= 0x80);
            let again = search_toy(&corpus, seed).expect_err("a fault is planted");
            assert_eq!(again.input, found.input);
        }
    }

    #[test]
    fn failing_input_of_the_corpus_is_found() {
        let corpus = [b"TOY!\xff\0\0\0".to_vec()];
        assert_eq!(search_toy(&corpus, 1).expect_err("it fails").input, corpus[0]);
    }

    #[test]
    fn search_without_failure_reaches_its_minimum() {
        let tried = search_toy(&[], 1).expect("the magic number is not found by chance");
        assert_eq!((tried.replayed, tried.mutated), (0, 100_000));
    }
}
