//! Attributes of inodes in the form of NFSv3.
//!
//! Invariant: a time outside of the range of NFSv3 becomes the nearest time of the range.

use weir_base::BLOCK_BYTES;
use weir_format::files::{FileType, TimeStamp};
use weir_fs::{Attributes, BeforeAfter, SetAttributes};
use weir_nfs_wire::nfs3::{Fattr3, Ftype3, Nfstime3, Sattr3, SetTime, Specdata3, WccData};

/// Returns the attributes of an inode (fattr3). `fsid`: number of the filesystem or snapshot.
pub fn fattr(attributes: &Attributes, fsid: u64) -> Fattr3 {
    Fattr3 {
        kind: kind(attributes.file_type),
        mode: attributes.permissions,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        used: attributes.blocks.saturating_mul(BLOCK_BYTES as u64),
        rdev: device(attributes.device),
        fsid,
        fileid: attributes.number.0,
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
    }
}

/// Returns the attributes of a changed inode (wcc_data).
pub fn wcc(change: &BeforeAfter, fsid: u64) -> WccData {
    let before = fattr(&change.before, fsid).wcc();
    WccData { before: Some(before), after: Some(fattr(&change.after, fsid)) }
}

/// Returns the changes that a client requests (sattr3), and true if it requests the server's time
/// for each time that it sets. `now`: the server's time.
///
/// A time of the client that is no valid time is `None`: the server replies NFS3ERR_INVAL.
pub fn set_attributes(requested: &Sattr3, now: TimeStamp) -> Option<(SetAttributes, bool)> {
    let of = |time: SetTime| match time {
        SetTime::DontChange => Some(None),
        SetTime::ServerTime => Some(Some(now)),
        SetTime::ClientTime(Nfstime3 { seconds, nanos }) if nanos < 1_000_000_000 => {
            Some(Some(TimeStamp { seconds: i64::from(seconds), nanos }))
        }
        SetTime::ClientTime(_) => None,
    };
    let changes = SetAttributes {
        permissions: requested.mode,
        uid: requested.uid,
        gid: requested.gid,
        size: requested.size,
        atime: of(requested.atime)?,
        mtime: of(requested.mtime)?,
        ..SetAttributes::default()
    };
    let is_chosen = |time: SetTime| matches!(time, SetTime::ClientTime(_));
    Some((changes, !is_chosen(requested.atime) && !is_chosen(requested.mtime)))
}

fn time(time: TimeStamp) -> Nfstime3 {
    Nfstime3::saturating_from(time.seconds, time.nanos)
}

fn kind(file_type: FileType) -> Ftype3 {
    match file_type {
        FileType::Regular => Ftype3::Reg,
        FileType::Directory => Ftype3::Dir,
        FileType::SymbolicLink => Ftype3::Lnk,
        FileType::BlockDevice => Ftype3::Blk,
        FileType::CharDevice => Ftype3::Chr,
        FileType::Fifo => Ftype3::Fifo,
        FileType::Socket => Ftype3::Sock,
    }
}

/// Numbers of a device file. The mount stores the device number of Linux (new_encode_dev).
fn device(device: u64) -> Specdata3 {
    let device = device as u32;
    Specdata3 { major: device >> 8 & 0xfff, minor: device & 0xff | device >> 12 & 0xf_ff00 }
}

/// Device number of Linux (new_encode_dev) for the numbers of a client. `None` if a number is too
/// large.
pub(crate) fn device_number(Specdata3 { major, minor }: Specdata3) -> Option<u64> {
    let fits = major < 1 << 12 && minor < 1 << 20;
    fits.then_some(u64::from(minor & 0xff | major << 8 | (minor & !0xff) << 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(atime: SetTime, mtime: SetTime) -> Sattr3 {
        Sattr3 { atime, mtime, ..Sattr3::default() }
    }

    #[test]
    fn device_numbers_of_linux_are_split() {
        // /dev/vda is 254:0, /dev/sdaa is 65:160, and 4095:1048575 is the largest number.
        for (stored, major, minor) in
            [(0xfe00, 254, 0), (0x41a0, 65, 160), (0xffff_ffff, 4095, 0xf_ffff)]
        {
            assert_eq!(device(stored), Specdata3 { major, minor });
            assert_eq!(device_number(Specdata3 { major, minor }), Some(stored));
        }
        assert_eq!(device_number(Specdata3 { major: 4096, minor: 0 }), None);
    }

    #[test]
    fn times_outside_of_the_range_become_the_nearest_time() {
        let of = |seconds| time(TimeStamp { seconds, nanos: 7 });
        assert_eq!(of(-1), Nfstime3::default());
        assert_eq!(of(5), Nfstime3 { seconds: 5, nanos: 7 });
        assert_eq!(of(1 << 40), Nfstime3::MAX);
    }

    #[test]
    fn times_of_the_server_and_of_the_client_are_told_apart() {
        let now = TimeStamp { seconds: 9, nanos: 1 };
        let chosen = SetTime::ClientTime(Nfstime3 { seconds: 3, nanos: 4 });
        let (changes, is_now) =
            set_attributes(&requested(SetTime::ServerTime, SetTime::DontChange), now).unwrap();
        assert_eq!((changes.atime, changes.mtime, is_now), (Some(now), None, true));
        let (changes, is_now) =
            set_attributes(&requested(SetTime::ServerTime, chosen), now).unwrap();
        assert_eq!(changes.mtime, Some(TimeStamp { seconds: 3, nanos: 4 }));
        assert!(!is_now, "the owner alone may choose a time");
        let invalid = SetTime::ClientTime(Nfstime3 { seconds: 3, nanos: 1_000_000_000 });
        assert!(set_attributes(&requested(invalid, SetTime::DontChange), now).is_none());
    }
}
