//! Forgeries of filesystems: each violates one rule, with valid checksums and space counters.
//!
//! Invariant: `sample` is sound, so each finding of a check comes from the forgery.

use futures_util::future::LocalBoxFuture;
use weir_base::ObjectId;
use weir_format::files::{FileType, Inode};
use weir_fs::{FsError, ROOT};

use crate::filesystem::editor::Editor;
use crate::filesystem::sample::Tree;

pub(crate) const BITMAP: ObjectId = ObjectId(2);
pub(crate) const ORPHANS: ObjectId = ObjectId(3);
pub(crate) const USAGE: ObjectId = ObjectId(4);
/// Number that no inode of the sample has.
const UNUSED: ObjectId = ObjectId(9000);

/// Offsets in a slot after the engine's part.
const STATE: usize = 0;
const SIZE: usize = 14;
const TYPE: usize = 31;
/// Offsets in a block of a directory.
const LENGTH: usize = 2;
const BLOCKS: usize = 8;
const FREE: usize = 12;
const CONTENT: usize = 16;
/// Size of a child in a node.
const CHILD_BYTES: usize = 12;
/// Offsets in an entry.
const ENTRY_NAME_BYTES: usize = 15;
const ENTRY_NAME: usize = 16;

/// Inode that a check must report.
pub type Suspect = fn(&Tree) -> ObjectId;
type Apply = for<'a> fn(&'a mut Editor, &'a Tree) -> LocalBoxFuture<'a, Result<(), FsError>>;

/// A violation of one rule of filesystems.
pub struct FilesystemForgery {
    /// Name of the forgery, which can be the name of a filesystem.
    pub name: &'static str,
    /// Inode that a check reports, and a part of the finding; `None` if the structures stay valid.
    pub finding: Option<(Suspect, &'static str)>,
    /// Changes the sample.
    pub apply: Apply,
}

const fn forgery(
    name: &'static str,
    suspect: Suspect,
    finding: &'static str,
    apply: Apply,
) -> FilesystemForgery {
    FilesystemForgery { name, finding: Some((suspect, finding)), apply }
}

const fn valid(name: &'static str, apply: Apply) -> FilesystemForgery {
    FilesystemForgery { name, finding: None, apply }
}

fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    bytes[at..at + new.len()].copy_from_slice(new);
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Block of a child of the root block of `many`.
async fn child(editor: &mut Editor, tree: &Tree, index: usize) -> Result<u32, FsError> {
    let mut block = 0;
    editor
        .block(tree.many, 0, |root| block = number(root, CONTENT + index * CHILD_BYTES + 8))
        .await?;
    Ok(block)
}

/// Changes the first leaf of `many`.
async fn leaf(
    editor: &mut Editor,
    tree: &Tree,
    change: impl FnOnce(&mut [u8]),
) -> Result<(), FsError> {
    let first = child(editor, tree, 0).await?;
    editor.block(tree.many, first.into(), |leaf| change(leaf)).await
}

/// Changes the root block of `many`.
async fn root(
    editor: &mut Editor,
    tree: &Tree,
    change: impl FnOnce(&mut [u8]),
) -> Result<(), FsError> {
    editor.block(tree.many, 0, |root| change(root)).await
}

/// Makes a block a node of level 1 whose only child is `child`.
fn node(block: &mut [u8], child: u32) {
    block.fill(0);
    put(block, 0, &[2, 1, 1, 0]);
    put(block, CONTENT, &16_u64.to_le_bytes());
    put(block, CONTENT + 8, &child.to_le_bytes());
}

/// Gives a directory another name, and counts it as a subdirectory there.
async fn name_again(
    editor: &mut Editor,
    directory: ObjectId,
    (parent, name): (ObjectId, &[u8]),
) -> Result<(), FsError> {
    editor.add(parent, name, (directory, FileType::Directory)).await?;
    editor.inode(parent, |parent| parent.nlink += 1).await
}

/// Moves directory `a` into its subdirectory `a/b`.
async fn exchange_parents(editor: &mut Editor, tree: &Tree) -> Result<(), FsError> {
    let Tree { a, b, .. } = *tree;
    editor.take(ROOT, b"a").await?;
    editor.add(b, b"a", (a, FileType::Directory)).await?;
    editor.inode(ROOT, |root| root.nlink -= 1).await?;
    editor.inode(b, |inode| inode.nlink += 1).await?;
    editor.inode(a, |inode| inode.parent = b).await
}

/// Makes the directory of inodes without a name a tree with a cycle.
async fn orphans_in_a_cycle(editor: &mut Editor) -> Result<(), FsError> {
    editor
        .block(ORPHANS, 0, |block| {
            node(block, 1);
            put(block, BLOCKS, &2_u32.to_le_bytes());
        })
        .await?;
    editor.block(ORPHANS, 1, |block| node(block, 1)).await?;
    editor
        .inode(ORPHANS, |inode| {
            (inode.size, inode.blocks, inode.area.entries) = (8192, 2, None);
        })
        .await
}

/// Adds a free block to `many` that is its own successor in the list of free blocks.
async fn free_block_after_itself(editor: &mut Editor, tree: &Tree) -> Result<(), FsError> {
    let mut count = 0;
    root(editor, tree, |root| {
        count = number(root, BLOCKS);
        put(root, BLOCKS, &(count + 1).to_le_bytes());
        put(root, FREE, &count.to_le_bytes());
    })
    .await?;
    editor
        .block(tree.many, count.into(), |block| {
            block[0] = 3;
            put(block, FREE, &count.to_le_bytes());
        })
        .await
}

/// Exchanges the first two keys of a leaf whose names have equal lengths.
fn exchange_keys(leaf: &mut [u8]) {
    let second = CONTENT + ENTRY_NAME + usize::from(leaf[CONTENT + ENTRY_NAME_BYTES]);
    let (mut one, mut two) = ([0; 8], [0; 8]);
    one.copy_from_slice(&leaf[CONTENT..CONTENT + 8]);
    two.copy_from_slice(&leaf[second..second + 8]);
    put(leaf, CONTENT, &two);
    put(leaf, second, &one);
}

/// ACL with the same entry many times.
fn repeated_acl() -> Box<[u8]> {
    let mut bytes = vec![2, 0, 0, 0];
    (0..95).for_each(|_| bytes.extend([2, 0, 7, 0, 9, 0, 0, 0]));
    bytes.into()
}

fn set_target(inode: &mut Inode, target: &[u8]) {
    inode.size = target.len() as u64;
    inode.area.target = Some(target.into());
}

/// Number of the object of attributes of `rich`.
async fn attributes_of(editor: &mut Editor, tree: &Tree) -> Result<ObjectId, FsError> {
    let mut object = ObjectId(0);
    editor.inode(tree.rich, |rich| object = rich.attributes).await?;
    Ok(object)
}

/// The symbolic link `lost+found` leads out of the tree, and `small` loses its name.
async fn link_lost_and_found(editor: &mut Editor, tree: &Tree) -> Result<(), FsError> {
    editor.take(ROOT, b"link").await?;
    editor.take(ROOT, b"small").await?;
    editor.add(ROOT, b"lost+found", (tree.link, FileType::SymbolicLink)).await?;
    editor.inode(tree.link, |link| set_target(link, b"../outside")).await
}

/// Adds the name `large` a second time, with the next key of its hash.
async fn name_twice(editor: &mut Editor, tree: &Tree) -> Result<(), FsError> {
    let key = editor.key_of(b"large").next_of_hash().expect("the first key of its hash");
    editor
        .entries(ROOT, |mut entries| {
            entries.push((key, tree.large, FileType::Regular, b"large".to_vec()));
            entries
        })
        .await?;
    editor.inode(tree.large, |inode| inode.nlink += 1).await
}

/// All forgeries.
pub const FILESYSTEM_FORGERIES: &[FilesystemForgery] = &[
    // Trees of directories.
    forgery(
        "tree-cycle",
        |t| t.many,
        "its level is wrong",
        |e, t| {
            Box::pin(async move {
                let first = child(e, t, 0).await?;
                leaf(e, t, |leaf| node(leaf, first)).await
            })
        },
    ),
    forgery(
        "block-twice",
        |t| t.many,
        "keys outside its bounds",
        |e, t| {
            Box::pin(async move {
                let first = child(e, t, 0).await?;
                let second = CONTENT + CHILD_BYTES + 8;
                root(e, t, |root| put(root, second, &first.to_le_bytes())).await
            })
        },
    ),
    forgery("keys-unordered", |t| t.many, "key", |e, t| Box::pin(leaf(e, t, exchange_keys))),
    forgery(
        "separator-outside",
        |t| t.many,
        "keys outside its bounds",
        |e, t| {
            Box::pin(root(e, t, |root| {
                // The second child gets the key of the third child, less 1.
                let third = root[CONTENT + 2 * CHILD_BYTES..][..8].try_into().expect("eight bytes");
                let key = u64::from_le_bytes(third) - 1;
                put(root, CONTENT + CHILD_BYTES, &key.to_le_bytes());
            }))
        },
    ),
    forgery(
        "leaf-length",
        |t| t.many,
        "directory block",
        |e, t| Box::pin(leaf(e, t, |leaf| put(leaf, LENGTH, &[0xff; 2]))),
    ),
    forgery(
        "node-length",
        |t| t.many,
        "field length",
        |e, t| Box::pin(root(e, t, |root| put(root, LENGTH, &[0xff; 2]))),
    ),
    forgery(
        "tree-blocks",
        |t| t.many,
        "blocks are lost",
        |e, t| Box::pin(root(e, t, |root| put(root, BLOCKS, &[0xff; 4]))),
    ),
    forgery(
        "child-behind-end",
        |t| t.many,
        "behind the end",
        |e, t| Box::pin(root(e, t, |root| put(root, CONTENT + 8, &[0xff; 4]))),
    ),
    forgery(
        "free-list-cycle",
        |t| t.many,
        "free blocks twice",
        |e, t| Box::pin(free_block_after_itself(e, t)),
    ),
    forgery(
        "entry-count",
        |t| t.many,
        "entries instead of",
        |e, t| Box::pin(e.inode(t.many, |inode| inode.device_or_entries = u64::MAX)),
    ),
    // Entries.
    forgery(
        "name-length",
        |t| t.many,
        "directory entry",
        |e, t| Box::pin(leaf(e, t, |leaf| leaf[CONTENT + ENTRY_NAME_BYTES] = 255)),
    ),
    forgery(
        "name-empty",
        |t| t.many,
        "field name",
        |e, t| Box::pin(leaf(e, t, |leaf| leaf[CONTENT + ENTRY_NAME_BYTES] = 0)),
    ),
    forgery(
        "name-slash",
        |t| t.many,
        "field name",
        |e, t| Box::pin(leaf(e, t, |leaf| put(leaf, CONTENT + ENTRY_NAME, b"../x"))),
    ),
    forgery(
        "name-nul",
        |t| t.a,
        "field name",
        |e, t| {
            Box::pin(e.inode(t.a, |inode| {
                let mut entries = inode.area.entries.take().expect("entries");
                entries[ENTRY_NAME] = 0;
                inode.area.entries = Some(entries);
            }))
        },
    ),
    forgery("name-twice", |_| ROOT, "name twice", |e, t| Box::pin(name_twice(e, t))),
    forgery(
        "names-free-slot",
        |t| t.a,
        "the unused inode 9000",
        |e, t| Box::pin(e.add(t.a, b"ghost", (UNUSED, FileType::Regular))),
    ),
    forgery(
        "names-out-of-range",
        |t| t.a,
        "the unused inode",
        |e, t| Box::pin(e.add(t.a, b"ghost", (ObjectId((1 << 46) - 1), FileType::Regular))),
    ),
    forgery(
        "names-bitmap",
        |t| t.a,
        "the internal inode 2",
        |e, t| Box::pin(e.add(t.a, b"bitmap", (BITMAP, FileType::Regular))),
    ),
    forgery(
        "names-reserved",
        |t| t.a,
        "the unused inode 5",
        |e, t| Box::pin(e.add(t.a, b"five", (ObjectId(5), FileType::Regular))),
    ),
    forgery(
        "names-root",
        |_| ROOT,
        "the internal inode 1",
        |e, _| {
            Box::pin(async move {
                e.add(ROOT, b"top", (ROOT, FileType::Directory)).await?;
                e.inode(ROOT, |root| root.nlink += 1).await
            })
        },
    ),
    forgery(
        "names-orphan",
        |t| t.orphan,
        "orphan with a name",
        |e, t| Box::pin(e.add(t.a, b"gone", (t.orphan, FileType::Regular))),
    ),
    forgery(
        "other-type",
        |t| t.small,
        "another type",
        |e, t| {
            Box::pin(async move {
                e.take(ROOT, b"small").await?;
                e.add(ROOT, b"small", (t.small, FileType::Directory)).await
            })
        },
    ),
    // The tree of directories.
    forgery(
        "parents-of-each-other",
        |t| t.a,
        "not below the root",
        |e, t| Box::pin(exchange_parents(e, t)),
    ),
    forgery(
        "reaches-itself",
        |t| t.a,
        "several names",
        |e, t| Box::pin(name_again(e, t.a, (t.b, b"up"))),
    ),
    forgery(
        "names-itself",
        |t| t.a,
        "several names",
        |e, t| Box::pin(name_again(e, t.a, (t.a, b"self"))),
    ),
    forgery(
        "names-itself-as-file",
        |t| t.a,
        "another type",
        |e, t| Box::pin(e.add(t.a, b"self", (t.a, FileType::Regular))),
    ),
    forgery(
        "root-is-a-file",
        |_| ROOT,
        "wrong type",
        |e, _| Box::pin(e.slot(ROOT, |body| body[TYPE] = body[TYPE] & 0x0f | 0x80)),
    ),
    forgery(
        "root-is-free",
        |_| ROOT,
        "the inode is missing",
        |e, _| {
            Box::pin(async move {
                e.remove(ROOT);
                Ok(())
            })
        },
    ),
    // Inodes.
    forgery(
        "links-low",
        |t| t.large,
        "number of links",
        |e, t| Box::pin(e.inode(t.large, |inode| inode.nlink = 1)),
    ),
    forgery(
        "links-zero",
        |t| t.small,
        "number of links",
        |e, t| Box::pin(e.inode(t.small, |inode| inode.nlink = 0)),
    ),
    forgery(
        "links-high",
        |t| t.small,
        "number of links",
        |e, t| Box::pin(e.inode(t.small, |inode| inode.nlink = u32::MAX)),
    ),
    forgery(
        "links-of-root",
        |_| ROOT,
        "number of links",
        |e, _| Box::pin(e.inode(ROOT, |inode| inode.nlink = 0)),
    ),
    forgery(
        "unknown-type",
        |t| t.small,
        "field mode",
        |e, t| Box::pin(e.slot(t.small, |body| body[TYPE] |= 0xf0)),
    ),
    forgery(
        "unknown-state",
        |t| t.small,
        "field state",
        |e, t| Box::pin(e.slot(t.small, |body| body[STATE] = 9)),
    ),
    forgery(
        "size-beyond-signed",
        |t| t.large,
        "size is too large",
        |e, t| Box::pin(e.slot(t.large, |body| put(body, SIZE, &(1_u64 << 63).to_le_bytes()))),
    ),
    valid("size-maximum", |e, t| Box::pin(e.inode(t.large, |inode| inode.size = i64::MAX as u64))),
    forgery(
        "size-of-content",
        |t| t.small,
        "not that of its content",
        |e, t| Box::pin(e.inode(t.small, |inode| inode.size = 1 << 62)),
    ),
    forgery(
        "blocks",
        |t| t.large,
        "blocks instead of",
        |e, t| Box::pin(e.inode(t.large, |inode| inode.blocks = u64::MAX)),
    ),
    forgery(
        "device",
        |t| t.small,
        "another type",
        |e, t| {
            Box::pin(e.inode(t.small, |inode| {
                inode.file_type = FileType::CharDevice;
                (inode.size, inode.area.data, inode.device_or_entries) = (0, None, u64::MAX);
            }))
        },
    ),
    forgery(
        "owner",
        |_| USAGE,
        "the usage of",
        |e, t| Box::pin(e.inode(t.small, |inode| (inode.uid, inode.gid) = (u32::MAX, u32::MAX))),
    ),
    valid("times", |e, t| {
        Box::pin(e.inode(t.small, |inode| {
            (inode.mtime.seconds, inode.atime.seconds) = (i64::MIN, i64::MAX);
        }))
    }),
    // Attributes, ACLs and symbolic links.
    forgery(
        "area-overrun",
        |t| t.rich,
        "inode",
        |e, t| Box::pin(e.slot(t.rich, |body| put(body, Inode::FIXED_BYTES + 1, &[0xff; 2]))),
    ),
    forgery(
        "acl-count",
        |t| t.rich,
        "access ACL is damaged",
        |e, t| Box::pin(e.inode(t.rich, |inode| inode.area.access_acl = Some(repeated_acl()))),
    ),
    forgery(
        "default-acl-count",
        |t| t.a,
        "default ACL is damaged",
        |e, t| {
            Box::pin(
                e.inode(t.a, |inode| inode.area.default_acl = Some(repeated_acl()[..700].into())),
            )
        },
    ),
    forgery(
        "link-empty",
        |t| t.link,
        "target of the symbolic link",
        |e, t| Box::pin(e.inode(t.link, |inode| set_target(inode, b""))),
    ),
    forgery(
        "link-nul",
        |t| t.link,
        "target of the symbolic link",
        |e, t| Box::pin(e.inode(t.link, |inode| set_target(inode, b"a\0b"))),
    ),
    forgery(
        "link-too-long",
        |t| t.long,
        "target of the symbolic link",
        |e, t| Box::pin(e.inode(t.long, |inode| inode.size = 5000)),
    ),
    forgery(
        "attributes-are-a-file",
        |t| t.rich,
        "no object of attributes",
        |e, t| Box::pin(e.inode(t.rich, |inode| inode.attributes = t.large)),
    ),
    forgery(
        "attributes-are-internal",
        |t| t.rich,
        "is an internal inode",
        |e, t| Box::pin(e.inode(t.rich, |inode| inode.attributes = BITMAP)),
    ),
    forgery(
        "attributes-shared",
        |t| t.small,
        "of its owner",
        |e, t| {
            Box::pin(async move {
                let object = attributes_of(e, t).await?;
                e.inode(t.small, |inode| inode.attributes = object).await
            })
        },
    ),
    forgery(
        "attributes-size",
        |t| t.rich,
        "no object of attributes",
        |e, t| {
            Box::pin(async move {
                let object = attributes_of(e, t).await?;
                e.inode(object, |inode| inode.size = 1 << 50).await
            })
        },
    ),
    forgery(
        "attributes-named",
        |t| ObjectId(t.rich.0 + 1),
        "object of attributes has a name",
        |e, t| {
            Box::pin(async move {
                let object = attributes_of(e, t).await?;
                e.add(ROOT, b"object", (object, FileType::Regular)).await
            })
        },
    ),
    // Internal inodes.
    forgery(
        "orphans-cycle",
        |_| ORPHANS,
        "its level is wrong",
        |e, _| Box::pin(orphans_in_a_cycle(e)),
    ),
    forgery(
        "orphans-name-a-file",
        |t| t.small,
        "has a name and is an orphan",
        |e, t| Box::pin(e.add(ORPHANS, b"x", (t.small, FileType::Regular))),
    ),
    forgery(
        "orphans-name-root",
        |_| ORPHANS,
        "the internal inode 1",
        |e, _| Box::pin(e.add(ORPHANS, b"1", (ROOT, FileType::Directory))),
    ),
    forgery(
        "orphans-name-bitmap",
        |_| ORPHANS,
        "the internal inode 2",
        |e, _| Box::pin(e.add(ORPHANS, b"2", (BITMAP, FileType::Regular))),
    ),
    forgery(
        "orphans-lack-one",
        |t| t.orphan,
        "list of orphans lacks it",
        |e, _| Box::pin(e.entries(ORPHANS, |_| Vec::new())),
    ),
    forgery(
        "bitmap-lacks-one",
        |t| t.small,
        "bitmap of numbers",
        |e, t| {
            Box::pin(e.block(BITMAP, 0, |block| {
                block[(t.small.0 / 8) as usize] &= !(1 << (t.small.0 % 8));
            }))
        },
    ),
    forgery(
        "bitmap-has-more",
        |_| UNUSED,
        "bitmap of numbers",
        |e, _| {
            Box::pin(
                e.block(BITMAP, 0, |block| block[(UNUSED.0 / 8) as usize] |= 1 << (UNUSED.0 % 8)),
            )
        },
    ),
    forgery(
        "bitmap-is-free",
        |_| BITMAP,
        "the inode is missing",
        |e, _| {
            Box::pin(async move {
                e.remove(BITMAP);
                Ok(())
            })
        },
    ),
    forgery(
        "bitmap-is-a-directory",
        |_| BITMAP,
        "wrong type",
        |e, _| Box::pin(e.slot(BITMAP, |body| body[TYPE] = body[TYPE] & 0x0f | 0x40)),
    ),
    forgery(
        "usage",
        |_| USAGE,
        "the usage of",
        |e, _| Box::pin(e.block(USAGE, 0, |block| put(block, 0, &[0xff; 8]))),
    ),
    forgery(
        "usage-of-no-kind",
        |_| USAGE,
        "field unused",
        |e, _| Box::pin(e.block(USAGE, 0, |block| block[3 * 32] = 1)),
    ),
    // A rescue must not follow the link.
    forgery(
        "lost-and-found-link",
        |t| t.small,
        "no directory has its name",
        |e, t| Box::pin(link_lost_and_found(e, t)),
    ),
];
