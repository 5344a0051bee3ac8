//! Storage medium of a disk, as reported by the kernel.
//!
//! `flush_probe` measures the times of a disk; `flush_verdict` evaluates them.
//!
//! Invariants:
//! - the code waits for no disk: it reads only names and attributes that the kernel has in memory;
//! - the code never guesses: if the kernel reports no medium, the kind is [`MediumKind::Unknown`].
//!
//! Spec: Linux Documentation/ABI/stable/sysfs-block (`rotational`, `write_cache`); statfs(2).

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Kind of medium behind a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumKind {
    /// Platters: a sector passes the head once in each revolution.
    Rotating,
    /// Flash, or a disk that reports that it does not rotate.
    SolidState,
    /// Memory that keeps its content without power.
    PersistentMemory,
    /// Ordinary memory, which loses its content without power.
    Memory,
    /// A disk that a hypervisor provides, on an unknown medium.
    Virtual,
    /// A disk that another machine provides over the network.
    Remote,
    /// The kernel does not report the medium.
    Unknown,
}

/// State of a disk's volatile cache, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// The disk has a volatile cache, and the kernel sends flushes.
    WriteBack,
    /// The disk has no volatile cache, or protects it against power loss; the kernel sends no
    /// flushes.
    WriteThrough,
}

/// Medium and cache of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Medium {
    /// Kind of the medium; for a file or a loop device, the kind of the underlying disk.
    pub kind: MediumKind,
    /// Cache mode of the underlying disk; `None` if the kernel does not report it.
    pub cache: Option<CacheMode>,
    /// True if the disk is attached by USB; USB bridges often hide the cache of a disk.
    pub usb: bool,
    /// Name of the disk, or of the filesystem in memory; empty if the name is unknown.
    pub name: String,
    /// True if the path is a file on a filesystem.
    pub is_file: bool,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_file { "file on " } else { "" };
        let what = match self.kind {
            MediumKind::Rotating => "rotating disk",
            MediumKind::SolidState => "solid-state disk",
            MediumKind::PersistentMemory => "persistent memory",
            MediumKind::Memory => "memory",
            MediumKind::Virtual => "virtual disk",
            MediumKind::Remote => "remote disk",
            MediumKind::Unknown => "unknown medium",
        };
        let usb = if self.usb { "USB " } else { "" };
        write!(f, "{place}{usb}{what}")?;
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        match self.cache {
            Some(CacheMode::WriteBack) => f.write_str(", write-back cache"),
            Some(CacheMode::WriteThrough) if self.kind != MediumKind::Memory => {
                f.write_str(", no volatile cache declared")
            }
            _ => Ok(()),
        }
    }
}

/// Maximum depth to which stacked devices are followed; real stacks have three or four layers.
const DEPTH_MAX: u32 = 8;

/// Names of hypervisors in the vendor and model of a disk, in capitals.
const HYPERVISORS: [&str; 9] = [
    "QEMU",
    "VBOX",
    "VMWARE",
    "VIRTUAL",
    "MSFT",
    "GOOGLE",
    "AMAZON",
    "PERSISTENTDISK",
    "NVME_CARD",
];

impl Medium {
    /// Finds out the medium of the disk at `path`, which is a file or a block device.
    pub fn of(path: &Path) -> Self {
        Sysfs(PathBuf::from("/sys")).of_path(path, DEPTH_MAX)
    }

    /// An unknown medium.
    pub fn unknown() -> Self {
        Self {
            kind: MediumKind::Unknown,
            cache: None,
            usb: false,
            name: String::new(),
            is_file: false,
        }
    }
}

/// Root directory of the kernel's device attributes; tests use another directory.
struct Sysfs(PathBuf);

impl Sysfs {
    fn of_path(&self, path: &Path, depth: u32) -> Medium {
        let Ok(metadata) = fs::metadata(path) else { return Medium::unknown() };
        if metadata.file_type().is_block_device() {
            return self.of_number(metadata.rdev(), depth);
        }
        if let Some(name) = memory_filesystem(path) {
            let kind = MediumKind::Memory;
            return Medium { kind, name: name.to_owned(), is_file: true, ..Medium::unknown() };
        }
        Medium { is_file: true, ..self.of_number(metadata.dev(), depth) }
    }

    fn of_number(&self, number: u64, depth: u32) -> Medium {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let link = self.0.join(format!("dev/block/{major}:{minor}"));
        // If a filesystem is on several disks or on none, its device number belongs to no disk.
        match fs::canonicalize(link) {
            Ok(node) => self.of_node(&node, depth),
            Err(_) => Medium::unknown(),
        }
    }

    /// `node` is the directory of a disk or partition, with symbolic links resolved.
    fn of_node(&self, node: &Path, depth: u32) -> Medium {
        let Some(depth) = depth.checked_sub(1) else { return Medium::unknown() };
        let disk = match node.parent() {
            Some(parent) if node.join("partition").exists() => parent,
            _ => node,
        };
        let name = disk.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("loop") {
            let Some(backing) = read(&disk.join("loop/backing_file")) else {
                return Medium::unknown();
            };
            return self.of_path(Path::new(&backing), depth);
        }
        let cache = match read(&disk.join("queue/write_cache")).as_deref() {
            Some("write back") => Some(CacheMode::WriteBack),
            Some("write through") => Some(CacheMode::WriteThrough),
            _ => None,
        };
        let below: Vec<Medium> = fs::read_dir(disk.join("slaves"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| fs::canonicalize(entry.path()).ok())
            .map(|slave| self.of_node(&slave, depth))
            .collect();
        let (kind, usb) = match below.as_slice() {
            [] => (own_kind(disk, &name), has_part(disk, |part| part.starts_with("usb"))),
            [first, rest @ ..] if rest.iter().all(|other| other.kind == first.kind) => {
                (first.kind, below.iter().any(|medium| medium.usb))
            }
            _ => (MediumKind::Unknown, false),
        };
        Medium { kind, cache, usb, name, is_file: false }
    }
}

fn own_kind(disk: &Path, name: &str) -> MediumKind {
    let is = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if is(&["zram", "ram"]) {
        return MediumKind::Memory;
    }
    if is(&["pmem"]) {
        return MediumKind::PersistentMemory;
    }
    if is(&["nbd", "rbd", "drbd"]) || has_part(disk, is_network) {
        return MediumKind::Remote;
    }
    let words = ["device/vendor", "device/model"].map(|file| read(&disk.join(file)));
    let words = words.into_iter().flatten().collect::<String>().to_uppercase();
    if is(&["vd", "xvd"]) || HYPERVISORS.iter().any(|mark| words.contains(mark)) {
        // Most virtual disks report that they rotate, whatever their real medium.
        return MediumKind::Virtual;
    }
    match read(&disk.join("queue/rotational")).as_deref() {
        Some("1") if !is(&["dm-", "md"]) => MediumKind::Rotating,
        Some("0") if !is(&["dm-", "md"]) => MediumKind::SolidState,
        _ => MediumKind::Unknown,
    }
}

/// True if a path component belongs to a disk that is attached by iSCSI, Fibre Channel or NVMe over
/// fabrics.
fn is_network(part: &str) -> bool {
    let numbered = |prefix: &str| {
        part.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    numbered("session") || numbered("rport-") || part == "nvme-fabrics"
}

fn has_part(path: &Path, fits: impl Fn(&str) -> bool) -> bool {
    path.iter().any(|part| fits(&part.to_string_lossy()))
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Name of the filesystem that contains `path`, if the filesystem is in memory.
fn memory_filesystem(path: &Path) -> Option<&'static str> {
    /// `TMPFS_MAGIC` and `RAMFS_MAGIC` of linux/magic.h.
    const NAMES: [(u64, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];

    let kind = rustix::fs::statfs(path).ok()?.f_type.cast_unsigned() & u64::from(u32::MAX);
    NAMES.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory tree like the kernel's device attributes, with disks at the given paths.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn disk(&self, place: &str, attributes: &[(&str, &str)]) -> PathBuf {
            let disk = self.0.path().join("devices").join(place);
            fs::create_dir_all(&disk).unwrap();
            for (name, value) in attributes {
                let file = disk.join(name);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, format!("{value}\n")).unwrap();
            }
            fs::canonicalize(disk).unwrap()
        }

        fn of(&self, disk: &Path) -> Medium {
            Sysfs(self.0.path().to_owned()).of_node(disk, DEPTH_MAX)
        }
    }

    const PLATTER: &[(&str, &str)] =
        &[("queue/rotational", "1"), ("queue/write_cache", "write back")];
    const FLASH: &[(&str, &str)] =
        &[("queue/rotational", "0"), ("queue/write_cache", "write through")];

    #[test]
    fn media_are_recognised_from_kernel_attributes() {
        use MediumKind::{Memory, PersistentMemory, Remote, Rotating, SolidState, Virtual};

        let tree = Tree::new();
        for (place, attributes, kind) in [
            ("pci0/ata1/host0/block/sda", PLATTER, Rotating),
            ("pci0/nvme/nvme0/nvme0n1", FLASH, SolidState),
            ("pci0/virtio1/block/vda", PLATTER, Virtual),
            ("platform/host2/session1/target2/block/sdc", PLATTER, Remote),
            ("virtual/block/nbd3", FLASH, Remote),
            ("virtual/block/zram0", FLASH, Memory),
            ("region0/block/pmem0", FLASH, PersistentMemory),
        ] {
            assert_eq!(tree.of(&tree.disk(place, attributes)).kind, kind, "{place}");
        }
        let qemu = [("device/model", "QEMU HARDDISK"), ("queue/rotational", "1")];
        assert_eq!(tree.of(&tree.disk("pci0/ata2/block/sdb", &qemu)).kind, Virtual);
        let bare = tree.of(&tree.disk("pci0/ata3/block/sdd", &[]));
        assert_eq!((bare.kind, bare.cache), (MediumKind::Unknown, None));
    }

    #[test]
    fn partition_has_the_medium_of_its_disk() {
        let tree = Tree::new();
        tree.disk("pci0/usb1/1-1/block/sde", PLATTER);
        let medium = tree.of(&tree.disk("pci0/usb1/1-1/block/sde/sde1", &[("partition", "1")]));
        assert_eq!((medium.name.as_str(), medium.usb), ("sde", true));
        assert_eq!(medium.cache, Some(CacheMode::WriteBack));
        assert_eq!(medium.to_string(), "USB rotating disk sde, write-back cache");
    }

    #[test]
    fn stacked_device_has_the_common_medium_of_its_disks() {
        let tree = Tree::new();
        let (flash, platter) = (tree.disk("a/nvme0n1", FLASH), tree.disk("b/sda", PLATTER));
        let stack = |name: &str, below: &[&Path]| {
            let disk = tree.disk(&format!("virtual/block/{name}"), PLATTER);
            fs::create_dir(disk.join("slaves")).unwrap();
            for (index, slave) in below.iter().enumerate() {
                std::os::unix::fs::symlink(slave, disk.join(format!("slaves/{index}"))).unwrap();
            }
            tree.of(&disk).kind
        };
        assert_eq!(stack("dm-0", &[&platter]), MediumKind::Rotating);
        assert_eq!(stack("md0", &[&platter, &flash]), MediumKind::Unknown);
        assert_eq!(stack("dm-1", &[]), MediumKind::Unknown);
        // A stack of devices that contains itself must not cause an endless loop.
        let own = tree.disk("virtual/block/dm-2", PLATTER);
        fs::create_dir(own.join("slaves")).unwrap();
        std::os::unix::fs::symlink(&own, own.join("slaves/0")).unwrap();
        assert_eq!(tree.of(&own).kind, MediumKind::Unknown);
    }

    #[test]
    fn loop_device_has_the_medium_of_its_file() {
        let tree = Tree::new();
        let shm = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let backing = [("loop/backing_file", shm.path().to_str().unwrap())];
        let medium = tree.of(&tree.disk("virtual/block/loop5", &backing));
        assert_eq!((medium.kind, medium.name.as_str()), (MediumKind::Memory, "tmpfs"));
        assert_eq!(medium.to_string(), "file on memory tmpfs");
    }

    #[test]
    fn missing_path_is_an_unknown_medium() {
        assert_eq!(Medium::of(Path::new("/no/such/disk")), Medium::unknown());
    }
}
