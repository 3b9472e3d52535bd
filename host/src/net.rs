//! Ordinary IP beside RDMA: a raw QP, a small IP stack over it, and who on the network has which address.
//!
//! ```text
//! card > raw QP > Port (smoltcp's device) > Interface: answers ARP, ND and ping        Ip::poll does all of it
//!                        \> what ARP and ND say of those who were asked for > Ip::mac_of
//! ```
//!
//! In: frames that are not RoCE, and the port's addresses. Out: answers to ARP, ND and echo requests of IPv4 and IPv6;
//! the MAC address of a GID, asked for by ARP or ND; pings. Nothing happens between calls: whoever waits here polls
//! meanwhile, and [`Ip::serve`] does so for a program that is busy with something else, asleep until the card's event of a
//! frame or the stack's own timer. A call takes up to 64 frames, so a storm holds up nobody for long; what the card has no receive for it drops by name. Only whom this side asked for is
//! remembered, so a stranger can fill nothing. Frames end at 8191 bytes; no routers: every address is on the link.

use crate::address::{Gid, Mac};
use crate::context::lock;
use crate::device::{run_directory, write32};
use crate::event::{clear, new_epoll, new_eventfd, raise};
use crate::{
    Access, CompChannel, Completion, Context, Cq, Error, Mr, Pd, Qp, QpAttr, QpInit, RecvWr, Result, SendWr,
    WcStatus,
};
use contract::register as reg;
use contract::wire::{ETHERNET_BYTES, RAW_FRAME_MAX};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::icmp;
use smoltcp::time::Instant;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr,
    HardwareAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress, IpCidr, IpProtocol,
    Ipv6Address, Ipv6Packet, Ipv6Repr, NdiscRepr,
};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Frames that may wait for the stack, and for the card.
const RECEIVES: usize = 128;
const SENDS: usize = 16;
/// Bytes of memory of each.
const SLOT: usize = RAW_FRAME_MAX + 1;
/// Frames that one poll takes at most.
const BUDGET: usize = 64;
/// How often a neighbour is asked for, and how long each time.
const TRIES: u32 = 4;
const PATIENCE: Duration = Duration::from_millis(500);
/// How long an answer holds.
const FRESH: Duration = Duration::from_secs(60);
/// How often a thread that serves looks whether the card is still there, if nothing comes from it.
const LOOK: Duration = Duration::from_secs(5);
/// Most addresses of the stack: a feature of smoltcp.
const ADDRESSES: usize = 8;
/// What our pings are known by.
const IDENT: u16 = 0x5642;

/// An address of the port and how many of its bits all on the link share: `10.0.0.1/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpNet {
    /// The address.
    pub address: IpAddr,
    /// Bits.
    pub prefix: u8,
}

impl From<IpAddr> for IpNet {
    /// 24 bits of IPv4, 64 of IPv6.
    fn from(address: IpAddr) -> IpNet {
        IpNet { address, prefix: if address.is_ipv4() { 24 } else { 64 } }
    }
}

impl FromStr for IpNet {
    type Err = Error;
    fn from_str(text: &str) -> Result<IpNet> {
        let bad = || Error::Range {
            operation: "read an address",
            what: "length of the text",
            value: text.len() as u64,
            allowed: format!("ADDRESS or ADDRESS/PREFIX like 10.0.0.1/24, not `{text}`"),
        };
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let net = IpNet::from(address.parse::<IpAddr>().map_err(|_| bad())?);
        let most = if net.address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(net.prefix), |p| p.parse().map_err(|_| bad()))?;
        let unicast = match net.address {
            IpAddr::V4(a) => !a.is_multicast() && !a.is_broadcast() && !a.is_unspecified(),
            IpAddr::V6(a) => !a.is_multicast() && !a.is_unspecified(),
        };
        if prefix > most || !unicast { Err(bad()) } else { Ok(IpNet { prefix, ..net }) }
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// An own address of a card, as `verbena ip` keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub net: IpNet,
    /// Its VLAN; such an address is a GID, and the stack does not answer for it.
    pub vlan: Option<u16>,
}

/// The own addresses of cards: `addresses` in the run directory, a line `CARD ADDRESS/PREFIX [VLAN]` each. Whoever opens a
/// card by name has them as its GIDs, behind each other in this order; the link-local one comes second.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnAddresses(Vec<(String, OwnAddress)>);

impl OwnAddresses {
    fn path() -> PathBuf {
        run_directory().join("addresses")
    }

    /// What is kept; nothing, if there is no such file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is malformed.
    pub fn load() -> Result<OwnAddresses> {
        match std::fs::read_to_string(Self::path()) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(OwnAddresses::default()),
            Err(source) => Err(Error::System { operation: "read the own addresses of cards", source }),
        }
    }

    fn parse(text: &str) -> Result<OwnAddresses> {
        let row = |(number, line): (usize, &str)| {
            let mut parts = line.split_whitespace();
            let card = parts.next()?.to_owned();
            let net = parts.next().and_then(|net| net.parse().ok());
            let vlan = parts.next().map(str::parse);
            Some(match (net, vlan, parts.next()) {
                (Some(net), None, None) => Ok((card, OwnAddress { net, vlan: None })),
                (Some(net), Some(Ok(vlan @ 0..=4094)), None) => {
                    Ok((card, OwnAddress { net, vlan: Some(vlan) }))
                }
                _ => Err(Error::Range {
                    operation: "read the own addresses of cards",
                    what: "number of the line",
                    value: number as u64 + 1,
                    allowed: format!("CARD ADDRESS/PREFIX [VLAN], not `{line}`"),
                }),
            })
        };
        text.lines().enumerate().filter_map(row).collect::<Result<_>>().map(OwnAddresses)
    }

    /// Keeps them.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> Result<()> {
        let line = |(card, own): &(String, OwnAddress)| match own.vlan {
            Some(vlan) => format!("{card} {} {vlan}\n", own.net),
            None => format!("{card} {}\n", own.net),
        };
        let text: String = self.0.iter().map(line).collect();
        let path = Self::path();
        let written = std::fs::create_dir_all(run_directory()).and_then(|()| {
            // whole or not at all
            let new = path.with_extension("new");
            std::fs::write(&new, text)?;
            std::fs::rename(new, path)
        });
        written.map_err(|source| Error::System { operation: "write the own addresses of cards", source })
    }

    /// Those of a card.
    pub fn of(&self, card: &str) -> Vec<OwnAddress> {
        self.0.iter().filter(|(name, _)| name == card).map(|(_, own)| *own).collect()
    }

    /// One more of a card, in place of the same address in the same VLAN.
    pub fn add(&mut self, card: &str, own: OwnAddress) {
        self.remove(card, own.net.address, own.vlan);
        self.0.push((card.to_owned(), own));
    }

    /// One less; whether it was there.
    pub fn remove(&mut self, card: &str, address: IpAddr, vlan: Option<u16>) -> bool {
        let before = self.0.len();
        self.0.retain(|(name, own)| (&name[..], own.net.address, own.vlan) != (card, address, vlan));
        self.0.len() < before
    }
}

/// The address of a GID.
fn address_of(gid: Gid) -> IpAddr {
    match gid.ipv4() {
        Some(address) => address.into(),
        None => IpAddr::V6(gid.0.into()),
    }
}

fn ethernet(mac: Mac) -> EthernetAddress {
    EthernetAddress(mac.0)
}

/// The raw QP as smoltcp's device.
struct Port {
    context: Context,
    qp: Qp,
    cq: Cq,
    channel: CompChannel,
    receives: Mr,
    sends: Mr,
    /// Slots of `sends` that nobody uses.
    free: Vec<usize>,
    /// Longest frame.
    most: usize,
    /// Frames that this poll may still take.
    budget: usize,
    /// Whom this side has asked for, and what it heard: MAC address, until when it holds.
    asked: BTreeMap<IpAddr, Option<(Mac, Duration)>>,
    /// What went wrong in the device, which has no way to say so.
    error: Option<Error>,
    _pd: Pd,
}

const RECEIVE: u64 = 1 << 32;

impl Port {
    fn open(context: &Context) -> Result<Port> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq((RECEIVES + SENDS) as u32, Some(&channel))?;
        let init =
            QpInit { max_send_wr: SENDS as u32, max_recv_wr: RECEIVES as u32, ..QpInit::raw(&cq, &cq) };
        let qp = pd.create_qp(&init)?;
        let receives = pd.allocate(RECEIVES * SLOT, Access::LOCAL_WRITE)?;
        let sends = pd.allocate(SENDS * SLOT, Access::empty())?;
        qp.connect_with(&QpAttr::default())?;
        let most = (context.inner.port.mtu as usize + ETHERNET_BYTES).min(RAW_FRAME_MAX);
        let port = Port {
            context: context.clone(),
            qp,
            cq,
            channel,
            receives,
            sends,
            free: (0..SENDS).collect(),
            most,
            budget: 0,
            asked: BTreeMap::new(),
            error: None,
            _pd: pd,
        };
        (0..RECEIVES).try_for_each(|slot| port.post(slot))?;
        port.steer(reg::RAW_ENABLE | port.qp.number())?;
        Ok(port)
    }

    /// Says who takes frames that are not RoCE.
    fn steer(&self, value: u32) -> Result<()> {
        write32(self.context.inner.backend(), reg::RAW_RECEIVE, value)
    }

    fn post(&self, slot: usize) -> Result<()> {
        let sge = [self.receives.sge(slot * SLOT..(slot + 1) * SLOT)?];
        self.qp.post_recv(&[RecvWr::new(RECEIVE | slot as u64, &sge)])
    }

    /// The next frame that came; sends that are over are taken on the way.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let mut entry = [Completion::default()];
        while self.budget > 0 && self.cq.poll(&mut entry)? == 1 {
            let [done] = entry;
            let slot = done.wr_id as u32 as usize;
            if done.wr_id & RECEIVE == 0 {
                self.free.push(slot);
                continue;
            }
            self.budget -= 1;
            // longer than any slot, or a QP that is over: nothing was written
            let frame = match done.status {
                WcStatus::Success => {
                    let start = slot * SLOT;
                    Some(self.receives.to_vec(start..start + done.byte_len as usize)?)
                }
                _ => None,
            };
            self.post(slot)?;
            if let Some(frame) = frame {
                self.hear(&frame);
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    fn send(&mut self, frame: &[u8]) -> Result<()> {
        let Some(slot) = self.free.pop() else { return Ok(()) };
        let range = slot * SLOT..slot * SLOT + frame.len();
        self.sends.write(range.start, frame)?;
        self.qp.post_send(&[SendWr::send(slot as u64, &[self.sends.sge(range)?]).signaled()])
    }

    /// What a frame says of somebody who was asked for.
    fn hear(&mut self, frame: &[u8]) {
        if let Some((address, mac)) = told(frame)
            && let Some(known) = self.asked.get_mut(&address)
        {
            *known = Some((mac, self.context.now() + FRESH));
        }
    }

    fn mac(&self) -> EthernetAddress {
        ethernet(self.context.inner.port.mac)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Err(error) = self.steer(0) {
            tracing::debug!(%error, "the raw QP could not be taken out of the card's register");
        }
    }
}

/// Whose MAC address a frame of ARP or ND tells.
fn told(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let (address, mac): (IpAddr, EthernetAddress) = match frame.ethertype() {
        EthernetProtocol::Arp => {
            let ArpRepr::EthernetIpv4 { source_hardware_addr, source_protocol_addr, .. } =
                ArpRepr::parse(&ArpPacket::new_checked(frame.payload()).ok()?).ok()?
            else {
                return None;
            };
            (source_protocol_addr.into(), source_hardware_addr)
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(frame.payload()).ok()?;
            if packet.next_header() != IpProtocol::Icmpv6 || packet.hop_limit() != 255 {
                return None;
            }
            let (from, to) = (packet.src_addr(), packet.dst_addr());
            let message = Icmpv6Packet::new_checked(packet.payload()).ok()?;
            let message = Icmpv6Repr::parse(&from, &to, &message, &ChecksumCapabilities::default()).ok()?;
            let (address, mac) = match message {
                Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, lladdr, .. }) => {
                    (target_addr, lladdr?)
                }
                Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { lladdr, .. }) => (from, lladdr?),
                _ => return None,
            };
            let HardwareAddress::Ethernet(mac) = mac.parse(Medium::Ethernet).ok()?;
            (address.into(), mac)
        }
        _ => return None,
    };
    mac.is_unicast().then_some((address, Mac(mac.0)))
}

/// What an echo request carries.
fn pattern(bytes: usize, number: u16) -> Vec<u8> {
    (0..bytes).map(|i| (i as u16 ^ number) as u8).collect()
}

/// The question who has `target`, from `own` at `mac`; `None`: of different families.
fn question(mac: EthernetAddress, own: IpAddr, target: IpAddr) -> Option<Vec<u8>> {
    let (to, ethertype, body) = match (own, target) {
        (IpAddr::V4(own), IpAddr::V4(target)) => {
            let arp = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: mac,
                source_protocol_addr: own,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: target,
            };
            let mut body = vec![0; arp.buffer_len()];
            arp.emit(&mut ArpPacket::new_unchecked(&mut body[..]));
            (EthernetAddress::BROADCAST, EthernetProtocol::Arp, body)
        }
        (IpAddr::V6(own), IpAddr::V6(target)) => {
            let [.., a, b, c] = target.octets();
            let group = Ipv6Address::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
            let solicit = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(mac.into()) };
            let solicit = Icmpv6Repr::Ndisc(solicit);
            let header = Ipv6Repr {
                src_addr: own,
                dst_addr: group,
                next_header: IpProtocol::Icmpv6,
                payload_len: solicit.buffer_len(),
                hop_limit: 255,
            };
            let mut body = vec![0; header.buffer_len() + solicit.buffer_len()];
            let mut packet = Ipv6Packet::new_unchecked(&mut body[..]);
            header.emit(&mut packet);
            let mut message = Icmpv6Packet::new_unchecked(packet.payload_mut());
            solicit.emit(&own, &group, &mut message, &ChecksumCapabilities::default());
            (EthernetAddress([0x33, 0x33, 0xff, a, b, c]), EthernetProtocol::Ipv6, body)
        }
        _ => return None,
    };
    let head = EthernetRepr { src_addr: mac, dst_addr: to, ethertype };
    let mut frame = vec![0; head.buffer_len() + body.len()];
    head.emit(&mut EthernetFrame::new_unchecked(&mut frame[..]));
    frame[head.buffer_len()..].copy_from_slice(&body);
    Some(frame)
}

/// A frame that came.
struct Came(Vec<u8>);

impl phy::RxToken for Came {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

/// Leave to send a frame.
struct Leave<'a>(&'a mut Port);

impl phy::TxToken for Leave<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut frame = vec![0; length];
        let result = f(&mut frame);
        if let Err(error) = self.0.send(&frame) {
            self.0.error = Some(error);
        }
        result
    }
}

impl phy::Device for Port {
    type RxToken<'a> = Came;
    type TxToken<'a> = Leave<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Came, Leave<'_>)> {
        match self.next() {
            Ok(frame) => frame.map(|frame| (Came(frame), Leave(self))),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }

    fn transmit(&mut self, _: Instant) -> Option<Leave<'_>> {
        (!self.free.is_empty()).then_some(Leave(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.most;
        capabilities.checksum.ipv4 = Checksum::Both;
        capabilities
    }
}

struct State {
    port: Port,
    interface: Interface,
    sockets: SocketSet<'static>,
    echo: SocketHandle,
}

impl State {
    fn poll(&mut self) -> Result<()> {
        let now = instant(self.port.context.now());
        self.port.budget = BUDGET;
        self.interface.poll(now, &mut self.port, &mut self.sockets);
        self.port.error.take().map_or(Ok(()), Err)
    }

    /// After a poll: how long the stack wants to be left alone unless a frame comes; `None`: there may be more at once.
    fn rest(&mut self) -> Option<Duration> {
        if self.port.budget < BUDGET {
            return None;
        }
        // the stack may have more to say, but nothing leaves before a send ends, and that is an event
        if self.port.free.is_empty() {
            return Some(LOOK);
        }
        let now = instant(self.port.context.now());
        let pause = self.interface.poll_delay(now, &self.sockets);
        let pause = pause.map_or(LOOK, |pause| Duration::from(pause).min(LOOK));
        (!pause.is_zero()).then_some(pause)
    }
}

fn instant(now: Duration) -> Instant {
    Instant::from_micros(now.as_micros() as i64)
}

/// The port's IP stack.
pub struct Ip {
    context: Context,
    state: Mutex<State>,
    /// Rouses the thread that serves.
    bell: OwnedFd,
    /// There is such a thread, or was until it gave up.
    serves: AtomicBool,
    /// Readable when the bell or the channel is.
    waiting: OwnedFd,
}

impl fmt::Debug for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ip").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl Ip {
    /// Starts it with these addresses; from now on, as long as it lives, QPs of this context ask it for MAC addresses that
    /// the neighbour table does not know.
    ///
    /// # Errors
    /// The card has no raw QPs or another stack, the context is not the card's first user, too many addresses, or as of any
    /// QP.
    pub fn start(context: &Context, addresses: &[IpNet]) -> Result<Arc<Ip>> {
        if lock(&context.inner.ip).strong_count() > 0 {
            return Err(Error::Unsupported { operation: "start an IP stack", what: "two of them at once" });
        }
        let mut port = Port::open(context)?;
        let now = instant(context.now());
        let config = Config::new(HardwareAddress::Ethernet(port.mac()));
        let interface = Interface::new(config, &mut port, now);
        let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 4], vec![0; 4 * SLOT]);
        let mut sockets = SocketSet::new(Vec::new());
        let mut socket = icmp::Socket::new(buffer(), buffer());
        let bound = socket.bind(icmp::Endpoint::Ident(IDENT));
        debug_assert!(bound.is_ok(), "a fresh socket can be bound");
        let echo = sockets.add(socket);
        let bell = new_eventfd()?;
        let waiting = new_epoll(&[bell.as_fd(), port.channel.as_fd()])?;
        let state = State { port, interface, sockets, echo };
        let ip = Arc::new(Ip {
            context: context.clone(),
            state: Mutex::new(state),
            bell,
            serves: AtomicBool::new(false),
            waiting,
        });
        addresses.iter().try_for_each(|net| ip.add(*net))?;
        *lock(&context.inner.ip) = Arc::downgrade(&ip);
        Ok(ip)
    }

    /// Starts it with the port's own addresses: those that are kept, else the GIDs outside of VLANs.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn of_port(context: &Context) -> Result<Arc<Ip>> {
        let kept = OwnAddresses::load()?.of(context.device().name());
        let net = |gid: Gid| {
            let address = address_of(gid);
            let kept = kept.iter().find(|own| own.net.address == address);
            kept.map_or(address.into(), |own| own.net)
        };
        let gids = context.inner.gids.iter().filter(|entry| entry.vlan.is_none());
        Ip::start(context, &gids.map(|entry| net(entry.gid)).collect::<Vec<_>>())
    }

    /// Its addresses.
    pub fn addresses(&self) -> Vec<IpNet> {
        let of = |cidr: &IpCidr| IpNet { address: cidr.address().into(), prefix: cidr.prefix_len() };
        lock(&self.state).interface.ip_addrs().iter().map(of).collect()
    }

    /// Answers for this address, too.
    ///
    /// # Errors
    /// There are eight already.
    pub fn add(&self, net: IpNet) -> Result<()> {
        if self.addresses().iter().any(|own| own.address == net.address) {
            return Ok(());
        }
        let mut full = false;
        lock(&self.state).interface.update_ip_addrs(|all| {
            full = all.push(IpCidr::new(net.address.into(), net.prefix)).is_err();
        });
        let allowed = format!("up to {ADDRESSES}");
        match full {
            true => Err(Error::Range {
                operation: "add an address",
                what: "number of addresses",
                value: ADDRESSES as u64 + 1,
                allowed,
            }),
            false => Ok(()),
        }
    }

    /// No longer answers for this address.
    pub fn remove(&self, address: IpAddr) {
        lock(&self.state)
            .interface
            .update_ip_addrs(|all| all.retain(|cidr| IpAddr::from(cidr.address()) != address));
    }

    /// Takes what has come, up to 64 frames, and answers it.
    ///
    /// # Errors
    /// The way to the card failed, or the raw QP did.
    pub fn poll(&self) -> Result<()> {
        lock(&self.state).poll()
    }

    /// Polls until `done` says so or `patience` has passed; what it said.
    fn until<T>(&self, patience: Duration, done: impl Fn() -> Option<T>) -> Result<Option<T>> {
        let end = self.context.now() + patience;
        for turn in 0u32.. {
            self.poll()?;
            let found = done();
            if found.is_some() || self.context.now() >= end {
                return Ok(found);
            }
            self.context.relax(turn);
        }
        Ok(None)
    }

    /// The MAC address of a GID: this port's own, or one that was heard of less than a minute ago.
    pub fn knows(&self, gid: Gid) -> Option<Mac> {
        let target = address_of(gid);
        if self.addresses().iter().any(|own| own.address == target) {
            return Some(self.context.inner.port.mac);
        }
        let state = lock(&self.state);
        let now = state.port.context.now();
        let heard = state.port.asked.get(&target).copied().flatten();
        heard.filter(|(_, until)| *until > now).map(|(mac, _)| mac)
    }

    /// Asks the network for a GID, once; [`Self::poll`] hears the answer.
    ///
    /// # Errors
    /// There is no own address of that family on its link, or the way to the card failed.
    pub fn ask(&self, gid: Gid) -> Result<()> {
        let target = address_of(gid);
        let mut state = lock(&self.state);
        // whom nobody ever answered for is forgotten, so the table ends with those that are there
        state.port.asked.retain(|address, heard| heard.is_some() || *address == target);
        state.port.asked.entry(target).or_default();
        let on_link = |cidr: &&IpCidr| cidr.contains_addr(&IpAddress::from(target));
        let own = state.interface.ip_addrs().iter().find(on_link).map(|cidr| cidr.address().into());
        let frame = own.and_then(|own| question(state.port.mac(), own, target));
        state.port.send(&frame.ok_or(Error::NoRoute { gid })?)
    }

    /// The MAC address of a GID: known, or asked for up to four times, half a second each.
    ///
    /// # Errors
    /// Nobody answers, there is no own address of that family on its link, or the way to the card failed.
    pub fn mac_of(&self, gid: Gid) -> Result<Mac> {
        if let Some(mac) = self.knows(gid) {
            return Ok(mac);
        }
        for _ in 0..TRIES {
            self.ask(gid)?;
            if let Some(mac) = self.until(PATIENCE, || self.knows(gid))? {
                return Ok(mac);
            }
        }
        Err(Error::NoAnswer { gid, tries: TRIES, waited_ms: (TRIES * PATIENCE).as_millis() })
    }

    /// Those whom this side asked for and heard of.
    pub fn neighbours(&self) -> Vec<(IpAddr, Mac)> {
        let state = lock(&self.state);
        state.port.asked.iter().filter_map(|(address, heard)| Some((*address, (*heard)?.0))).collect()
    }

    /// Sends an echo request with so many bytes; [`Self::pinged`] tells of its answer.
    ///
    /// # Errors
    /// Too many bytes for a frame.
    pub fn ping(&self, target: IpAddr, bytes: usize, number: u16) -> Result<()> {
        let state = &mut *lock(&self.state);
        let most = state.port.most - ETHERNET_BYTES - 8 - if target.is_ipv4() { 20 } else { 40 };
        if bytes > most {
            return Err(Error::Range {
                operation: "ping",
                what: "bytes",
                value: bytes as u64,
                allowed: format!("0..={most}, a frame of this port"),
            });
        }
        let data = pattern(bytes, number);
        let socket = state.sockets.get_mut::<icmp::Socket<'_>>(state.echo);
        // answers that came too late
        while socket.recv().is_ok() {}
        // full of requests to somebody who is not there: lost, as they are
        let Ok(packet) = socket.send(8 + bytes, target.into()) else { return Ok(()) };
        raise(&self.bell);
        let (ident, seq_no, data) = (IDENT, number, &data[..]);
        let sums = ChecksumCapabilities::default();
        match target {
            IpAddr::V4(_) => Icmpv4Repr::EchoRequest { ident, seq_no, data }
                .emit(&mut Icmpv4Packet::new_unchecked(packet), &sums),
            // the socket knows the source address and makes the checksum
            IpAddr::V6(target) => Icmpv6Repr::EchoRequest { ident, seq_no, data }.emit(
                &Ipv6Address::UNSPECIFIED,
                &target,
                &mut Icmpv6Packet::new_unchecked(packet),
                &sums,
            ),
        }
        Ok(())
    }

    /// Whether an answer to that echo request has come, with every byte.
    pub fn pinged(&self, target: IpAddr, bytes: usize, number: u16) -> bool {
        let data = pattern(bytes, number);
        let state = &mut *lock(&self.state);
        let socket = state.sockets.get_mut::<icmp::Socket<'_>>(state.echo);
        while let Ok((packet, from)) = socket.recv() {
            // type, code and checksum, identifier, number, data
            if IpAddr::from(from) == target && packet[6..8] == number.to_be_bytes() && packet[8..] == data[..]
            {
                return true;
            }
        }
        false
    }

    /// Sends an echo request and waits for its answer: how long it took, `None`: not in time.
    ///
    /// # Errors
    /// Too many bytes for a frame, or the way to the card failed.
    pub fn time_ping(
        &self,
        target: IpAddr,
        bytes: usize,
        number: u16,
        patience: Duration,
    ) -> Result<Option<Duration>> {
        let start = self.context.now();
        self.ping(target, bytes, number)?;
        self.until(patience, || self.pinged(target, bytes, number).then(|| self.context.now() - start))
    }

    /// A thread that answers until it is dropped: for a program that is busy with something else, or with nothing.
    ///
    /// # Errors
    /// There is one: two would take each other's events.
    pub fn serve(self: &Arc<Ip>) -> Result<Serving> {
        if self.serves.swap(true, Ordering::AcqRel) {
            return Err(Error::Taken { operation: "answer ARP, ND and ping" });
        }
        let (ip, ends) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let (gave_up, failure) = mpsc::channel();
        let asked_to_end = ends.clone();
        let thread = std::thread::spawn(move || {
            if let Err(error) = ip.answer(&asked_to_end) {
                tracing::error!(%error, "ARP, ND and ping are no longer answered");
                let _ = gave_up.send(error);
            }
        });
        Ok(Serving { ip: self.clone(), ends, failure, thread: Some(thread) })
    }

    fn answer(&self, ends: &AtomicBool) -> Result<()> {
        let channel = lock(&self.state).port.channel.clone();
        // one event for each arming, whoever rouses this thread meanwhile: in a storm every arming fires, and one that is made
        // before the last one's event was taken is two for ever
        let mut armed = false;
        loop {
            // in this order: who says that it ends, and then rings, is seen or heard
            clear(&self.bell);
            if ends.load(Ordering::Acquire) {
                return Ok(());
            }
            while channel.is_ready()? && channel.wait(Some(Duration::ZERO))?.is_some() {
                armed = false;
            }
            let mut state = lock(&self.state);
            state.poll()?;
            let Some(pause) = state.rest() else { continue };
            if !armed {
                state.port.cq.request_notify(false)?;
            }
            drop(state);
            // `None` arms the interrupt, too
            armed = armed || channel.wait(Some(Duration::ZERO))?.is_none();
            if !armed {
                continue;
            }
            let waited = self.context.inner.backend().wait(self.waiting.as_fd(), Some(pause));
            let woken = waited.map_err(|source| Error::System { operation: "wait for a frame", source })?;
            if !woken && pause == LOOK {
                self.context.device().now_ticks()?;
            }
        }
    }
}

/// The thread of [`Ip::serve`]; ends with this.
#[derive(Debug)]
pub struct Serving {
    ip: Arc<Ip>,
    ends: Arc<AtomicBool>,
    failure: mpsc::Receiver<Error>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Waits until `patience` has passed (`None`: for ever).
    ///
    /// # Errors
    /// Why it has given up.
    ///
    /// # Panics
    /// As the thread did.
    pub fn wait(&mut self, patience: Option<Duration>) -> Result<()> {
        let failure = match patience {
            Some(patience) => self.failure.recv_timeout(patience),
            None => self.failure.recv().map_err(Into::into),
        };
        match failure {
            Ok(error) => Err(error),
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(()),
            // it ends without a word only if it panics
            Err(mpsc::RecvTimeoutError::Disconnected) => match self.thread.take().map(JoinHandle::join) {
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                _ => Err(Error::Closed { operation: "answer ARP, ND and ping" }),
            },
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        raise(&self.ip.bell);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that answers ARP, ND and ping has panicked");
        }
        self.ip.serves.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn a_question_tells_who_asks_and_goes_to_the_group_of_whom_it_asks_for() {
        let mac = EthernetAddress([2, 0, 0, 0, 0, 0xa]);
        let arp = question(mac, Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into());
        let arp = arp.expect("one family");
        assert_eq!(&arp[..14], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0xa, 8, 6]);
        assert_eq!((&arp[20..22], &arp[38..42]), (&[0u8, 1][..], &[10u8, 0, 0, 2][..]));
        assert_eq!(told(&arp), Some((Ipv4Addr::new(10, 0, 0, 1).into(), Mac(mac.0))));
        let (own, other): (Ipv6Addr, Ipv6Addr) =
            ("fd00::1".parse().expect("one"), "fd00::12:3456".parse().expect("one"));
        let nd = question(mac, own.into(), other.into()).expect("one family");
        assert_eq!((&nd[..6], nd[21]), (&[0x33u8, 0x33, 0xff, 0x12, 0x34, 0x56][..], 255));
        assert_eq!(told(&nd), Some((own.into(), Mac(mac.0))));
        // an ND message that came through a router is none
        let mut far = nd;
        far[21] = 254;
        assert_eq!(told(&far), None);
        assert!(question(mac, own.into(), Ipv4Addr::LOCALHOST.into()).is_none());
    }

    #[test]
    fn own_addresses_are_kept_by_card_and_vlan() {
        let text = "sim:card0 10.0.0.7/8\n\nsim:card1 fd00::1/64 5\n";
        let mut all = OwnAddresses::parse(text).expect("well formed");
        let own = |net: &str, vlan| OwnAddress { net: net.parse().expect("an address"), vlan };
        assert_eq!(all.of("sim:card1"), [own("fd00::1/64", Some(5))]);
        all.add("sim:card0", own("10.0.0.7/24", None));
        all.add("sim:card0", own("10.0.0.7/24", Some(5)));
        assert_eq!(all.of("sim:card0"), [own("10.0.0.7/24", None), own("10.0.0.7/24", Some(5))]);
        let address = "10.0.0.7".parse().expect("an address");
        assert!(all.remove("sim:card0", address, Some(5)) && !all.remove("sim:card0", address, Some(5)));
        assert_eq!(all.of("sim:card0"), [own("10.0.0.7/24", None)]);
        for bad in ["sim:card0", "sim:card0 10.0.0.7 x", "sim:card0 10.0.0.7 4095", "sim:card0 10.0.0.7 5 6"]
        {
            assert!(OwnAddresses::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_is_read_with_its_prefix_or_the_usual_one() {
        for (text, want) in
            [("10.0.0.1", "10.0.0.1/24"), ("10.0.0.1/8", "10.0.0.1/8"), ("fd00::1", "fd00::1/64")]
        {
            assert_eq!(text.parse::<IpNet>().expect(text).to_string(), want);
        }
        for bad in ["10.0.0", "10.0.0.1/33", "fd00::1/129", "224.0.0.1", "0.0.0.0", "ff02::1", "10.0.0.1/"] {
            assert!(bad.parse::<IpNet>().is_err(), "{bad}");
        }
    }
}
