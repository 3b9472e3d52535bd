# Builds the bitstream with Vivado in batch, in the folder that `cargo ci board alveo-u55c --project` has filled:
#
#   vivado -mode batch -source build.tcl [-tclargs synthesis]
#
# Out: verbena.bit, verbena.mcs (at the user's place in flash), timing.rpt, utilisation.rpt. It stops at the first
# thing that is missing, unconstrained, or slower than it must be; with `synthesis` behind the utilisation. Package pins
# and sites of the hard blocks come from board.toml.

set here [file dirname [file normalize [info script]]]
source [file join $here settings.tcl]

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
dict for {port pin} $package_pins { set_property PACKAGE_PIN $pin [get_ports $port] }
report_utilization -hierarchical -file utilisation.rpt
if {[lindex $argv 0] eq "synthesis"} { return }

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
# the factory's golden image is below, and sends the FPGA to 0x01002000; blank bytes, the place of the guard of
# `verbena flash`, are passed over
write_cfgmem -force -format mcs -interface SPIx4 -size 128 -loadbit "up 0x01003000 verbena.bit" -file verbena.mcs
