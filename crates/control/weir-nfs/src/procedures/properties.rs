//! FSSTAT, FSINFO, PATHCONF.
//!
//! Spec: RFC 1813 sections 3.3.18 to 3.3.20.
//!
//! Invariant: all numbers describe the filesystem of the handle.

use weir_fs::NameCase;
use weir_nfs_wire::nfs3::{
    FsinfoResok, FsstatResok, Nfstime3, PathconfResok, PostOpAttr, properties,
};
use weir_oncrpc::Encoder;

use crate::limits::{DIRECTORY_BYTES_PREFERRED, TRANSFER_BYTES_MAX};
use crate::procedures::at::{At, put, put_error};

/// Maximum length of a name.
const NAME_BYTES_MAX: u32 = 255;

/// Attributes of the inode of the call. `None` if the inode is gone: the result is an error then.
async fn known(at: &At, out: &mut Encoder<'_>) -> Option<PostOpAttr> {
    match at.attributes().await {
        Ok(attributes) => Some(Some(at.fattr(&attributes))),
        Err(error) => {
            put_error(out, &error, PostOpAttr::None);
            None
        }
    }
}

pub(super) async fn fsstat(at: &At, out: &mut Encoder<'_>) {
    let Some(attributes) = known(at, out).await else { return };
    // A snapshot has no space of its own.
    match at.share.files.statistics().await {
        Ok(found) => put(
            out,
            &FsstatResok {
                attributes,
                total_bytes: found.total_bytes,
                free_bytes: found.available_bytes,
                available_bytes: found.available_bytes,
                total_files: found.files.saturating_add(found.files_available),
                free_files: found.files_available,
                available_files: found.files_available,
                invariant_seconds: 0,
            },
        ),
        Err(error) => put_error(out, &error, attributes),
    }
}

pub(super) async fn fsinfo(at: &At, out: &mut Encoder<'_>) {
    let Some(attributes) = known(at, out).await else { return };
    put(
        out,
        &FsinfoResok {
            attributes,
            rtmax: TRANSFER_BYTES_MAX,
            rtpref: TRANSFER_BYTES_MAX,
            rtmult: 4096,
            wtmax: TRANSFER_BYTES_MAX,
            wtpref: TRANSFER_BYTES_MAX,
            wtmult: 4096,
            dtpref: DIRECTORY_BYTES_PREFERRED,
            maxfilesize: i64::MAX as u64,
            time_delta: Nfstime3 { seconds: 0, nanos: 1 },
            properties: properties::LINK
                | properties::SYMLINK
                | properties::HOMOGENEOUS
                | properties::CANSETTIME,
        },
    );
}

pub(super) async fn pathconf(at: &At, out: &mut Encoder<'_>) {
    let Some(attributes) = known(at, out).await else { return };
    put(
        out,
        &PathconfResok {
            attributes,
            linkmax: u32::MAX - 1,
            name_max: NAME_BYTES_MAX,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: at.files().case() == NameCase::Insensitive,
            case_preserving: true,
        },
    );
}
