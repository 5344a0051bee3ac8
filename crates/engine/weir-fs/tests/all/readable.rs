//! Reads of a damaged filesystem, for a rescue.

use weir_base::ObjectId;
use weir_fs::{Filesystem, NewInode, NewKind, ROOT};

use crate::common::{Pool, now};

const FILE_BYTES: usize = 256 << 10;
const NAMES: u64 = 200;

/// Bytes that do not compress.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(1..=255)).take(bytes).collect()
}

fn create(pool: &Pool, directory: ObjectId, name: &[u8], kind: NewKind<'_>) -> ObjectId {
    let new = NewInode { kind, permissions: 0o755, umask: 0, uid: 0, gid: 0 };
    pool.run(pool.files.create_inode(directory, name, &new)).unwrap().number
}

/// All readable bytes of a file as its data ranges, and the number of unreadable records.
fn salvage(files: &Filesystem, file: ObjectId) -> (Vec<u8>, usize) {
    let (mut content, mut failed, mut next) = (vec![0; FILE_BYTES], 0, Some(0));
    while let Some(offset) = next {
        let part = now(files.readable_data(file, offset)).unwrap();
        assert_eq!(part.unreadable, Vec::new());
        for range in part.data {
            for at in range.step_by(part.record_bytes as usize) {
                match now(files.read(file, at, part.record_bytes as usize)) {
                    Ok(data) => content[at as usize..][..data.len()].copy_from_slice(&data),
                    Err(error) => {
                        assert!(error.is_damage(), "{error}");
                        failed += 1;
                    }
                }
            }
        }
        next = part.next;
    }
    (content, failed)
}

#[test]
fn damage_hides_only_the_blocks_that_have_it() {
    let pool = Pool::new(64 << 20);
    let content = noise(1, FILE_BYTES);
    let file = create(&pool, ROOT, b"file", NewKind::File);
    pool.run(pool.files.write(file, 0, &content, false)).unwrap();
    // Long names of noise fill several blocks, which do not compress.
    let directory = create(&pool, ROOT, b"directory", NewKind::Directory);
    let name = |number: u64| {
        let name = noise(100 + number, 255);
        name.into_iter().map(|byte| if byte == b'/' { b'x' } else { byte }).collect::<Vec<u8>>()
    };
    for number in 0..NAMES {
        create(&pool, directory, &name(number), NewKind::File);
    }
    pool.check();
    let pool = pool.crash();
    assert_eq!(salvage(&pool.files, file), (content.clone(), 0));
    let whole = now(pool.files.readable_entries(directory)).unwrap();
    assert_eq!((whole.entries.len() as u64, whole.damage), (NAMES, None));

    pool.damage(&content[100_000..100_064]);
    pool.damage(&name(7)[..64]);
    let pool = pool.crash();
    let (rest, failed) = salvage(&pool.files, file);
    assert_eq!(failed, 1);
    let record = 100_000 / (32 << 10) * (32 << 10);
    assert_eq!(rest[..record], content[..record]);
    assert_eq!(rest[record + (32 << 10)..], content[record + (32 << 10)..]);
    let rest = now(pool.files.readable_entries(directory)).unwrap();
    assert!(rest.damage.is_some());
    let left = rest.entries.len() as u64;
    assert!((NAMES - 16..NAMES).contains(&left), "{left} entries of {NAMES}");

    // The files without a readable name are still in the list of inodes.
    let mut listed = Vec::new();
    let mut next = Some(0);
    while let Some(first) = next {
        let part = now(pool.files.readable_inodes(first)).unwrap();
        assert_eq!(part.unreadable, Vec::new());
        listed.extend(part.inodes.into_iter().map(|inode| inode.number));
        next = part.next;
    }
    assert_eq!(listed.len() as u64, NAMES + 3, "the root, the file, the directory, its files");
    // The check reports the damage and continues.
    let found = now(pool.files.check()).unwrap();
    assert!(found.iter().any(|finding| finding.inode == directory.0), "{found:?}");
}
