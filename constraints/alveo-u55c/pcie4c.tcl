# The hard PCI Express core: Gen3 x16, 512 bits at 250 MHz, RC alone straddled, tags of ours, MSI-X table of ours.

create_ip -name pcie4c_uscale_plus -vendor xilinx.com -library ip -module_name pcie4c_uscale_plus_0
set_property -dict [list \
    CONFIG.mode_selection {Advanced} \
    CONFIG.pcie_blk_locn $site(pcie_block) \
    CONFIG.PL_LINK_CAP_MAX_LINK_SPEED {8.0_GT/s} \
    CONFIG.PL_LINK_CAP_MAX_LINK_WIDTH {X16} \
    CONFIG.axisten_if_width {512_bit} \
    CONFIG.axisten_freq {250} \
    CONFIG.AXISTEN_IF_EXT_512_RQ_STRADDLE {false} \
    CONFIG.AXISTEN_IF_EXT_512_CQ_STRADDLE {false} \
    CONFIG.AXISTEN_IF_EXT_512_CC_STRADDLE {false} \
    CONFIG.AXISTEN_IF_EXT_512_RC_STRADDLE {true} \
    CONFIG.AXISTEN_IF_EXT_512_RC_4TLP_STRADDLE {false} \
    CONFIG.axisten_if_enable_client_tag {true} \
    CONFIG.extended_tag_field {true} \
    CONFIG.pf0_dev_cap_max_payload {1024_bytes} \
    CONFIG.vendor_id {1EE7} \
    CONFIG.PF0_DEVICE_ID {0001} \
    CONFIG.PF0_SUBSYSTEM_VENDOR_ID {1EE7} \
    CONFIG.PF0_SUBSYSTEM_ID {0001} \
    CONFIG.PF0_Use_Class_Code_Lookup_Assistant {false} \
    CONFIG.PF0_CLASS_CODE {020000} \
    CONFIG.pf0_bar0_enabled {true} \
    CONFIG.pf0_bar0_64bit {true} \
    CONFIG.pf0_bar0_prefetchable {false} \
    CONFIG.pf0_bar0_scale {Kilobytes} \
    CONFIG.pf0_bar0_size {32} \
    CONFIG.pf0_bar2_enabled {true} \
    CONFIG.pf0_bar2_64bit {true} \
    CONFIG.pf0_bar2_prefetchable {true} \
    CONFIG.pf0_bar2_scale {Kilobytes} \
    CONFIG.pf0_bar2_size {256} \
    CONFIG.pf0_bar4_enabled {true} \
    CONFIG.pf0_bar4_64bit {true} \
    CONFIG.pf0_bar4_prefetchable {false} \
    CONFIG.pf0_bar4_scale {Kilobytes} \
    CONFIG.pf0_bar4_size {4} \
    CONFIG.pf0_msi_enabled {false} \
    CONFIG.pf0_msix_enabled {true} \
    CONFIG.MSI_X_OPTIONS {MSI-X_External} \
    CONFIG.PF0_MSIX_CAP_TABLE_SIZE {00F} \
    CONFIG.PF0_MSIX_CAP_TABLE_BIR {BAR_5:4} \
    CONFIG.PF0_MSIX_CAP_TABLE_OFFSET {00000000} \
    CONFIG.PF0_MSIX_CAP_PBA_BIR {BAR_5:4} \
    CONFIG.PF0_MSIX_CAP_PBA_OFFSET {00000800} \
] [get_ips pcie4c_uscale_plus_0]
