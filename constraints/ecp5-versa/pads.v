// The board's own module around the emitted top: the one pin that goes both ways.
module versa (
  input wire clk100,
  input wire rst_n,
  input wire [7:0] switches,
  output wire [7:0] led,
  output wire eth_rst_n,
  input wire eth_rxc,
  input wire [3:0] eth_rxd,
  input wire eth_rx_ctl,
  output wire eth_txc,
  output wire [3:0] eth_txd,
  output wire eth_tx_ctl,
  output wire eth_mdc,
  inout wire eth_mdio
);
  wire mdio_out, mdio_enable, mdio_in;
  BB mdio_pad (.I(mdio_out), .T(!mdio_enable), .O(mdio_in), .B(eth_mdio));
  ecp5_versa board (
    .clk100(clk100),
    .rst_n(rst_n),
    .switches(switches),
    .led(led),
    .eth_rst_n(eth_rst_n),
    .eth_rxc(eth_rxc),
    .eth_rxd(eth_rxd),
    .eth_rx_ctl(eth_rx_ctl),
    .eth_txc(eth_txc),
    .eth_txd(eth_txd),
    .eth_tx_ctl(eth_tx_ctl),
    .eth_mdc(eth_mdc),
    .eth_mdio_out(mdio_out),
    .eth_mdio_enable(mdio_enable),
    .eth_mdio_in(mdio_in)
  );
endmodule
