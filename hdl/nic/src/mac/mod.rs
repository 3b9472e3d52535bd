//! The line: 10 Gigabit Ethernet over XGMII.
