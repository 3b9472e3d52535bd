# Stands in for Vivado: runs a project script with recorded stub commands, and judges its constraints.
#
#   tclsh vivado.tcl FACTS SCRIPT               FACTS, by cargo ci board, sets
#       top      name of the top module                  ports      {NAME {input|output WIDTH} ...} of it
#       pins     ports that need a package pin           lanes      ports that lie where a hard block lies
#       modules  {NAME {REGISTER ...} ...} of the RTL
#
# Out: the recording, one command per line, with paths from the script's folder. Every command that is not one of these
# stubs stops the script, as does a port, bit, module or register that the RTL does not have. Then, exit code 1 and a
# line each: a port that no list names, or that is named and not there; a bit without a package pin, or two with one; a
# pin without an I/O standard (a transceiver's reference clock needs none); a clock input without a period; a synchroniser
# (NAME_meta) that no crossing names.

lassign $argv facts script
source $facts
set home [file dirname [file normalize $script]]
set faults {}
proc fault {text} { lappend ::faults $text }

# --- the recording
proc record {command arguments} {
    set line $command
    foreach word $arguments {
        set word [string map [list "$::home/" ""] $word]
        set word [string trim [regsub -all {\s+} $word " "]]
        # the RTL's files change with the RTL; their list is settings.tcl's
        if {[llength $word] > 1 && [lindex $word 0] eq [lindex [list {*}$::rtl_paths] 0]} { set word "<rtl>" }
        append line " " [list $word]
    }
    puts $line
}
set rtl_paths {}

# --- what the design has
proc bits {name} {
    lassign [dict get $::ports $name] direction width
    if {$width == 1} { return [list $name] }
    set all {}
    for {set i 0} {$i < $width} {incr i} { lappend all "$name\[$i\]" }
    return $all
}
proc get_ports {names} {
    set all {}
    foreach name $names {
        if {[dict exists $::ports $name]} { lappend all {*}[bits $name]; continue }
        if {![regexp {^(.*)\[(\d+)\]$} $name -> base index] || ![dict exists $::ports $base]
                || $name ni [bits $base]} { error "$::top has no port $name" }
        lappend all $name
    }
    return [lmap bit $all { string cat "port " $bit }]
}
proc get_cells {args} {
    if {[lindex $args 0] eq "-hierarchical"} {
        regexp {REF_NAME =~ (\S+)} [lindex $args end] -> pattern
        return [lsearch -all -inline -glob [dict keys $::modules] $pattern]
    }
    set path [lindex $args end]
    set module [expr {[string match */* $path] ? [file dirname $path] : $::top}]
    regsub {_reg\*$} [file tail $path] "" register
    if {$register in [dict get $::modules $module]} { return [list "$module/$register"] }
    if {[lindex $args 0] eq "-quiet"} { return {} }
    error "$module has no register $register"
}

# --- constraints
set package_pin {}
set standard {}
set clocked {}
set crossed {}
proc set_property {args} {
    record set_property $args
    if {[lindex $args 0] eq "-dict"} { return }
    lassign $args name value objects
    foreach object $objects {
        if {![string match "port *" $object]} continue
        set bit [lindex $object 1]
        if {$name eq "PACKAGE_PIN"} {
            dict for {other pin} $::package_pin {
                if {$pin eq $value && $other ne $bit} { fault "$other and $bit are both at pin $value" }
            }
            dict set ::package_pin $bit $value
        } elseif {$name eq "IOSTANDARD"} {
            dict set ::standard $bit $value
        }
    }
}
proc create_clock {args} {
    record create_clock $args
    foreach object [lindex $args end] { lappend ::clocked [lindex $object 1] }
}
proc crossing {command arguments} {
    record $command $arguments
    foreach word $arguments { if {[string match "*/*" $word]} { lappend ::crossed {*}$word } }
}
proc set_max_delay {args} { crossing set_max_delay $args }
proc set_false_path {args} { crossing set_false_path $args }

# --- the rest
proc read_verilog {args} {
    set ::rtl_paths [lmap path [lindex $args end] { string map [list "$::home/" ""] $path }]
    foreach path [lindex $args end] { if {![file exists $path]} { error "there is no $path" } }
    record read_verilog $args
}
proc read_xdc {path} {
    record read_xdc [list $path]
    uplevel #0 [list source $path]
}
proc synth_design {args} {
    record synth_design $args
    if {[dict get [dict remove $args -flatten_hierarchy] -top] ne $::top} { error "the top is $::top" }
}
foreach command {
    create_project create_ip generate_target synth_ip set_msg_config report_utilization opt_design place_design
    phys_opt_design route_design report_timing_summary report_cdc report_drc write_bitstream write_cfgmem
} { proc $command {args} "record $command \$args" }
proc current_project {} { return project }
proc current_design {} { return design }
proc get_ips {args} { return [expr {[llength $args] ? $args : "ips"}] }
proc get_timing_paths {args} { return "path" }
proc get_property {name object} { return 0.001 }

# --- the script, and the judgement
set argv {}
if {[catch {source $script} text]} {
    puts stderr "the script stops: $text"
    exit 1
}
foreach name [dict keys $ports] {
    if {$name ni $pins && $name ni $lanes} { fault "port $name is unconstrained: no list of board.toml names it" }
}
foreach name [concat $pins $lanes] {
    if {![dict exists $ports $name]} { fault "board.toml names $name, which $top does not have" }
}
foreach name $pins {
    if {![dict exists $ports $name]} continue
    foreach bit [bits $name] {
        if {![dict exists $package_pin $bit]} { fault "$bit has no package pin" }
        if {![dict exists $standard $bit] && ![string match *refclk* $bit]} { fault "$bit has no I/O standard" }
        if {[string match *clk_p $bit] && $bit ni $clocked} { fault "$bit has no period" }
    }
}
foreach bit [dict keys $package_pin] {
    if {$bit ni [concat {*}[lmap name $pins { bits $name }]]} { fault "$bit has a pin, but lies where its hard block lies" }
}
dict for {module registers} $modules {
    foreach register $registers {
        if {[string match *_meta $register] && "$module/$register" ni $crossed} {
            fault "the crossing into $module/$register is unconstrained"
        }
    }
}
foreach text $faults { puts stderr $text }
exit [expr {[llength $faults] > 0}]
