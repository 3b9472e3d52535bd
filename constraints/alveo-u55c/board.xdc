# What stands on the board by itself: the oscillator, and the pin that must be low.

create_clock -name sysclk -period 10.000 [get_ports sysclk_p]
set_property IOSTANDARD LVDS [get_ports sysclk_p]
set_property IOSTANDARD LVDS [get_ports sysclk_n]

# High, or floating, tells the card's controller that the HBM is too hot: it cuts the power.
set_property IOSTANDARD LVCMOS18 [get_ports hbm_cattrip]
set_property PULLDOWN true [get_ports hbm_cattrip]
set_false_path -to [get_ports hbm_cattrip]
