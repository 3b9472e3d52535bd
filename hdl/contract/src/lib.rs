//! What the card and its software must agree on: registers, doorbells, WQE, CQE, EQE, commands, wire headers, opcodes, rejects
