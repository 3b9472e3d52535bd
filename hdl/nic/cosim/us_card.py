"""The whole card of Alveo U55C, from its top, as the driver uses it.

    driver's example `loopback` ── vfio-user ── root complex ── UltraScalePlusPcieDevice ── alveo_u55c ─┐ CMAC's line
      its memory, its eventfds <── TLPs of the card ──┘                                                 └─ comes back

The driver is the real one, in a process of its own, unchanged: what it maps is what the card's TLPs reach, its register
accesses are TLPs, its interrupts are the card's MSI-X writes. The core and the rules of PCI Express: us_core.py; the
CMAC's rules: assertions of us_cells.sv. Reset, MSI-X and memory are done as a kernel's VFIO does them.

VERBENA_STORY is the example's path. The line spoils one long frame, so that a retransmission is part of the story.
"""

import ctypes
import os
import re
import signal
import subprocess
import tempfile

import cocotb
from cocotb.triggers import RisingEdge, Timer
from cocotbext.axi import AddressSpace
from cocotbext.axi.address_space import Region
from us_core import BARS, Core
from vfio_server import CONFIG, Server

VECTORS = 16
# what a path MTU of 4096 needs; a reset makes it 1500
PORT_MTU = 4200
MESSAGES = 0xFEE0_0000
# of simulated time: what hangs ends
LIMIT = 20
# of the frames with a full packet of 4096 bytes, counted from 1, which the line spoils: in the middle of 64 KiB
SPOILED = 10
# core clocks between two looks at the socket
LOOK = 100
# in configuration space
COMMAND = 0x04


class Memory(Region):
    """A piece of the client's memory."""

    def __init__(self, size, descriptor, offset):
        super().__init__(size)
        self.descriptor, self.offset = descriptor, offset

    async def _read(self, address, length, **_):
        return os.pread(self.descriptor, length, self.offset + address)

    async def _write(self, address, data, **_):
        # the kernel's copy promises no order inside one call: the last word, which may make an entry valid, goes behind the rest
        place = self.offset + address
        last = max(place, place + len(data) - 1 & ~7) - place
        for begin, end in [(0, last), (last, len(data))]:
            assert os.pwrite(self.descriptor, data[begin:end], place + begin) == end - begin


class Interrupts(Region):
    """Where MSI-X writes go: the data is the vector."""

    def __init__(self):
        super().__init__(4096)
        self.vectors, self.count = {}, 0

    async def _read(self, address, length, **_):
        raise NotImplementedError("interrupts cannot be read")

    async def _write(self, address, data, **_):
        assert address == 0 and len(data) == 4
        os.write(self.vectors[int.from_bytes(data, "little")], (1).to_bytes(8, "little"))
        self.count += 1


class Card(Core):
    """The card, as the server of vfio-user wants it."""

    def __init__(self, dut):
        self.pins, self.port_mtu = dut.pcie, dut.card.command.port_mtu_value
        super().__init__(self.pins, self.pins.user_clk, self.pins.user_reset)
        dut.long_reset.setimmediatevalue(1)
        dut.cmac.spoil.value = SPOILED
        self.rules.credits = 12
        self.interrupts = Interrupts()
        self.maps = self.resets = 0

    async def enumerate(self):
        self.device = await super().enumerate()
        # from now on the card reaches what the client maps, and nothing else
        self.memory = self.rc.mem_address_space = AddressSpace()
        self.memory.register_region(self.interrupts, MESSAGES)

    def region_bytes(self, region):
        return 4096 if region == CONFIG else BARS.get(region, 0)

    async def read(self, region, offset, count):
        if region == CONFIG:
            return bytes(await self.device.config_read(offset, count))
        return await self.device.bar_window[region].read(offset, count)

    async def write(self, region, offset, data):
        if region == CONFIG:
            await self.device.config_write(offset, data)
        else:
            await self.device.bar_window[region].write(offset, data)

    def map(self, iova, length, descriptor, offset):
        self.memory.register_region(Memory(length, descriptor, offset), iova)
        self.maps += 1

    def unmap(self, iova, length):
        kept = []
        for entry in self.memory.regions:
            base, size, _, region = entry
            if isinstance(region, Memory) and iova <= base and base + size <= iova + length:
                os.close(region.descriptor)
            else:
                kept.append(entry)
        self.memory.regions[:] = kept

    async def connect(self, first, descriptors):
        """Vectors from `first` on ring these descriptors; `None`: none rings any more."""
        if descriptors is None:
            await self.device.msix_set_enable(False)
            while self.interrupts.vectors:
                os.close(self.interrupts.vectors.popitem()[1])
            return
        for vector, descriptor in enumerate(descriptors, first):
            self.interrupts.vectors[vector] = descriptor
            await self.program(vector)
        await self.device.msix_set_enable(True)

    async def program(self, vector):
        entry = MESSAGES.to_bytes(8, "little") + vector.to_bytes(4, "little") + bytes(4)
        await self.device.bar_window[4].write(vector * 16, entry)

    async def reset(self):
        """Function level reset; the core's side of it is done here, as its model has none."""
        command = await self.device.config_read(COMMAND, 2)
        enabled = self.dev.functions[0].msix_cap.msix_enable
        await self.device.msix_set_enable(False)
        await self.device.config_write(COMMAND, bytes(2))
        self.pins.cfg_flr_in_process.value = 1
        while not int(self.pins.cfg_flr_done.value) & 1:
            await RisingEdge(self.pins.user_clk)
        self.pins.cfg_flr_in_process.value = 0
        await Timer(1, "us")
        self.port_mtu.value = PORT_MTU
        await self.device.config_write(COMMAND, command)
        for vector in self.interrupts.vectors:
            await self.program(vector)
        await self.device.msix_set_enable(enabled)
        self.resets += 1


def end_with_parent():
    """A rule that is broken ends the simulation at once; its driver must not wait for it (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@cocotb.test(timeout_time=LIMIT, timeout_unit="ms")
async def the_driver_opens_the_card_and_its_queue_pairs_reach_each_other_over_the_line(dut):
    card = Card(dut)
    await card.enumerate()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "card0.sock")
        server = Server(path, card, VECTORS)
        environment = {**os.environ, "VERBENA_DEVICE": f"sim:{path}", "RUST_BACKTRACE": "0"}
        story = subprocess.Popen(
            os.environ["VERBENA_STORY"], env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent
        )
        try:
            while await server.serve() and story.poll() is None:
                await Timer(LOOK * 4, "ns")
            said = story.communicate(timeout=10)[0]
        finally:
            story.kill()
            server.door.close()
    print(said, end="", flush=True)
    assert story.returncode == 0, story.returncode
    assert not server.refused, server.refused
    rejected = dict(re.findall(r"^rejected (\S+) (\d+)$", said, re.M))
    # the link may come up when there is no queue for that event yet; the spoiled frame, and those behind it that came out of turn
    assert rejected.pop("EqOverflow", "1") == "1" and rejected.pop("BadFcs") == "1", said
    assert rejected.pop("PsnOutOfSequence") == "1" and rejected.keys() <= {"PsnOutOfSequenceRepeat"}, said
    # 64 KiB, SEND, its receive; what comes together is one
    assert 2 <= card.interrupts.count <= 3, card.interrupts.count
    frames, size = int(dut.cmac.frames.value), int(dut.cmac.bytes.value)
    print(f"{frames} frames of {size} bytes, {card.interrupts.count} interrupts, {card.maps} maps, {card.resets} resets")
    card.finish()
