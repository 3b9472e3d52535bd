//! Memory regions: the key table, and the judgement of one access.
//!
//! In: (key, address, length, PD, rights wanted). Out, combinationally from the entry read: the IOVA, or the reason why
//! not. Linear regions only: one IOVA range per region. A zero-length access asks nothing of any key.
//! The same, without a range, for a request that would end the key ([`judge_end`]), and for what was judged before and is
//! executed now ([`holds`]).
//!
//! Requirements: ERR MEM READ RESP

use contract::Reject;
use contract::context::MrEntryBits;
use contract::verbs::access;
use hdl::{Sig, lit, mux};

/// The outcome of [`judge`].
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The access is allowed.
    pub ok: Sig,
    /// Code of the `contract::Reject` otherwise (the R_Key family).
    pub reject: Sig,
    /// IOVA of the first byte.
    pub iova: Sig,
}

/// Judges an access of `length` (32 bits) bytes at `va` by `key` under `entry`, for a QP of protection domain `pd`,
/// wanting all of the rights in `rights` (8 bits of `ibv_access_flags`).
pub fn judge(entry: &MrEntryBits, key: Sig, va: Sig, length: Sig, pd: Sig, rights: Sig) -> Access {
    judge_reach(entry, key, va, length, reach(entry, va, length), pd, rights)
}

/// Where an access lies.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// Its first byte, from the beginning of the region.
    pub offset: Sig,
    /// One past its last byte, in 65 bits, which cannot wrap unseen.
    pub end: Sig,
    /// Likewise of the region.
    pub region_end: Sig,
}

/// Where an access of `length` bytes at `va` lies in the region of `entry`: all of it beside each other.
pub fn reach(entry: &MrEntryBits, va: Sig, length: Sig) -> Reach {
    Reach {
        offset: va - entry.va,
        end: va.extend(65) + length.extend(65),
        region_end: entry.va.extend(65) + entry.length.extend(65),
    }
}

/// [`judge`] by who has its [`reach`] already.
pub fn judge_reach(
    entry: &MrEntryBits,
    key: Sig,
    va: Sig,
    length: Sig,
    reach: Reach,
    pd: Sig,
    rights: Sig,
) -> Access {
    let inside = va.ge(entry.va) & reach.end.le(reach.region_end);
    let (granted, refusal) = grant(entry, key, pd, rights);
    let empty = length.none();
    let reject = mux(granted, lit(6, Reject::RkeyBounds as u64), refusal);
    Access { ok: empty | (granted & inside), reject, iova: entry.iova + reach.offset }
}

/// Judges a request of protection domain `pd` to end `key` under `entry`: whether it may, and the refusal otherwise.
pub fn judge_end(entry: &MrEntryBits, key: Sig, pd: Sig) -> (Sig, Sig) {
    grant(entry, key, pd, lit(8, u64::from(access::INVALIDATE)))
}

/// `key` is still that of `entry`: everything else about it was judged when the packet came, and cannot have changed.
pub fn holds(entry: &MrEntryBits, key: Sig) -> Sig {
    entry.valid & entry.tag.eq(key.bits(0, 8))
}

/// Key, PD and rights, without bounds.
fn grant(entry: &MrEntryBits, key: Sig, pd: Sig, rights: Sig) -> (Sig, Sig) {
    let tag = entry.tag.eq(key.bits(0, 8));
    let same_pd = entry.pd.eq(pd);
    let allowed = (entry.access & rights).eq(rights);
    let code = |r: Reject| lit(6, r as u64);
    let reject = mux(
        !entry.valid,
        code(Reject::RkeyUnknown),
        mux(!tag, code(Reject::RkeyTag), mux(!same_pd, code(Reject::RkeyPd), code(Reject::RkeyRights))),
    );
    (entry.valid & tag & same_pd & allowed, reject)
}
