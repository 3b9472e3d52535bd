//! The read list, by the interpreter: what segment writes of READs comes back in groups, as far as each goes.
//!
//! Requirements: READ

mod bench;

use bench::{Choices, lint, reset};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::tx::read_list::ReadList;

fn config(data_bytes: u32) -> Config {
    Config { reads: 8, data_bytes, packet_buffer_bytes: 1 << 18, ..Config::small() }
}

/// Writes a READ whose WQE ends in these SGEs, as segment does: a word per clock, the first four with the last.
fn put(s: &mut Interpreter, c: &Config, entry: u64, sges: &[[u8; 16]]) {
    let more = sges.len().saturating_sub(4);
    let mut wqe = vec![0xbb; 32];
    wqe.extend(sges.iter().flatten());
    wqe.resize(1024, 0xee);
    let (size, opening) = (c.data_bytes as usize, 96 / c.data_bytes as usize);
    let words = if more == 0 { 0 } else { (96 + 16 * more).div_ceil(size) - opening };
    s.poke("write_entry", entry);
    for i in 0..words.max(1) {
        let last = i + 1 >= words;
        let mut first = vec![0; 64];
        first[..16 * sges.len().min(4)].copy_from_slice(&wqe[32..][..16 * sges.len().min(4)]);
        s.poke("write_adds", u64::from(words > 0));
        s.poke("write_index", i as u64);
        s.poke_bits("write_word", &Bits::from_bytes(8 * size as u32, &wqe[(opening + i) * size..][..size]));
        s.poke("write_opens", u64::from(last));
        s.poke("write_more", if last { more as u64 } else { 15 });
        s.poke_bits("write_sges", &Bits::from_bytes(512, &first));
        s.clock();
    }
    s.poke("write_adds", 0);
    s.poke("write_opens", 0);
}

#[test]
fn every_list_comes_back_in_groups_and_what_it_does_not_have_is_zero() {
    for data_bytes in [8, 64] {
        let c = config(data_bytes);
        let mut s = Interpreter::new(&elaborate(&ReadList(c.clone())).unwrap());
        reset(&mut s);
        let mut pick = Choices::new(3);
        let mut lists = vec![vec![]; 8];
        for round in 0..200usize {
            let entry = pick.below(8) as usize;
            let count = if round < 17 { round } else { pick.below(17) as usize };
            let sge = |i: usize| -> [u8; 16] { std::array::from_fn(|b| (round * 31 + i * 16 + b) as u8 | 1) };
            lists[entry] = (0..count).map(sge).collect();
            put(&mut s, &c, entry as u64, &lists[entry]);
            for (entry, list) in lists.iter().enumerate().filter(|l| !l.1.is_empty()) {
                for group in 0..4usize {
                    s.poke("address", (4 * entry + group) as u64);
                    s.clock();
                    let mut want = list.concat();
                    want.resize(256, 0);
                    let got = s.peek_bits("word").to_bytes();
                    assert_eq!(got, want[64 * group..][..64], "round {round}, entry {entry}, group {group}");
                    let groups = list.len().div_ceil(4).saturating_sub(1);
                    assert_eq!(s.peek("groups"), groups as u64, "{} SGEs", list.len());
                }
            }
        }
    }
}

#[test]
fn the_emitted_module_is_clean() {
    lint(&elaborate(&ReadList(Config::small())).unwrap());
    lint(&elaborate(&ReadList(Config { name: "wide", ..config(64) })).unwrap());
}
