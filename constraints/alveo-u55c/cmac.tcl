# The hard 100 Gigabit MAC with its transceivers: CAUI-4, AXI streams, RS-FEC, no flow control.

create_ip -name cmac_usplus -vendor xilinx.com -library ip -module_name cmac_usplus_0
set_property -dict [list \
    CONFIG.CMAC_CAUI4_MODE {1} \
    CONFIG.NUM_LANES {4x25} \
    CONFIG.GT_REF_CLK_FREQ {161.1328125} \
    CONFIG.GT_DRP_CLK {100.00} \
    CONFIG.USER_INTERFACE {AXIS} \
    CONFIG.INCLUDE_RS_FEC {1} \
    CONFIG.TX_FLOW_CONTROL {0} \
    CONFIG.RX_FLOW_CONTROL {0} \
    CONFIG.ENABLE_AXI_INTERFACE {0} \
    CONFIG.INCLUDE_STATISTICS_COUNTERS {0} \
    CONFIG.RX_MIN_PACKET_LEN {64} \
    CONFIG.RX_MAX_PACKET_LEN {9600} \
    CONFIG.CMAC_CORE_SELECT $site(cmac_core) \
    CONFIG.GT_GROUP_SELECT $site(cmac_gt_group) \
] [get_ips cmac_usplus_0]
