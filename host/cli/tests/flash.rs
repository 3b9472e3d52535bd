//! `verbena flash` in processes of its own: over a vfio-user socket to a software card, behind whose registers a model of the
//! flash chip hangs by its pins.

#[path = "../../tests/software_card/mod.rs"]
mod software_card;

use contract::flash::{ALVEO_U55C, SYNC};
use contract::register as reg;
use sim::nor::{Cut, Nor, When};
use software_card::{World, served::serve};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, atomic::AtomicBool, atomic::Ordering};

/// The registers of the flash, bit by bit.
fn behind(nor: &Arc<Mutex<Nor>>, reloaded: &Arc<AtomicBool>) -> software_card::FlashRegisters {
    let (nor, reloaded) = (nor.clone(), reloaded.clone());
    let mut selected = false;
    Box::new(move |registers, offset, value| {
        let mut nor = nor.lock().unwrap();
        let mut bytes = 0;
        match offset {
            reg::FLASH_CONTROL => {
                selected = value as u32 & reg::FLASH_SELECT != 0;
                bytes = value >> 32;
                registers.insert(offset, u64::from(selected));
            }
            reg::FLASH_RELOAD => reloaded.store(value == u64::from(reg::FLASH_RELOAD_KEY), Ordering::Relaxed),
            _ => return,
        }
        nor.pins(!selected, false, false);
        let mut word = registers.get(&reg::FLASH_DATA).copied().unwrap_or(0);
        for _ in 0..bytes {
            let (mut byte, sent) = (0, word as u8);
            for bit in (0..8).rev() {
                let mosi = sent >> bit & 1 == 1;
                byte = byte << 1 | u64::from(nor.pins(!selected, false, mosi));
                nor.pins(!selected, true, mosi);
            }
            nor.pins(!selected, false, false);
            word = word >> 8 | byte << 56;
        }
        registers.insert(reg::FLASH_DATA, word);
        // nobody in this test waits for what takes long
        nor.pass(std::time::Duration::from_micros(100));
    })
}

fn bitstream(seed: u8, bytes: usize) -> Vec<u8> {
    let mut file = vec![0, 9, 0x0f, 0xf0, 0x0f, 0xf0, 0x0f, 0xf0, 0x0f, 0xf0, 0, 0, 1];
    let texts = [(b'a', "alveo_u55c"), (b'b', ALVEO_U55C.part), (b'c', "2026/11/30"), (b'd', "12:00:00")];
    for (letter, text) in texts {
        file.push(letter);
        file.extend((text.len() as u16 + 1).to_be_bytes());
        file.extend(text.bytes().chain([0]));
    }
    file.push(b'e');
    file.extend((bytes as u32).to_be_bytes());
    let mut data = vec![0xff; 64];
    data.extend(SYNC.to_be_bytes());
    data.extend((0..).map(|i: u32| i.wrapping_mul(0x9e37_79b1).to_be_bytes()[0] ^ seed).take(bytes - 68));
    file.extend(data);
    file
}

#[test]
fn a_bitstream_is_loaded_verified_resumed_and_booted_and_the_wrong_one_refused() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new(1);
    let mut chip = Nor::new(ALVEO_U55C.chip, ALVEO_U55C.bytes, 1);
    chip.bytes[..ALVEO_U55C.guard as usize].fill(0x5a);
    let (nor, reloaded) = (Arc::new(Mutex::new(chip)), Arc::new(AtomicBool::new(false)));
    {
        let mut cards = world.cards();
        cards[0].flash = Some(behind(&nor, &reloaded));
        cards[0].features |= reg::feature::FLASH;
        // as an older bitstream: the tool repairs cards of any contract
        cards[0].layout_hash = 1;
    }
    const CALLS: usize = 11;
    let server = serve(&world, 0, &directory.path().join("card0.sock"), CALLS);
    let verbena = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
        command
            .current_dir(directory.path())
            .env("VERBENA_RUN", directory.path())
            .env_remove("VERBENA_DEVICE");
        command.args(["flash", "alveo-u55c"]).args(arguments).output().unwrap()
    };
    let out = |output: &Output| String::from_utf8(output.stdout.clone()).unwrap();
    let err = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();

    // without a card: manifest, and what is wrong with the files
    let (first, second) = (bitstream(0, 9000), bitstream(1, 17_000));
    std::fs::write(directory.path().join("verbena.bit"), &first).unwrap();
    let manifest = verbena(&["manifest", "verbena.bit"]);
    assert_eq!((out(&manifest), err(&manifest)), ("verbena.json\n".into(), String::new()));
    std::fs::write(directory.path().join("cut.bit"), &first[..5000]).unwrap();
    let cut = verbena(&["write", "cut.bit", "--manifest", "verbena.json"]);
    assert_eq!(cut.status.code(), Some(1));
    assert!(err(&cut).contains("5000 bytes of 9082; the file is cut off"), "{}", err(&cut));
    std::fs::write(directory.path().join("other.bit"), &second).unwrap();
    let other = verbena(&["write", "other.bit", "--manifest", "verbena.json"]);
    assert!(err(&other).contains("file and manifest are of two builds"), "{}", err(&other));
    let alone = verbena(&["write", "other.bit"]);
    assert!(err(&alone).contains("read the manifest other.json"), "{}", err(&alone));

    // 1: identify, 2: nothing is there that a reload would start, 3: write, 4: verify
    let identity = out(&verbena(&["identify"]));
    assert!(
        identity.contains("MT25QU01G, 128 MiB") && identity.contains("0x01002000: blank: and nothing behind"),
        "{identity}"
    );
    let refused = verbena(&["boot"]);
    assert_eq!((refused.status.code(), out(&refused)), (Some(1), String::new()));
    let says = err(&refused);
    assert!(says.contains("the guard is blank") && says.contains("run `write` first"), "{says}");
    assert!(!reloaded.load(Ordering::Relaxed));
    let written = verbena(&["write", "verbena.bit"]);
    assert!(
        out(&written).starts_with("9000 bytes written, 0 kept; alveo_u55c of contract 1."),
        "{}",
        err(&written)
    );
    let verified = out(&verbena(&["verify", "verbena.bit"]));
    assert_eq!(verified, "9000 bytes are as in verbena.bit\n");

    // 5: the power goes, 6 and 7: the card starts from the golden image, 8: again
    verbena(&["manifest", "other.bit"]);
    nor.lock().unwrap().cut(Cut { operation: 20, when: When::During });
    let interrupted = verbena(&["write", "other.bit"]);
    assert_eq!(interrupted.status.code(), Some(1));
    nor.lock().unwrap().power_on();
    let json: serde_json::Value = serde_json::from_str(&out(&verbena(&["identify", "--json"]))).unwrap();
    assert_eq!((&json["guard"]["state"], &json["guard"]["starts"]), (&"armed".into(), &"golden".into()));
    let booted = out(&verbena(&["boot"]));
    assert!(booted.starts_with("the FPGA loads the golden image (the guard is armed"), "{booted}");
    assert!(reloaded.swap(false, Ordering::Relaxed));
    let resumed = out(&verbena(&["write", "other.bit"]));
    assert!(
        resumed
            .starts_with("an update had been interrupted, or the flash erased: 17000 bytes written, 0 kept"),
        "{resumed}"
    );

    // 9: another file, 10: boot, 11: with an image that is not ours in the guard's place
    let differs = verbena(&["verify", "verbena.bit"]);
    assert!(err(&differs).contains("write it again"), "{}", err(&differs));
    let booted = verbena(&["boot"]);
    assert!(out(&booted).starts_with("the FPGA loads our image (the guard is released)"), "{}", err(&booted));
    assert!(reloaded.swap(false, Ordering::Relaxed));
    nor.lock().unwrap().bytes[ALVEO_U55C.guard as usize..][..4].copy_from_slice(&SYNC.to_be_bytes());
    let booted = verbena(&["boot"]);
    assert!(out(&booted).starts_with("the FPGA loads an image that is not ours"), "{}", err(&booted));
    assert!(reloaded.load(Ordering::Relaxed));
    server.join().unwrap();
    let nor = nor.lock().unwrap();
    assert!(nor.bytes[..ALVEO_U55C.guard as usize].iter().all(|byte| *byte == 0x5a), "golden image");
    assert_eq!(nor.faults, [""; 0]);
}
