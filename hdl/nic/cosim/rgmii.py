"""The Gigabit MAC at the pins of an ECP5 against cocotbext-eth's RGMII PHY.

    RgmiiPhy ── RXC, RXD, RX_CTL ── IDDRX1F ─ rgmii_loop ─ ODDRX1F ── TXC, TXD, TX_CTL ── RgmiiPhy

Nothing here shares code with the card: the PHY is somebody else's. Every frame that it sends comes back: padded, with a good
FCS, in order, at least 12 byte times after the one before. The PHY's model changes its data right behind the edge that takes
them, so they come 2 ns later here; the card's change with the edge, so its clock comes 2 ns later: both as the delays of the
board's PHY make them. VERBENA_SEED picks the frames.
"""

import os
import random
import zlib

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import Edge, RisingEdge, Timer
from cocotbext.eth import GmiiFrame, RgmiiPhy

SEED = int(os.environ.get("VERBENA_SEED", "1"))


async def delayed(clock, pairs):
    """What changes with `clock` comes 2 ns behind it; no edge is nearer to the next."""
    edge, wait = Edge(clock), Timer(2, "ns")
    while True:
        await edge
        await wait
        for source, to in pairs:
            to.value = source.value


class Phy:
    """The model at the pins of the loop, and registers that tell its speed."""

    def __init__(self, dut, speed):
        self.dut, self.speed = dut, speed
        dut.eth_mdio_in.value = 1
        self.phy = RgmiiPhy(
            dut.eth_txd, dut.eth_tx_ctl, dut.txc_delayed, dut.rxd_early, dut.rx_ctl_early, dut.eth_rxc, speed=speed
        )
        self.status = {1000e6: 2, 100e6: 1, 10e6: 0}[speed] << 14 | 0x2C00
        cocotb.start_soon(delayed(dut.eth_rxc, [(dut.rxd_early, dut.eth_rxd), (dut.rx_ctl_early, dut.eth_rx_ctl)]))
        cocotb.start_soon(delayed(dut.eth_txc, [(dut.eth_txc, dut.txc_delayed)]))
        cocotb.start_soon(self.manage())

    async def manage(self):
        """IEEE 802.3, 22.2.4.5, at address 0: every read is answered by `status`."""
        seen, bits, answer = 0, None, []
        while True:
            await RisingEdge(self.dut.eth_mdc)
            driven = bool(self.dut.eth_mdio_enable.value)
            seen = (seen << 1 | (int(self.dut.eth_mdio_out.value) if driven else 1)) & (1 << 34) - 1
            answer = answer[1:]
            if bits is None:
                bits = 2 if driven and seen == (1 << 34) - 3 else None
            else:
                bits += 1
                if bits == 14:
                    bits = None
                    if seen >> 5 & 31 == 0:
                        answer = [1, 0] + [self.status >> i & 1 for i in reversed(range(16))]
            self.dut.eth_mdio_in.value = answer[0] if answer else 1

    async def start(self):
        """Reset, and the news of the speed."""
        cocotb.start_soon(Clock(self.dut.clock, 8, "ns").start())
        self.dut.reset.value = 1
        await Timer(4, "us")
        self.dut.reset.value = 0
        # two questions
        await Timer(2 * 128 * 64 * 8, "ns")
        self.phy.tx.clear()

    async def echo(self, frames):
        """Sends them all at once; what came back."""
        for frame in frames:
            await self.phy.rx.send(GmiiFrame.from_payload(frame))
        return [await self.phy.tx.recv() for _ in frames]


async def echoes(dut, speed, lengths):
    choices = random.Random(SEED)
    phy = Phy(dut, speed)
    await phy.start()
    frames = [choices.randbytes(n) for n in lengths]
    back = await phy.echo(frames)
    for sent, got in zip(frames, back):
        assert got.check_fcs(), len(sent)
        assert not got.error or not any(got.error), len(sent)
        assert bytes(got.get_payload()) == sent.ljust(60, b"\0"), (len(sent), bytes(got.get_payload()).hex())
        assert bytes(got.get_preamble()) == b"\x55" * 7 + b"\xd5"
    byte = 8e9 / speed
    for before, after in zip(back, back[1:]):
        gap = (after.sim_time_start - before.sim_time_end) / 1e3
        assert gap >= 12 * byte - 1, gap
    assert phy.phy.tx.empty()
    assert dut.errors.value == 0


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def frames_come_back_whole_at_1000(dut):
    choices = random.Random(SEED)
    await echoes(dut, 1000e6, [60, 61, 62, 63, 64, 65, 66, 67, 1514, 1, 14] + [choices.randrange(60, 1515) for _ in range(12)])


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def frames_come_back_whole_at_100(dut):
    await echoes(dut, 100e6, [60, 61, 62, 63, 64, 65, 66, 67, 1514, 1])


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def frames_come_back_whole_at_10(dut):
    await echoes(dut, 10e6, [60, 61, 67, 300])


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_frame_with_a_wrong_sum_or_an_error_of_the_phy_is_counted(dut):
    choices = random.Random(SEED)
    phy = Phy(dut, 1000e6)
    await phy.start()
    body = choices.randbytes(100)
    sum_ = zlib.crc32(body).to_bytes(4, "little")
    wrong = GmiiFrame.from_raw_payload(body + bytes([sum_[0] ^ 1]) + sum_[1:])
    hurt = GmiiFrame.from_payload(body)
    hurt.normalize()
    hurt.error[50] = 1
    for frame in [wrong, hurt, GmiiFrame.from_payload(body)]:
        await phy.phy.rx.send(frame)
        await phy.phy.tx.recv()
    await Timer(1, "us")
    assert dut.errors.value == 2
