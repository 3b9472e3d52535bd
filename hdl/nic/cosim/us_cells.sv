// Models of the hard blocks of UltraScale+ around the card of Alveo U55C, with the pins of `boards/cell.rs`.
//
//   pcie4c_uscale_plus_0   nothing inside: the co-simulation drives every pin that drives, and reads the others
//   cmac_usplus_0          both clocks; frames that leave come back, at the line's rate; the rules of its user interface
//   buffers                pass;  STARTUPE3, ICAPE3: no flash, no reload
//
// Why only pins in the first: cocotbext-pcie models the core from these pins on. No alignment, no RS-FEC, no FCS: a link is
// up when it is reset no more, and a frame comes back as it went. `spoil` is the test's: of the frames of more than 4096
// bytes the one with this number, counted from 1, comes back marked bad. A rule that the card breaks is an assertion, and ends the simulation.

`timescale 1ns / 1ps

module IBUFDS_GTE4 (input wire I, IB, CEB, output wire O, ODIV2);
  assign O = I;
  assign ODIV2 = I;
endmodule

// The board's oscillator, 100 MHz, is here: the pins stay where they are.
module IBUFDS (input wire I, IB, output logic O);
  initial O = 0;
  always #5 O = ~O;
endmodule

module BUFG (input wire I, output wire O);
  assign O = I;
endmodule

module STARTUPE3 (
    input wire [3:0] DO, DTS,
    input wire FCSBO, FCSBTS, GSR, GTS, KEYCLEARB, PACK, USRCCLKO, USRCCLKTS, USRDONEO, USRDONETS,
    output wire [3:0] DI,
    output wire CFGCLK, CFGMCLK, EOS, PREQ
);
  assign DI = 4'hf;
  assign {CFGCLK, CFGMCLK, PREQ} = 0;
  assign EOS = 1;
endmodule

module ICAPE3 (
    input wire CLK, CSIB, RDWRB,
    input wire [31:0] I,
    output wire AVAIL, PRDONE, PRERROR,
    output wire [31:0] O
);
  assign {PRDONE, PRERROR, O} = 0;
  assign AVAIL = 1;
  always_ff @(posedge CLK) assert (CSIB) else $error("nobody asked for a reload");
endmodule

module cmac_usplus_0 (
    input wire gt_ref_clk_p, gt_ref_clk_n,
    input wire [3:0] gt_rxp_in, gt_rxn_in,
    input wire [11:0] gt_loopback_in,
    input wire gtwiz_reset_tx_datapath, gtwiz_reset_rx_datapath, init_clk, sys_reset, rx_clk,
    input wire core_tx_reset, core_rx_reset, core_drp_reset, drp_clk,
    input wire [9:0] drp_addr,
    input wire [15:0] drp_di,
    input wire drp_en, drp_we,
    input wire [511:0] tx_axis_tdata,
    input wire [63:0] tx_axis_tkeep,
    input wire tx_axis_tlast, tx_axis_tvalid, tx_axis_tuser,
    input wire [55:0] tx_preamblein,
    input wire ctl_tx_enable, ctl_tx_send_idle, ctl_tx_send_rfi, ctl_tx_send_lfi, ctl_tx_test_pattern,
    input wire ctl_rx_enable, ctl_rx_force_resync, ctl_rx_test_pattern,
    input wire ctl_tx_rsfec_enable, ctl_rx_rsfec_enable, ctl_rx_rsfec_enable_correction,
    input wire ctl_rx_rsfec_enable_indication, ctl_rsfec_ieee_error_indication_mode,
    output wire [3:0] gt_txp_out, gt_txn_out,
    output logic gt_txusrclk2, gt_rxusrclk2,
    output logic usr_rx_reset,
    output logic tx_axis_tready,
    output logic [511:0] rx_axis_tdata,
    output logic [63:0] rx_axis_tkeep,
    output logic rx_axis_tlast, rx_axis_tvalid, rx_axis_tuser,
    output logic stat_rx_aligned
);
  // 322.27 MHz, and a receive clock of its own: a partner's, some 100 ppm off
  initial gt_txusrclk2 = 0;
  always #1.5515 gt_txusrclk2 = ~gt_txusrclk2;
  initial gt_rxusrclk2 = 0;
  always #1.5517 gt_rxusrclk2 = ~gt_rxusrclk2;
  assign gt_txp_out = 0;
  assign gt_txn_out = 0;

  int spoil  /*verilator public_flat_rw*/ = 0;
  int frames  /*verilator public_flat_rw*/ = 0;
  int bytes  /*verilator public_flat_rw*/ = 0;

  // Of the wire, in beats: written by the transmit side, read by the receive side; frames are whole before they come back.
  localparam int ROOM = 4096;
  logic [577:0] wire_beats[ROOM];
  int written = 0, whole = 0, read = 0;

  // Transmit: the line takes 38.8 of 64 bytes in a clock, and preamble, FCS and gap (24 bytes) between frames.
  int owed = 0, length = 0;
  bit amid = 0, refused = 0;
  logic [577:0] held;
  wire [577:0] beat = {tx_axis_tuser, tx_axis_tlast, tx_axis_tkeep, tx_axis_tdata};
  wire taken = tx_axis_tvalid && tx_axis_tready;
  initial tx_axis_tready = 0;
  always_ff @(posedge gt_txusrclk2) begin
    int after, size;
    size = $countones(tx_axis_tkeep);
    after = owed > 388 ? owed - 388 : 0;
    refused <= tx_axis_tvalid && !tx_axis_tready && !core_tx_reset;
    held <= beat;
    if (refused && !core_tx_reset) assert (tx_axis_tvalid && beat == held) else $error("a beat that was refused changed");
    if (core_tx_reset) begin
      amid <= 0;
      length <= 0;
      written <= whole;
    end else begin
      if (tx_axis_tready) assert (tx_axis_tvalid || !amid) else $error("a gap inside of a frame");
      if (taken) begin
        after += size * 10 + (tx_axis_tlast ? 240 : 0);
        assert (tx_axis_tlast ? size > 0 && (tx_axis_tkeep & (tx_axis_tkeep + 1)) == 0 : &tx_axis_tkeep)
        else $error("lanes are missing elsewhere than at the end of a frame: %x", tx_axis_tkeep);
        assert (!tx_axis_tuser) else $error("the card marks a frame of its own bad");
        wire_beats[written % ROOM] <= beat;
        written <= written + 1;
        assert (written - read < ROOM) else $error("the line's memory is full");
        amid <= !tx_axis_tlast;
        length <= tx_axis_tlast ? 0 : length + size;
        if (tx_axis_tlast) begin
          assert (length + size >= 60 && length + size <= 9600) else $error("a frame of %0d bytes", length + size);
          whole <= written + 1;
          frames <= frames + 1;
          bytes <= bytes + length + size;
        end
      end
    end
    owed <= after;
    tx_axis_tready <= (ctl_tx_enable || (amid && !(taken && tx_axis_tlast))) && !sys_reset && !core_tx_reset && after < 2560;
  end

  // Receive: as fast as the line, gaps anywhere, nobody is asked whether he is ready.
  logic [2:0] settled = 0;
  int due = 0, beats = 0, long_frames = 0;
  initial begin
    rx_axis_tvalid = 0;
    stat_rx_aligned = 0;
    usr_rx_reset = 1;
  end
  always_ff @(posedge gt_rxusrclk2) begin
    logic [577:0] next;
    int after;
    usr_rx_reset <= sys_reset || core_rx_reset;
    settled <= sys_reset || core_rx_reset ? 0 : settled + 3'(settled != 7);
    stat_rx_aligned <= settled == 7;
    rx_axis_tvalid <= 0;
    after = due > 388 ? due - 388 : 0;
    if (settled != 7) read <= whole;
    else if (read != whole && after == 0) begin
      next = wire_beats[read % ROOM];
      rx_axis_tvalid <= 1;
      {rx_axis_tlast, rx_axis_tkeep, rx_axis_tdata} <= next[576:0];
      rx_axis_tuser <= next[576] && beats >= 64 && long_frames + 1 == spoil;
      beats <= next[576] ? 0 : beats + 1;
      if (next[576] && beats >= 64) long_frames <= long_frames + 1;
      after = $countones(next[575:512]) * 10 + (next[576] ? 240 : 0) - 388;
      if (after < 0) after = 0;
      read <= read + 1;
    end
    due <= after;
  end
endmodule

module pcie4c_uscale_plus_0 (
    input wire sys_clk /*verilator public_flat_rw*/,
    input wire sys_clk_gt /*verilator public_flat_rw*/,
    input wire sys_reset /*verilator public_flat_rw*/,
    input wire [15:0] pci_exp_rxp /*verilator public_flat_rw*/,
    input wire [15:0] pci_exp_rxn /*verilator public_flat_rw*/,
    input wire [511:0] s_axis_rq_tdata /*verilator public_flat_rw*/,
    input wire [15:0] s_axis_rq_tkeep /*verilator public_flat_rw*/,
    input wire s_axis_rq_tlast /*verilator public_flat_rw*/,
    input wire [136:0] s_axis_rq_tuser /*verilator public_flat_rw*/,
    input wire s_axis_rq_tvalid /*verilator public_flat_rw*/,
    input wire [511:0] s_axis_cc_tdata /*verilator public_flat_rw*/,
    input wire [15:0] s_axis_cc_tkeep /*verilator public_flat_rw*/,
    input wire s_axis_cc_tlast /*verilator public_flat_rw*/,
    input wire [80:0] s_axis_cc_tuser /*verilator public_flat_rw*/,
    input wire s_axis_cc_tvalid /*verilator public_flat_rw*/,
    input wire m_axis_rc_tready /*verilator public_flat_rw*/,
    input wire m_axis_cq_tready /*verilator public_flat_rw*/,
    input wire [1:0] pcie_cq_np_req /*verilator public_flat_rw*/,
    input wire [9:0] cfg_mgmt_addr /*verilator public_flat_rw*/,
    input wire [7:0] cfg_mgmt_function_number /*verilator public_flat_rw*/,
    input wire cfg_mgmt_write /*verilator public_flat_rw*/,
    input wire [31:0] cfg_mgmt_write_data /*verilator public_flat_rw*/,
    input wire [3:0] cfg_mgmt_byte_enable /*verilator public_flat_rw*/,
    input wire cfg_mgmt_read /*verilator public_flat_rw*/,
    input wire cfg_mgmt_debug_access /*verilator public_flat_rw*/,
    input wire cfg_msg_transmit /*verilator public_flat_rw*/,
    input wire [2:0] cfg_msg_transmit_type /*verilator public_flat_rw*/,
    input wire [31:0] cfg_msg_transmit_data /*verilator public_flat_rw*/,
    input wire [2:0] cfg_fc_sel /*verilator public_flat_rw*/,
    input wire cfg_hot_reset_in /*verilator public_flat_rw*/,
    input wire cfg_config_space_enable /*verilator public_flat_rw*/,
    input wire [63:0] cfg_dsn /*verilator public_flat_rw*/,
    input wire cfg_power_state_change_ack /*verilator public_flat_rw*/,
    input wire cfg_err_cor_in /*verilator public_flat_rw*/,
    input wire cfg_err_uncor_in /*verilator public_flat_rw*/,
    input wire [3:0] cfg_flr_done /*verilator public_flat_rw*/,
    input wire [7:0] cfg_vf_flr_func_num /*verilator public_flat_rw*/,
    input wire cfg_vf_flr_done /*verilator public_flat_rw*/,
    input wire cfg_link_training_enable /*verilator public_flat_rw*/,
    input wire [3:0] cfg_interrupt_int /*verilator public_flat_rw*/,
    input wire [3:0] cfg_interrupt_pending /*verilator public_flat_rw*/,
    input wire cfg_interrupt_msix_int /*verilator public_flat_rw*/,
    input wire [63:0] cfg_interrupt_msix_address /*verilator public_flat_rw*/,
    input wire [31:0] cfg_interrupt_msix_data /*verilator public_flat_rw*/,
    input wire [1:0] cfg_interrupt_msix_vec_pending /*verilator public_flat_rw*/,
    input wire [7:0] cfg_interrupt_msi_function_number /*verilator public_flat_rw*/,
    output logic [15:0] pci_exp_txp /*verilator public_flat_rw*/,
    output logic [15:0] pci_exp_txn /*verilator public_flat_rw*/,
    output logic user_clk /*verilator public_flat_rw*/,
    output logic user_reset /*verilator public_flat_rw*/,
    output logic s_axis_rq_tready /*verilator public_flat_rw*/,
    output logic s_axis_cc_tready /*verilator public_flat_rw*/,
    output logic [511:0] m_axis_rc_tdata /*verilator public_flat_rw*/,
    output logic [15:0] m_axis_rc_tkeep /*verilator public_flat_rw*/,
    output logic m_axis_rc_tlast /*verilator public_flat_rw*/,
    output logic [160:0] m_axis_rc_tuser /*verilator public_flat_rw*/,
    output logic m_axis_rc_tvalid /*verilator public_flat_rw*/,
    output logic [511:0] m_axis_cq_tdata /*verilator public_flat_rw*/,
    output logic [15:0] m_axis_cq_tkeep /*verilator public_flat_rw*/,
    output logic m_axis_cq_tlast /*verilator public_flat_rw*/,
    output logic [182:0] m_axis_cq_tuser /*verilator public_flat_rw*/,
    output logic m_axis_cq_tvalid /*verilator public_flat_rw*/,
    output logic [5:0] pcie_rq_seq_num0 /*verilator public_flat_rw*/,
    output logic pcie_rq_seq_num_vld0 /*verilator public_flat_rw*/,
    output logic [5:0] pcie_rq_seq_num1 /*verilator public_flat_rw*/,
    output logic pcie_rq_seq_num_vld1 /*verilator public_flat_rw*/,
    output logic [3:0] pcie_tfc_nph_av /*verilator public_flat_rw*/,
    output logic [31:0] cfg_mgmt_read_data /*verilator public_flat_rw*/,
    output logic cfg_mgmt_read_write_done /*verilator public_flat_rw*/,
    output logic [1:0] cfg_max_payload /*verilator public_flat_rw*/,
    output logic [2:0] cfg_max_read_req /*verilator public_flat_rw*/,
    output logic [15:0] cfg_function_status /*verilator public_flat_rw*/,
    output logic [3:0] cfg_rcb_status /*verilator public_flat_rw*/,
    output logic [7:0] cfg_bus_number /*verilator public_flat_rw*/,
    output logic [3:0] cfg_flr_in_process /*verilator public_flat_rw*/,
    output logic [3:0] cfg_interrupt_msix_enable /*verilator public_flat_rw*/,
    output logic [3:0] cfg_interrupt_msix_mask /*verilator public_flat_rw*/
);
endmodule
