//! Memory regions: the key table, and the judgement of one access.
//!
//! In: (key, address, length, PD, rights wanted). Out, combinationally from the entry read: the IOVA, or the reason why
//! not. Linear regions only: one IOVA range per region. A zero-length access asks nothing of any key.
//!
//! Requirements: MEM READ RESP

use contract::Reject;
use contract::context::MrEntryBits;
use hdl::{Sig, cat, lit, mux};

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
    let offset = va - entry.va;
    // 65 bits: offset + length cannot wrap unseen
    let end = cat(&[lit(1, 0), offset]) + length.extend(65);
    let inside = va.ge(entry.va) & end.le(cat(&[lit(1, 0), entry.length]));
    let known = entry.valid;
    let tag = entry.tag.eq(key.bits(0, 8));
    let same_pd = entry.pd.eq(pd);
    let allowed = (entry.access & rights).eq(rights);
    let empty = length.none();
    let code = |r: Reject| lit(6, r as u64);
    let reject = mux(
        !known,
        code(Reject::RkeyUnknown),
        mux(
            !tag,
            code(Reject::RkeyTag),
            mux(
                !same_pd,
                code(Reject::RkeyPd),
                mux(!allowed, code(Reject::RkeyRights), code(Reject::RkeyBounds)),
            ),
        ),
    );
    Access { ok: empty | (known & tag & same_pd & allowed & inside), reject, iova: entry.iova + offset }
}
