"""The card's PCIe part against cocotbext-pcie's model of the UltraScale+ core and its root complex.

    root complex ── link ── UltraScalePlusPcieDevice ── RQ RC CQ CC, cfg_*, tfc ── us_pcie_bench

The model and the rules: us_core.py. An assertion of the RTL fails the test, too.
VERBENA_SEED picks the choices, VERBENA_TRANSFERS the number of DMA transfers.
"""

import os
import random

import cocotb
from cocotb.triggers import RisingEdge, Timer
from cocotbext.axi import MemoryRegion
from us_core import Core

SEED = int(os.environ.get("VERBENA_SEED", "1"))
TRANSFERS = int(os.environ.get("VERBENA_TRANSFERS", "1000"))
# host memory: as much below 4 GiB, where the root complex places it
HIGH, SIZE = 0x12_0000_0000, 1 << 23
SLOT = 8192
# of simulated time: what hangs ends
LIMIT = 2000


class Source:
    """A stream of the bench that we feed."""

    def __init__(self, dut, name):
        self.dut, self.name, self.queue, self.taken = dut, name, [], 0
        self.valid, self.ready = getattr(dut, f"{name}_valid"), getattr(dut, f"{name}_ready")
        self.valid.setimmediatevalue(0)
        cocotb.start_soon(self.run())

    async def run(self):
        offered = False
        while True:
            await RisingEdge(self.dut.clock)
            if offered and self.ready.value:
                self.queue.pop(0)
                self.taken += 1
                offered = False
            if not offered and self.queue:
                for field, value in self.queue[0].items():
                    getattr(self.dut, f"{self.name}_{field}" if field else self.name).value = value
                offered = True
            self.valid.value = int(offered)


class Bench(Core):
    def __init__(self, dut):
        random.seed(SEED)
        super().__init__(dut, dut.clock, dut.reset)
        self.dut = dut
        dut.doorbell_ready.setimmediatevalue(1)
        low, high = self.rc.mem_pool.alloc_region(SIZE), MemoryRegion(SIZE)
        self.rc.mem_address_space.register_region(high, HIGH)
        self.memory = {low.get_absolute_address(0): low, HIGH: high}
        self.fetch, self.store, self.raised = (Source(dut, name) for name in ("fetch", "store", "raise"))
        self.done, self.written, self.refused, self.doorbells = [], 0, 0, []
        cocotb.start_soon(self.see())

    async def see(self):
        dut = self.dut
        while True:
            await RisingEdge(dut.clock)
            if dut.done_valid.value:
                self.done.append((int(dut.done_id.value), int(dut.done_failed.value)))
            self.written += int(dut.written.value)
            self.refused += int(dut.refused.value)
            if dut.doorbell_valid.value:
                self.doorbells.append(dut.doorbell_valid.value)

    async def until(self, what, happens, limit=200_000):
        for _ in range(limit):
            if happens():
                return
            await RisingEdge(self.dut.clock)
        raise AssertionError(f"never: {what}")


@cocotb.test(timeout_time=LIMIT, timeout_unit="us")
async def the_root_complex_enumerates_the_card_and_reaches_its_bars(dut):
    bench = Bench(dut)
    device = await bench.enumerate()
    config = bench.dev.functions[0]
    for pin, value in [
        ("requester_id", int(config.pcie_id)),
        ("max_payload", config.pcie_cap.max_payload_size),
        ("max_read_request", config.pcie_cap.max_read_request_size),
        ("extended_tag", config.pcie_cap.extended_tag_field_enable),
        ("bus_master", 1),
    ]:
        assert int(getattr(dut.us_pcie, f"pcie_{pin}").value) == value, pin
    registers = device.bar_window[0]
    expected = bytearray(512)
    await registers.write(0x100, bytes(expected))
    for _ in range(60):
        at, data = random.randrange(500), random.randbytes(random.choice([1, 2, 4, 8, 64, 200]))
        data = data[: 512 - at]
        await registers.write(0x100 + at, data)
        expected[at : at + len(data)] = data
        at = random.randrange(500)
        n = random.randrange(1, 512 - at + 1)
        assert await registers.read(0x100 + at, n) == expected[at : at + n], (at, n)
    before = len(bench.doorbells)
    for page in range(5):
        await device.bar_window[2].write(page * 4096, random.randbytes(8))
    await bench.until("five doorbells", lambda: len(bench.doorbells) == before + 5)
    assert bench.refused == 0
    bench.finish()


@cocotb.test(timeout_time=LIMIT, timeout_unit="us")
async def msi_x_vectors_arrive_as_memory_writes(dut):
    bench = Bench(dut)
    device = await bench.enumerate()
    assert await device.alloc_irq_vectors(16, 16) == 16
    for vector in [0, 15, 7, 7]:
        event = device.msi_vectors[vector].event
        event.clear()
        bench.raised.queue.append({"": vector})
        await event.wait()
    bench.finish()


async def transfers(bench, count):
    """Pairs of a read of host memory and a write of the same bytes elsewhere, of any alignment and length."""
    source = {base: random.randbytes(1 << 16) for base in bench.memory}
    for base, data in source.items():
        await bench.memory[base].write(0, data)
    windows, wanted = {}, {}
    free = list(range(16))
    under_way, order, stored = {}, [], []
    begun = seen = 0
    for pair in range(count):
        base, place = random.choice(list(bench.memory)), (1 << 16) + pair % 900 * SLOT
        windows[pair] = (base, place)
    while len(stored) < count:
        while free and begun < count:
            slot = free.pop(random.randrange(len(free)))
            length = random.choice([1, 3, 4, 64, 65, 1024, 4096, random.randrange(1, 4097)])
            base, at = random.choice(list(bench.memory)), random.randrange((1 << 16) - 4096)
            if random.random() < 0.4:
                at &= ~63
            card = slot * SLOT + random.randrange(SLOT - 4096 - 64)
            under_way[slot] = (begun, length, card, source[base][at : at + length])
            bench.fetch.queue.append({"iova": base + at, "length": length, "address": card, "id": slot})
            begun += 1
        await bench.until("a read is over", lambda: len(bench.done) > seen or bench.written > len(stored))
        while len(bench.done) > seen:
            slot, failed = bench.done[seen]
            seen += 1
            assert not failed
            pair, length, card, data = under_way[slot]
            base, place = windows[pair]
            to = random.randrange(SLOT - length)
            wanted[pair] = (to, data)
            # a window that was used before is still full of what came then
            await bench.memory[base].write(place, b"\x5a" * SLOT)
            bench.store.queue.append(
                {"iova": base + place + to, "length": length, "address": card, "is_value": 0, "value": 0, "relaxed": pair % 2}
            )
            order.append(slot)
        while bench.written > len(stored):
            slot = order[len(stored)]
            stored.append(slot)
            free.append(slot)
    await Timer(5, "us")
    for pair in range(max(0, count - 900), count):
        base, place = windows[pair]
        to, data = wanted[pair]
        window = await bench.memory[base].read(place, SLOT)
        expected = bytearray(b"\x5a" * SLOT)
        expected[to : to + len(data)] = data
        assert window == bytes(expected), f"pair {pair}"


@cocotb.test(timeout_time=LIMIT, timeout_unit="us")
async def random_dma_transfers_carry_every_byte_and_no_other(dut):
    bench = Bench(dut)
    await bench.enumerate()
    bench.rules.credits = 40
    await transfers(bench, TRANSFERS // 2 - TRANSFERS // 8)
    # every completion cut at 64 bytes, back-pressure, few credits
    bench.rc.split_on_all_rcb = True
    bench.rules.credits = 2
    bench.dev.rq_sink.set_pause_generator(random.random() < 0.5 for _ in iter(int, 1))
    bench.dev.rc_source.set_pause_generator(random.random() < 0.3 for _ in iter(int, 1))
    bench.done.clear()
    bench.written = 0
    await transfers(bench, TRANSFERS // 8)
    assert bench.refused == 0
    bench.finish()
