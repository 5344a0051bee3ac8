//! Bookmarks: persistence, their relation to snapshots, and sends from a bookmark whose snapshot
//! was destroyed.
//!
//! `send` tests other properties of streams; weir-sim tests crashes.

use weir_base::ErrorKind;
use weir_dataset::{BookmarkId, DatasetError, Engine, Outcome, SendFrom, SendSpec};

use crate::common::{id, now};
use crate::send::{BLOCKS, Content, Pool, content, kind, spec, trim, write};

fn mark(volume: &str, name: &str) -> BookmarkId {
    BookmarkId { volume: volume.to_owned(), name: name.to_owned() }
}

fn names(engine: &Engine, volume: &str) -> Vec<String> {
    engine.bookmarks(volume).unwrap().into_iter().map(|mark| mark.name).collect()
}

fn destroy(pool: &Pool, volume: &str, name: &str) {
    now(pool.engine.destroy_snapshots(volume, &[name.to_owned()])).unwrap();
}

fn bookmark(pool: &Pool, volume: &str, snapshot: &str, name: &str) {
    let made = now(pool.engine.create_bookmark(&id(volume, snapshot), name));
    assert_eq!(made.unwrap(), Outcome::Changed);
}

/// Returns an incremental stream from a bookmark.
fn since(pool: &Pool, (of, name): (&str, &str), to: (&str, &str)) -> Result<Vec<u8>, DatasetError> {
    let from = Some(SendFrom::Bookmark(mark(of, name)));
    pool.send(&SendSpec { from, ..spec(to.0, to.1) })
}

#[test]
fn incremental_stream_from_the_bookmark_of_a_destroyed_snapshot() {
    let (mut source, mut back) = (Pool::new("tank", 0), Pool::new("back", 1000));
    let volume = source.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..BLOCKS, 1);
    source.snap("v", "a");
    let info = now(source.engine.snapshots("v")).unwrap().remove(0);
    back.receive("w", &source.whole("v", "a")).unwrap();
    bookmark(&source, "v", "a", "a");
    let used = volume.info().space.used;
    write(&volume, &mut model, 100..130, 2);
    trim(&volume, &mut model, 300..420);
    destroy(&source, "v", "a");
    // The space of the destroyed snapshot is free and can be reused.
    source.check();
    assert!(volume.info().space.used < used, "a bookmark holds nothing");
    source.snap("v", "b");
    drop(volume);
    source.reopen();
    let kept = source.engine.bookmarks("v").unwrap().remove(0);
    assert_eq!((kept.name.as_str(), kept.guid, kept.txg), ("a", info.guid, info.txg));
    assert_eq!(kept.created_unix_ms, info.created_unix_ms);

    let bytes = since(&source, ("v", "a"), ("v", "b")).unwrap();
    assert!(bytes.len() < 100_000, "{} bytes are no difference", bytes.len());
    // The stream is interrupted and resumed: the token names the snapshot, which now exists only as
    // the bookmark.
    let error = back.receive("w", &bytes[..bytes.len() / 2]).unwrap_err();
    assert!(matches!(error, DatasetError::CutOff { .. }), "{error}");
    back.reopen();
    let resume = Some(back.token("w"));
    back.receive("w", &source.send(&SendSpec { resume, ..spec("v", "b") }).unwrap()).unwrap();
    assert_eq!(back.shown("w", "b"), model);
    back.check();

    // Without the bookmark, the pool cannot send changes since this point in time.
    let gone = now(source.engine.destroy_bookmark(&mark("v", "a")));
    assert_eq!(gone.unwrap(), Outcome::Changed);
    assert!(matches!(
        now(source.engine.destroy_bookmark(&mark("v", "a"))).unwrap_err(),
        DatasetError::NoBookmark { .. }
    ));
    let error = since(&source, ("v", "a"), ("v", "b")).unwrap_err();
    assert!(matches!(error, DatasetError::NoBookmark { .. }), "{error}");
    source.reopen();
    assert_eq!(names(&source.engine, "v"), [""; 0]);
    source.check();
}

#[test]
fn bookmark_names_are_unique_and_streams_go_forward_only() {
    let pool = Pool::new("tank", 0);
    let volume = pool.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..10, 1);
    pool.snap("v", "a");
    write(&volume, &mut model, 0..10, 2);
    pool.snap("v", "b");
    bookmark(&pool, "v", "b", "late");
    bookmark(&pool, "v", "a", "early");
    assert_eq!(names(&pool.engine, "v"), ["early", "late"], "by their moments");
    let again = now(pool.engine.create_bookmark(&id("v", "a"), "early"));
    assert_eq!(again.unwrap(), Outcome::Unchanged);
    let error = now(pool.engine.create_bookmark(&id("v", "b"), "early")).unwrap_err();
    assert!(matches!(error, DatasetError::BookmarkExists { .. }), "{error}");
    let error = now(pool.engine.create_bookmark(&id("v", "x"), "other")).unwrap_err();
    assert!(matches!(error, DatasetError::NoSnapshot { .. }), "{error}");
    since(&pool, ("v", "early"), ("v", "b")).unwrap();
    // The snapshot to send must be newer than the bookmark's snapshot.
    for (from, to) in [("late", "b"), ("late", "a"), ("early", "a")] {
        let error = since(&pool, ("v", from), ("v", to)).unwrap_err();
        assert_eq!(kind(&error), ErrorKind::Invalid, "{from} {to}: {error}");
    }
    pool.make("other");
    pool.snap("other", "a");
    let error = since(&pool, ("v", "early"), ("other", "a")).unwrap_err();
    assert_eq!(kind(&error), ErrorKind::Invalid, "{error}");
}

#[test]
fn rollback_past_newer_bookmarks_needs_confirmation() {
    let mut pool = Pool::new("tank", 0);
    let volume = pool.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..200, 1);
    pool.snap("v", "a");
    let first = model.clone();
    bookmark(&pool, "v", "a", "a");
    write(&volume, &mut model, 50..60, 2);
    pool.snap("v", "b");
    bookmark(&pool, "v", "b", "b");
    destroy(&pool, "v", "b");
    let error = now(pool.engine.rollback(&id("v", "a"), false)).unwrap_err();
    assert!(error.to_string().contains("1 newer bookmarks"), "{error}");
    assert_eq!((kind(&error), names(&pool.engine, "v").len()), (ErrorKind::Busy, 2));
    now(pool.engine.rollback(&id("v", "a"), true)).unwrap();
    assert_eq!((content(&volume), names(&pool.engine, "v")), (first, vec!["a".to_owned()]));
    // A volume that has only bookmarks is destroyed without confirmation, together with the
    // bookmarks.
    destroy(&pool, "v", "a");
    now(pool.engine.destroy_volume("v", false)).unwrap();
    drop(volume);
    pool.reopen();
    pool.make("v");
    assert_eq!(names(&pool.engine, "v"), [""; 0]);
    pool.check();
}

/// A bookmark stays in the namespace of its volume. After a promotion, the bookmark's point in time
/// may belong to the history of the clone. Streams from the bookmark are correct for both the
/// volume and the clone.
#[test]
fn bookmarks_stay_with_their_volume_after_rename_and_promotion() {
    let (mut source, back) = (Pool::new("tank", 0), Pool::new("back", 1000));
    let volume = source.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..BLOCKS, 1);
    source.snap("v", "a");
    back.receive("w", &source.whole("v", "a")).unwrap();
    bookmark(&source, "v", "a", "a");
    write(&volume, &mut model, 0..40, 2);
    source.snap("v", "b");
    now(source.engine.clone_snapshot(&id("v", "b"), "c")).unwrap();
    let (clone, mut cloned) = (source.engine.volume("c").unwrap(), model.clone());
    write(&clone, &mut cloned, 20..30, 3);
    trim(&clone, &mut cloned, 100..110);
    source.snap("c", "x");
    bookmark(&source, "c", "x", "x");
    trim(&volume, &mut model, 200..210);
    source.snap("v", "d");
    bookmark(&source, "v", "d", "d");
    now(source.engine.rename_volume("v", "u")).unwrap();
    assert_eq!(
        (names(&source.engine, "u"), names(&source.engine, "c")),
        (vec!["a".to_owned(), "d".to_owned()], vec!["x".to_owned()])
    );
    let arrives = |bytes: Vec<u8>, to: (&str, &str), wanted: &Content| {
        let into = format!("{}-{}", to.0, to.1);
        back.receive(&into, &bytes).unwrap();
        assert_eq!(back.shown(&into, to.1), *wanted, "{into}");
        now(back.engine.destroy_volume(&into, true)).unwrap();
    };
    // The bookmark is older than the clone: the receiver creates a clone of its own volume.
    arrives(since(&source, ("u", "a"), ("c", "x")).unwrap(), ("c", "x"), &cloned);
    now(source.engine.promote("c")).unwrap();
    arrives(since(&source, ("u", "a"), ("u", "d")).unwrap(), ("u", "d"), &model);
    let bytes = since(&source, ("u", "a"), ("c", "x")).unwrap();
    back.receive("w", &bytes).unwrap();
    assert_eq!(back.shown("w", "x"), cloned, "now it is the same volume");
    for (from, to) in [(("u", "d"), ("c", "x")), (("c", "x"), ("u", "d"))] {
        let error = since(&source, from, to).unwrap_err();
        assert_eq!(kind(&error), ErrorKind::Invalid, "{error}");
    }
    drop((volume, clone));
    source.reopen();
    assert_eq!(names(&source.engine, "u"), ["a", "d"]);
    arrives(since(&source, ("u", "a"), ("u", "d")).unwrap(), ("u", "d"), &model);
    source.check();
    back.check();
}

#[test]
fn bookmarks_of_a_volume_are_limited() {
    let source = Pool::new("tank", 0);
    source.make("v");
    source.snap("v", "a");
    for number in 0..1024 {
        bookmark(&source, "v", "a", &number.to_string());
    }
    let error = now(source.engine.create_bookmark(&id("v", "a"), "more")).unwrap_err();
    assert!(
        matches!(error, DatasetError::TooMany { count: 1024, what: "bookmarks", .. }),
        "{error}"
    );
    now(source.engine.destroy_bookmark(&mark("v", "7"))).unwrap();
    bookmark(&source, "v", "a", "more");
}
