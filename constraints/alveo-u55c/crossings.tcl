# Every way between two clocks, by the module that crosses and the names of its registers in the RTL. Nothing else is
# relaxed: a crossing that is not named here fails timing, and one that is named and not there stops the script.
#
# Gray-coded words and data behind them: the bits may differ by less than a clock of the faster side (322.27 MHz).
# Single bits and resets into two flops: no bound.

set line_period 3.103

proc bound {cell from to ns} {
    set_max_delay -datapath_only $ns -from [registers $cell $from] -to [registers $cell $to]
}
proc registers {cell name} {
    set found [get_cells -quiet "$cell/${name}_reg*"]
    if {![llength $found]} { error "crossings.tcl: there is no register $name in $cell" }
    return $found
}
# All instances of modules of that name, however they were made unique.
proc instances {name} {
    set found [get_cells -hierarchical -filter "REF_NAME =~ $name || ORIG_REF_NAME =~ $name"]
    if {![llength $found]} { error "crossings.tcl: there is no module $name" }
    return $found
}

foreach fifo [instances async_fifo_*] {
    bound $fifo tail_gray tail_seen_meta $line_period
    bound $fifo head_gray head_seen_meta $line_period
}
# only the FIFO of the receive side is small enough for LUT RAM, which lets data through; block RAM has no such path
foreach fifo [instances async_fifo_32x*] {
    bound $fifo words word $line_period
}
foreach mac [instances mac_full] {
    bound $mac frames_entered_gray frames_seen_meta $line_period
    bound $mac frames_left_gray frames_left_seen_meta $line_period
}
foreach link [instances us_cmac_full] {
    set_false_path -to [registers $link aligned_meta]
}
# the flash's clock is made of ours, many clocks long
foreach flash [instances flash] { set_false_path -to [registers $flash miso_meta] }
foreach reload [instances reload] { set_false_path -to [registers $reload wanted_meta] }
# of the top itself
set_false_path -to [get_cells tx_reset_meta_reg*]
set_false_path -to [get_cells rx_reset_meta_reg*]
set_false_path -to [get_cells link_up_meta_reg*]
