//! The registers of the flash with the shifter behind them, as they stand in the card, and nothing else of it.

use hdl::{Bundle, Domain, Module, Ports, Sig, Stream, instance};
use nic::Config;
use nic::csr::Csr;
use nic::flash::Flash;
use nic::pcie::bar::RegisterAccess;

/// The registers with what stands behind them.
#[derive(Clone, Debug)]
pub struct Block(pub Config);

#[derive(Ports)]
#[ports(Block)]
pub struct BlockIo {
    #[input]
    pub clock: Sig,
    #[input]
    pub reset: Sig,
    #[sink(())]
    pub access: Stream<RegisterAccess>,
    #[source(64)]
    pub read: Stream<Sig>,
    #[output]
    pub select_n: Sig,
    #[output]
    pub clock_out: Sig,
    #[output]
    pub mosi: Sig,
    #[input]
    pub miso: Sig,
    #[output]
    pub reload: Sig,
}

impl Module for Block {
    type Io = BlockIo;
    fn name(&self) -> String {
        "flash_block".into()
    }
    fn body(&self, io: &BlockIo) {
        Domain::new(io.clock, Some(io.reset)).within(|| {
            let csr = instance("csr", &Csr { c: self.0.clone(), rejects: vec![], stages: vec![] });
            let flash = instance("flash", &Flash { half_clocks: self.0.flash_half_clocks.max(4) });
            csr.access.take(&io.access);
            io.read.take(&csr.data);
            flash.control.assign(&csr.flash);
            csr.flash_word.set(flash.word);
            csr.flash_left.set(flash.left);
            io.select_n.set(flash.select_n);
            io.clock_out.set(flash.clock_out);
            io.mosi.set(flash.mosi);
            flash.miso.set(io.miso);
            io.reload.set(csr.flash_reload);
            for pin in [
                csr.now,
                csr.next_due,
                csr.trace_producer,
                csr.trace_word,
                csr.quiet,
                csr.port_mac,
                csr.port_mtu,
                csr.link_up,
                csr.command_consumer,
            ] {
                pin.set(0);
            }
        });
    }
}
