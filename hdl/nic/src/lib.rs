//! The RTL of the Verbena RDMA network card
