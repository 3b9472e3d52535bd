//! QP attributes and the state machine's table: which attributes a transition needs and which it may take.
//!
//! In: transport, present state, wanted state, mask. Out: yes, or what is missing and what is too much; nothing is changed then.
//! (InfiniBand 11.2.5.3, as Linux' RDMA core and `ibv_modify_qp` have it, without alternate paths' migration.)

use crate::{Access, Error, Gid, PathMtu, QpState, Result, Transport};

bitflags::bitflags! {
    /// Which fields of [`QpAttr`] are meant (`ibv_qp_attr_mask`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AttrMask: u32 {
        /// `state`.
        const STATE = 1 << 0;
        /// `cur_state`.
        const CUR_STATE = 1 << 1;
        /// Notice when the send queue is drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `av`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path; not supported.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration; not supported.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes; fixed at creation.
        const CAP = 1 << 19;
        /// `dest_qpn`.
        const DEST_QPN = 1 << 20;
    }
}

/// The way to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID.
    pub dest_gid: Gid,
    /// Index of this side's GID.
    pub sgid_index: u8,
    /// TTL or hop limit; 0 means 64.
    pub hop_limit: u8,
    /// ToS or traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label; also chooses the UDP source port, 0: from the QPNs.
    pub flow_label: u32,
    /// Service level: the priority of the frames' 802.1Q tag, if their GID is in a VLAN.
    pub sl: u8,
}

impl AddressVector {
    /// To `dest_gid` from this side's GID 0, everything else by default.
    pub fn to(dest_gid: Gid) -> AddressVector {
        AddressVector { dest_gid, sgid_index: 0, hop_limit: 64, traffic_class: 0, flow_label: 0, sl: 0 }
    }
}

/// Attributes of a QP; which of them a call means is told by its [`AttrMask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAttr {
    /// The state to move to, or the present one.
    pub state: QpState,
    /// The state the caller believes the QP to be in.
    pub cur_state: QpState,
    /// What the peer may do through this QP.
    pub access: Access,
    /// Index in the P_Key table, which is {0xffff}.
    pub pkey_index: u16,
    /// Port number: 1.
    pub port: u8,
    /// Queue key (datagrams).
    pub qkey: u32,
    /// Largest payload of a packet.
    pub path_mtu: PathMtu,
    /// The peer's QP.
    pub dest_qpn: u32,
    /// First PSN from the peer; the low 24 bits count.
    pub rq_psn: u32,
    /// First PSN to send; the low 24 bits count.
    pub sq_psn: u32,
    /// The way to the peer.
    pub av: AddressVector,
    /// READs and atomics that this side may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code told to the peer.
    pub min_rnr_timer: u8,
    /// Retransmission timeout: 4.096 us * 2^timeout; 0 never.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors: 0..=7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs: 0..=6, 7 for ever.
    pub rnr_retry: u8,
    /// On the way to SQD: an event SQ_DRAINED when all that had begun is complete.
    pub en_sqd_async_notify: bool,
}

impl Default for QpAttr {
    fn default() -> Self {
        QpAttr {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            access: Access::empty(),
            pkey_index: 0,
            port: 1,
            qkey: 0,
            path_mtu: PathMtu::Mtu1024,
            dest_qpn: 0,
            rq_psn: 0,
            sq_psn: 0,
            av: AddressVector::to(Gid::default()),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            en_sqd_async_notify: false,
        }
    }
}

/// Required and optional attributes of a transition; `None`: there is no such transition. STATE is implied.
pub fn transition(transport: Transport, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    use AttrMask as A;
    use QpState::*;
    if !from.may_become(to, transport) {
        return None;
    }
    let none = A::empty();
    let reliable = transport == Transport::Rc;
    let connected = matches!(transport, Transport::Rc | Transport::Uc);
    let rc = |mask: A| if reliable { mask } else { none };
    // what names the user of a QP in each kind of transport
    if transport == Transport::Raw {
        // a port, and nothing that is said of a way
        return Some(match (from, to) {
            (Reset, Init) => (A::PORT, none),
            (Init, Init) => (none, A::PORT),
            (Rts, Sqd) => (none, A::EN_SQD_ASYNC_NOTIFY),
            (Rts | Sqd, Rts) => (none, A::CUR_STATE),
            _ => (none, none),
        });
    }
    let rights = if connected { A::ACCESS_FLAGS } else { A::QKEY };
    let path = if connected { A::ACCESS_FLAGS | A::ALT_PATH } else { A::QKEY };
    let migration = if connected { A::PATH_MIG_STATE } else { none };
    Some(match (from, to) {
        (_, Reset | Err) => (none, none),
        (Reset, Init) => (A::PKEY_INDEX | A::PORT | rights, none),
        (Init, Init) => (none, A::PKEY_INDEX | A::PORT | rights),
        (Init, Rtr) if connected => (
            A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN | rc(A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER),
            A::PKEY_INDEX | path,
        ),
        (Init, Rtr) => (none, A::PKEY_INDEX | path),
        (Rtr, Rts) => (
            A::SQ_PSN | rc(A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC),
            A::CUR_STATE | path | migration | rc(A::MIN_RNR_TIMER),
        ),
        (Rts, Rts) | (Sqd, Rts) => (none, A::CUR_STATE | path | migration | rc(A::MIN_RNR_TIMER)),
        (Rts, Sqd) => (none, A::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) if connected => (
            none,
            A::AV
                | path
                | A::PKEY_INDEX
                | migration
                | rc(A::PORT
                    | A::TIMEOUT
                    | A::RETRY_CNT
                    | A::RNR_RETRY
                    | A::MAX_QP_RD_ATOMIC
                    | A::MAX_DEST_RD_ATOMIC
                    | A::MIN_RNR_TIMER),
        ),
        (Sqd, Sqd) => (none, A::PKEY_INDEX | A::QKEY),
        (Sqe, Rts) => (none, A::CUR_STATE | rights),
        _ => return None,
    })
}

/// Judges a modify call.
pub(super) fn check(
    qpn: u32,
    transport: Transport,
    from: QpState,
    to: QpState,
    mask: AttrMask,
) -> Result<()> {
    let (required, optional) = transition(transport, from, to).ok_or(Error::Transition { qpn, from, to })?;
    let missing = required.difference(mask);
    let excess = mask.difference(required | optional | AttrMask::STATE);
    if missing.is_empty() && excess.is_empty() {
        Ok(())
    } else {
        Err(Error::Attributes { qpn, from, to, missing, excess })
    }
}
