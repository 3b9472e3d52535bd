# Builds the bitstream with Vivado in batch, in the folder that `cargo ci board alveo-u55c --project` has filled:
#
#   vivado -mode batch -source build.tcl -tclargs SITE.tcl [synthesis]
#
# SITE.tcl is yours: the sites of the hard blocks and the package pins, from AMD's constraints of the card:
#
#   set site(pcie_block)    ...        # X1Y0 or the like: the PCIE4C block behind the edge connector
#   set site(cmac_core)     ...        # CMACE4_X0Y0 or the like: the CMAC beside the first cage
#   set site(cmac_gt_group) ...        # X0Y0~X0Y3 or the like: its four transceivers
#   set site(pins) { pcie_refclk_p ...  pcie_refclk_n ...  ... }
#
# Out: verbena.bit, verbena.mcs (at the user's place in flash), timing.rpt, utilisation.rpt. It stops at the first
# thing that is missing, unconstrained, or slower than it must be; with `synthesis` behind the utilisation.

set here [file dirname [file normalize [info script]]]
source [file join $here settings.tcl]

if {[llength $argv] < 1} { error "build.tcl: name your site file: -tclargs SITE.tcl" }
source [lindex $argv 0]
foreach name {pcie_block cmac_core cmac_gt_group pins} {
    if {![info exists site($name)]} { error "build.tcl: the site file does not set site($name)" }
}
foreach port $site_pins {
    if {![dict exists $site(pins) $port]} { error "build.tcl: the site file has no pin for $port" }
}

create_project -in_memory -part $part
set_property target_language Verilog [current_project]
read_verilog -sv [lmap file $rtl { file join $here rtl $file }]
foreach ip {pcie4c cmac} { source [file join $here $ip.tcl] }
generate_target all [get_ips]
synth_ip [get_ips]

# a port of an IP that is not as wide as the RTL says, or not there
set_msg_config -id {Synth 8-689} -new_severity ERROR
set_msg_config -id {Synth 8-448} -new_severity ERROR
# a constraint that finds nothing
set_msg_config -id {Vivado 12-584} -new_severity ERROR
set_msg_config -id {Common 17-55} -new_severity ERROR

foreach xdc $xdcs { read_xdc [file join $here $xdc] }
synth_design -top $top -part $part -flatten_hierarchy none
# by register names, which only exist now
source [file join $here crossings.tcl]
dict for {port pin} $site(pins) { set_property PACKAGE_PIN $pin [get_ports $port] }
report_utilization -hierarchical -file utilisation.rpt
if {[lindex $argv 1] eq "synthesis"} { return }

opt_design
place_design
phys_opt_design
route_design
report_timing_summary -file timing.rpt
report_cdc -details -file crossings.rpt
if {[get_property SLACK [get_timing_paths -max_paths 1]] < 0} { error "build.tcl: setup is violated: timing.rpt" }
if {[get_property SLACK [get_timing_paths -max_paths 1 -hold]] < 0} { error "build.tcl: hold is violated: timing.rpt" }
report_drc -file rules.rpt
write_bitstream -force verbena.bit
# the factory's golden image is below; it is never overwritten
write_cfgmem -force -format mcs -interface SPIx4 -size 128 -loadbit "up 0x01002000 verbena.bit" -file verbena.mcs
