//! The edge to hard blocks of a device: what they call their pins on one side, the card's own ports on the other.
//!
//! ```text
//!        PCIE4C of UltraScale+               us_pcie                    nic
//!   s_axis_rq <-- RQ descriptor --- us_send <-- TlpBeat --- rq
//!   m_axis_rc --- RC, straddled --> us_receive --- TlpBeat --> rc
//!   m_axis_cq --- CQ descriptor --> us_receive --- TlpBeat --> cq, cq_bar
//!   s_axis_cc <-- CC descriptor --- us_send <-- TlpBeat --- cc
//!   tfc, seq_num, cfg_* ----------- credits, configuration, function level reset
//! ```
//! The streams of the CMAC are the line pins of a 512-bit card ([`crate::mac`]); [`us_cmac`] is what stands beside them.

pub mod us_cmac;
pub mod us_pcie;
pub mod us_receive;
pub mod us_send;
