//! Transmit: doorbell > schedule > fetch > segment > gather > packetise.
