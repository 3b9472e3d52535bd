//! How many TLPs a second the model itself handles: reads of 512 bytes and writes of 256, polled as a shim polls.

use pcie_sim::{
    Iommu, Kind, Permissions, RootComplex, RootConfig, SparseMemory, Time, Tlp,
    tlp::{MemRead, MemWrite},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = RootConfig::default();
    config.enumeration.bus_master = true;
    let mut rc = RootComplex::new(config, 1, Iommu::new())?;
    rc.memory_mut().map(0x1_0000_0000, 1 << 20, Permissions::BOTH, SparseMemory::new(), 0)?;
    let id = rc.sideband().requester;
    let cycle = Time::ns(4);
    let cycles = 2_000_000u64;
    let (mut tlps, mut free) = (0u64, (0..256).collect::<Vec<u16>>());
    let start = std::time::Instant::now();
    let mut now = Time::ZERO;
    for i in 0..cycles {
        now = now + cycle;
        let at = 0x1_0000_0000 + i * 512 % (1 << 20);
        if i % 2 == 0 && rc.can_accept(now, Kind::Posted, 256) {
            rc.card_sends(now, Tlp::MemWrite(MemWrite::bytes(id, at, &[1; 256])).emit());
            tlps += 1;
        } else if rc.can_accept(now, Kind::NonPosted, 0)
            && let Some(tag) = free.pop()
        {
            rc.card_sends(now, Tlp::MemRead(MemRead::bytes(id, tag, at, 512)).emit());
            tlps += 1;
        }
        rc.poll_cq(now);
        if let Some(raw) = rc.poll_rc(now) {
            tlps += 1;
            if let Ok(Tlp::Completion(c)) = Tlp::parse(&raw)
                && c.byte_count as usize <= c.payload.len()
            {
                free.push(c.tag);
            }
        }
    }
    let took = start.elapsed().as_secs_f64();
    println!("{tlps} TLPs in {took:.2} s: {:.2} million a second", tlps as f64 / took / 1e6);
    println!(
        "{cycles} cycles: {:.0} ns a cycle; {} violations",
        took * 1e9 / cycles as f64,
        rc.violation_count()
    );
    let start = std::time::Instant::now();
    for _ in 0..cycles {
        now = now + cycle;
        rc.poll_cq(now);
        rc.poll_rc(now);
    }
    println!("nothing under way: {:.1} ns a cycle", start.elapsed().as_secs_f64() * 1e9 / cycles as f64);
    Ok(())
}
