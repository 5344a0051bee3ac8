//! rquota: the quotas of users and groups, for the command `quota` of clients.
//!
//! Spec: `rquota.x` of quota-tools (versions 1 and 2).
//!
//! Invariant: a user reads only its own quota; a client whose root is not squashed reads all.

use weir_base::BLOCK_BYTES;
use weir_format::files::{OwnerId, OwnerKind, Usage};
use weir_nfs_wire::rquota::{
    ExtGetquotaArgs, GetquotaArgs, GetquotaResult, Procedure, Rquota, VERSION_1, kind,
};
use weir_oncrpc::message::AcceptStat;
use weir_oncrpc::{Decoder, Encoder, Xdr};

use crate::procedures::dispatch::Caller;
use crate::programs::outcome::Outcome;
use crate::share::{Found, Refusal, Shares, identify_caller};

/// Runs a procedure of rquota and appends its results.
pub(crate) async fn run(
    shares: &Shares,
    caller: &Caller<'_>,
    (version, procedure): (u32, u32),
    mut input: Decoder<'_>,
    out: &mut Encoder<'_>,
) -> Outcome {
    let Some(procedure) = Procedure::from_number(procedure) else {
        return Outcome::Failed(AcceptStat::ProcUnavail);
    };
    if procedure == Procedure::Null {
        return Outcome::Done;
    }
    let args = if version == VERSION_1 {
        GetquotaArgs::decode(&mut input).map(|of| (of.path, kind::USER, of.uid))
    } else {
        ExtGetquotaArgs::decode(&mut input).map(|of| (of.path, of.kind, of.id))
    };
    let Ok((path, kind, id)) = args else {
        return Outcome::Failed(AcceptStat::GarbageArgs);
    };
    match quota(shares, caller, (path.bytes(), kind, id.cast_unsigned())).await {
        Ok(result) => {
            result.encode(out);
            Outcome::Done
        }
        Err(outcome) => outcome,
    }
}

async fn quota(
    shares: &Shares,
    caller: &Caller<'_>,
    (path, kind, id): (&[u8], i32, u32),
) -> Result<GetquotaResult, Outcome> {
    let (Found::Share(share), _) = shares.of_path(path) else {
        return Ok(GetquotaResult::NoQuota);
    };
    let rules = (&share.rules, caller.groups);
    let user = match identify_caller(rules, caller.address, &caller.credential).await {
        Ok(user) => user,
        Err(Refusal::Access | Refusal::Waits) => return Ok(GetquotaResult::Perm),
        Err(Refusal::Auth(stat)) => return Err(Outcome::Denied(stat)),
    };
    let user = user.credentials();
    let (owner, is_own) = match kind {
        kind::USER => (OwnerKind::User, user.uid == id),
        kind::GROUP => (OwnerKind::Group, user.is_in(id)),
        _ => return Ok(GetquotaResult::NoQuota),
    };
    if !is_own && !user.is_privileged {
        return Ok(GetquotaResult::Perm);
    }
    let usage = share.files.usage(OwnerId { kind: owner, id }).await;
    Ok(match usage {
        Ok(usage) if usage.limits.blocks > 0 || usage.limits.inodes > 0 => {
            GetquotaResult::Ok(rquota(&usage))
        }
        _ => GetquotaResult::NoQuota,
    })
}

/// Limits and use of an owner. Larger numbers than the protocol has become the largest one.
fn rquota(usage: &Usage) -> Rquota {
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let [blocks, files] = [usage.limits.blocks, usage.limits.inodes].map(number);
    Rquota {
        block_bytes: const { BLOCK_BYTES as u32 }.cast_signed(),
        active: true,
        block_hard_limit: blocks,
        block_soft_limit: blocks,
        blocks: number(usage.blocks),
        file_hard_limit: files,
        file_soft_limit: files,
        files: number(usage.inodes),
        block_seconds_left: 0,
        file_seconds_left: 0,
    }
}
