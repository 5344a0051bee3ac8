//! Cache standing of a result: the knowledge about caches between the generator and the medium.
//!
//! `target/caches` finds caches; `judge` decides the verdict on a row.
//!
//! Invariant: a cache that is neither stated by the user nor found is "not known", never "none".

use serde::{Deserialize, Serialize};
use weir_base::size::Human;

use crate::result::RunResult;

/// Knowledge about the caches of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// A cache can hold the whole dataset.
    CacheResident,
    /// The size of the cache was stated or found, and the dataset is larger than the cache.
    CacheStated,
    /// The size of the cache was neither stated by the user nor found.
    CacheNotKnown,
}

impl Standing {
    /// Returns the cache standing of a run.
    pub fn of(result: &RunResult) -> Self {
        match result.target.cache_bytes {
            None => Self::CacheNotKnown,
            Some(cache) if result.spec.dataset.total_bytes() <= cache => Self::CacheResident,
            Some(_) => Self::CacheStated,
        }
    }

    /// Name of the cache standing in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::CacheResident => "cache-resident",
            Self::CacheStated => "cache stated",
            Self::CacheNotKnown => "cache not known",
        }
    }
}

/// Describes the cache standing of a run, and the ratio of its working set to the cache.
pub fn sentence(result: &RunResult) -> String {
    let (standing, dataset) = (Standing::of(result), result.spec.dataset.total_bytes());
    let name = standing.name();
    let Some(cache) = result.target.cache_bytes else {
        return format!(
            "{name}: the cache may hold the working set of {}; state its size with --target-cache",
            Human(dataset)
        );
    };
    if cache == 0 {
        return format!("{name}: none");
    }
    let ratio = dataset as f64 / cache as f64;
    let source = result.target.cache_source.as_deref().unwrap_or("told");
    format!(
        "{name}: the working set of {} is {ratio:.2} times the cache of {} ({source})",
        Human(dataset),
        Human(cache)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn ratio_of_working_set_to_cache_decides_the_standing() {
        let mut result = fixture::result(Vec::new());
        let dataset = result.spec.dataset.total_bytes();
        let mut of = |cache| {
            result.target.cache_bytes = cache;
            (Standing::of(&result), sentence(&result))
        };
        let (standing, said) = of(None);
        assert_eq!(standing, Standing::CacheNotKnown);
        assert!(said.contains("--target-cache"), "{said}");
        assert_eq!(of(Some(0)).1, "cache stated: none");
        let (standing, said) = of(Some(dataset / 4));
        assert!(standing == Standing::CacheStated && said.contains("4.00 times"), "{said}");
        assert_eq!(of(Some(dataset)).0, Standing::CacheResident);
    }
}
