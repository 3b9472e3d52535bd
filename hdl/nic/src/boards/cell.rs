//! Hard blocks and vendor IP as black boxes: a name, parameters, and a table of pins.
//!
//! In: the tables of this file. Out: instances whose pins are set by name; what is left is tied to zero by
//! [`CellIo::tie`], so that no input floats. Names and widths are those of the product guides; nobody has compared them
//! with what Vivado generates yet, and the project script makes Vivado refuse what differs.
//!
//! Requirements: PCIE

use hdl::{Module, Parameter, PortBuilder, Ports, Sig, Width, lit};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Inputs, then outputs, each with its width.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Name of the module.
    pub name: &'static str,
    /// Texts that it is made with.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Pins that are driven.
    pub inputs: &'static [(&'static str, u32)],
    /// Pins that drive.
    pub outputs: &'static [(&'static str, u32)],
}

/// Pins of a [`Cell`].
pub struct CellIo {
    inputs: RefCell<BTreeMap<&'static str, Sig>>,
    outputs: BTreeMap<&'static str, Sig>,
}

impl Ports for CellIo {
    type Config = Cell;
    fn declare(c: &Cell, p: &mut PortBuilder) -> Self {
        CellIo {
            inputs: RefCell::new(c.inputs.iter().map(|&(pin, w)| (pin, p.input(pin, &Width(w)))).collect()),
            outputs: c.outputs.iter().map(|&(pin, w)| (pin, p.output(pin, &Width(w)))).collect(),
        }
    }
}

impl CellIo {
    /// Drives a pin.
    ///
    /// # Panics
    /// If the cell has none of that name, or it is driven already.
    #[track_caller]
    pub fn set(&self, pin: &str, from: Sig) {
        self.inputs
            .borrow_mut()
            .remove(pin)
            .unwrap_or_else(|| panic!("no pin {pin} left to drive"))
            .set(from);
    }
    /// What a pin drives.
    ///
    /// # Panics
    /// If the cell has none of that name.
    #[track_caller]
    pub fn get(&self, pin: &str) -> Sig {
        *self.outputs.get(pin).unwrap_or_else(|| panic!("no pin {pin} that drives"))
    }
    /// Drives these pins with constants and all that are left with zero.
    #[track_caller]
    pub fn tie(&self, values: &[(&str, u64)]) {
        for &(pin, value) in values {
            let width = self.inputs.borrow().get(pin).map_or(64, |s| s.width());
            self.set(pin, lit(width, value));
        }
        for (_, pin) in std::mem::take(&mut *self.inputs.borrow_mut()) {
            pin.set(hdl::constant(hdl::Bits::zero(pin.width())));
        }
    }
}

impl Module for Cell {
    type Io = CellIo;
    fn name(&self) -> String {
        self.name.into()
    }
    fn body(&self, _: &CellIo) {}
    fn external(&self) -> Option<Vec<(String, Parameter)>> {
        let text = |&(name, value): &(&str, &str)| (name.to_owned(), Parameter::Text(value.to_owned()));
        Some(self.parameters.iter().map(text).collect())
    }
}

impl Cell {
    /// An empty module with these pins, for tools that know no Vivado.
    pub fn stub(&self) -> String {
        let pin = |kind: &str, &(name, width): &(&str, u32)| {
            let range = if width == 1 { String::new() } else { format!("[{}:0] ", width - 1) };
            format!("  {kind} wire {range}{name}")
        };
        let pins: Vec<String> = self
            .inputs
            .iter()
            .map(|p| pin("input", p))
            .chain(self.outputs.iter().map(|p| pin("output", p)))
            .collect();
        let parameters: Vec<String> =
            self.parameters.iter().map(|(name, _)| format!("parameter {name} = \"\"")).collect();
        let parameters =
            if parameters.is_empty() { String::new() } else { format!(" #({})", parameters.join(", ")) };
        format!("(* black_box *)\nmodule {}{parameters} (\n{}\n);\nendmodule\n", self.name, pins.join(",\n"))
    }
}

/// Buffer of a transceiver's reference clock.
pub const IBUFDS_GTE4: Cell = Cell {
    name: "IBUFDS_GTE4",
    parameters: &[],
    inputs: &[("I", 1), ("IB", 1), ("CEB", 1)],
    outputs: &[("O", 1), ("ODIV2", 1)],
};

/// Differential input buffer.
pub const IBUFDS: Cell =
    Cell { name: "IBUFDS", parameters: &[], inputs: &[("I", 1), ("IB", 1)], outputs: &[("O", 1)] };

/// Clock buffer.
pub const BUFG: Cell = Cell { name: "BUFG", parameters: &[], inputs: &[("I", 1)], outputs: &[("O", 1)] };

/// PCI Express core of UltraScale+ parts with HBM, as `constraints/alveo-u55c/pcie4c.tcl` makes it.
pub const PCIE4C: Cell = Cell {
    name: "pcie4c_uscale_plus_0",
    parameters: &[],
    inputs: &[
        ("sys_clk", 1),
        ("sys_clk_gt", 1),
        ("sys_reset", 1),
        ("pci_exp_rxp", 16),
        ("pci_exp_rxn", 16),
        ("s_axis_rq_tdata", 512),
        ("s_axis_rq_tkeep", 16),
        ("s_axis_rq_tlast", 1),
        ("s_axis_rq_tuser", 137),
        ("s_axis_rq_tvalid", 1),
        ("s_axis_cc_tdata", 512),
        ("s_axis_cc_tkeep", 16),
        ("s_axis_cc_tlast", 1),
        ("s_axis_cc_tuser", 81),
        ("s_axis_cc_tvalid", 1),
        ("m_axis_rc_tready", 1),
        ("m_axis_cq_tready", 1),
        ("pcie_cq_np_req", 2),
        ("cfg_mgmt_addr", 10),
        ("cfg_mgmt_function_number", 8),
        ("cfg_mgmt_write", 1),
        ("cfg_mgmt_write_data", 32),
        ("cfg_mgmt_byte_enable", 4),
        ("cfg_mgmt_read", 1),
        ("cfg_mgmt_debug_access", 1),
        ("cfg_msg_transmit", 1),
        ("cfg_msg_transmit_type", 3),
        ("cfg_msg_transmit_data", 32),
        ("cfg_fc_sel", 3),
        ("cfg_hot_reset_in", 1),
        ("cfg_config_space_enable", 1),
        ("cfg_dsn", 64),
        ("cfg_power_state_change_ack", 1),
        ("cfg_err_cor_in", 1),
        ("cfg_err_uncor_in", 1),
        ("cfg_flr_done", 4),
        ("cfg_vf_flr_func_num", 8),
        ("cfg_vf_flr_done", 1),
        ("cfg_link_training_enable", 1),
        ("cfg_interrupt_int", 4),
        ("cfg_interrupt_pending", 4),
        ("cfg_interrupt_msix_int", 1),
        ("cfg_interrupt_msix_address", 64),
        ("cfg_interrupt_msix_data", 32),
        ("cfg_interrupt_msix_vec_pending", 2),
        ("cfg_interrupt_msi_function_number", 8),
    ],
    outputs: &[
        ("pci_exp_txp", 16),
        ("pci_exp_txn", 16),
        ("user_clk", 1),
        ("user_reset", 1),
        ("s_axis_rq_tready", 1),
        ("s_axis_cc_tready", 1),
        ("m_axis_rc_tdata", 512),
        ("m_axis_rc_tkeep", 16),
        ("m_axis_rc_tlast", 1),
        ("m_axis_rc_tuser", 161),
        ("m_axis_rc_tvalid", 1),
        ("m_axis_cq_tdata", 512),
        ("m_axis_cq_tkeep", 16),
        ("m_axis_cq_tlast", 1),
        ("m_axis_cq_tuser", 183),
        ("m_axis_cq_tvalid", 1),
        ("pcie_rq_seq_num0", 6),
        ("pcie_rq_seq_num_vld0", 1),
        ("pcie_rq_seq_num1", 6),
        ("pcie_rq_seq_num_vld1", 1),
        ("pcie_tfc_nph_av", 4),
        ("cfg_mgmt_read_data", 32),
        ("cfg_mgmt_read_write_done", 1),
        ("cfg_max_payload", 2),
        ("cfg_max_read_req", 3),
        ("cfg_function_status", 16),
        ("cfg_rcb_status", 4),
        ("cfg_bus_number", 8),
        ("cfg_flr_in_process", 4),
        ("cfg_interrupt_msix_enable", 4),
        ("cfg_interrupt_msix_mask", 4),
    ],
};

/// 100 Gigabit Ethernet MAC of UltraScale+ with its transceivers, as `constraints/alveo-u55c/cmac.tcl` makes it.
pub const CMAC: Cell = Cell {
    name: "cmac_usplus_0",
    parameters: &[],
    inputs: &[
        ("gt_ref_clk_p", 1),
        ("gt_ref_clk_n", 1),
        ("gt_rxp_in", 4),
        ("gt_rxn_in", 4),
        ("gt_loopback_in", 12),
        ("gtwiz_reset_tx_datapath", 1),
        ("gtwiz_reset_rx_datapath", 1),
        ("init_clk", 1),
        ("sys_reset", 1),
        ("rx_clk", 1),
        ("core_tx_reset", 1),
        ("core_rx_reset", 1),
        ("core_drp_reset", 1),
        ("drp_clk", 1),
        ("drp_addr", 10),
        ("drp_di", 16),
        ("drp_en", 1),
        ("drp_we", 1),
        ("tx_axis_tdata", 512),
        ("tx_axis_tkeep", 64),
        ("tx_axis_tlast", 1),
        ("tx_axis_tvalid", 1),
        ("tx_axis_tuser", 1),
        ("tx_preamblein", 56),
        ("ctl_tx_enable", 1),
        ("ctl_tx_send_idle", 1),
        ("ctl_tx_send_rfi", 1),
        ("ctl_tx_send_lfi", 1),
        ("ctl_tx_test_pattern", 1),
        ("ctl_rx_enable", 1),
        ("ctl_rx_force_resync", 1),
        ("ctl_rx_test_pattern", 1),
        ("ctl_tx_rsfec_enable", 1),
        ("ctl_rx_rsfec_enable", 1),
        ("ctl_rx_rsfec_enable_correction", 1),
        ("ctl_rx_rsfec_enable_indication", 1),
        ("ctl_rsfec_ieee_error_indication_mode", 1),
    ],
    outputs: &[
        ("gt_txp_out", 4),
        ("gt_txn_out", 4),
        ("gt_txusrclk2", 1),
        ("gt_rxusrclk2", 1),
        ("usr_rx_reset", 1),
        ("tx_axis_tready", 1),
        ("rx_axis_tdata", 512),
        ("rx_axis_tkeep", 64),
        ("rx_axis_tlast", 1),
        ("rx_axis_tvalid", 1),
        ("rx_axis_tuser", 1),
        ("stat_rx_aligned", 1),
    ],
};

/// The start-up block: the pins of the configuration flash after configuration.
pub const STARTUPE3: Cell = Cell {
    name: "STARTUPE3",
    parameters: &[],
    inputs: &[
        ("DO", 4),
        ("DTS", 4),
        ("FCSBO", 1),
        ("FCSBTS", 1),
        ("GSR", 1),
        ("GTS", 1),
        ("KEYCLEARB", 1),
        ("PACK", 1),
        ("USRCCLKO", 1),
        ("USRCCLKTS", 1),
        ("USRDONEO", 1),
        ("USRDONETS", 1),
    ],
    outputs: &[("DI", 4), ("CFGCLK", 1), ("CFGMCLK", 1), ("EOS", 1), ("PREQ", 1)],
};

/// The configuration port from inside.
pub const ICAPE3: Cell = Cell {
    name: "ICAPE3",
    parameters: &[],
    inputs: &[("CLK", 1), ("CSIB", 1), ("RDWRB", 1), ("I", 32)],
    outputs: &[("AVAIL", 1), ("O", 32), ("PRDONE", 1), ("PRERROR", 1)],
};

/// Every cell of this file.
pub const ALL: [Cell; 7] = [IBUFDS_GTE4, IBUFDS, BUFG, PCIE4C, CMAC, STARTUPE3, ICAPE3];
