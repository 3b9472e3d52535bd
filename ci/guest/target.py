#!/usr/bin/python3
"""The client of a target, an RDMA endpoint without a host: its control port by `verbena target`, its memory by the verbs of
the kernel, rdma-core's own Python, device rxe0.

    target.py ADDRESS control                                        every answer of the control port, and every refusal
    target.py ADDRESS write|read|fetch-add|compare-swap|mixed SIZE COUNT MTU      so many work requests of one kind, or of all
    target.py ADDRESS hostile SIZE COUNT MTU                         all kinds, while datagrams nobody should send come, too

In: the target, none of whose queue pairs is in use. Out: a line of what was done; what is not as it should be ends it with
exit code 1 and a line that says so. Work requests go to random addresses of the target's memory: beneath the middle WRITEs,
above it READs, in the last two words atomics. In the end all of that memory is read and compared, every atomic must have
been executed once and every packet of a WRITE written once, and the LEDs are as they were written last. In the work with
hostile datagrams, those that are wrong beneath UDP come from a MAC address of their own.
"""

import ipaddress
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from stranger import checksum

DEVICE = "rxe0"
OWN = "::ffff:10.0.0.2"
PORT, MAGIC, VERSION, BYTES = 4793, 0x56524254, 1, 64
BURST = 16
OK, BAD_VERSION, BAD_OPERATION, BAD_QP, IN_USE, NOT_YOURS, BAD_MTU, BAD_ADDRESS = range(8)
QUERY, CREATE, DESTROY, COUNTERS = range(4)
FREE = 0b1111_1100
STRANGER_MAC = bytes.fromhex("020000000077")
FLOOD = 200
# sequences of what has no reply, or has none of its own
SILENT = [0, 10, 11, 12]
WAIT = 60
DEPTH = 32
MASK = (1 << 64) - 1
KINDS = ["write", "read", "fetch-add", "compare-swap"]


class Wrong(Exception):
    """What is not as it should be."""


def ensure(holds, what):
    if not holds:
        raise Wrong(what)


def some(length):
    # never 0: tshark takes what looks like an EtherType and two bytes of 0 for a frame in the message
    return os.urandom(length).replace(b"\0", b"\1")


class Control:
    """`verbena target`, as a person types it."""

    def __init__(self, address):
        self.address = address

    def run(self, *arguments):
        command = ["verbena", "target", self.address, "--json", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def ask(self, *arguments):
        done = self.run(*arguments)
        ensure(done.returncode == 0, f"{arguments}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def refused(self, words, *arguments):
        done = self.run(*arguments)
        ensure(done.returncode == 1 and words in done.stderr, f"{arguments}: {done.returncode} {done.stderr.strip()}")

    def create(self, peer_qpn, *more, psn=0, gid=OWN, mtu=1024):
        return self.ask("create", "--peer-qpn", peer_qpn, "--psn", hex(psn), "--gid", gid, "--mtu", mtu, *more)

    def destroy(self, qpn, peer_qpn):
        return self.ask("destroy", "--qpn", qpn, "--peer-qpn", peer_qpn)


def control_port(control):
    """Makes and ends queue pairs, and asks for what there is not."""
    before = control.ask("query")
    ensure(before["free"] == FREE and before["peer_qpn"] is None, f"it is not as after its reset: {before}")
    ensure(before["gid"] == f"::ffff:{control.address}", f"its GID is {before['gid']}")
    first = control.create(17, mtu=4096)
    ensure((first["qpn"], first["peer_qpn"], first["peer_gid"]) == (2, 17, OWN), f"made: {first}")
    ensure(first["free"] == FREE & ~4, f"still free: {first['free']:#b}")
    ensure(control.create(17, "--qpn", 2, mtu=4096) == first, "the same request again is another's")
    control.refused("exists already", "create", "--qpn", 2, "--peer-qpn", 18, "--psn", 0, "--gid", OWN)
    control.refused("no such QP", "create", "--qpn", 1, "--peer-qpn", 18, "--psn", 0, "--gid", OWN)
    control.refused("sender's IPv4 address", "create", "--qpn", 3, "--peer-qpn", 18, "--psn", 0, "--gid", "::ffff:10.0.0.3")
    control.refused("another peer's", "destroy", "--qpn", 2, "--peer-qpn", 18)
    control.refused("does not exist", "destroy", "--qpn", 3, "--peer-qpn", 18)
    made = [control.create(20 + n)["qpn"] for n in range(5)]
    ensure(made == [3, 4, 5, 6, 7], f"made: {made}")
    control.refused("no queue pair is free", "create", "--peer-qpn", 30, "--psn", 0, "--gid", OWN)
    left = [control.destroy(qpn, peer)["free"] for qpn, peer in zip([2, *made], [17, 20, 21, 22, 23, 24])]
    ensure(left == [FREE & (1 << n) - 1 for n in range(3, 9)], f"free: {left}")
    told = control.ask("counters")
    # without those that were asked again
    ensure(told["answered"] >= 26, f"counted: {told}")
    ensure(told["bad_frames"] == told["refused"] == told["writes"] == 0, f"counted: {told}")
    return f"{told['answered']} answered, {told['dropped']} dropped"


class Pair:
    """A queue pair of this end and one of the target, the target's memory, and what it should be."""

    def __init__(self, context, control, mtu, room):
        self.control, self.mtu = control, mtu
        self.pd = PD(context)
        self.cq = CQ(context, 2 * DEPTH)
        self.memory = MR(self.pd, room, e.IBV_ACCESS_LOCAL_WRITE)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        attr = QPAttr(port_num=1)
        self.qp = QP(self.pd, init, attr)
        # they wrap in the midst of it
        attr.sq_psn = 0xFFFFF0
        made = control.create(self.qp.qp_num, psn=attr.sq_psn, mtu=mtu)
        self.qpn, self.rkey, self.length = made["qpn"], made["memory"]["rkey"], made["memory"]["bytes"]
        self.pins = made["pins"]["rkey"]
        index = next(i for i in range(16) if str(context.query_gid(port_num=1, index=i)).endswith("ffff:0a00:0002"))
        route = GlobalRoute(dgid=GID(ipaddress.ip_address(made["gid"]).packed.hex(":", 2)), sgid_index=index, hop_limit=64)
        attr.ah_attr = AHAttr(is_global=1, port_num=1, gr=route)
        attr.path_mtu = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[mtu]
        attr.dest_qp_num, attr.rq_psn = self.qpn, 0
        attr.max_dest_rd_atomic, attr.max_rd_atomic = 1, made["max_reads"]
        # 537 ms: a simulated target may take its time
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 17, 7, 7, 12
        self.qp.to_rts(attr)
        self.image = bytearray()
        self.packets = self.atomics = 0

    def post(self, kind, slot, at, length, address, rkey, *operands):
        opcode = {
            "write": e.IBV_WR_RDMA_WRITE,
            "read": e.IBV_WR_RDMA_READ,
            "fetch-add": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
            "compare-swap": e.IBV_WR_ATOMIC_CMP_AND_SWP,
        }[kind]
        sge = SGE(self.memory.buf + at, length, self.memory.lkey)
        wr = SendWR(wr_id=slot, num_sge=1, sg=[sge], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
        if operands:
            wr.set_wr_atomic(rkey, address, *operands)
        else:
            wr.set_wr_rdma(rkey, address)
        self.qp.post_send(wr)

    def reap(self, slots):
        """The completions of these, in order."""
        end = time.monotonic() + WAIT
        for slot in slots:
            while not (found := self.cq.poll(1)[1]):
                ensure(time.monotonic() < end, f"no completion of {slot} after {WAIT} s")
                time.sleep(0.001)
            ensure(found[0].wr_id == slot, f"completion {found[0].wr_id}, not {slot}")
            ensure(found[0].status == e.IBV_WC_SUCCESS, f"{slot}: {e.ibv_wc_status(found[0].status).name}")

    def one(self, kind, at, length, address, rkey):
        self.post(kind, 0, at, length, address, rkey)
        self.reap([0])

    def fill(self):
        """All of the target's memory."""
        self.image = bytearray(some(self.length))
        for at in range(0, self.length, 8192):
            self.memory.write(bytes(self.image[at : at + 8192]), 8192, 0)
            self.one("write", 0, 8192, at, self.rkey)
        self.packets += self.length // self.mtu

    def compare(self):
        for at in range(0, self.length, 8192):
            self.one("read", 0, 8192, at, self.rkey)
            ensure(self.memory.read(8192, 0) == self.image[at : at + 8192], f"the memory differs in the 8 KiB from {at}")

    def word(self, at):
        return int.from_bytes(self.image[at : at + 8], "little")

    def work(self, kinds, size, count):
        """So many work requests, of these kinds in turn."""
        middle, step = self.length // 2, max(size, 8)
        expected = []
        for slot in range(count):
            kind, at = kinds[slot % len(kinds)], slot * step
            if slot >= DEPTH:
                self.reap([slot - DEPTH])
            if kind == "write":
                address, data = random.randrange(middle - size + 1), some(size)
                self.memory.write(data, size, at)
                self.image[address : address + size] = data
                self.packets += max(1, -(-size // self.mtu))
                self.post(kind, slot, at, size, address, self.rkey)
            elif kind == "read":
                address = random.randrange(middle, self.length - 16 - size + 1)
                expected.append((slot, at, bytes(self.image[address : address + size])))
                self.post(kind, slot, at, size, address, self.rkey)
            else:
                adds = kind == "fetch-add"
                address = self.length - (16 if adds else 8)
                held, operand = self.word(address), random.getrandbits(64)
                right = slot % 3 != 2
                # add; or compare, swap
                operands = [operand] if adds else [held if right else held ^ 1, operand]
                left = (held + operand) & MASK if adds else operand if right else held
                self.image[address : address + 8] = left.to_bytes(8, "little")
                expected.append((slot, at, held.to_bytes(8, sys.byteorder)))
                self.atomics += 1
                self.post(kind, slot, at, 8, address, self.rkey, *operands)
        self.reap(range(max(0, count - DEPTH), count))
        for slot, at, wanted in expected:
            ensure(self.memory.read(len(wanted), at) == wanted, f"what {slot} brought differs")

    def light(self):
        """LEDs and switches."""
        leds = random.randrange(256)
        # of what is behind the LEDs nothing can be written
        self.memory.write(bytes([leds]) + b"\xff" * 7, 8, 0)
        self.one("write", 0, 8, 0, self.pins)
        self.packets += 1
        self.one("read", 8, 8, 0, self.pins)
        pins = self.memory.read(8, 8)
        # the switches are those of `verbena sim --target`; a link of 1000 Mb/s
        ensure(pins == bytes([leds, 5, 2, 0x80, 0, 0, 0, 0]), f"the pins are {pins.hex()}, LEDs should be {leds:#x}")

    def end(self):
        left = self.control.destroy(self.qpn, self.qp.qp_num)
        ensure(left["free"] == FREE, f"free: {left['free']:#b}")


def head(operation, sequence, magic=MAGIC, version=VERSION, status=0):
    return struct.pack(">IBBBxI", magic, version, operation, status, sequence)


def queue(qpn=0, peer_qpn=0, mtu=0, gid=bytes(16)):
    return struct.pack(">IIIBBBx16s20x", qpn << 8, peer_qpn << 8, 0, mtu, 0, 0, gid)


def datagrams():
    """(what, bytes, the status of its reply; None: it has none)"""
    own = socket.inet_pton(socket.AF_INET6, OWN)
    good = queue(3, 99, 3, own)
    yield "another version", head(QUERY, 1, version=2) + queue(), BAD_VERSION
    yield "version 0", head(DESTROY, 2, version=0) + queue(), BAD_VERSION
    yield "an unknown operation", head(4, 3) + good, BAD_OPERATION
    yield "operation 255", head(255, 4) + good, BAD_OPERATION
    yield "QP 0", head(CREATE, 5) + queue(0, 99, 3, own), BAD_QP
    yield "a QP far off", head(CREATE, 6) + queue(0x100003, 99, 3, own), BAD_QP
    yield "path MTU 6", head(CREATE, 7) + queue(3, 99, 6, own), BAD_MTU
    yield "another's GID", head(CREATE, 8) + queue(3, 99, 3, own[:15] + b"\3"), BAD_ADDRESS
    yield "the end of a QP that is not there", head(DESTROY, 9) + queue(7, 99), NOT_YOURS
    for length in [0, 1, 11, 12, 63, 65, 128, 1400, 4000, 9000]:
        # the last in fragments
        yield f"{length} bytes", (head(QUERY, 10) + queue() + bytes(9000))[:length], None
    for magic in [MAGIC ^ 1, MAGIC ^ 1 << 31, 0]:
        yield "another magic", head(QUERY, 11, magic=magic) + queue(), None


def ip_frame(to, address, port, udp_more=0, spoil=0):
    """A good query in a frame that is not."""
    payload = head(QUERY, 12) + queue()
    length = 8 + len(payload)
    own, there = socket.inet_aton("10.0.0.2"), socket.inet_aton(address)
    ip = bytearray(b"\x45\0" + (20 + length).to_bytes(2, "big") + b"\0\0\x40\0\x40\x11\0\0" + own + there)
    ip[10:12] = checksum(ip)
    udp = port.to_bytes(2, "big") + PORT.to_bytes(2, "big") + (length + udp_more).to_bytes(2, "big")
    summed = own + there + b"\0\x11" + udp[4:6] + udp + b"\0\0" + payload
    total = sum(int.from_bytes(summed[i : i + 2], "big") for i in range(0, len(summed), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return to + STRANGER_MAC + b"\x08\0" + ip + udp + (~total & 0xFFFF ^ spoil).to_bytes(2, "big") + payload


def neighbour(address):
    """(interface, MAC address) of the target."""
    words = subprocess.run(["ip", "neigh", "show", address], capture_output=True, text=True, check=True).stdout.split()
    return words[words.index("dev") + 1], bytes.fromhex(words[words.index("lladdr") + 1].replace(":", ""))


class Hostile(threading.Thread):
    """Everything that the control port should not be sent, then more than it answers."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.wrong, self.answered = address, None, 0

    def run(self):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as self.udp:
                self.udp.bind(("10.0.0.2", 0))
                self.udp.connect((self.address, PORT))
                self.attack()
        except Exception as error:  # told by `result`
            self.wrong = error

    def heard(self, patience, sequences):
        """The head of the next datagram with one of these sequences, or None: others may come late."""
        end = time.monotonic() + patience
        while (left := end - time.monotonic()) > 0:
            self.udp.settimeout(left)
            try:
                reply = self.udp.recv(2048)
            except TimeoutError:
                break
            ensure(len(reply) == BYTES, f"a reply of {len(reply)} bytes")
            found = struct.unpack(">IBBBxI", reply[:12])
            if found[4] in sequences:
                return found
        return None

    def attack(self):
        for what, datagram, status in datagrams():
            reply, sequence = None, int.from_bytes(datagram[8:12], "big")
            # it may have been answered too many before
            for _ in range(5 if status else 1):
                self.udp.send(datagram)
                reply = self.heard(1, [sequence]) if status else self.heard(0.1, SILENT)
                if reply:
                    break
            wanted = status and (MAGIC, VERSION, datagram[5], status, sequence)
            ensure(reply == wanted, f"{what}: {reply}, should be {wanted}")
        name, mac = neighbour(self.address)
        port = self.udp.getsockname()[1]
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
            wire.bind((name, 0))
            wire.send(ip_frame(mac, self.address, port, spoil=0x100))
            wire.send(ip_frame(mac, self.address, port, udp_more=8))
            wire.send(ip_frame(mac, self.address, port, udp_more=-8))
            for _ in range(FLOOD):
                kind = random.choice([b"\x08\0", b"\x08\6"])
                wire.send(mac + STRANGER_MAC + kind + os.urandom(random.randrange(46, 300)))
        reply = self.heard(1, SILENT)
        ensure(reply is None, f"what is wrong beneath UDP is answered: {reply}")
        many = range(100, 100 + FLOOD)
        for sequence in many:
            self.udp.send(head(QUERY, sequence) + queue())
        while self.heard(1, many):
            self.answered += 1
        ensure(0 < self.answered < FLOOD // 2, f"{self.answered} of {FLOOD} are answered")

    def result(self):
        self.join()
        if self.wrong:
            raise self.wrong


def transfer(control, kind, size, count, mtu):
    before = control.ask("counters")
    with Context(name=DEVICE) as context:
        pair = Pair(context, control, mtu, max(8192, count * max(size, 8)))
        pair.fill()
        hostile = Hostile(control.address) if kind == "hostile" else None
        kinds = [kind] if kind in KINDS else KINDS
        rounds = 1
        pair.work(kinds, size, count)
        if hostile:
            hostile.start()
            while hostile.is_alive():
                pair.work(kinds, size, count)
                rounds += 1
            hostile.result()
            pair.work(kinds, size, count)
            rounds += 1
        pair.light()
        pair.compare()
        pair.end()
    told = control.ask("counters")
    counted = {name: told[name] - before[name] for name in told}
    ensure(counted["atomics"] == pair.atomics, f"{pair.atomics} atomics, counted: {counted}")
    ensure(counted["writes"] == pair.packets, f"{pair.packets} packets of WRITEs, counted: {counted}")
    ensure(counted["bad_frames"] == counted["bad_icrc"] == 0, f"counted: {counted}")
    if hostile:
        ensure(counted["dropped"] > 0, f"nothing was dropped: {counted}")
        return f"{rounds * count} done; of {FLOOD} queries {hostile.answered} answered; counted: {counted}"
    return f"{count} done; counted: {counted}"


def main():
    control, kind = Control(sys.argv[1]), sys.argv[2]
    try:
        said = control_port(control) if kind == "control" else transfer(control, kind, *map(int, sys.argv[3:6]))
    except Wrong as wrong:
        sys.exit(f"target.py: {wrong}")
    print(kind, said)


main()
