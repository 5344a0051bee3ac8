//! Tests of the checks of pool requests.
//!
//! The layout grammar has its tests in the command line.
//!
//! Invariant: each test changes one field of a valid request and expects that the check refuses it.

use super::*;

fn vdev(kind: VdevKind, disks: &[&str]) -> VdevSpec {
    VdevSpec { kind, role: VdevRole::Data, disks: disks.iter().map(|&d| d.to_owned()).collect() }
}

fn create(vdevs: Vec<VdevSpec>) -> PoolCreate {
    PoolCreate { name: "tank".into(), vdevs, force: false, properties: BTreeMap::new() }
}

#[test]
fn accepts_stripes_mirrors_and_raidz() {
    use VdevKind::{Disk, Mirror, Raidz1, Raidz2, Raidz3};
    for vdevs in [
        vec![vdev(Disk, &["/a"])],
        vec![vdev(Disk, &["/a"]), vdev(Disk, &["/b"])],
        vec![vdev(Mirror, &["/a", "/b"]), vdev(Mirror, &["/c", "/d"])],
        vec![vdev(Mirror, &["/a", "/b", "/c"])],
        vec![vdev(Raidz1, &["/a", "/b", "/c"]), vdev(Raidz1, &["/d", "/e", "/f"])],
        vec![vdev(Raidz2, &["/a", "/b", "/c", "/d"])],
        vec![vdev(Raidz3, &["/a", "/b", "/c", "/d"])],
    ] {
        create(vdevs).check().expect("a usual layout");
    }
}

#[test]
fn invalid_layouts_are_refused() {
    use VdevKind::{Disk, Mirror, Raidz1, Raidz2, Raidz3};
    let many: Vec<String> = (0..33).map(|n| format!("/d{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (vdevs, part) in [
        (vec![], "no disks"),
        (vec![vdev(Disk, &[])], "exactly one"),
        (vec![vdev(Disk, &["/a", "/b"])], "exactly one"),
        (vec![vdev(Mirror, &["/a"])], "at least two"),
        (vec![vdev(Mirror, &["/a", "/a"])], "twice"),
        (vec![vdev(Disk, &["/a"]), vdev(Disk, &["/a"])], "twice"),
        (vec![vdev(Disk, &["a"])], "not absolute"),
        (vec![vdev(Disk, &["/a"]), vdev(Mirror, &["/b", "/c"])], "mismatched"),
        (vec![vdev(Raidz1, &["/a"])], "at least two"),
        (vec![vdev(Raidz2, &["/a", "/b"])], "at least three"),
        (vec![vdev(Raidz3, &["/a", "/b", "/c"])], "at least four"),
        (vec![vdev(Raidz1, &many)], "at most 32"),
        (vec![vdev(Raidz2, &["/a", "/b", "/a"])], "twice"),
        (vec![vdev(Mirror, &["/a", "/b"]), vdev(Raidz1, &["/c", "/d"])], "raidz1 of 2 disks"),
        (
            vec![vdev(Mirror, &["/a", "/b"]), vdev(Mirror, &["/c", "/d", "/e"])],
            "2-way mirrors and 3-way",
        ),
    ] {
        let error = create(vdevs).check().expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn force_allows_a_mix_but_not_a_disk_twice() {
    use VdevKind::{Disk, Mirror};
    let mut request = create(vec![vdev(Disk, &["/a"]), vdev(Mirror, &["/b", "/c"])]);
    request.force = true;
    request.check().expect("forced");
    request.vdevs[0].disks[0] = "/b".into();
    assert!(matches!(request.check(), Err(Error::DiskTwice { .. })));
}

#[test]
fn pool_destroy_requires_the_name_twice() {
    let mut request = PoolDestroy { name: "tank".into(), confirm: "tank".into() };
    request.check().expect("confirmed");
    for wrong in ["", "Tank", "tank ", "yes"] {
        request.confirm = wrong.into();
        assert!(matches!(request.check(), Err(Error::NotConfirmed { .. })), "{wrong:?}");
    }
}

#[test]
fn import_takes_a_name_or_a_guid() {
    for (pool, ok) in [("tank", true), ("123", true), ("", false), ("12x", false)] {
        let request = PoolImport { pool: pool.into(), search: vec![], force: false };
        assert_eq!(request.check().is_ok(), ok, "{pool:?}");
    }
    let request = PoolImport { pool: "tank".into(), search: vec!["dir".into()], force: false };
    assert!(matches!(request.check(), Err(Error::RelativePath { .. })));
}

#[test]
fn paths_of_a_search_for_pools_are_limited() {
    let search = |count: usize| (0..count).map(|n| format!("/disks/{n}")).collect::<Vec<_>>();
    let scan = |count: usize| PoolScan { search: search(count) }.check();
    let import = |count: usize| {
        PoolImport { pool: "tank".into(), search: search(count), force: false }.check()
    };
    scan(SEARCH_MAX).and_then(|()| import(SEARCH_MAX)).expect("as many as there may be");
    for refused in [scan(SEARCH_MAX + 1), import(SEARCH_MAX + 1)] {
        let error = refused.expect_err("one more");
        assert_eq!(error.kind(), weir_base::ErrorKind::Invalid);
        assert!(error.to_string().contains("at most 64"), "{error}");
    }
}
