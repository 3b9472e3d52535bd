// The loop, and beside it what the test delays on the way to it and from it.
module rgmii_loop_top (
  input clock, input reset,
  input [3:0] rxd_early, input rx_ctl_early, input txc_delayed,
  input eth_rxc, input [3:0] eth_rxd, input eth_rx_ctl,
  output eth_txc, output [3:0] eth_txd, output eth_tx_ctl,
  output eth_mdc, output eth_mdio_out, output eth_mdio_enable, input eth_mdio_in,
  output [7:0] errors
);
  rgmii_loop loop (
    .clock(clock), .reset(reset), .eth_rxc(eth_rxc), .eth_rxd(eth_rxd), .eth_rx_ctl(eth_rx_ctl), .eth_txc(eth_txc),
    .eth_txd(eth_txd), .eth_tx_ctl(eth_tx_ctl), .eth_mdc(eth_mdc), .eth_mdio_out(eth_mdio_out),
    .eth_mdio_enable(eth_mdio_enable), .eth_mdio_in(eth_mdio_in), .errors(errors)
  );
endmodule
