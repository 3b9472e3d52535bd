# The first QSFP28 cage: reference clock. The lanes lie where `cmac_gt_group` of board.toml puts the transceivers.

create_clock -name qsfp0_refclk -period 6.206 [get_ports qsfp0_refclk_p]
