"""A stranger on the wire beside an RDMA connection: forged frames to the simulated card, again and again.

    peer.py's connection ── what a stranger could have seen of it ──> Stranger ── AF_PACKET ──> wire ──> card

In: the card's QP, both first PSNs, a range of the card's memory with its key; Out: per kind of frame one that the card must
refuse by the name told, every few milliseconds until it is told to stop. Each WRITE would change the memory, had it been
executed. It never sends what an RC QP cannot tell from its peer's frames: an answer within the window of what is under
way, or a request with the very next PSN, from the peer's addresses.
"""

import os
import random
import socket
import threading
import zlib

CARD = bytes.fromhex("02000000000a")
OWN = bytes.fromhex("020000000077")
PEER, ELSEWHERE, HERE = (socket.inet_aton(text) for text in ("10.0.0.2", "10.0.0.119", "10.0.0.1"))
SEND_ONLY, WRITE_ONLY, READ_REQUEST, READ_RESPONSE_ONLY, ACKNOWLEDGE = 0x04, 0x0A, 0x0C, 0x10, 0x11
UC_WRITE_ONLY, NO_OPCODE = 0x2A, 0x1F
ACK, NAK_SEQUENCE, NAK_ACCESS = 0x1F, 0x60, 0x62
FAR = 1 << 22


def checksum(header):
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, 20, 2))
    total = (total & 0xFFFF) + (total >> 16)
    return (~(total + (total >> 16)) & 0xFFFF).to_bytes(2, "big")


def frame(inner, source=PEER, to=CARD, port=4791, udp_more=0, ip_sum=0, fragment=0, spoil=0):
    """An Ethernet frame around a BTH and what follows it, with its ICRC."""
    length = 8 + len(inner) + 4
    ip = bytearray(b"\x45\0" + (20 + length).to_bytes(2, "big") + b"\0\0" + fragment.to_bytes(2, "big") + b"\x40\x11\0\0")
    ip += source + HERE
    total = int.from_bytes(checksum(ip), "big") ^ ip_sum
    ip[10:12] = total.to_bytes(2, "big")
    udp = b"\xc0\0" + port.to_bytes(2, "big") + (length + udp_more).to_bytes(2, "big") + b"\0\0"
    covered = bytearray(ip + udp + inner)
    for place in (1, 8, 10, 11, 26, 27, 32):
        if place < len(covered):
            covered[place] = 0xFF
    icrc = zlib.crc32(b"\xff" * 8 + covered) ^ spoil
    return to + OWN + b"\x08\0" + ip + udp + inner + icrc.to_bytes(4, "little")


def bth(opcode, qpn, psn, pkey=0xFFFF, version=0):
    head = bytes([opcode, version]) + pkey.to_bytes(2, "big") + b"\0" + qpn.to_bytes(3, "big")
    return head + b"\x80" + (psn & 0xFFFFFF).to_bytes(3, "big")


def frames(qpn, asked, asks, addr, rkey):
    """(name of the refusal, frame): `asked` is the first PSN of the kernel's requests, `asks` that of the card's."""
    reth = addr.to_bytes(8, "big") + rkey.to_bytes(4, "big") + (64).to_bytes(4, "big")
    poison = reth + b"\xee" * 64

    def write(psn=asked - 1000, qp=qpn, opcode=WRITE_ONLY, **head):
        return bth(opcode, qp, psn, **head) + poison

    def answer(psn, syndrome, opcode=ACKNOWLEDGE, data=b""):
        return bth(opcode, qpn, psn) + bytes([syndrome, 0, 0, 1]) + data

    yield "BadIcrc", frame(write(asked), spoil=0x100)
    yield "BadPkey", frame(write(asked, pkey=0x1234))
    yield "WrongAddress", frame(write(asked), source=ELSEWHERE)
    yield "WrongAddress", frame(answer(asks, NAK_ACCESS), source=ELSEWHERE)
    yield "UnknownQp", frame(write(qp=0xABCDEF))
    yield "UnknownOpcode", frame(write(asked, opcode=NO_OPCODE))
    yield "WrongTransport", frame(write(asked, opcode=UC_WRITE_ONLY))
    yield "BadTransportVersion", frame(write(asked, version=1))
    yield "Duplicate", frame(write())
    yield "Duplicate", frame(bth(SEND_ONLY, qpn, asked - 900) + b"\xee" * 64)
    yield "Duplicate", frame(bth(READ_REQUEST, qpn, asked - 800) + reth)
    yield "PsnOutOfSequence", frame(write(asked + FAR))
    for psn in (asks + FAR, asks - 5):
        yield "ResponseUnexpected", frame(answer(psn, ACK))
        yield "ResponseUnexpected", frame(answer(psn, NAK_SEQUENCE))
        yield "ResponseUnexpected", frame(answer(psn, NAK_ACCESS))
        yield "ResponseUnexpected", frame(answer(psn, ACK, READ_RESPONSE_ONLY, b"\xee" * 64))
    yield "NotRoce", frame(write(asked), port=4790)
    yield "BadIpHeader", frame(write(asked), ip_sum=1)
    yield "BadIpHeader", frame(write(asked), fragment=0x2000)
    yield "BadUdpLength", frame(write(asked), udp_more=8)
    yield "WrongDestinationMac", frame(write(asked), to=bytes.fromhex("0200000000aa"))
    yield "Runt", frame(os.urandom(5))
    # whatever comes; its ICRC is right, its opcode nobody's
    yield "UnknownOpcode", frame(bytes([0xFF]) + bytes([0]) + os.urandom(random.randrange(10, 300)))


class Stranger(threading.Thread):
    """Sends until `stop`."""

    def __init__(self, mac, *seen):
        super().__init__(daemon=True)
        self.mac, self.seen, self.ended = mac, seen, threading.Event()

    def run(self):
        names = os.listdir("/sys/class/net")
        own = [name for name in names if open(f"/sys/class/net/{name}/address").read().strip() == self.mac]
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
            wire.bind((own[0], 0))
            while not self.ended.is_set():
                for _, forged in frames(*self.seen):
                    wire.send(forged)
                self.ended.wait(0.002)

    def stop(self):
        self.ended.set()
        self.join()
