# The PCI Express edge: reference clock and PERST#. The lanes lie where `pcie_block` of board.toml puts the core.

create_clock -name pcie_refclk -period 10.000 [get_ports pcie_refclk_p]

set_property IOSTANDARD LVCMOS18 [get_ports pcie_reset_n]
set_property PULLUP true [get_ports pcie_reset_n]
# asynchronous: the core filters it
set_false_path -from [get_ports pcie_reset_n]
