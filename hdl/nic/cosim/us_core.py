"""cocotbext-pcie's model of the UltraScale+ core at the pins of a card, its root complex, and the rules of PCI Express.

    root complex ── link ── UltraScalePlusPcieDevice ── RQ RC CQ CC, cfg_*, tfc ── pins

Nothing here shares code with the card: the model is somebody else's, the rules below are written from the bus's side. A
warning of the model and a TLP against the rules each fail the test.
"""

import logging
import random

import cocotb
from cocotb.triggers import Timer
from cocotbext.axi import AxiStreamBus
from cocotbext.pcie.core import RootComplex
from cocotbext.pcie.core.tlp import TlpType
from cocotbext.pcie.xilinx.us import UltraScalePlusPcieDevice

READS = {TlpType.MEM_READ, TlpType.MEM_READ_64}
WRITES = {TlpType.MEM_WRITE, TlpType.MEM_WRITE_64}
WIDE = {TlpType.MEM_READ_64, TlpType.MEM_WRITE_64}
# bytes of each
BARS = {0: 32 << 10, 2: 256 << 10, 4: 4 << 10}


class Warnings(logging.Handler):
    """What the model complained about."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


class Rules:
    """What PCI Express asks of a requester and a completer, and the core of its user."""

    def __init__(self, function, pin):
        self.function, self.pin = function, pin
        self.tags = {}  # tag -> bytes owed
        self.credits = 3
        self.counts = {"read": 0, "write": 0, "completion": 0}
        self.most_tags = 0

    @property
    def credits(self):
        """Non-posted headers that the link has."""
        return self._credits

    @credits.setter
    def credits(self, count):
        self._credits = count
        # the model leaves this pin alone
        self.pin.value = min(15, count)

    def sent(self, tlp):
        """A TLP leaves the core."""
        function = self.function
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


class Core:
    """The model at the pins of `at`."""

    def __init__(self, at, clock, reset):
        self.warnings = Warnings()
        logging.getLogger("cocotb").addHandler(self.warnings)
        self.rc = RootComplex()
        self.rc.max_payload_size = 1  # 256 bytes
        # enumeration asks for devices that are not there
        self.rc.log.addFilter(lambda record: not record.getMessage().startswith("Failed to route config type 0"))
        pins = {
            name: getattr(at, name)
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
            user_clk=clock,
            user_reset=reset,
            rq_bus=Channel(at, "s_axis_rq", case_insensitive=False),
            rc_bus=Channel(at, "m_axis_rc", case_insensitive=False),
            cq_bus=Channel(at, "m_axis_cq", case_insensitive=False),
            cc_bus=Channel(at, "s_axis_cc", case_insensitive=False),
            **pins,
        )
        # the model begins with two clocks out of reset
        reset.setimmediatevalue(1)
        at.cfg_flr_in_process.setimmediatevalue(0)
        function = self.dev.functions[0]
        function.vendor_id, function.device_id = 0x1EE7, 1
        for bar, size in BARS.items():
            function.configure_bar(bar, size, ext=True, prefetch=bar == 2)
        self.rc.make_port().connect(self.dev)
        self.rules = Rules(function, at.pcie_tfc_nph_av)
        self.watch(self.dev, "send", self.rules.sent)
        self.watch(self.dev.upstream_port, "rx_handler", self.rules.received)

    def watch(self, of, name, see):
        act = getattr(of, name)

        async def both(tlp):
            see(tlp)
            await act(tlp)

        setattr(of, name, both)

    async def enumerate(self):
        await Timer(300, "ns")
        await self.rc.enumerate()
        device = self.rc.find_device(self.dev.functions[0].pcie_id)
        await device.enable_device()
        await device.set_master()
        # the shim reads Device Control in turn
        await Timer(2, "us")
        return device

    def finish(self):
        assert not self.warnings.texts, self.warnings.texts[:5]
        assert not self.rules.tags, self.rules.tags
        print(f"TLPs {self.rules.counts}, at most {self.rules.most_tags} reads at once", flush=True)
