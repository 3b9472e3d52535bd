//! The transmit buffer: payload between its PCIe reads and the line.
//!
//! In: [`ReadData`] of client Gather, any lanes of one word per clock, never refused; inline data, whole words, in clocks
//! without. gather asks for no read while it hands on inline data, so the reads before it delay it by what they have left
//! and no more. Out: the word at `read_address`, one clock later; it stays while `read` is low. A ring: addresses count
//! modulo the buffer's size on both sides. Who owns which bytes is gather's business; nothing here checks it.
//!
//! Requirements: REQ

use crate::config::Config;
use crate::flow::{InlineWord, ReadClient, ReadData};
use hdl::{Memory, Module, Ports, Sig, Stream, mux};

/// The transmit buffer's memory.
#[derive(Clone, Debug)]
pub struct TransmitBuffer(pub Config);

/// Ports of [`TransmitBuffer`].
#[derive(Ports)]
#[ports(TransmitBuffer)]
pub struct TransmitBufferIo {
    /// Data of all clients.
    #[input(c.0.clone())]
    pub read_data: ReadData,
    /// Inline data.
    #[sink(c.0.clone())]
    pub inline: Stream<InlineWord>,
    /// Read a word.
    #[input]
    pub read: Sig,
    /// Byte address; its lane bits are ignored.
    #[input(c.0.transmit_address_bits())]
    pub read_address: Sig,
    /// The word, one clock later, byte 0 lowest.
    #[output(c.0.data_bits())]
    pub word: Sig,
}

impl Module for TransmitBuffer {
    type Io = TransmitBufferIo;
    fn name(&self) -> String {
        format!("transmit_buffer_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("Payload on its way out: {} bytes.", self.0.transmit_buffer_bytes)
    }
    fn body(&self, io: &TransmitBufferIo) {
        let c = &self.0;
        assert!(
            c.transmit_address_bits() <= crate::flow::READ_ADDRESS,
            "transmit buffer exceeds read addresses"
        );
        let words = c.transmit_words();
        // a frame is read when all of it is here, and has words of its own
        let memory = Memory::with_lanes("payload", words, c.data_bits(), 8).style("block");
        let memory = c.large(memory.ignoring_collisions());
        let word = |address: Sig| address.bits(c.lane_bits(), memory.address_width());
        let arriving = io.read_data.valid & io.read_data.client.eq(ReadClient::Gather as u64);
        io.inline.ready.set(!arriving);
        memory.write_lanes(
            arriving | io.inline.valid,
            mux(arriving, word(io.read_data.address), io.inline.data.word),
            mux(arriving, io.read_data.data, io.inline.data.data),
            io.read_data.lanes | (!arriving).repeat(c.data_bytes),
        );
        io.word.set(memory.read("read_word", io.read, word(io.read_address)));
    }
}
