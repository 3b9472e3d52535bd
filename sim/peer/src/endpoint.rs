//! The endpoint: one port with its addresses, its QPs, its registered memory, its completions.
//!
//! In: frames, requests, the time. Out: frames, completions, events. ACKs and NAKs go before requests; QPs take turns,
//! one packet each.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use contract::opcode::Kind;
use contract::verbs::access;
use contract::{AsyncEvent, QpState, Reject, Transport};
use thiserror::Error;

use crate::Time;
use crate::memory::{Memory, Region};
use crate::packet::Packet;
use crate::qp::{Address, Completion, MAX_RD_ATOMIC, Outbox, Qp, QpParams, RecvWr, SendOp, SendWr};
use crate::requester::Requester;

/// Why a call was refused; nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// No such QP.
    #[error("{operation}: there is no QP {qpn:#x}; create it first")]
    UnknownQp {
        /// What was called.
        operation: &'static str,
        /// The number.
        qpn: u32,
    },
    /// The QP number is taken or reserved.
    #[error("create QP {qpn:#x}: the number is in use or not in 2..0xffffff; choose another")]
    QpNumber {
        /// The number.
        qpn: u32,
    },
    /// The QP's state does not allow the call.
    #[error("{operation} on QP {qpn:#x}: its state is {state:?}; {remedy}")]
    WrongState {
        /// What was called.
        operation: &'static str,
        /// The QP.
        qpn: u32,
        /// Its state.
        state: QpState,
        /// What to do.
        remedy: &'static str,
    },
    /// A parameter is out of its range.
    #[error("connect QP {qpn:#x}: {parameter} is {value}, the limit is {limit}")]
    BadParameter {
        /// The QP.
        qpn: u32,
        /// Which parameter.
        parameter: &'static str,
        /// Its value.
        value: u32,
        /// The largest value.
        limit: u32,
    },
    /// The port has no address for this connection.
    #[error("connect QP {qpn:#x}: the port has no address for a path to {remote}; add one of its family")]
    NoAddress {
        /// The QP.
        qpn: u32,
        /// The other end.
        remote: IpAddr,
    },
    /// The connection was made without READs.
    #[error(
        "post send on QP {qpn:#x}: max_rd_atomic is 0, so it takes no READs and atomics; connect with more"
    )]
    NoReads {
        /// The QP.
        qpn: u32,
    },
    /// The result of an atomic has eight bytes.
    #[error("post send on QP {qpn:#x}: the landing of an atomic has {length} bytes; give it 8")]
    AtomicLanding {
        /// The QP.
        qpn: u32,
        /// Its length.
        length: usize,
    },
    /// The message is too long.
    #[error("post send on QP {qpn:#x}: the message has {length} bytes, the limit is 2^31; split it")]
    MessageTooLong {
        /// The QP.
        qpn: u32,
        /// Its length.
        length: usize,
    },
    /// The key's index is taken.
    #[error("register under key {key:#x}: its index is in use; deregister that region or choose another key")]
    KeyInUse {
        /// The key.
        key: u32,
    },
}

/// What a QP may permit its peer.
const ACCESS: u8 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// An asynchronous event of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The QP.
    pub qpn: u32,
    /// What happened.
    pub kind: AsyncEvent,
}

/// The QP `qpn`, for `operation`.
fn find<'a>(qps: &'a mut BTreeMap<u32, Qp>, operation: &'static str, qpn: u32) -> Result<&'a mut Qp, Error> {
    qps.get_mut(&qpn).ok_or(Error::UnknownQp { operation, qpn })
}

/// A RoCE port without IO.
#[derive(Debug)]
pub struct Endpoint {
    mac: u64,
    ips: Vec<IpAddr>,
    qps: BTreeMap<u32, Qp>,
    memory: Memory,
    out: Outbox,
    rejects: BTreeMap<Reject, u64>,
    last_served: u32,
    identification: u16,
}

impl Endpoint {
    /// A port with this MAC address (the first byte on the wire is the most significant of 48 bits) and IPv4 address.
    pub fn new(mac: u64, ip: Ipv4Addr) -> Self {
        Self {
            mac: mac & 0xffff_ffff_ffff,
            ips: vec![ip.into()],
            qps: BTreeMap::new(),
            memory: Memory::default(),
            out: Outbox::default(),
            rejects: BTreeMap::new(),
            last_served: 0,
            identification: 0,
        }
    }

    /// Gives the port one more address.
    pub fn add_ip(&mut self, ip: IpAddr) {
        self.ips.push(ip);
    }

    /// Creates a QP in RESET with the lowest free number from 0x11 on.
    pub fn create_qp(&mut self, pd: u32) -> u32 {
        let qpn = (0x11..).find(|qpn| !self.qps.contains_key(qpn)).unwrap_or(0x11);
        self.qps.insert(qpn, Qp::new(self.address(qpn), pd));
        qpn
    }

    /// Creates a QP in RESET with a chosen number.
    pub fn create_qp_numbered(&mut self, qpn: u32, pd: u32) -> Result<(), Error> {
        if !(2..0xff_ffff).contains(&qpn) || self.qps.contains_key(&qpn) {
            return Err(Error::QpNumber { qpn });
        }
        self.qps.insert(qpn, Qp::new(self.address(qpn), pd));
        Ok(())
    }

    /// Destroys a QP; its requests vanish without completions.
    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), Error> {
        self.qps.remove(&qpn).map(drop).ok_or(Error::UnknownQp { operation: "destroy", qpn })
    }

    /// The address of a QP of this port, for the other end's [`QpParams::to`]; the first IP address.
    pub fn address(&self, qpn: u32) -> Address {
        Address { mac: self.mac, ip: self.ips[0], qpn }
    }

    /// Takes a QP from RESET or INIT to RTR: it answers, but does not send yet.
    pub fn ready_to_receive(&mut self, qpn: u32, params: QpParams) -> Result<(), Error> {
        let qp = find(&mut self.qps, "connect", qpn)?;
        if !matches!(qp.state, QpState::Reset | QpState::Init) {
            let remedy = "modify it to RESET first";
            return Err(Error::WrongState { operation: "connect", qpn, state: qp.state, remedy });
        }
        for (parameter, value, limit) in [
            ("access", params.access.into(), ACCESS.into()),
            ("max_rd_atomic", params.max_rd_atomic.into(), MAX_RD_ATOMIC.into()),
            ("max_dest_rd_atomic", params.max_dest_rd_atomic.into(), MAX_RD_ATOMIC.into()),
            ("flow_label", params.flow_label, 0xf_ffff),
            ("VLAN", params.vlan.map_or(0, |vlan| vlan.id.into()), 0xfff),
            ("VLAN priority", params.vlan.map_or(0, |vlan| vlan.priority.into()), 7),
            ("timeout", params.timeout.into(), 31),
            ("retry_cnt", params.retry_cnt.into(), 7),
            ("rnr_retry", params.rnr_retry.into(), 7),
            ("min_rnr_timer", params.min_rnr_timer.into(), 31),
            ("rq_psn", params.rq_psn, 0xff_ffff),
            ("sq_psn", params.sq_psn, 0xff_ffff),
            ("remote qpn", params.remote.qpn, 0xff_ffff),
        ] {
            if value > limit {
                return Err(Error::BadParameter { qpn, parameter, value, limit });
            }
        }
        let remote = params.remote.ip;
        let suits = |ip: &IpAddr| {
            ip.is_ipv4() == remote.is_ipv4() && params.local_ip.is_none_or(|chosen| chosen == *ip)
        };
        qp.local.ip = self.ips.iter().copied().find(suits).ok_or(Error::NoAddress { qpn, remote })?;
        qp.params = Some(params);
        qp.requester = Requester::start(params.sq_psn);
        qp.responder = std::mem::take(&mut qp.responder).start(params.rq_psn);
        qp.state = QpState::Rtr;
        Ok(())
    }

    /// Takes a QP from RESET or INIT to RTS.
    pub fn connect(&mut self, qpn: u32, params: QpParams) -> Result<(), Error> {
        self.ready_to_receive(qpn, params)?;
        self.modify(qpn, QpState::Rts)
    }

    /// Moves a QP to another state; ERR flushes its requests, RESET forgets them.
    pub fn modify(&mut self, qpn: u32, to: QpState) -> Result<(), Error> {
        let qp = find(&mut self.qps, "modify", qpn)?;
        let legal = qp.state.may_become(to, Transport::Rc);
        if !legal || to == QpState::Rtr {
            let remedy =
                if to == QpState::Rtr { "use connect or ready_to_receive" } else { "see the state table" };
            return Err(Error::WrongState { operation: "modify", qpn, state: qp.state, remedy });
        }
        match to {
            QpState::Reset => {
                let (local, pd) = (qp.local, qp.pd);
                *qp = Qp::new(local, pd);
            }
            QpState::Err => {
                qp.responder.forget_answers();
                qp.fail(&mut self.out);
            }
            to => {
                qp.state = to;
                qp.requester.undrained = to == QpState::Sqd;
                qp.tell_drained(&mut self.out);
            }
        }
        Ok(())
    }

    /// The state of a QP.
    pub fn state(&self, qpn: u32) -> Option<QpState> {
        self.qps.get(&qpn).map(|qp| qp.state)
    }

    /// Whether every posted send of a QP has completed.
    pub fn is_idle(&self, qpn: u32) -> bool {
        self.qps.get(&qpn).is_none_or(|qp| qp.requester.is_idle())
    }

    /// Request packets that a QP has sent again.
    pub fn retransmits(&self, qpn: u32) -> u64 {
        self.qps.get(&qpn).map_or(0, |qp| qp.requester.retransmits)
    }

    /// Posts a send request; in ERR it is flushed at once.
    pub fn post_send(&mut self, qpn: u32, wr: SendWr) -> Result<(), Error> {
        let qp = find(&mut self.qps, "post send", qpn)?;
        let length = wr.length();
        if length > 1 << 31 {
            return Err(Error::MessageTooLong { qpn, length });
        }
        if matches!(wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) && length != 8 {
            return Err(Error::AtomicLanding { qpn, length });
        }
        match (qp.state, qp.params) {
            (QpState::Rts | QpState::Sqd, Some(params)) => {
                if params.max_rd_atomic == 0 && wr.op.landing().is_some() {
                    return Err(Error::NoReads { qpn });
                }
                qp.requester.post(wr, params.path_mtu.bytes());
            }
            (QpState::Err, _) => {
                qp.requester.post(wr, 1024);
                qp.requester.flush(qpn, &mut self.out);
            }
            (state, _) => {
                let remedy = "connect it first";
                return Err(Error::WrongState { operation: "post send", qpn, state, remedy });
            }
        }
        Ok(())
    }

    /// Posts a receive request; in ERR it is flushed at once.
    pub fn post_recv(&mut self, qpn: u32, wr: RecvWr) -> Result<(), Error> {
        let qp = find(&mut self.qps, "post receive", qpn)?;
        match qp.state {
            QpState::Reset => {
                let remedy = "modify it to INIT or connect it first";
                return Err(Error::WrongState { operation: "post receive", qpn, state: qp.state, remedy });
            }
            QpState::Err => {
                qp.responder.post(wr);
                qp.responder.flush(qpn, &mut self.out);
            }
            _ => qp.responder.post(wr),
        }
        Ok(())
    }

    /// Registers memory and gives its key.
    pub fn register(&mut self, region: Region) -> u32 {
        self.memory.register(region)
    }

    /// Registers memory under a chosen key.
    pub fn register_as(&mut self, key: u32, region: Region) -> Result<(), Error> {
        self.memory.register_as(key, region).map_err(|_| Error::KeyInUse { key })
    }

    /// Ends a registration and gives the memory back.
    pub fn deregister(&mut self, key: u32) -> Option<Region> {
        self.memory.deregister(key)
    }

    /// Whether a key is registered and not invalidated.
    pub fn is_valid(&self, key: u32) -> bool {
        self.memory.is_valid(key)
    }

    /// The region of a key, also of one that was invalidated.
    pub fn region(&self, key: u32) -> Option<&Region> {
        self.memory.region(key)
    }

    /// The region of a key, to change its memory as a program would.
    pub fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        self.memory.region_mut(key)
    }

    /// Takes a frame without FCS. `Some` names why it had no effect beyond an answer; it is counted too.
    pub fn receive(&mut self, now: Time, frame: &[u8]) -> Option<Reject> {
        let reject = self.take(now, frame).err()?;
        *self.rejects.entry(reject).or_default() += 1;
        Some(reject)
    }

    fn take(&mut self, now: Time, frame: &[u8]) -> Result<(), Reject> {
        let packet = Packet::parse(frame)?;
        if packet.ethernet.destination != self.mac {
            return Err(Reject::WrongDestinationMac);
        }
        let opcode = packet.opcode().ok_or(Reject::UnknownOpcode)?;
        let row = opcode.row();
        let qp = self.qps.get_mut(&packet.bth.dest_qp).ok_or(Reject::UnknownQp)?;
        if row.transport != Transport::Rc {
            return Err(Reject::WrongTransport);
        }
        let takes = match row.kind {
            Kind::Response => matches!(qp.state, QpState::Rts | QpState::Sqd),
            _ => qp.state.receives(),
        };
        let (true, Some(params)) = (takes, qp.params) else { return Err(Reject::WrongQpState) };
        let vlan = packet.vlan.map_or(0, |tag| tag.vlan);
        if packet.source() != params.remote.ip
            || packet.destination() != qp.local.ip
            || vlan != params.vlan.map_or(0, |vlan| vlan.id)
        {
            return Err(Reject::WrongAddress);
        }
        // This side is a full member of the default partition.
        if packet.bth.pkey & 0x7fff != 0x7fff {
            return Err(Reject::BadPkey);
        }
        match row.kind {
            Kind::Notification => Ok(()),
            Kind::Response => qp.response(now, &packet, opcode, &mut self.memory, &mut self.out),
            _ => {
                if qp.state == QpState::Rtr && qp.responder.is_untouched() {
                    self.out.events.push_back((qp.qpn, AsyncEvent::CommEst));
                }
                qp.request(&packet, opcode, &mut self.memory, &mut self.out)
            }
        }
    }

    /// The next frame to send, without FCS; `None` when there is nothing to send now.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        let after = self.qps.range(self.last_served + 1..).map(|(qpn, _)| *qpn);
        let turns: Vec<u32> = after.chain(self.qps.range(..=self.last_served).map(|(qpn, _)| *qpn)).collect();
        let (memory, out) = (&mut self.memory, &mut self.out);
        let mut packet =
            turns.iter().find_map(|qpn| Some((*qpn, self.qps.get_mut(qpn)?.next_answer(memory, out)?)));
        if packet.is_none() {
            packet = turns
                .iter()
                .find_map(|qpn| Some((*qpn, self.qps.get_mut(qpn)?.next_request(now, memory, out)?)));
        }
        let (qpn, mut packet) = packet?;
        self.last_served = qpn;
        packet.ip.identification = self.identification;
        self.identification = self.identification.wrapping_add(1);
        Some(packet.build())
    }

    /// The earliest time at which [`Endpoint::handle_timeout`] has something to do.
    pub fn next_timeout(&self) -> Option<Time> {
        self.qps.values().filter_map(|qp| qp.requester.next_timeout()).min()
    }

    /// Acts on everything that is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        for qp in self.qps.values_mut() {
            qp.handle_timeout(now, &mut self.out);
        }
    }

    /// The next completion.
    pub fn poll_cq(&mut self) -> Option<Completion> {
        self.out.completions.pop_front()
    }

    /// The next asynchronous event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front().map(|(qpn, kind)| Event { qpn, kind })
    }

    /// How often frames were refused for this reason.
    pub fn rejects(&self, reject: Reject) -> u64 {
        self.rejects.get(&reject).copied().unwrap_or(0)
    }
}
