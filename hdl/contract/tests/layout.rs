//! Ring structures, doorbells, contexts and registers against tables written down a second time, by number.

use contract::hash::{CODES, LAYOUTS, hash};
use contract::layout::{Layout, Order};
use contract::register::{Access, REGISTERS};
use contract::*;

/// Asserts lsb and width of every field, by number, and that no field is missing from the table.
fn holds(layout: &Layout, table: &[(&str, u32, u32)]) {
    let fields: Vec<_> = layout.fields.iter().map(|f| (f.name, f.lsb, f.width)).collect();
    assert_eq!(fields, table, "{}", layout.name);
}

#[test]
fn ring_structures_have_these_bits() {
    holds(&Sge::LAYOUT, &[("addr", 0, 64), ("length", 64, 32), ("lkey", 96, 32)]);
    holds(
        &SendWqe::LAYOUT,
        &[
            ("opcode", 0, 8),
            ("signaled", 8, 1),
            ("solicited", 9, 1),
            ("fence", 10, 1),
            ("inline", 11, 1),
            ("num_sge", 16, 8),
            ("imm", 32, 32),
            ("remote_addr", 64, 64),
            ("rkey", 128, 32),
            ("length", 160, 32),
            ("index", 192, 16),
            ("qpn", 208, 24),
        ],
    );
    holds(
        &Cqe::LAYOUT,
        &[
            ("wqe_index", 0, 16),
            ("opcode", 16, 8),
            ("status", 24, 8),
            ("qpn", 32, 24),
            ("with_imm", 56, 1),
            ("with_inv", 57, 1),
            ("solicited", 58, 1),
            ("grh", 59, 1),
            ("byte_len", 64, 32),
            ("imm", 96, 32),
            ("src_qpn", 128, 24),
            ("vendor_err", 160, 32),
            ("timestamp", 192, 64),
            ("phase", 504, 1),
        ],
    );
    holds(
        &Eqe::LAYOUT,
        &[("kind", 0, 8), ("event", 8, 8), ("object", 32, 32), ("data", 64, 56), ("phase", 120, 1)],
    );
}

#[test]
fn doorbells_have_these_bits() {
    holds(&SqDoorbell::LAYOUT, &[("qpn", 0, 24), ("pushed", 24, 1), ("producer", 32, 16)]);
    holds(&RqDoorbell::LAYOUT, &[("qpn", 0, 24), ("producer", 32, 16)]);
    holds(&CqDoorbell::LAYOUT, &[("cqn", 0, 24), ("arm", 24, 2), ("consumer", 32, 24)]);
    holds(&EqDoorbell::LAYOUT, &[("eqn", 0, 24), ("arm", 24, 1), ("consumer", 32, 24)]);
    assert_eq!(
        [doorbell::SQ_OFFSET, doorbell::RQ_OFFSET, doorbell::CQ_OFFSET, doorbell::EQ_OFFSET],
        [0, 8, 16, 24]
    );
}

#[test]
fn contexts_have_these_bits() {
    holds(
        &QpRights::LAYOUT,
        &[
            ("state", 0, 4),
            ("transport", 4, 4),
            ("access", 8, 8),
            ("path_mtu", 16, 4),
            ("valid", 20, 1),
            ("page", 24, 16),
            ("pd", 40, 24),
            ("pkey", 64, 16),
            ("min_rnr_timer", 80, 5),
            ("timeout", 85, 5),
            ("retry_cnt", 90, 3),
            ("rnr_retry", 93, 3),
            ("max_inflight", 96, 16),
            ("max_rd_atomic", 112, 5),
            ("max_dest_rd_atomic", 117, 5),
            ("tagged", 122, 1),
            ("ipv6", 123, 1),
            ("rq_psn", 128, 24),
            ("sq_psn", 160, 24),
            ("vlan", 184, 12),
            ("drain", 196, 4),
        ],
    );
    holds(
        &QpPath::LAYOUT,
        &[
            ("dest_mac", 0, 48),
            ("ttl", 48, 8),
            ("tos", 56, 8),
            ("src_mac", 64, 48),
            ("udp_source_port", 112, 16),
            ("dest_qpn", 128, 24),
            ("flow_label", 160, 20),
            ("vlan_tag", 192, 16),
        ],
    );
    holds(
        &QpQueues::LAYOUT,
        &[
            ("sq_base", 0, 64),
            ("rq_base", 64, 64),
            ("sq_log_depth", 128, 4),
            ("sq_log_stride", 132, 4),
            ("rq_log_depth", 136, 4),
            ("rq_log_stride", 140, 4),
            ("send_cqn", 144, 24),
            ("recv_cqn", 168, 24),
            ("record_base", 192, 16),
            ("record_log_size", 208, 4),
            ("read_base", 212, 16),
            ("read_log_size", 228, 4),
            ("response_base", 232, 16),
            ("response_log_size", 248, 4),
        ],
    );
    holds(&QpAddresses::LAYOUT, &[("dest_gid", 0, 128), ("src_gid", 128, 128)]);
    holds(
        &MrEntry::LAYOUT,
        &[
            ("valid", 0, 1),
            ("tag", 1, 8),
            ("access", 9, 8),
            ("peer", 17, 1),
            ("relaxed_ordering", 18, 1),
            ("pd", 32, 24),
            ("va", 64, 64),
            ("length", 128, 64),
            ("iova", 192, 64),
        ],
    );
    holds(
        &CqEntry::LAYOUT,
        &[
            ("valid", 0, 1),
            ("log_depth", 1, 5),
            ("page", 8, 16),
            ("eqn", 24, 8),
            ("base", 64, 64),
            ("moderation_count", 128, 16),
            ("moderation_period", 144, 32),
        ],
    );
    holds(&EqEntry::LAYOUT, &[("valid", 0, 1), ("log_depth", 1, 5), ("vector", 8, 16), ("base", 64, 64)]);
    holds(&PortConfig::LAYOUT, &[("mac", 0, 48), ("mtu", 48, 16)]);
}

#[test]
fn commands_have_these_bits_and_their_words_are_the_context() {
    let head = CommandEntry::FIELDS[..7].iter().map(|f| (f.name, f.lsb, f.width)).collect::<Vec<_>>();
    assert_eq!(
        head,
        [
            ("opcode", 0, 8),
            ("index", 8, 24),
            ("sequence", 32, 16),
            ("word_mask", 64, 16),
            ("init_receive", 80, 1),
            ("init_send", 81, 1),
            ("reset_all", 82, 1),
        ]
    );
    let head = CommandResponse::FIELDS[..3].iter().map(|f| (f.name, f.lsb, f.width)).collect::<Vec<_>>();
    assert_eq!(head, [("status", 0, 8), ("opcode", 8, 8), ("sequence", 16, 16)]);
    for (i, field) in CommandEntry::FIELDS[7..].iter().enumerate() {
        assert_eq!((field.lsb, field.width), (128 + 64 * i as u32, 64));
    }
    let phase = CommandResponse::FIELDS.last().expect("fields");
    assert_eq!((phase.name, phase.lsb), ("phase", 255 * 8));

    let mut context = QpContext::default();
    context.rights.pd = 0xabcdef;
    context.path.dest_mac = 0x0200_0000_000a;
    context.queues.record_base = 0x1234;
    context.addresses.src_gid = 0x0000_ffff_0a00_0001;
    let entry = CommandEntry::default().with_data(&context.to_words());
    assert_eq!(entry.data(), context.to_words());
    assert_eq!(entry.pack()[16..144], context.pack());
    assert_eq!(QpContext::from_words(&entry.data()), context);
    assert_eq!(context.to_words()[0], 0xabcdef << 40);
    assert_eq!(context.to_words()[11], 0x1234);
    assert_eq!(context.to_words()[14], 0xffff_0a00_0001);
    assert_eq!(
        QpContext::RIGHTS_MASK | QpContext::PATH_MASK | QpContext::QUEUES_MASK | QpContext::ADDRESSES_MASK,
        !0
    );
}

#[test]
fn a_cqe_has_these_bytes() {
    let cqe = Cqe {
        wqe_index: 0x0102,
        opcode: 0x81,
        status: 5,
        qpn: 0x0a0b0c,
        with_imm: true,
        solicited: true,
        byte_len: 0x1122_3344,
        imm: u32::from_le_bytes(*b"wire"),
        timestamp: 0x8877_6655_4433_2211,
        phase: true,
        ..Default::default()
    };
    let mut expected = [0; 64];
    expected[..16].copy_from_slice(&[
        2, 1, 0x81, 5, 0x0c, 0x0b, 0x0a, 5, 0x44, 0x33, 0x22, 0x11, b'w', b'i', b'r', b'e',
    ]);
    expected[24..32].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    expected[63] = 1;
    assert_eq!(cqe.pack(), expected);
    assert_eq!(Cqe::unpack(&expected), cqe);
}

#[test]
fn a_doorbell_is_the_integer_that_the_driver_stores() {
    let bell = SqDoorbell { qpn: 0x123456, pushed: true, producer: 0xbeef };
    assert_eq!(u64::from_le_bytes(bell.pack()), 0x0000_beef_0112_3456);
    let bell = CqDoorbell { cqn: 7, arm: doorbell::ARM_SOLICITED, consumer: 0xabcdef };
    assert_eq!(u64::from_le_bytes(bell.pack()), 0x00ab_cdef_0200_0007);
}

#[test]
fn a_tlp_header_has_the_documented_doublewords() {
    // A read of 128 bytes at 0x1_0000_1003: 33 doublewords, byte enables 1000 and 0111.
    let header = pcie::TlpMemoryHeader {
        fmt: pcie::FMT_READ,
        kind: pcie::KIND_MEMORY,
        length: 33,
        requester_id: 0x0100,
        tag: 0x2a,
        last_be: 0b0111,
        first_be: 0b1000,
        address: 0x1_0000_1000,
        ..Default::default()
    };
    assert_eq!(header.pack(), [0x20, 0, 0, 33, 1, 0, 0x2a, 0x78, 0, 0, 0, 1, 0, 0, 0x10, 0]);
    let completion = pcie::TlpCompletionHeader {
        fmt: pcie::FMT_COMPLETION_DATA,
        kind: pcie::KIND_COMPLETION,
        relaxed_ordering: true,
        length: 32,
        completer_id: 0x0008,
        status: pcie::CompletionStatus::CompleterAbort.code(),
        byte_count: 0x080,
        requester_id: 0x0100,
        tag: 0x2a,
        lower_address: 0x43,
        ..Default::default()
    };
    assert_eq!(completion.pack(), [0x4a, 0, 0x20, 32, 0, 8, 0x80, 0x80, 1, 0, 0x2a, 0x43]);
}

#[test]
fn packing_overwrites_every_bit_of_a_dirty_buffer_and_holes_become_zero() {
    let mut bytes = [0xa5; 64];
    Cqe::default().pack_into(&mut bytes);
    assert_eq!(bytes, [0; 64]);
    let ones = SendWqe::unpack(&[0xff; 32]);
    let mut bytes = [0xa5; 32];
    ones.pack_into(&mut bytes);
    let mut expected = [0xff; 32];
    expected[1] = 0x0f;
    expected[3] = 0;
    expected[29..].fill(0);
    assert_eq!(bytes, expected);
    let bth = Bth::unpack(&[0xff; 12]);
    assert_eq!(bth.pack(), [0xff, 0xff, 0xff, 0xff, 0xc0, 0xff, 0xff, 0xff, 0x80, 0xff, 0xff, 0xff]);
}

#[test]
fn a_value_wider_than_its_field_is_cut_and_harms_no_neighbour() {
    let wqe = Cqe { qpn: 0xff00_0001, ..Default::default() };
    assert_eq!(wqe.pack()[4..8], [1, 0, 0, 0]);
}

#[test]
fn each_field_of_each_layout_lies_inside_and_no_two_overlap() {
    for layout in LAYOUTS {
        let mut used = vec![false; layout.bytes * 8];
        for field in layout.fields {
            for bit in field.lsb..field.lsb + field.width {
                assert!(!std::mem::replace(&mut used[bit as usize], true), "{}.{}", layout.name, field.name);
            }
            let byte = layout.offset(field);
            let mut bytes = vec![0; layout.bytes];
            contract::layout::put(&mut bytes, layout.order, field.lsb, field.width, u128::MAX);
            assert_eq!(bytes.iter().position(|b| *b != 0), Some(byte), "{}.{}", layout.name, field.name);
            let all = u128::MAX >> (128 - field.width);
            assert_eq!(layout.read(field, &bytes), Some(all), "{}.{}", layout.name, field.name);
            assert_eq!(layout.read(field, &bytes[1..]), None);
        }
    }
}

#[test]
fn verbs_numbers_are_those_of_the_verbs_header() {
    use verbs::*;
    let wr = [0, 1, 2, 3, 4, 5, 6, 7, 9];
    assert_eq!(WrOpcode::ALL.iter().map(|o| o.code()).collect::<Vec<_>>(), wr);
    assert_eq!(WrOpcode::SendWithInv.code(), 9);
    let wc =
        [(WcOpcode::Send, 0), (WcOpcode::RdmaWrite, 1), (WcOpcode::RdmaRead, 2), (WcOpcode::CompSwap, 3)];
    for (opcode, value) in wc {
        assert_eq!(opcode.code(), value);
    }
    assert_eq!(
        [WcOpcode::FetchAdd, WcOpcode::LocalInv, WcOpcode::Recv, WcOpcode::RecvRdmaWithImm]
            .map(WcOpcode::code),
        [4, 6, 128, 129]
    );
    let status = [
        (WcStatus::Success, 0),
        (WcStatus::LocLenErr, 1),
        (WcStatus::LocQpOpErr, 2),
        (WcStatus::LocProtErr, 4),
        (WcStatus::WrFlushErr, 5),
        (WcStatus::BadRespErr, 7),
        (WcStatus::LocAccessErr, 8),
        (WcStatus::RemInvReqErr, 9),
        (WcStatus::RemAccessErr, 10),
        (WcStatus::RemOpErr, 11),
        (WcStatus::RetryExcErr, 12),
        (WcStatus::RnrRetryExcErr, 13),
        (WcStatus::RemAbortErr, 16),
        (WcStatus::FatalErr, 19),
        (WcStatus::RespTimeoutErr, 20),
        (WcStatus::GeneralErr, 21),
    ];
    for (code, value) in status {
        assert_eq!(code.code(), value, "{code:?}");
    }
    let events = [
        (AsyncEvent::CqErr, 0),
        (AsyncEvent::QpFatal, 1),
        (AsyncEvent::QpReqErr, 2),
        (AsyncEvent::QpAccessErr, 3),
        (AsyncEvent::CommEst, 4),
        (AsyncEvent::SqDrained, 5),
        (AsyncEvent::DeviceFatal, 8),
        (AsyncEvent::PortActive, 9),
        (AsyncEvent::PortErr, 10),
        (AsyncEvent::SrqLimitReached, 15),
        (AsyncEvent::QpLastWqeReached, 16),
        (AsyncEvent::GidChange, 18),
    ];
    for (event, value) in events {
        assert_eq!(event.code(), value, "{event:?}");
    }
    for (mtu, code, bytes) in [
        (PathMtu::Mtu256, 1, 256),
        (PathMtu::Mtu512, 2, 512),
        (PathMtu::Mtu1024, 3, 1024),
        (PathMtu::Mtu2048, 4, 2048),
        (PathMtu::Mtu4096, 5, 4096),
    ] {
        assert_eq!((mtu.code(), mtu.bytes()), (code, bytes));
    }
    assert_eq!(
        [access::LOCAL_WRITE, access::REMOTE_WRITE, access::REMOTE_READ, access::REMOTE_ATOMIC],
        [1, 2, 4, 8]
    );
}

#[test]
fn only_the_legal_transitions_of_an_rc_queue_pair_are_accepted() {
    use QpState::*;
    let legal = [
        (Reset, Init),
        (Init, Init),
        (Init, Rtr),
        (Rtr, Rts),
        (Rts, Rts),
        (Rts, Sqd),
        (Sqd, Sqd),
        (Sqd, Rts),
    ];
    for from in QpState::ALL {
        for to in QpState::ALL {
            let expected = *to == Reset || (*to == Err && *from != Reset) || legal.contains(&(*from, *to));
            assert_eq!(from.may_become(*to, Transport::Rc), expected, "{from:?} to {to:?}");
        }
    }
    assert!(Sqe.may_become(Rts, Transport::Uc));
    assert!(!Sqe.may_become(Sqd, Transport::Uc));
}

#[test]
fn registers_are_aligned_ascending_and_do_not_overlap() {
    let mut end = 0;
    for register in REGISTERS {
        let bytes = register.width / 8;
        assert_eq!(register.offset % bytes, 0, "{} is not aligned", register.name);
        assert!(register.offset >= end, "{} overlaps its predecessor", register.name);
        end = register.offset + bytes * register.count;
        assert!(end <= register::BAR0_BYTES, "{} leaves BAR0", register.name);
    }
    let find = |name: &str| REGISTERS.iter().find(|r| r.name == name).expect("a register of this name");
    for (name, offset, width, access) in [
        ("magic", 0, 32, Access::Ro),
        ("layout_hash", 8, 64, Access::Ro),
        ("read_tags", 0x4c, 32, Access::Ro),
        ("command_base", 0x100, 64, Access::Rw),
        ("command_producer", 0x114, 32, Access::Rw),
        ("command_consumer", 0x118, 32, Access::Ro),
        ("now", 0x200, 64, Access::Ro),
        ("port_mac", 0x300, 64, Access::Ro),
        ("reject", 0x1000, 64, Access::Ro),
        ("stage", 0x1800, 64, Access::Ro),
        ("trace_control", 0x400, 32, Access::Rw),
        ("trace_producer", 0x408, 64, Access::Ro),
        ("trace_ring", 0x4000, 64, Access::Ro),
    ] {
        let register = find(name);
        assert_eq!((register.offset, register.width, register.access), (offset, width, access), "{name}");
    }
    assert_eq!(register::MAGIC_VALUE.to_le_bytes(), *b"VRBN");
    assert_eq!(register::reject_counter(Reject::CommandFetchFailed), 0x1000 + 8 * 56);
}

#[test]
fn a_trace_entry_packs_as_stated() {
    let entry = TraceEntry {
        time: 0x05_0403_0201,
        event: 0x06,
        qp: 0x0807,
        index: 0x0a09,
        psn: 0x0d_0c0b,
        opcode: 0x0e,
        detail: 0x100f,
    };
    let bytes: [u8; 16] = std::array::from_fn(|i| i as u8 + 1);
    assert_eq!(entry.pack(), bytes);
    assert_eq!(TraceEntry::unpack(&bytes), entry);
    assert!(TraceEvent::ALL.iter().all(|event| event.code() > 0), "0 is no event");
    assert_eq!(TraceEvent::Retire.stage(), Stage::Acknowledge);
}

#[test]
fn code_tables_ascend_without_repetition_and_reject_codes_have_no_gap() {
    for table in CODES {
        assert!(table.rows.windows(2).all(|pair| pair[0].value < pair[1].value), "{}", table.name);
    }
    for (i, reject) in Reject::ALL.iter().enumerate() {
        assert_eq!(reject.code() as usize, i);
        assert_eq!(Reject::from_vendor_err(reject.vendor_err()), Some(*reject));
        assert!(!reject.doc().is_empty());
    }
    assert_eq!(Reject::from_vendor_err(0), None);
    assert_eq!(Reject::from_vendor_err(300), None);
    for (i, counter) in StageCounter::ALL.iter().enumerate() {
        assert_eq!(counter.code() as usize, i);
    }
}

#[test]
fn the_layout_hash_is_an_independent_fnv_and_feels_every_kind_of_change() {
    // FNV-1a written a second time, over a table small enough to spell out.
    let plain = |bytes: &[u8]| {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
    };
    let expected = plain(b"Ieth\0\x04\0\0\0\x01rkey\0\0\0\0\0\x20\0\0\0");
    assert_eq!(hash(&[Ieth::LAYOUT], &[], &[]), expected);

    assert_eq!(hash(LAYOUTS, CODES, REGISTERS), LAYOUT_HASH);
    let mut layouts = LAYOUTS.to_vec();
    layouts[2].order = Order::Network;
    assert_ne!(hash(&layouts, CODES, REGISTERS), LAYOUT_HASH);
    let mut fields = Cqe::FIELDS.to_vec();
    fields[3].lsb += 1;
    layouts = LAYOUTS.to_vec();
    layouts[2].fields = fields.leak();
    assert_ne!(hash(&layouts, CODES, REGISTERS), LAYOUT_HASH);
    let mut rows = CODES[0].rows.to_vec();
    rows[0].value ^= 1;
    let mut codes = CODES.to_vec();
    codes[0].rows = rows.leak();
    assert_ne!(hash(LAYOUTS, &codes, REGISTERS), LAYOUT_HASH);
    let mut registers = REGISTERS.to_vec();
    registers[5].offset += 4;
    assert_ne!(hash(LAYOUTS, CODES, &registers), LAYOUT_HASH);
    let mut registers = REGISTERS.to_vec();
    registers[5].doc = "documents do not count";
    assert_eq!(hash(LAYOUTS, CODES, &registers), LAYOUT_HASH);
}

#[test]
fn the_phase_turns_at_each_lap() {
    assert!(ring::phase(0, 3) && ring::phase(7, 3));
    assert!(!ring::phase(8, 3) && !ring::phase(15, 3));
    assert!(ring::phase(16, 3));
}

#[test]
fn the_committed_page_is_what_the_tables_print() {
    let mut page = String::new();
    doc::write_page(&mut page).expect("a string takes all");
    let committed = include_str!("../../../docs/registers.md");
    assert!(
        page == committed,
        "docs/registers.md is stale: run `cargo run -p contract --bin contract-doc > docs/registers.md`"
    );
}
