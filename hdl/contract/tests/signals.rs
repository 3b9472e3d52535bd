//! The hardware views against the plain structs: the same bytes give the same fields, the same fields the same bytes.
#![cfg(feature = "hdl")]

use contract::layout::{Field, Layout, Order};
use hdl::{Bits, Bundle, Interpreter, Module, PortBuilder, Ports, Sig, Width, elaborate};

/// The bytes of a structure as the packed signal holds them.
fn as_bits(layout: &Layout, bytes: &[u8]) -> Bits {
    let mut bytes = bytes.to_vec();
    if layout.order == Order::Network {
        bytes.reverse();
    }
    Bits::from_bytes(8 * layout.bytes as u32, &bytes)
}

/// All zero, all ones, and patterns in which each byte differs from its neighbours.
fn samples(length: usize) -> Vec<Vec<u8>> {
    let mut all = vec![vec![0; length], vec![0xff; length]];
    let mut state = 0x9e37_79b9_u32;
    for _ in 0..20 {
        all.push(
            (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect(),
        );
    }
    all
}

/// Drives `whole`, reads each field and the packed form of them, compares both with the plain struct.
fn agrees(layout: &Layout, sim: &mut Interpreter, repack: impl Fn(&[u8]) -> Vec<u8>) {
    for bytes in samples(layout.bytes) {
        sim.poke_bits("whole", &as_bits(layout, &bytes));
        for field in layout.fields {
            let expected = layout.read(field, &bytes).expect("long enough");
            let Field { name, width, .. } = *field;
            assert_eq!(
                sim.peek_bits(&format!("fields_{name}")),
                Bits::new(width, expected),
                "{}.{name}",
                layout.name
            );
        }
        assert_eq!(sim.peek_bits("again"), as_bits(layout, &repack(&bytes)), "{}", layout.name);
        assert_eq!(sim.peek_bits("nothing"), Bits::zero(8 * layout.bytes as u32), "{}", layout.name);
    }
}

macro_rules! views {
    ($($test:ident $path:ident :: $Struct:ident $Bits:ident;)*) => {$(
        #[test]
        fn $test() {
            use contract::$path::{$Bits, $Struct};

            #[derive(Debug)]
            struct View;
            struct Io {
                whole: Sig,
                fields: $Bits,
                again: Sig,
                nothing: Sig,
            }
            impl Ports for Io {
                type Config = View;
                fn declare(_: &View, ports: &mut PortBuilder) -> Self {
                    Io {
                        whole: ports.input("whole", &Width($Struct::BITS)),
                        fields: ports.output("fields", &()),
                        again: ports.output("again", &Width($Struct::BITS)),
                        nothing: ports.output("nothing", &Width($Struct::BITS)),
                    }
                }
            }
            impl Module for View {
                type Io = Io;
                fn name(&self) -> String {
                    stringify!($Struct).to_lowercase()
                }
                fn body(&self, io: &Io) {
                    let fields = $Bits::unpack(io.whole);
                    io.fields.assign(&fields);
                    io.again.set(fields.pack());
                    io.nothing.set($Bits::zero().pack());
                }
            }
            let design = elaborate(&View).expect("elaborates");
            let mut sim = Interpreter::new(&design);
            agrees(&$Struct::LAYOUT, &mut sim, |bytes| {
                $Struct::unpack(bytes.try_into().expect("the structure's size")).pack().to_vec()
            });
        }
    )*};
}

views! {
    sge ring::Sge SgeBits;
    send_wqe ring::SendWqe SendWqeBits;
    cqe ring::Cqe CqeBits;
    eqe ring::Eqe EqeBits;
    sq_doorbell doorbell::SqDoorbell SqDoorbellBits;
    cq_doorbell doorbell::CqDoorbell CqDoorbellBits;
    eq_doorbell doorbell::EqDoorbell EqDoorbellBits;
    qp_rights context::QpRights QpRightsBits;
    qp_path context::QpPath QpPathBits;
    qp_queues context::QpQueues QpQueuesBits;
    qp_addresses context::QpAddresses QpAddressesBits;
    mr_entry context::MrEntry MrEntryBits;
    cq_entry context::CqEntry CqEntryBits;
    eq_entry context::EqEntry EqEntryBits;
    command_entry command::CommandEntry CommandEntryBits;
    command_response command::CommandResponse CommandResponseBits;
    ethernet_header wire::EthernetHeader EthernetHeaderBits;
    vlan_tag wire::VlanTag VlanTagBits;
    ipv4_header wire::Ipv4Header Ipv4HeaderBits;
    ipv6_header wire::Ipv6Header Ipv6HeaderBits;
    udp_header wire::UdpHeader UdpHeaderBits;
    bth wire::Bth BthBits;
    reth wire::Reth RethBits;
    atomic_eth wire::AtomicEth AtomicEthBits;
    aeth wire::Aeth AethBits;
    deth wire::Deth DethBits;
    tlp_memory_header pcie::TlpMemoryHeader TlpMemoryHeaderBits;
    tlp_completion_header pcie::TlpCompletionHeader TlpCompletionHeaderBits;
}
