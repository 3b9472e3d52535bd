//! The two checksums of a frame in software: FCS and ICRC.
//!
//! Both are CRC-32 of 802.3 (reflected polynomial 0xEDB88320, start all ones, result complemented), four bytes on the
//! wire, least significant first. In: bytes. Out: the number. About one table look-up per byte: for the driver, the
//! peer and tests; the RTL has its own.

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// Register value before the first byte.
pub const START: u32 = 0xffff_ffff;
/// Register value after the eight 0xFF bytes that stand for the absent local route header in every ICRC.
pub const ICRC_START: u32 = 0xdebb_20e3;
/// Register value after a frame followed by its own correct checksum.
pub const RESIDUE: u32 = 0xdebb_20e3;

/// Feeds bytes into the register; no complement.
pub const fn update(mut register: u32, bytes: &[u8]) -> u32 {
    let mut i = 0;
    while i < bytes.len() {
        register = register >> 8 ^ TABLE[(register as u8 ^ bytes[i]) as usize];
        i += 1;
    }
    register
}

/// The frame check sequence of a frame (destination MAC to the last byte before the FCS).
pub const fn fcs(frame: &[u8]) -> u32 {
    !update(START, frame)
}

/// The four wire bytes of the ICRC of `packet`: IP header to the last pad byte, without the ICRC itself.
///
/// Fields that routers change count as ones: IPv4 ToS, TTL and checksum, or IPv6 traffic class, flow label and hop
/// limit; UDP checksum; the FECN/BECN byte of the BTH (RoCE annex A17). `None` when the packet is too short for
/// IP, UDP and BTH, or is neither IPv4 nor IPv6. The IPv4 header must have no options; a packet with options is
/// treated as if it had none.
pub fn icrc(packet: &[u8]) -> Option<[u8; 4]> {
    let udp = match packet.first()? >> 4 {
        4 => 20,
        6 => 40,
        _ => return None,
    };
    let header_len = udp + 8 + 12;
    let mut header = [0; 60];
    let header = &mut header[..header_len];
    header.copy_from_slice(packet.get(..header_len)?);
    if udp == 20 {
        header[1] = 0xff;
        header[8] = 0xff;
        header[10..12].fill(0xff);
    } else {
        header[0] |= 0x0f;
        header[1..4].fill(0xff);
        header[7] = 0xff;
    }
    header[udp + 6..udp + 8].fill(0xff);
    header[udp + 8 + 4] = 0xff;
    Some((!update(update(ICRC_START, header), &packet[header_len..])).to_le_bytes())
}
