"""The card's PCIe part against cocotbext-pcie's model of the UltraScale+ core and its root complex.

    root complex ── link ── UltraScalePlusPcieDevice ── RQ RC CQ CC, cfg_*, tfc ── us_pcie_bench

Nothing here shares code with the card: the model is somebody else's, the rules below are written from the bus's side. A
warning of the model, a TLP against the rules and an assertion of the RTL each fail the test.
VERBENA_SEED picks the choices, VERBENA_TRANSFERS the number of DMA transfers.
"""

import logging
import os
import random

import cocotb
from cocotb.triggers import RisingEdge, Timer
from cocotbext.axi import AxiStreamBus, MemoryRegion
from cocotbext.pcie.core import RootComplex
from cocotbext.pcie.core.tlp import TlpType
from cocotbext.pcie.xilinx.us import UltraScalePlusPcieDevice

SEED = int(os.environ.get("VERBENA_SEED", "1"))
TRANSFERS = int(os.environ.get("VERBENA_TRANSFERS", "1000"))
READS = {TlpType.MEM_READ, TlpType.MEM_READ_64}
WRITES = {TlpType.MEM_WRITE, TlpType.MEM_WRITE_64}
WIDE = {TlpType.MEM_READ_64, TlpType.MEM_WRITE_64}
# host memory: as much below 4 GiB, where the root complex places it
HIGH, SIZE = 0x12_0000_0000, 1 << 23
SLOT = 8192
# of simulated time: what hangs ends
LIMIT = 2000


class Warnings(logging.Handler):
    """What the model complained about."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


class Rules:
    """What PCI Express asks of a requester and a completer, and the core of its user."""

    def __init__(self, bench):
        self.bench = bench
        self.tags = {}  # tag -> bytes owed
        self.credits = 3  # non-posted headers that the link has
        self.counts = {"read": 0, "write": 0, "completion": 0}
        self.most_tags = 0

    def sent(self, tlp):
        """A TLP leaves the core."""
        function = self.bench.dev.functions[0]
        if tlp.fmt_type in READS | WRITES:
            self.request(tlp, function)
        else:
            assert tlp.fmt_type in {TlpType.CPL, TlpType.CPL_DATA}, tlp
            self.counts["completion"] += 1
            assert tlp.completer_id == function.pcie_id, tlp
            if tlp.fmt_type == TlpType.CPL_DATA:
                # 128 bytes: the boundary of an endpoint; all ends but the last are at one
                end = tlp.lower_address % 128 + tlp.length * 4 - tlp.lower_address % 4
                assert end <= 128, tlp
                assert end == 128 or tlp.byte_count <= tlp.length * 4, tlp

    def request(self, tlp, function):
        write = tlp.fmt_type in WRITES
        limit = 128 << (function.pcie_cap.max_payload_size if write else function.pcie_cap.max_read_request_size)
        assert 1 <= tlp.length * 4 <= limit, (limit, tlp)
        assert tlp.address % 4096 + tlp.length * 4 <= 4096, tlp
        assert (tlp.fmt_type in WIDE) == (tlp.address >> 32 != 0), tlp
        assert tlp.requester_id == function.pcie_id and tlp.tc == 0 and not tlp.ep, tlp
        if tlp.length == 1:
            assert tlp.first_be and tlp.last_be == 0, tlp
            contiguous = tlp.first_be
        else:
            # whole from the first enabled byte to the last
            assert tlp.first_be in {0b1111, 0b1110, 0b1100, 0b1000}, tlp
            assert tlp.last_be in {0b0001, 0b0011, 0b0111, 0b1111}, tlp
            contiguous = 1
        while not contiguous & 1:
            contiguous >>= 1
        assert contiguous & (contiguous + 1) == 0, tlp
        self.counts["write" if write else "read"] += 1
        if write:
            assert len(tlp.get_data()) == tlp.length * 4, tlp
            return
        assert tlp.tag not in self.tags, f"tag {tlp.tag} is in use"
        assert tlp.tag < (256 if function.pcie_cap.extended_tag_field_enable else 32), tlp
        self.tags[tlp.tag] = tlp.get_be_byte_count()
        self.most_tags = max(self.most_tags, len(self.tags))
        assert self.credits > 0, "a read blocks the request stream: there is no credit for it"
        self.credits -= 1
        cocotb.start_soon(self.credit_back())

    async def credit_back(self):
        await Timer(random.choice([40, 200, 900]), "ns")
        self.credits += 1

    def received(self, tlp):
        """A TLP comes from the link."""
        if tlp.fmt_type in {TlpType.CPL, TlpType.CPL_DATA}:
            self.tags[tlp.tag] -= tlp.length * 4 - tlp.lower_address % 4
            if self.tags[tlp.tag] <= 0 or tlp.fmt_type == TlpType.CPL:
                del self.tags[tlp.tag]


class Channel(AxiStreamBus):
    """By exact names: a search for optional signals would find copies of the ports inside of Verilator's model."""

    _signals = ["tdata", "tkeep", "tlast", "tuser", "tvalid", "tready"]
    _optional_signals = []


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


class Bench:
    def __init__(self, dut):
        random.seed(SEED)
        self.dut = dut
        self.warnings = Warnings()
        logging.getLogger("cocotb").addHandler(self.warnings)
        self.rc = RootComplex()
        self.rc.max_payload_size = 1  # 256 bytes
        # enumeration asks for devices that are not there
        self.rc.log.addFilter(lambda record: not record.getMessage().startswith("Failed to route config type 0"))
        pins = {
            name: getattr(dut, name)
            for name in (
                "pcie_rq_seq_num0 pcie_rq_seq_num_vld0 pcie_rq_seq_num1 pcie_rq_seq_num_vld1 pcie_cq_np_req "
                "cfg_mgmt_addr cfg_mgmt_function_number cfg_mgmt_write cfg_mgmt_write_data cfg_mgmt_byte_enable "
                "cfg_mgmt_read cfg_mgmt_read_data cfg_mgmt_read_write_done cfg_mgmt_debug_access cfg_max_payload "
                "cfg_max_read_req cfg_function_status cfg_rcb_status cfg_fc_sel cfg_hot_reset_in "
                "cfg_config_space_enable cfg_dsn cfg_bus_number cfg_power_state_change_ack cfg_err_cor_in "
                "cfg_err_uncor_in cfg_flr_in_process cfg_flr_done cfg_vf_flr_func_num cfg_vf_flr_done "
                "cfg_link_training_enable cfg_interrupt_int cfg_interrupt_pending cfg_interrupt_msix_enable "
                "cfg_interrupt_msix_mask cfg_interrupt_msix_int cfg_interrupt_msix_address cfg_interrupt_msix_data "
                "cfg_interrupt_msix_vec_pending cfg_interrupt_msi_function_number cfg_msg_transmit "
                "cfg_msg_transmit_type cfg_msg_transmit_data"
            ).split()
        }
        self.dev = UltraScalePlusPcieDevice(
            pcie_generation=3,
            pcie_link_width=16,
            user_clk_frequency=250e6,
            alignment="dword",
            rc_straddle=True,
            max_payload_size=1024,
            enable_client_tag=True,
            enable_extended_tag=True,
            pf0_msix_enable=True,
            pf0_msix_table_size=15,
            pf0_msix_table_bir=4,
            pf0_msix_table_offset=0,
            pf0_msix_pba_bir=4,
            pf0_msix_pba_offset=0x800,
            user_clk=dut.clock,
            user_reset=dut.reset,
            rq_bus=Channel(dut, "s_axis_rq", case_insensitive=False),
            rc_bus=Channel(dut, "m_axis_rc", case_insensitive=False),
            cq_bus=Channel(dut, "m_axis_cq", case_insensitive=False),
            cc_bus=Channel(dut, "s_axis_cc", case_insensitive=False),
            **pins,
        )
        # the model begins with two clocks out of reset
        dut.reset.setimmediatevalue(1)
        dut.cfg_flr_in_process.setimmediatevalue(0)
        dut.doorbell_ready.setimmediatevalue(1)
        function = self.dev.functions[0]
        function.configure_bar(0, 32 << 10, ext=True)
        function.configure_bar(2, 256 << 10, ext=True, prefetch=True)
        function.configure_bar(4, 4 << 10, ext=True)
        self.rc.make_port().connect(self.dev)

        self.rules = Rules(self)
        self.watch(self.dev, "send", self.rules.sent)
        self.watch(self.dev.upstream_port, "rx_handler", self.rules.received)
        low, high = self.rc.mem_pool.alloc_region(SIZE), MemoryRegion(SIZE)
        self.rc.mem_address_space.register_region(high, HIGH)
        self.memory = {low.get_absolute_address(0): low, HIGH: high}
        self.fetch, self.store, self.raised = (Source(dut, name) for name in ("fetch", "store", "raise"))
        self.done, self.written, self.refused, self.doorbells = [], 0, 0, []
        cocotb.start_soon(self.see())

    def watch(self, of, name, see):
        act = getattr(of, name)

        async def both(tlp):
            see(tlp)
            await act(tlp)

        setattr(of, name, both)

    async def see(self):
        dut = self.dut
        dut.pcie_tfc_nph_av.setimmediatevalue(0)
        while True:
            await RisingEdge(dut.clock)
            # the model leaves this pin alone
            dut.pcie_tfc_nph_av.value = min(15, self.rules.credits)
            if dut.done_valid.value:
                self.done.append((int(dut.done_id.value), int(dut.done_failed.value)))
            self.written += int(dut.written.value)
            self.refused += int(dut.refused.value)
            if dut.doorbell_valid.value:
                self.doorbells.append(dut.doorbell_valid.value)

    async def enumerate(self):
        await Timer(300, "ns")
        await self.rc.enumerate()
        device = self.rc.find_device(self.dev.functions[0].pcie_id)
        await device.enable_device()
        await device.set_master()
        # the shim reads Device Control in turn
        await Timer(2, "us")
        return device

    async def until(self, what, happens, limit=200_000):
        for _ in range(limit):
            if happens():
                return
            await RisingEdge(self.dut.clock)
        raise AssertionError(f"never: {what}")

    def finish(self):
        assert not self.warnings.texts, self.warnings.texts[:5]
        assert not self.rules.tags, self.rules.tags
        self.dut._log.setLevel(logging.INFO)
        self.dut._log.info("TLPs %s, at most %d reads at once", self.rules.counts, self.rules.most_tags)


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
