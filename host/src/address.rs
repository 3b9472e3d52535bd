//! Addresses: MAC, GID, and who has which.
//!
//! In: text, bytes, or a GID to find. Out: typed addresses; the MAC address behind a GID. A GID is an IPv6 address or
//! an IPv4 address in its mapped form `::ffff:a.b.c.d`. [`StaticNeighbours`] is a table; whom it does not know a running
//! [`crate::Ip`] asks for by ARP or ND.

use crate::{Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// As the integer that contexts and registers hold: the byte sent first is the most significant.
    pub fn to_u64(self) -> u64 {
        self.0.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// From the integer form; bits above 47 are ignored.
    pub fn from_u64(value: u64) -> Mac {
        Mac(std::array::from_fn(|i| (value >> (8 * (5 - i))) as u8))
    }

    /// The EUI-64 of this address: universal/local bit flipped, ff:fe inserted (RFC 4291, appendix A).
    pub fn eui64(self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.0;
        [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = Error;
    fn from_str(text: &str) -> Result<Mac> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        let bad = || Error::Range {
            operation: "read a MAC address",
            what: "length of the text",
            value: text.len() as u64,
            allowed: format!("six hexadecimal bytes like 02:00:00:00:00:0a, not `{text}`"),
        };
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Mac(bytes)) }
    }
}

/// A global identifier: 16 bytes in network order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The big-endian integer that contexts hold.
    pub fn to_u128(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// From the integer form.
    pub fn from_u128(value: u128) -> Gid {
        Gid(value.to_be_bytes())
    }

    /// The IPv4 address, when this is one.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// The link-local address of `mac`: fe80::/64 and its EUI-64.
    pub fn link_local(mac: Mac) -> Gid {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&[0xfe, 0x80]);
        bytes[8..].copy_from_slice(&mac.eui64());
        Gid(bytes)
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Gid {
        Gid(address.to_ipv6_mapped().octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Gid {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Gid(address.octets()),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Who has which address on the card's network.
pub trait Neighbours: Send + Sync {
    /// The MAC address to send to for `gid`; `None`: unknown.
    fn mac_of(&self, gid: Gid) -> Option<Mac>;
    /// The GID of the port with this MAC address; `None`: unknown.
    fn gid_of(&self, mac: Mac) -> Option<Gid>;
}

/// A fixed table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticNeighbours(pub Vec<(Gid, Mac)>);

impl Default for StaticNeighbours {
    /// The two hosts of every example: 10.0.0.1 at 02:00:00:00:00:0a and 10.0.0.2 at 02:00:00:00:00:0b.
    fn default() -> Self {
        StaticNeighbours(vec![
            (Ipv4Addr::new(10, 0, 0, 1).into(), Mac([2, 0, 0, 0, 0, 0x0a])),
            (Ipv4Addr::new(10, 0, 0, 2).into(), Mac([2, 0, 0, 0, 0, 0x0b])),
        ])
    }
}

impl StaticNeighbours {
    /// Rows of the form `ip=mac`, separated by commas, before the default ones.
    ///
    /// # Errors
    /// A row that is not of that form.
    pub fn parse(text: &str) -> Result<StaticNeighbours> {
        let mut rows = Vec::new();
        for row in text.split(',').map(str::trim).filter(|row| !row.is_empty()) {
            let bad = || Error::Range {
                operation: "read the neighbour table",
                what: "length of the row",
                value: row.len() as u64,
                allowed: format!("ip=mac like 10.0.0.1=02:00:00:00:00:0a, not `{row}`"),
            };
            let (ip, mac) = row.split_once('=').ok_or_else(bad)?;
            rows.push((ip.parse::<IpAddr>().map_err(|_| bad())?.into(), mac.parse()?));
        }
        rows.extend(Self::default().0);
        Ok(StaticNeighbours(rows))
    }

    /// The table in the environment variable `VERBENA_NEIGHBOURS`, or the default one.
    ///
    /// # Errors
    /// The variable is malformed.
    pub fn from_environment() -> Result<StaticNeighbours> {
        Self::parse(&std::env::var("VERBENA_NEIGHBOURS").unwrap_or_default())
    }
}

impl Neighbours for StaticNeighbours {
    fn mac_of(&self, gid: Gid) -> Option<Mac> {
        self.0.iter().find(|row| row.0 == gid).map(|row| row.1)
    }

    fn gid_of(&self, mac: Mac) -> Option<Gid> {
        self.0.iter().find(|row| row.1 == mac).map(|row| row.0)
    }
}

/// The UDP source port of a connection: from the flow label, or, when that is 0, from both QPNs. (The rule of Linux'
/// RDMA core, so that equal-cost paths spread alike.)
pub fn udp_source_port(flow_label: u32, local_qpn: u32, remote_qpn: u32) -> u16 {
    let label = match flow_label & 0xf_ffff {
        0 => {
            let product = u64::from(local_qpn) * u64::from(remote_qpn);
            let folded = product ^ product >> 20;
            (folded ^ folded >> 40) as u32 & 0xf_ffff
        }
        label => label,
    };
    0xc000 | ((label & 0x3fff) ^ (label >> 14 & 0x3f)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_port_matches_the_published_vectors() {
        assert_eq!(udp_source_port(0x12345, 1, 2), 0xe341);
        assert_eq!(udp_source_port(0, 0x12, 0x345), 0xfada);
        assert_eq!(udp_source_port(0, 0x345, 0x12), 0xfada);
    }

    #[test]
    fn a_mac_address_survives_text_and_integer() {
        let mac: Mac = "02:00:00:00:00:0a".parse().expect("well formed");
        assert_eq!((mac.to_u64(), Mac::from_u64(mac.to_u64())), (0x0200_0000_000a, mac));
        assert_eq!(Gid::link_local(mac).to_string(), "fe80::ff:fe00:a");
        for bad in ["02:00:00:00:00", "02:00:00:00:00:0a:0b", "2:0:0:0:0:a", "02:00:00:00:00:0g"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }

    #[test]
    fn own_rows_come_before_the_default_hosts() {
        let table = StaticNeighbours::parse("192.168.1.9=02:00:00:00:00:0a").expect("well formed");
        let mac = Mac([2, 0, 0, 0, 0, 0x0a]);
        assert_eq!(table.gid_of(mac), Some(Ipv4Addr::new(192, 168, 1, 9).into()));
        assert_eq!(table.mac_of(Ipv4Addr::new(10, 0, 0, 2).into()), Some(Mac([2, 0, 0, 0, 0, 0x0b])));
        assert!(StaticNeighbours::parse("10.0.0.1").is_err());
    }
}
