#!/usr/bin/python3
"""The other end of `verbena perf` on the verbs of the kernel: rdma-core's own Python, device rxe0.

    peer.py PORT      listens on TCP, one exchange after another; a line per exchange on standard output

In: per connection the job, as a line of JSON; then for each of its QPs connection data as ibv_rc_pingpong exchanges them;
then a line of each end's memory. Out: the work requests of the job, or the memory for them, and a last line of each end:
what it found. What may be wrong is said in that line and ends the exchange, never the program; all that was made for an
exchange goes with it. If the job says so, a stranger (`stranger.py`) forges frames to the other end meanwhile.
"""

import hashlib
import json
import os
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from stranger import Stranger

DEVICE = "rxe0"
MAC = "02:00:00:00:00:0b"
WAIT = 300
ADD = 0x0123456789ABCDEF
MASK = (1 << 64) - 1
ACCESS, REQUEST = e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_REM_INV_REQ_ERR
# what the asking side does wrong, and how its first work request ends
WRONG = {
    "key": ACCESS,
    "range": ACCESS,
    "rights": ACCESS,
    "length": REQUEST,
    "alignment": REQUEST,
    "gone": e.IBV_WC_RETRY_EXC_ERR,
}
RIGHTS = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)
OPCODES = {
    "send": e.IBV_WR_SEND,
    "send-imm": e.IBV_WR_SEND_WITH_IMM,
    "write": e.IBV_WR_RDMA_WRITE,
    "write-imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
    "fetch-add": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    "compare-swap": e.IBV_WR_ATOMIC_CMP_AND_SWP,
}


class Wrong(Exception):
    """What is not as it should be."""


def own_gid(context, peer):
    """(index, GID as 32 digits) of this port in the peer's family."""
    kind = peer[:24]
    for index in range(16):
        text = str(context.query_gid(port_num=1, index=index)).replace(":", "")
        if text[:24] == kind or (text[:4] == peer[:4] != "0000" and text[:16] == peer[:16]):
            return index, text
    raise Wrong(f"no GID like {peer}")


class End:
    """A QP, its CQ and its part of the memory."""

    def __init__(self, context, job):
        self.job = job
        self.context = context
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 256)
        self.length = job["size"] * job["count"]
        room = max(16, self.length)
        closed = job["wrong"] == "rights" and not job["listener_asks"]
        self.memory = MR(self.pd, room, e.IBV_ACCESS_LOCAL_WRITE if closed else RIGHTS)
        # never 0: tshark takes what looks like an EtherType and two bytes of 0 for a frame in the message
        self.memory.write(os.urandom(room).replace(b"\0", b"\1"), room)
        self.attr = QPAttr(port_num=1)
        self.attr.qp_access_flags = RIGHTS
        cap = QPCap(max_send_wr=128, max_recv_wr=128, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        self.qp = QP(self.pd, init, self.attr)
        self.psn = int.from_bytes(os.urandom(3), "big") if job["psn"] is None else job["psn"]

    def connect(self, stream):
        """As the server of ibv_rc_pingpong."""
        line = stream.read(52).rstrip(b"\0").decode()
        _, qpn, psn, gid = line.split(":")
        index, own = own_gid(self.context, gid)
        groups = ":".join(gid[i : i + 4] for i in range(0, 32, 4))
        route = GlobalRoute(dgid=GID(groups), sgid_index=index, hop_limit=64)
        attr = self.attr
        attr.ah_attr = AHAttr(is_global=1, port_num=1, gr=route)
        self.theirs = int(qpn, 16), int(psn, 16)
        attr.path_mtu = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[self.job["mtu"]]
        attr.dest_qp_num, attr.rq_psn = self.theirs
        attr.max_dest_rd_atomic = attr.max_rd_atomic = self.job["reads"]
        # the more QPs, the later a simulated card comes to each
        attr.timeout = 17 if self.job["qps"] <= 2 else 20
        # a forged request far ahead makes the card say that one is missing, which costs the kernel a retry; 7 are endless
        attr.min_rnr_timer, attr.retry_cnt, attr.rnr_retry = 12, 7 if self.job["stranger"] else 6, 7
        attr.sq_psn = self.psn
        self.qp.to_rts(attr)
        if not self.job["listener_asks"] and not self.job["late"]:
            self.post_receives()
        stream.write(f"0000:{self.qp.qp_num:06x}:{self.psn:06x}:{own}\0".encode())
        stream.flush()
        if stream.read(5) != b"done\0":
            raise Wrong("expected `done`")
        if self.job["wrong"] == "gone" and not self.job["listener_asks"]:
            self.qp.close()

    def sge(self, slot, less=0):
        size = self.job["size"]
        return SGE(self.memory.buf + slot * size, size - less, self.memory.lkey)

    def post_receives(self):
        op = self.job["op"]
        if op not in ("send", "send-imm", "write-imm"):
            return
        for slot in range(self.job["count"]):
            sge = self.sge(slot, 1 if self.job["wrong"] == "length" else 0)
            self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))

    def completions(self, count):
        """So many, in order."""
        found, end = [], time.monotonic() + WAIT
        while len(found) < count:
            found += self.cq.poll(count - len(found))[1]
            if time.monotonic() > end:
                raise Wrong(f"{len(found)} of {count} completions after {WAIT} s")
        return found

    def hash(self):
        return hashlib.sha256(self.memory.read(self.length, 0) if self.length else b"").hexdigest()

    def word(self):
        return int.from_bytes(self.memory.read(8, 0), sys.byteorder)

    def about(self):
        """What the peer is told of the memory."""
        return {"addr": self.memory.buf, "rkey": self.memory.rkey, "hash": self.hash(), "word": self.word()}

    def post(self, theirs):
        """Posts the work requests; what each atomic should return, and what it leaves."""
        job, op = self.job, self.job["op"]
        wrong = job["wrong"]
        rkey = theirs["rkey"] ^ (0x10 if wrong == "key" else 0)
        addr = theirs["addr"] + {"range": self.length - 1, "alignment": 4}.get(wrong, 0)
        swaps = [int.from_bytes(os.urandom(8), "big") for _ in range(job["count"])]
        held, expected = theirs["word"], []
        for slot in range(job["count"]):
            wr = SendWR(
                wr_id=slot,
                num_sge=1,
                sg=[self.sge(slot)],
                opcode=OPCODES[op],
                imm_data=socket.htonl(0x5EED0000 + slot),
                send_flags=e.IBV_SEND_SIGNALED,
            )
            expected.append(held)
            if op == "fetch-add":
                wr.set_wr_atomic(rkey, addr, ADD)
                held = (held + ADD) & MASK
            elif op == "compare-swap":
                right = slot % 3 != 2
                wr.set_wr_atomic(rkey, addr, held if right else held ^ 1, swaps[slot])
                held = swaps[slot] if right else held
            elif not op.startswith("send"):
                wr.set_wr_rdma(rkey, addr + slot * job["size"])
            self.qp.post_send(wr)
        return expected, held

    def reap(self, theirs, expected, held):
        """Judges what came back."""
        job, op = self.job, self.job["op"]
        wrong = job["wrong"]
        found = self.completions(job["count"])
        status = [e.IBV_WC_SUCCESS] * job["count"]
        if wrong in WRONG:
            status = [WRONG[wrong]] + [e.IBV_WC_WR_FLUSH_ERR] * (job["count"] - 1)
        if [wc.status for wc in found] != status or [wc.wr_id for wc in found] != list(range(job["count"])):
            raise Wrong(f"completions {[(wc.wr_id, wc.status) for wc in found]}")
        if wrong in WRONG:
            return {"hash": "", "word": 0}
        if op == "read" and self.hash() != theirs["hash"]:
            raise Wrong("the bytes that were read differ")
        if op in ("fetch-add", "compare-swap"):
            words = [int.from_bytes(self.memory.read(8, 8 * slot), sys.byteorder) for slot in range(job["count"])]
            if words != expected:
                raise Wrong(f"atomics returned {words}, should be {expected}")
        return {"hash": self.hash(), "word": held}

    def check(self, before, theirs):
        """Judges what the peer's work requests did to this memory."""
        job, op = self.job, self.job["op"]
        wrong = job["wrong"] in WRONG
        if job["wrong"] == "length":
            return  # a message that is too long may leave what fits
        if op in ("send", "send-imm", "write-imm") and not wrong:
            for slot, wc in enumerate(self.completions(job["count"])):
                imm = socket.ntohl(wc.imm_data) if wc.wc_flags & e.IBV_WC_WITH_IMM else None
                wanted = 0x5EED0000 + slot if op.endswith("imm") else None
                found = (wc.wr_id, wc.status, wc.byte_len, imm)
                if found != (slot, e.IBV_WC_SUCCESS, job["size"], wanted):
                    raise Wrong(f"receive {slot}: {found}")
        if wrong or op == "read":
            wanted = before["hash"]
        elif op in ("fetch-add", "compare-swap"):
            if self.word() != theirs["word"]:
                raise Wrong(f"the atomics left {self.word():#x}, should be {theirs['word']:#x}")
            return
        else:
            wanted = theirs["hash"]
        if self.hash() != wanted:
            raise Wrong("the bytes differ")


def exchange(stream):
    """One job."""

    def tell(value):
        stream.write(json.dumps(value).encode() + b"\n")
        stream.flush()

    def hear():
        return json.loads(stream.readline())

    job = hear()
    with Context(name=DEVICE) as context:
        ends = []
        for _ in range(job["qps"]):
            ends.append(End(context, job))
            ends[-1].connect(stream)
        before = [end.about() for end in ends]
        tell(before)
        theirs = hear()
        report = {"error": None, "left": []}
        stranger = None
        if job["stranger"]:
            qpn, psn = ends[0].theirs
            stranger = Stranger(MAC, qpn, ends[0].psn, psn, theirs[0]["addr"], theirs[0]["rkey"])
            stranger.start()
        try:
            if job["listener_asks"]:
                posted = [end.post(part) for end, part in zip(ends, theirs)]
                report["left"] = [end.reap(part, *held) for end, part, held in zip(ends, theirs, posted)]
                tell(report)
                found = hear()
            else:
                if job["late"]:
                    time.sleep(0.5)
                    for end in ends:
                        end.post_receives()
                found = hear()
                if found["error"] is None:
                    for end, part, left in zip(ends, before, found["left"]):
                        end.check(part, left)
                tell(report)
        except Wrong as wrong:
            report["error"] = str(wrong)
            tell(report)
            found = {"error": None}
        finally:
            if stranger:
                stranger.stop()
        print(job["op"], job["size"], job["count"], report["error"] or found["error"] or "ok", flush=True)
        # the peer's last packets may still want an answer
        stream.read(1)


def main():
    server = socket.create_server(("", int(sys.argv[1])))
    print("listening", flush=True)
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("rwb") as stream:
            try:
                exchange(stream)
            except Exception as error:  # whatever went wrong, the next exchange is another
                print("error:", repr(error), flush=True)


main()
