// What the cells of hdl/nic/src/boards/ecp5.rs do, for simulation: function, no delays.
// From Lattice's FPGA libraries reference guide; nothing of the card is used.

module ODDRX1F (input D0, input D1, input SCLK, input RST, output Q);
  reg first, second;
  always @(posedge SCLK) {first, second} <= RST ? 2'b0 : {D0, D1};
  assign Q = SCLK ? first : second;
endmodule

module IDDRX1F (input D, input SCLK, input RST, output reg Q0, output reg Q1);
  reg rose, fell;
  always @(posedge SCLK) begin
    rose <= D;
    // the pair of one period comes out together
    Q0 <= RST ? 1'b0 : rose;
    Q1 <= RST ? 1'b0 : fell;
  end
  always @(negedge SCLK) fell <= D;
endmodule

module DELAYG #(parameter DEL_MODE = "USER_DEFINED", parameter DEL_VALUE = 0) (input A, output Z);
  assign Z = A;
endmodule

// CLKI stands for the 125 MHz; of the rest the design sees only the ratio of both outputs. Always locked.
module EHXPLLL #(
  parameter CLKI_DIV = 1, parameter CLKFB_DIV = 1, parameter FEEDBK_PATH = "CLKOP", parameter CLKOP_ENABLE = "ENABLED",
  parameter CLKOP_DIV = 8, parameter CLKOP_CPHASE = 0, parameter CLKOS_ENABLE = "DISABLED", parameter CLKOS_DIV = 8,
  parameter CLKOS_CPHASE = 0, parameter OUTDIVIDER_MUXA = "DIVA", parameter OUTDIVIDER_MUXB = "DIVB",
  parameter PLLRST_ENA = "DISABLED", parameter INTFB_WAKE = "DISABLED", parameter STDBY_ENABLE = "DISABLED",
  parameter DPHASE_SOURCE = "DISABLED"
) (input CLKI, input CLKFB, input RST, input STDBY, output CLKOP, output CLKOS, output LOCK);
  // of every CLKOS_DIV clocks CLKOP_DIV are let through, as even as they can be
  reg [7:0] phase = 0;
  reg on = 0;
  always @(negedge CLKI) begin
    on <= phase + CLKOP_DIV >= CLKOS_DIV;
    phase <= phase + CLKOP_DIV >= CLKOS_DIV ? phase + CLKOP_DIV - CLKOS_DIV : phase + CLKOP_DIV;
  end
  assign CLKOP = CLKI;
  assign CLKOS = CLKI & on;
  assign LOCK = 1;
endmodule
