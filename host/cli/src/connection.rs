//! Two processes find each other: one listens on TCP, the other connects; lines of connection data, then the QPs stand.
//!
//! [`PeerArgs::establish`] is for two programs of ours, [`PeerArgs::introduce`] the exchange of `ibv_rc_pingpong`. Every
//! wait is bounded by `--timeout`. A peer that goes away closes the TCP connection, which the waiting side sees.

use anyhow::{Context as _, bail};
use clap::Args;
use host::exchange::Endpoint;
use host::net::Serving;
use host::{Access, Completion, Context, Cq, DeviceAddress, Ip, PathMtu, Pd, Qp, QpAttr, QpInit, WcStatus};
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

/// How to reach the peer.
#[derive(Clone, Debug, Args)]
pub struct PeerArgs {
    /// Card to use: sim:card0 or vfio:0000:01:00.0; default: the first.
    #[arg(short, long)]
    pub device: Option<DeviceAddress>,
    /// Wait for the peer on this address, such as 127.0.0.1:18515; port 0 chooses one and prints it on stderr.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "connect", conflicts_with = "connect")]
    pub listen: Option<String>,
    /// Connect to a peer that listens on this address.
    #[arg(long, value_name = "ADDRESS")]
    pub connect: Option<String>,
    /// Path MTU in bytes.
    #[arg(long, default_value_t = 1024, value_parser = clap::builder::PossibleValuesParser::new(["256", "512", "1024", "2048", "4096"]).map(|text| text.parse::<u32>().unwrap_or(1024)))]
    pub mtu: u32,
    /// Packets in flight at most.
    #[arg(long, default_value_t = 64)]
    pub inflight: u16,
    /// Retransmission timeout: 4.096 us * 2^N.
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..32))]
    pub ack_timeout: u8,
    /// Seconds to wait for the peer or a completion before giving up.
    #[arg(long, default_value_t = 60)]
    pub timeout: u64,
    /// Answer ARP, ND and ping meanwhile, and ask the network for the peer if the neighbour table does not know it.
    #[arg(long)]
    pub ip: bool,
    /// First PSN of this side; any will do.
    #[arg(long, value_parser = clap::value_parser!(u32).range(..1 << 24))]
    pub psn: Option<u32>,
}

use clap::builder::TypedValueParser as _;

/// A QP in RESET and what belongs to it.
pub struct Opened {
    /// The QP.
    pub qp: Qp,
    /// Completions of sends and receives.
    pub cq: Cq,
    /// The protection domain of buffers.
    pub pd: Pd,
    /// What the peer is to be told.
    pub own: Endpoint,
    context: Context,
    serving: Option<Serving>,
}

/// A connected QP and what belongs to it.
pub struct Connection {
    /// The QP, in RTS.
    pub qp: Qp,
    /// Completions of sends and receives.
    pub cq: Cq,
    /// The protection domain of buffers.
    pub pd: Pd,
    context: Context,
    /// For words beside the data.
    pub stream: TcpStream,
    /// The peer ends its stream before its work.
    pub alone: bool,
    timeout: Duration,
    _serving: Option<Serving>,
}

impl PeerArgs {
    /// Opens the card, lets `prepare` post receives, connects with the peer.
    pub fn establish(
        &self,
        depth: u32,
        access: Access,
        prepare: impl FnOnce(&Pd, &Qp) -> anyhow::Result<()>,
    ) -> anyhow::Result<Connection> {
        let opened = self.open(depth)?;
        let mut stream = self.meet()?;
        opened.own.send(&mut stream)?;
        let peer = Endpoint::receive(&mut stream)?;
        opened.connect(&QpAttr { access, ..self.attributes(&opened, peer)? })?;
        prepare(&opened.pd, &opened.qp)?;
        Endpoint::send_done(&mut stream)?;
        Endpoint::receive_done(&mut stream)?;
        Ok(opened.connected(stream, self.wait()))
    }

    /// Connects a QP as `ibv_rc_pingpong` does, with the rights and READs of `as_in`: the connecting side tells first, and
    /// when the listening side answers, its QP stands and `prepare` has posted its receives.
    pub fn introduce(
        &self,
        opened: Opened,
        mut stream: TcpStream,
        as_in: &QpAttr,
        prepare: impl FnOnce(&Opened) -> anyhow::Result<()>,
    ) -> anyhow::Result<Connection> {
        let connect = |peer| {
            self.join(&opened, peer, as_in)?;
            prepare(&opened)
        };
        if self.listen.is_some() {
            connect(Endpoint::receive(&mut stream)?)?;
            opened.own.send(&mut stream)?;
            Endpoint::receive_done(&mut stream)?;
        } else {
            opened.own.send(&mut stream)?;
            let peer = Endpoint::receive(&mut stream)?;
            Endpoint::send_done(&mut stream)?;
            connect(peer)?;
        }
        Ok(opened.connected(stream, self.wait()))
    }

    /// Connects with a peer whose connection data are known, with the rights and READs of `as_in`.
    pub fn join(&self, opened: &Opened, peer: Endpoint, as_in: &QpAttr) -> anyhow::Result<()> {
        let attr = self.attributes(opened, peer)?;
        let (max_rd_atomic, max_dest_rd_atomic) = (as_in.max_rd_atomic, as_in.max_dest_rd_atomic);
        opened.connect(&QpAttr { access: as_in.access, max_rd_atomic, max_dest_rd_atomic, ..attr })
    }

    fn wait(&self) -> Duration {
        Duration::from_secs(self.timeout.max(1))
    }

    /// Opens the card and makes a QP.
    pub fn open(&self, depth: u32) -> anyhow::Result<Opened> {
        self.make(&self.card()?, depth, 0)
    }

    /// Opens the card.
    pub fn card(&self) -> anyhow::Result<Context> {
        let address = match &self.device {
            Some(address) => address.clone(),
            None => DeviceAddress::first()?,
        };
        Ok(Context::open(&address)?)
    }

    /// Makes the `nth` QP of a program, with a CQ and a protection domain of its own.
    pub fn make(&self, context: &Context, depth: u32, nth: u32) -> anyhow::Result<Opened> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * depth, None)?;
        let init = QpInit {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_inflight: self.inflight,
            ..QpInit::rc(&cq, &cq)
        };
        let qp = pd.create_qp(&init)?;
        // any start will do; one that is not 0 shows the PSNs in a capture
        let usual = std::process::id().wrapping_add(nth).wrapping_mul(0x9e37_79b1);
        let psn = self.psn.unwrap_or(usual) & 0xff_ffff;
        let own = Endpoint { qpn: qp.number(), psn, gid: context.gids()[0] };
        // once per card: it lives as long as the first QP
        let serving = if self.ip && nth == 0 { Some(Ip::of_port(context)?.serve()?) } else { None };
        Ok(Opened { qp, cq, pd, own, context: context.clone(), serving })
    }

    fn attributes(&self, opened: &Opened, peer: Endpoint) -> anyhow::Result<QpAttr> {
        tracing::info!(own = opened.own.line(), peer = peer.line(), "connection data");
        let path_mtu = PathMtu::ALL.iter().copied().find(|mtu| mtu.bytes() == self.mtu);
        Ok(QpAttr {
            path_mtu: path_mtu.context("no such path MTU")?,
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            sq_psn: opened.own.psn,
            av: host::AddressVector::to(peer.gid),
            timeout: self.ack_timeout,
            ..QpAttr::default()
        })
    }

    /// A TCP connection with the peer.
    pub fn meet(&self) -> anyhow::Result<TcpStream> {
        self.place()?.meet()
    }

    /// Where the peer is met, as often as wanted.
    pub fn place(&self) -> anyhow::Result<Place> {
        let timeout = self.wait();
        if let Some(address) = &self.listen {
            let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
            eprintln!("listening on {}", listener.local_addr()?);
            return Ok(Place::Here { listener, timeout });
        }
        let address = self.connect.as_deref().unwrap_or_default();
        let addresses = address.to_socket_addrs().with_context(|| format!("look up {address}"))?;
        Ok(Place::There { addresses: addresses.collect(), timeout })
    }
}

/// Where two programs meet.
pub enum Place {
    /// The other one comes.
    Here {
        /// Where this side listens.
        listener: TcpListener,
        /// For each wait.
        timeout: Duration,
    },
    /// The other one listens.
    There {
        /// At one of these.
        addresses: Vec<SocketAddr>,
        /// For each wait.
        timeout: Duration,
    },
}

impl Place {
    /// A TCP connection with the peer.
    pub fn meet(&self) -> anyhow::Result<TcpStream> {
        let (stream, timeout) = match self {
            Place::Here { listener, timeout } => {
                if !host::backend::readable(listener.as_fd(), Some(*timeout))? {
                    bail!("no peer connected within {} s", timeout.as_secs());
                }
                (listener.accept().context("accept the peer")?.0, *timeout)
            }
            Place::There { addresses, timeout } => (find(addresses, *timeout)?, *timeout),
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(stream)
    }
}

/// The listening side may still be starting.
fn find(addresses: &[SocketAddr], timeout: Duration) -> anyhow::Result<TcpStream> {
    let end = std::time::Instant::now() + timeout;
    loop {
        for address in addresses {
            if let Ok(stream) = TcpStream::connect_timeout(address, Duration::from_secs(1)) {
                return Ok(stream);
            }
        }
        if std::time::Instant::now() > end {
            bail!("no peer listens on {addresses:?} (tried {} s)", timeout.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Opened {
    fn connect(&self, attr: &QpAttr) -> anyhow::Result<()> {
        Ok(self.qp.connect_with(attr)?)
    }

    fn connected(self, stream: TcpStream, timeout: Duration) -> Connection {
        let Opened { qp, cq, pd, context, serving: _serving, .. } = self;
        Connection { qp, cq, pd, context, stream, timeout, alone: false, _serving }
    }
}

impl Connection {
    /// The next completion; one that failed, or none in time, is an error.
    pub fn completion(&self) -> anyhow::Result<Completion> {
        let completion = self.wait()?;
        if completion.status != WcStatus::Success {
            // of a card that is gone a flushed work request tells nothing
            self.context.check()?;
            let cause = completion.cause().map_or(String::new(), |cause| format!(", cause {}", cause.name()));
            bail!(
                "work request {} of QP {}: {} ({}{cause})",
                completion.wr_id,
                completion.qpn,
                completion.status.name(),
                completion.status.doc()
            );
        }
        Ok(completion)
    }

    /// A completion within the time given; the peer's going away ends the wait.
    pub fn wait(&self) -> anyhow::Result<Completion> {
        let slice = Duration::from_millis(500);
        let mut waited = Duration::ZERO;
        while waited < self.timeout {
            if let Some(completion) = self.cq.poll_wait(slice)? {
                return Ok(completion);
            }
            waited += slice;
            if self.alone {
                continue;
            }
            let something = host::backend::readable(self.stream.as_fd(), Some(Duration::ZERO))?;
            if something && !matches!(self.stream.peek(&mut [0]), Ok(1..)) {
                bail!("the peer ended before its work was done");
            }
        }
        bail!("no completion within {} s; is the peer alive?", self.timeout.as_secs());
    }

    /// Waits until the peer has ended its work too, so that its last packets are still acknowledged.
    pub fn finish(mut self) -> anyhow::Result<()> {
        Endpoint::send_done(&mut self.stream)?;
        Endpoint::receive_done(&mut self.stream)?;
        // the peer closes when it has read our word; what it does then concerns us no more
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let _ = self.stream.read(&mut [0]);
        Ok(())
    }
}
