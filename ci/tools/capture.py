"""Reads pcapng and pcap, finds the RoCEv2 packets in them; writes pcapng for tests.

In: a file of Ethernet frames without FCS. Out: `Frame`s in file order with integer picosecond stamps, and for those
that are RoCEv2 a `Roce` view. A file that is damaged, or of another link type, raises `CaptureError`: nothing is
guessed. Shared by the tools in this folder only; it shares no code with the project that it judges.
"""

import struct
from dataclasses import dataclass, field

ETHERNET = 1
ROCE_PORT = 4791
VLAN_TYPES = (0x8100, 0x88A8)


class CaptureError(Exception):
    """The file cannot be read as a capture."""


@dataclass
class Frame:
    number: int  # from 1, as Wireshark counts
    interface: int
    interface_name: str
    time_ps: int
    data: bytes
    length: int  # on the wire; more than len(data) if the capture cut it
    comments: list = field(default_factory=list)
    outbound: bool | None = None  # pcapng's epb_flags, None if it does not say

    @property
    def marked_corrupted(self):
        """Whether the wire that corrupted the frame says so in its comment."""
        return any("corrupted" in comment.lower() for comment in self.comments)

    @property
    def source(self):
        """The source MAC address."""
        return self.data[6:12]


def without(arguments):
    """Takes `--without MAC` from the front of a tool's arguments: (the address or None, the rest)."""
    if len(arguments) > 1 and arguments[0] == "--without":
        return bytes.fromhex(arguments[1].replace(":", "")), arguments[2:]
    return None, arguments


# ---------------------------------------------------------------------------------------------------- reading


def read(path):
    """Every frame of a capture file."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        if data[:4] == b"\x0a\x0d\x0d\x0a":
            yield from _pcapng(data)
        else:
            yield from _pcap(data)
    except (struct.error, IndexError) as error:
        raise CaptureError(f"{path}: the file ends inside a block ({error})") from error
    except CaptureError as error:
        raise CaptureError(f"{path}: {error}") from error


def _pcap(data):
    for order in "<>":
        magic = struct.unpack_from(order + "I", data)[0] if len(data) >= 24 else 0
        if magic in (0xA1B2C3D4, 0xA1B23C4D):
            break
    else:
        raise CaptureError("neither pcapng nor pcap")
    unit = 1_000_000 if magic == 0xA1B2C3D4 else 1_000
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    if link != ETHERNET:
        raise CaptureError(f"link type {link} is not Ethernet")
    at, number = 24, 0
    while at < len(data):
        seconds, fraction, kept, length = struct.unpack_from(order + "IIII", data, at)
        at += 16
        if at + kept > len(data):
            raise CaptureError("the file ends inside a frame")
        number += 1
        yield Frame(number, 0, "", seconds * 10**12 + fraction * unit, data[at : at + kept], length)
        at += kept


def _options(order, data):
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from(order + "HH", data, at)
        if code == 0:
            return
        if at + 4 + length > len(data):
            raise CaptureError("an option is longer than its block")
        yield code, data[at + 4 : at + 4 + length]
        at += 4 + (length + 3) // 4 * 4


def _pcapng(data):
    at, number, order, interfaces = 0, 0, "<", []
    while at < len(data):
        kind = struct.unpack_from(order + "I", data, at)[0]
        if kind == 0x0A0D0D0A:  # section header: byte order and interfaces start anew
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            if struct.unpack_from(order + "I", data, at + 8)[0] != 0x1A2B3C4D:
                raise CaptureError("the section header has no byte-order magic")
            interfaces = []
        size = struct.unpack_from(order + "I", data, at + 4)[0]
        if size < 12 or size % 4 or at + size > len(data):
            raise CaptureError(f"a block at byte {at} has the length {size}")
        if struct.unpack_from(order + "I", data, at + size - 4)[0] != size:
            raise CaptureError(f"the two lengths of the block at byte {at} differ")
        body = data[at + 8 : at + size - 4]
        at += size
        if kind == 1:
            interfaces.append(_interface(order, body))
        elif kind in (2, 6):  # packet (obsolete) and enhanced packet
            if kind == 6:
                index, high, low, kept, length = struct.unpack_from(order + "IIIII", body)
            else:
                index, _, high, low, kept, length = struct.unpack_from(order + "HHIIII", body)
            if index >= len(interfaces):
                raise CaptureError(f"a packet of interface {index}, which is not described")
            if 20 + kept > len(body):
                raise CaptureError("a packet is longer than its block")
            name, link, resolution = interfaces[index]
            number += 1
            if link != ETHERNET:
                raise CaptureError(f"link type {link} is not Ethernet")
            stamp = (high << 32 | low) * 10**12 // resolution
            frame = Frame(number, index, name, stamp, body[20 : 20 + kept], length)
            for code, value in _options(order, body[20 + (kept + 3) // 4 * 4 :]):
                if code == 1:
                    frame.comments.append(value.decode("utf-8", "replace"))
                elif code == 2:
                    frame.outbound = {1: False, 2: True}.get(struct.unpack(order + "I", value)[0] & 3)
            yield frame
        elif kind == 3:
            raise CaptureError("a simple packet block has no time stamp")


def _interface(order, body):
    link = struct.unpack_from(order + "H", body)[0]
    name, resolution = "", 10**6
    for code, value in _options(order, body[8:]):
        if code == 2:
            name = value.decode("utf-8", "replace")
        elif code == 9:
            resolution = 2 ** (value[0] & 0x7F) if value[0] & 0x80 else 10 ** value[0]
    return name, link, resolution


# ---------------------------------------------------------------------------------------------------- RoCEv2


@dataclass
class Roce:
    """Where the layers of one RoCEv2 frame are, and the fields that the tools need."""

    frame: Frame
    ip: int  # offset of the IP header in frame.data
    version: int  # 4 or 6
    udp: int  # offset of the UDP header
    end: int  # offset behind the ICRC; Ethernet padding may follow
    source: bytes
    destination: bytes

    @property
    def bth(self):
        return self.udp + 8

    @property
    def opcode(self):
        return self.frame.data[self.bth]

    @property
    def pad(self):
        return self.frame.data[self.bth + 1] >> 4 & 3

    @property
    def qp(self):
        return int.from_bytes(self.frame.data[self.bth + 5 : self.bth + 8], "big")

    @property
    def psn(self):
        return int.from_bytes(self.frame.data[self.bth + 9 : self.bth + 12], "big")


class Malformed(Exception):
    """The frame says that it is RoCEv2, but its lengths contradict each other."""


def roce(frame):
    """The RoCEv2 view of a frame; None if it is something else; raises Malformed."""
    data = frame.data
    at = 12
    while int.from_bytes(data[at : at + 2], "big") in VLAN_TYPES:
        at += 4
    kind = int.from_bytes(data[at : at + 2], "big")
    ip = at + 2
    if kind == 0x0800 and len(data) >= ip + 20 and data[ip] >> 4 == 4 and data[ip + 9] == 17:
        if int.from_bytes(data[ip + 6 : ip + 8], "big") & 0x3FFF:
            return None  # a fragment
        version, udp = 4, ip + (data[ip] & 15) * 4
        end = ip + int.from_bytes(data[ip + 2 : ip + 4], "big")
        source, destination = data[ip + 12 : ip + 16], data[ip + 16 : ip + 20]
    elif kind == 0x86DD and len(data) >= ip + 40 and data[ip] >> 4 == 6 and data[ip + 6] == 17:
        version, udp = 6, ip + 40
        end = udp + int.from_bytes(data[ip + 4 : ip + 6], "big")
        source, destination = data[ip + 8 : ip + 24], data[ip + 24 : ip + 40]
    else:
        return None
    if int.from_bytes(data[udp + 2 : udp + 4], "big") != ROCE_PORT:
        return None
    if version == 4 and udp != ip + 20:
        raise Malformed("RoCEv2 behind an IPv4 header with options")
    if end > len(data):
        raise Malformed(f"the IP length asks for {end} bytes of a frame of {len(data)}")
    if end - udp != int.from_bytes(data[udp + 4 : udp + 6], "big"):
        raise Malformed("the IP and UDP lengths differ")
    if end - udp < 8 + 12 + 4:
        raise Malformed("too short for BTH and ICRC")
    return Roce(frame, ip, version, udp, end, bytes(source), bytes(destination))


# ---------------------------------------------------------------------------------------------------- writing


def _block(kind, body):
    size = 12 + len(body)
    return struct.pack("<II", kind, size) + body + struct.pack("<I", size)


def _option(code, value):
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def write(path, interfaces, frames):
    """A pcapng with nanosecond stamps; for the tools' own tests. Frames need number, name and length no more."""
    with open(path, "wb") as file:
        file.write(_block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)))
        for name in interfaces:
            options = _option(2, name.encode()) + _option(9, b"\x09") + _option(0, b"")
            file.write(_block(1, struct.pack("<HHI", ETHERNET, 0, 0) + options))
        for frame in frames:
            stamp = frame.time_ps // 1000
            head = (frame.interface, stamp >> 32, stamp & 0xFFFFFFFF, len(frame.data), len(frame.data))
            options = b"".join(_option(1, comment.encode()) for comment in frame.comments)
            if frame.outbound is not None:
                options += _option(2, struct.pack("<I", 2 if frame.outbound else 1))
            if options:
                options += _option(0, b"")
            file.write(_block(6, struct.pack("<IIIII", *head) + frame.data + bytes(-len(frame.data) % 4) + options))
