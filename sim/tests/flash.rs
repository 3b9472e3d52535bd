//! The host's flash driver against a model of the chip: load, verify, refuse, resume; with the power cut at every step; and
//! once through the registers and pins of the RTL.
//!
//! ```text
//! Update > Chip > Nor (byte by byte)
//! Update > Chip > CardSpi > registers, shifter (interpreted) > pins > Nor
//! ```
//! What starts after a cut is told by a model of the FPGA's configuration logic, written without the driver's: it reads on from
//! where the golden image sends it, until a synchronisation word; behind the guard's it runs under a watchdog.

#[path = "../../hdl/nic/tests/flash_block/mod.rs"]
mod flash_block;

use contract::flash::{GUARD_WORDS, GUARD_WORDS_AT, Layout, SECTOR, SUBSECTOR, SYNC};
use flash_block::Block;
use hdl::{Interpreter, elaborate};
use host::backend::Backend;
use host::flash::{CardSpi, Chip, Done, Error, Guard, Image, Spi, Update};
use host::{Bar, Memory};
use nic::Config;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sim::nor::{Cut, Nor, When};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// A board with a small chip: 132 KiB of golden image, and a guard that is no more aligned than that of the U55C.
static SMALL: Layout = Layout {
    board: "test",
    part: "xc-test",
    chip: [0x20, 0xbb, 0x21],
    chip_name: "small one",
    bytes: 8 * SECTOR,
    guard: 2 * SECTOR + 2 * SUBSECTOR,
};

fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut all);
    all
}

/// Configuration data: blank, synchronisation, anything.
fn data(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0xff; 64];
    data.extend(SYNC.to_be_bytes());
    data.extend(random(seed, bytes - data.len()));
    data
}

/// A file as Vivado writes it.
fn file(part: &str, data: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 9, 0x0f, 0xf0, 0x0f, 0xf0, 0x0f, 0xf0, 0x0f, 0xf0, 0, 0, 1];
    for (letter, text) in [(b'a', "top;Version=1"), (b'b', part), (b'c', "2026/11/30"), (b'd', "12:00:00")] {
        file.push(letter);
        file.extend((text.len() as u16 + 1).to_be_bytes());
        file.extend(text.bytes().chain([0]));
    }
    file.push(b'e');
    file.extend((data.len() as u32).to_be_bytes());
    file.extend(data);
    file
}

static GOLDEN: LazyLock<Vec<u8>> = LazyLock::new(|| random(99, SMALL.guard as usize));

/// A chip with a golden image, and with `old` where ours belongs.
fn chip_with(old: &[u8], seed: u64) -> Nor {
    let mut nor = Nor::new(SMALL.chip, SMALL.bytes, seed);
    nor.bytes[..SMALL.guard as usize].copy_from_slice(&GOLDEN);
    let at = SMALL.image() as usize;
    nor.bytes[at..at + old.len()].copy_from_slice(old);
    nor
}

/// A chip that is lent to the driver and looked at afterwards.
#[derive(Clone)]
struct Lent(Arc<Mutex<Nor>>);

impl Lent {
    fn of(nor: Nor) -> Lent {
        Lent(Arc::new(Mutex::new(nor)))
    }
    fn look<T>(&self, look: impl FnOnce(&mut Nor) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }
    fn update(&self) -> Result<Update<Lent>, Error> {
        Chip::identify(self.clone(), &SMALL).map(Update::of)
    }
    fn write(&self, image: &[u8]) -> Result<Done, Error> {
        self.update()?.write(image, false, |_| {})
    }
}

impl Spi for Lent {
    fn exchange(&mut self, send: &[u8], receive: &mut [u8]) -> io::Result<()> {
        self.look(|nor| nor.exchange(send, receive))
    }
    fn now(&self) -> Duration {
        self.look(|nor| nor.now())
    }
    fn relax(&mut self, turn: u32) {
        self.look(|nor| nor.relax(turn));
    }
}

/// What the FPGA runs after it has been loaded.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Started {
    /// The image of that number.
    Image(usize),
    /// The watchdog, or an error of the data under it, has sent it back.
    Golden,
    /// It reads on for ever, or has stopped.
    Nothing,
}

fn starts(flash: &[u8], images: &[&[u8]]) -> Started {
    let sync = |from: usize| flash[from..].windows(4).position(|w| w == SYNC.to_be_bytes()).map(|n| from + n);
    let whole = |at: usize| images.iter().position(|image| flash[at..].starts_with(image));
    let guard = SMALL.guard as usize;
    let Some(first) = sync(guard) else { return Started::Nothing };
    let words: Vec<u8> = GUARD_WORDS.iter().flat_map(|word| word.to_be_bytes()).collect();
    let watched = flash[guard + GUARD_WORDS_AT as usize..].starts_with(&words);
    match whole(SMALL.image() as usize) {
        // passed over to its own word, or synchronised already
        Some(n) if watched || first == SMALL.image() as usize + 64 => Started::Image(n),
        _ if watched => Started::Golden,
        _ => Started::Nothing,
    }
}

fn golden_is_untouched(nor: &Nor, what: &str) {
    assert!(nor.bytes[..SMALL.guard as usize] == GOLDEN[..], "{what}: the golden image is not what it was");
}

#[test]
fn an_image_is_loaded_verified_and_left_alone_the_second_time() {
    let (old, new) = (data(1, 90_000), data(2, 200_001));
    let lent = Lent::of(chip_with(&old, 0));
    assert!(matches!(lent.update().unwrap().verify(&new), Err(Error::Differs { .. })));
    let done = lent.write(&new).unwrap();
    assert_eq!(done, Done { resumed: false, written: new.len(), kept: 0 });
    lent.update().unwrap().verify(&new).unwrap();
    assert_eq!(lent.update().unwrap().guard().unwrap(), Guard::Released);
    let operations = lent.look(|nor| nor.operations);
    assert_eq!(lent.write(&new).unwrap(), Done { resumed: false, written: 0, kept: new.len() });
    assert_eq!(lent.look(|nor| nor.operations), operations + 1, "nothing but the release");
    // a shorter one takes its place, and the guard is used again
    lent.write(&old).unwrap();
    lent.update().unwrap().verify(&old).unwrap();
    lent.look(|nor| {
        golden_is_untouched(nor, "two updates");
        assert_eq!(starts(&nor.bytes, &[&old, &new]), Started::Image(0));
        assert_eq!(nor.faults, [""; 0]);
    });
}

/// Cuts the power at `cut` while image 1 takes the place of image 0, looks what starts, and lets a second run, of another
/// image and itself cut by the seed, and a third, of the last, come to an end. False: the update was over before the cut.
fn cut_and_resume(images: &[&[u8]], [second, last]: [usize; 2], released: bool, cut: Cut, seed: u64) -> bool {
    let what = format!("{cut:?}, then {second} and {last}, seed {seed}");
    let mut nor = chip_with(images[0], seed);
    if released {
        // as an earlier update leaves it
        let words = GUARD_WORDS.map(|word| if word == SYNC { 0 } else { word });
        let at = (SMALL.guard + GUARD_WORDS_AT) as usize;
        let words = words.iter().flat_map(|word| word.to_be_bytes());
        nor.bytes[at..].iter_mut().zip(words).for_each(|(byte, word)| *byte = word);
    }
    let lent = Lent::of(nor);
    let look = |when: &str| {
        lent.look(|nor| {
            let what = format!("{what}, {when}");
            golden_is_untouched(nor, &what);
            let started = starts(&nor.bytes, images);
            assert_ne!(started, Started::Nothing, "{what}: the card does not start");
            assert_eq!(nor.faults, [""; 0], "{what}");
            nor.power_on();
            started
        })
    };
    lent.look(|nor| nor.cut(cut));
    let first = lent.write(images[1]);
    let over = lent.look(|nor| nor.is_on());
    match &first {
        Ok(_) => assert!(over, "{what}"),
        Err(error) => assert!(matches!(error, Error::Way { .. }), "{what}: {error}"),
    }
    if over {
        assert_eq!(look("done"), Started::Image(1), "{what}");
        return false;
    }
    look("after the first cut");
    let mut choose = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let when = if choose.next_u64() % 2 == 0 { When::During } else { When::Late };
    // beyond the end of some: they go through
    let cut = Cut { operation: choose.next_u64() % 300, when };
    lent.look(|nor| nor.cut(cut));
    let armed = lent.look(|nor| starts(&nor.bytes, &images[..1]) == Started::Golden);
    if let Ok(done) = lent.write(images[second]) {
        assert!(done.resumed || !armed, "{what}: the armed guard was not seen");
    }
    look("after the second cut");
    lent.write(images[last]).unwrap_or_else(|error| panic!("{what}: {error}"));
    lent.update().unwrap().verify(images[last]).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(look("at the end"), Started::Image(last), "{what}");
    // what a cut has struck was done again, however it read
    assert_eq!(lent.look(|nor| nor.weak.clone()), [0..0; 0], "{what}");
    true
}

#[test]
fn a_power_cut_at_any_step_leaves_a_card_that_starts_and_costs_no_more_than_another_run() {
    // 13 subsectors up to the next sector, and a part of that; subsectors that are alike hide how far an update came
    let alike = |from: &[u8], to: &mut [u8], subsectors: std::ops::Range<u32>| {
        let bytes = (subsectors.start * SUBSECTOR) as usize..(subsectors.end * SUBSECTOR) as usize;
        to[bytes.clone()].copy_from_slice(&from[bytes]);
    };
    let (old, mut new, mut other) = (data(1, 30_000), data(2, 60_000), data(3, 60_000));
    alike(&old, &mut new, 4..6);
    alike(&new, &mut other, 4..6);
    alike(&new, &mut other, 8..11);
    let short = data(4, 20_000);
    let images = [&old[..], &new, &other, &short];
    let mut cuts = 0;
    // the same again; another; a shorter one, behind which the first had come further, and the first
    let all = [When::Before, When::During, When::Late, When::After];
    for (then, (runs, whens)) in
        [([1, 1], &all[..]), ([2, 2], &[When::Late]), ([3, 1], &[When::Late])].into_iter().enumerate()
    {
        for released in [false, true] {
            for operation in 0.. {
                let mut reached = true;
                for (n, when) in whens.iter().enumerate() {
                    let seed = (operation << 3 | (n as u64) << 1 | u64::from(released)) * 3 + then as u64;
                    let cut = Cut { operation, when: *when };
                    reached &= cut_and_resume(&images, runs, released, cut, seed);
                    cuts += 1;
                }
                if !reached {
                    break;
                }
            }
        }
    }
    // guard (two, and its erasure the second time), erasures, pages, release: nothing was skipped
    assert!(cuts > (4 + 1 + 1) * 2 * (2 + 14 + 60_000 / 256), "{cuts}");
    println!("{cuts} cuts");
}

#[test]
fn after_an_erasure_the_card_starts_from_the_golden_image_and_an_interrupted_one_goes_on() {
    let old = data(1, 150_000);
    for operation in [0, 1, 2, 3, 5, 14, 15] {
        let lent = Lent::of(chip_with(&old, operation));
        lent.look(|nor| nor.cut(Cut { operation, when: When::During }));
        assert!(lent.update().unwrap().erase(false, |_| {}).is_err(), "cut at {operation}");
        lent.look(|nor| {
            golden_is_untouched(nor, "an interrupted erasure");
            assert_ne!(starts(&nor.bytes, &[&old]), Started::Nothing, "cut at {operation}");
            nor.power_on();
        });
        lent.update().unwrap().erase(false, |_| {}).unwrap();
        lent.look(|nor| {
            golden_is_untouched(nor, "an erasure");
            assert_eq!(starts(&nor.bytes, &[&old]), Started::Golden);
            assert!(nor.bytes[SMALL.image() as usize..].iter().all(|byte| *byte == 0xff));
            assert_eq!(nor.faults, [""; 0]);
        });
        // verify says what is the matter, and a new image makes an end of it
        assert!(matches!(lent.update().unwrap().verify(&old), Err(Error::Differs { .. })));
        lent.write(&old).unwrap();
        lent.update().unwrap().verify(&old).unwrap();
    }
}

#[test]
fn a_byte_that_takes_no_program_is_found_before_the_image_is_let_go() {
    let (old, new) = (data(1, 30_000), data(2, 30_000));
    let lent = Lent::of(chip_with(&old, 0));
    // one that the new image needs
    let worn = SMALL.image() as usize + 20_000 + new[20_000..].iter().position(|byte| *byte != 0xff).unwrap();
    lent.look(|nor| nor.worn = Some(worn));
    let error = lent.write(&new).unwrap_err();
    assert!(matches!(error, Error::Differs { at, found: 0xff, .. } if at as usize == worn), "{error}");
    assert_eq!(lent.look(|nor| starts(&nor.bytes, &[&old, &new])), Started::Golden);
}

#[test]
fn an_image_that_is_whole_behind_its_guard_is_not_called_good() {
    let image = data(3, 9000);
    let lent = Lent::of(chip_with(&data(1, 5000), 0));
    // everything but the last step, the release
    let lent_all = Lent::of(chip_with(&data(1, 5000), 0));
    lent_all.write(&image).unwrap();
    let last = lent_all.look(|nor| nor.operations) - 1;
    lent.look(|nor| nor.cut(Cut { operation: last, when: When::Before }));
    lent.write(&image).unwrap_err();
    lent.look(|nor| nor.power_on());
    let error = lent.update().unwrap().verify(&image).unwrap_err();
    assert!(matches!(error, Error::Guarded), "{error}");
    assert!(error.to_string().contains("run `write` again"), "{error}");
    assert!(lent.write(&image).unwrap().resumed);
    lent.update().unwrap().verify(&image).unwrap();
}

/// What never becomes ready: a line that is stuck, or a chip.
struct Stuck {
    flags: u8,
    others: u8,
    now: Duration,
}

impl Spi for Stuck {
    fn exchange(&mut self, send: &[u8], receive: &mut [u8]) -> io::Result<()> {
        receive.fill(if send == [0x70] { self.flags } else { self.others });
        Ok(())
    }
    fn now(&self) -> Duration {
        self.now
    }
    fn relax(&mut self, _: u32) {
        self.now += Duration::from_millis(1);
    }
}

#[test]
fn a_chip_that_is_not_the_boards_is_refused_before_anything_is_said_to_it() {
    let mut nor = chip_with(&[], 0);
    nor.id = [0xc2, 0x25, 0x3b];
    let lent = Lent::of(nor);
    let error = lent.write(&data(1, 5000)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "identify the flash: chip c2253b is not the small one (20bb21) of test; name the board that this is"
    );
    assert_eq!(lent.look(|nor| nor.operations), 0);
    let identify =
        |flags, others| Chip::identify(Stuck { flags, others, now: Duration::ZERO }, &SMALL).err().unwrap();
    // stuck at either level; ready never, but busy: somebody is there
    for level in [0xff, 0] {
        let silent = identify(level, level);
        assert!(matches!(silent, Error::NoAnswer { answer, .. } if answer == level), "{silent}");
    }
    let busy = identify(0, 1);
    assert!(matches!(busy, Error::Busy { .. }), "{busy}");
}

#[test]
fn what_is_protected_too_long_or_not_ours_is_refused_before_anything_is_changed() {
    let old = data(1, 5000);
    let refused = |lent: &Lent, image: &[u8]| {
        let before = lent.look(|nor| nor.bytes.clone());
        let error = lent.write(image).unwrap_err();
        assert!(lent.look(|nor| nor.bytes == before && nor.operations == 0), "{error}");
        error
    };
    let protected = |bits| {
        let lent = Lent::of(chip_with(&old, 0));
        lent.look(|nor| nor.protection = bits);
        lent
    };
    // the upper half: bits of four sectors; the image ends below it, or does not
    let lent = protected(3 << 2);
    let error = refused(&lent, &data(2, 2 * SECTOR as usize));
    assert!(matches!(error, Error::WriteProtected { operation: "write", status: 0x0c, .. }), "{error}");
    lent.write(&data(2, SECTOR as usize)).unwrap();
    // everything, by the bit that stands apart
    let lent = protected(1 << 6);
    assert!(matches!(refused(&lent, &old), Error::WriteProtected { .. }));
    // the golden image alone, from the bottom: as it should be
    let lent = protected(1 << 5 | 2 << 2);
    lent.write(&data(2, 70_000)).unwrap();
    assert_eq!(lent.look(|nor| nor.faults.clone()), [""; 0]);
    // too long by a byte
    let room = (SMALL.bytes - SMALL.image()) as usize;
    let lent = Lent::of(chip_with(&old, 0));
    let error = refused(&lent, &vec![0; room + 1]);
    assert!(matches!(error, Error::OutOfRegion { length, .. } if length == room + 1), "{error}");
    // nothing, or nothing that starts
    for (none, says) in [(&[][..], "it is empty"), (&[0xff; 9000], "no synchronisation word")] {
        let error = refused(&lent, none);
        assert!(error.to_string().contains(says), "{error}");
        let error = lent.update().unwrap().verify(none).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    // the gate itself
    let mut update = lent.update().unwrap();
    let chip = update.chip();
    for (at, length) in
        [(0, SECTOR), (2 * SECTOR, SECTOR), (SMALL.guard - SUBSECTOR, SUBSECTOR), (SMALL.bytes, SECTOR)]
    {
        assert!(matches!(chip.erase(at, length), Err(Error::OutOfRegion { .. })), "{at:#x}");
    }
    for (at, length) in [(0, 1), (SMALL.guard - 1, 2), (SMALL.bytes - 1, 2), (u32::MAX, 1)] {
        assert!(matches!(chip.program(at, &vec![0; length]), Err(Error::OutOfRegion { .. })), "{at:#x}");
    }
    assert_eq!(lent.look(|nor| nor.operations), 0);
}

#[test]
fn a_reload_is_refused_where_nothing_would_start() {
    let (image, at) = (data(1, 30_000), SMALL.image() as usize);
    let refused = |lent: &Lent, state: &str| {
        assert_eq!(lent.look(|nor| starts(&nor.bytes, &[&image])), Started::Nothing);
        let error = lent.update().unwrap().demand_start().unwrap_err();
        let says = error.to_string();
        assert!(
            says.contains(&format!("the guard is {state}")) && says.contains("run `write` first"),
            "{error}"
        );
    };
    let starting = |lent: &Lent, started| {
        assert_eq!(lent.look(|nor| starts(&nor.bytes, &[&image])), started);
        lent.update().unwrap().demand_start().unwrap()
    };
    let lent = Lent::of(chip_with(&[], 0));
    refused(&lent, "blank");
    lent.look(|nor| nor.bytes[at..at + image.len()].copy_from_slice(&image));
    assert_eq!(starting(&lent, Started::Image(0)), Guard::Blank);
    lent.update().unwrap().erase(false, |_| {}).unwrap();
    assert_eq!(starting(&lent, Started::Golden), Guard::Armed);
    lent.write(&image).unwrap();
    assert_eq!(starting(&lent, Started::Image(0)), Guard::Released);
    // its word, where the first subsector ends, is too late by a byte
    lent.look(|nor| {
        nor.bytes[at..at + image.len()].fill(0xff);
        nor.bytes[at + 4093..][..4].copy_from_slice(&SYNC.to_be_bytes());
    });
    refused(&lent, "released");
    lent.look(|nor| nor.bytes[SMALL.guard as usize..][..5000].copy_from_slice(&data(7, 5000)));
    assert_eq!(lent.update().unwrap().demand_start().unwrap(), Guard::Foreign);
}

#[test]
fn another_image_in_the_guards_place_is_replaced_only_when_it_is_asked_for() {
    let (theirs, ours) = (data(7, 40_000), data(8, 50_000));
    let mut nor = chip_with(&[], 0);
    let at = SMALL.guard as usize;
    nor.bytes[at..at + theirs.len()].copy_from_slice(&theirs);
    let lent = Lent::of(nor);
    let error = lent.write(&ours).unwrap_err();
    assert!(
        matches!(error, Error::ForeignImage { .. }) && error.to_string().contains("--replace"),
        "{error}"
    );
    assert_eq!(lent.look(|nor| nor.operations), 0);
    lent.update().unwrap().write(&ours, true, |_| {}).unwrap();
    lent.update().unwrap().verify(&ours).unwrap();
}

#[test]
fn a_file_that_is_cut_off_damaged_or_for_another_board_is_refused_by_name() {
    let whole = file("xc-test", &data(4, 6000));
    let image = Image::read(&SMALL, &whole).unwrap();
    assert_eq!(image.data, data(4, 6000));
    let manifest = serde_json::to_string(&image.manifest(&SMALL)).unwrap();
    image.check(&SMALL, &manifest).unwrap();
    // at every length
    for length in 0..whole.len() {
        match Image::read(&SMALL, &whole[..length]) {
            Err(Error::Truncated { have, want }) => {
                assert!(have == length && have < want && want <= whole.len())
            }
            other => panic!("{length} bytes: {other:?}"),
        }
    }
    // a byte is another
    for at in [20, 100, 3000, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        if let Ok(image) = Image::read(&SMALL, &damaged) {
            let error = image.check(&SMALL, &manifest).unwrap_err();
            assert!(matches!(error, Error::WrongHash { .. }), "{at}: {error}");
        }
    }
    let longer = [&whole[..], &[0]].concat();
    for (bytes, says) in [
        (&b"PK\x03\x04"[..], "does not begin"),
        (&longer, "something follows"),
        (&file("xc-test", &vec![0xff; 9000]), "no synchronisation word"),
    ] {
        let error = Image::read(&SMALL, bytes).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let error = Image::read(&SMALL, &file("xc-other", &data(4, 6000))).unwrap_err().to_string();
    assert_eq!(error, "read the bitstream: it is for xc-other, test has xc-test; build it for this board");
    let other = manifest.replace("\"test\"", "\"alveo-u50\"");
    assert!(matches!(image.check(&SMALL, &other), Err(Error::WrongBoard { .. })));
    assert!(matches!(image.check(&SMALL, "{}"), Err(Error::BadManifest { .. })));
}

#[test]
fn the_chip_clears_bits_wraps_pages_and_wants_its_latch() {
    let mut nor = Nor::new([1, 2, 3], SECTOR, 0);
    let say = |nor: &mut Nor, command: &[u8], answer: usize| {
        let mut bytes = vec![0; answer];
        nor.exchange(command, &mut bytes).unwrap();
        bytes
    };
    say(&mut nor, &[0x12, 0, 0, 0, 0, 0], 0);
    assert_eq!((nor.bytes[0], nor.faults.len()), (0xff, 1), "no latch, no change");
    say(&mut nor, &[6], 0);
    assert_eq!(say(&mut nor, &[5], 1), [2]);
    say(&mut nor, &[0x12, 0, 0, 1, 0xfe, 0x0f, 0x11, 0xf0], 0);
    assert_eq!(say(&mut nor, &[5], 1), [1], "busy, latch gone");
    assert_eq!(say(&mut nor, &[0x13, 0, 0, 1, 0xfe], 1), [0xff], "nothing is read meanwhile");
    assert_eq!(nor.faults.len(), 2);
    nor.pass(Duration::from_millis(1));
    assert_eq!(say(&mut nor, &[0x13, 0, 0, 1, 0xfe], 2), [0x0f, 0x11]);
    assert_eq!(nor.bytes[0x100], 0xf0, "wrapped to the beginning of its page");
    say(&mut nor, &[6], 0);
    say(&mut nor, &[0x12, 0, 0, 1, 0xfe, 0x35], 0);
    assert_eq!(nor.bytes[0x1fe], 0x05, "bits are only cleared");
    nor.pass(Duration::from_millis(1));
    say(&mut nor, &[6], 0);
    say(&mut nor, &[0x21, 0, 0, 1, 0x23], 0);
    assert_eq!((nor.bytes[0x1fe], say(&mut nor, &[0x70], 1)), (0xff, vec![0]));
    nor.pass(Duration::from_millis(60));
    assert_eq!(say(&mut nor, &[0x70], 1), [0x80]);
    assert_eq!(say(&mut nor, &[0x9f], 3), [1, 2, 3]);
}

/// A card of which there is nothing but the flash's registers, interpreted, with the chip at its pins.
struct Rtl(Mutex<(Interpreter, Nor, u64)>);

impl Rtl {
    fn new(config: Config, nor: Nor) -> Rtl {
        let mut s = Interpreter::new(&elaborate(&Block(config)).unwrap());
        s.poke("reset", 1);
        s.clock();
        s.poke("reset", 0);
        s.poke("read_ready", 1);
        Rtl(Mutex::new((s, nor, 0)))
    }
    fn clock((s, nor, clocks): &mut (Interpreter, Nor, u64)) {
        let pin = |s: &mut Interpreter, name| s.peek(name) == 1;
        let (select_n, clock, mosi) = (pin(s, "select_n"), pin(s, "clock_out"), pin(s, "mosi"));
        let miso = nor.pins(select_n, clock, mosi);
        s.poke("miso", u64::from(miso));
        s.clock();
        *clocks += 1;
    }
    fn access(&self, write: bool, offset: u64, data: u64, enables: u64) -> u64 {
        let mut all = self.0.lock().unwrap();
        for (pin, value) in [
            ("access_valid", 1),
            ("access_write", u64::from(write)),
            ("access_address", offset & !7),
            ("access_data", data),
            ("access_enables", enables),
        ] {
            all.0.poke(pin, value);
        }
        while all.0.peek("access_ready") == 0 {
            Self::clock(&mut all);
        }
        Self::clock(&mut all);
        all.0.poke("access_valid", 0);
        if write {
            return 0;
        }
        while all.0.peek("read_valid") == 0 {
            Self::clock(&mut all);
        }
        let read = all.0.peek("read");
        Self::clock(&mut all);
        read
    }
}

fn absent<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "only the registers are here"))
}

impl Backend for Rtl {
    fn name(&self) -> &str {
        "rtl"
    }
    fn read32(&self, _: Bar, offset: u64) -> io::Result<u32> {
        let shift = 8 * (offset % 8);
        Ok((self.access(false, offset, 0, 0xf << (offset % 8)) >> shift) as u32)
    }
    fn read64(&self, _: Bar, offset: u64) -> io::Result<u64> {
        Ok(self.access(false, offset, 0, 0xff))
    }
    fn write32(&self, _: Bar, offset: u64, value: u32) -> io::Result<()> {
        self.access(true, offset, u64::from(value) << (8 * (offset % 8)), 0xf << (offset % 8));
        Ok(())
    }
    fn write64(&self, _: Bar, offset: u64, value: u64) -> io::Result<()> {
        self.access(true, offset, value, 0xff);
        Ok(())
    }
    fn config_read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let space = [0xe7, 0x1e, 0x01, 0x00, 0, 0];
        data.copy_from_slice(&space[offset as usize..offset as usize + data.len()]);
        Ok(())
    }
    fn config_write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    unsafe fn map(&self, _: u64, _: &Memory<'_>) -> io::Result<()> {
        absent()
    }
    fn unmap(&self, _: u64, _: u64) -> io::Result<()> {
        absent()
    }
    fn set_irqs(&self, _: &[BorrowedFd<'_>]) -> io::Result<()> {
        absent()
    }
    fn reset(&self) -> io::Result<()> {
        absent()
    }
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![]
    }
    fn now(&self) -> Duration {
        let all = self.0.lock().unwrap();
        Spi::now(&all.1) + Duration::from_nanos(4 * all.2)
    }
    fn relax(&self, turn: u32) {
        let mut all = self.0.lock().unwrap();
        all.1.relax(turn);
        for _ in 0..64 {
            Self::clock(&mut all);
        }
    }
}

#[test]
fn the_driver_loads_an_image_through_the_registers_and_pins_of_the_card() {
    let image = data(5, 700);
    // twice as fast as on a board
    let config = Config { flash_half_clocks: 4, ..Config::full() };
    let rtl = Arc::new(Rtl::new(config, chip_with(&data(1, 300), 0)));
    let mut update = Update::of(Chip::identify(CardSpi::open(rtl.clone()).unwrap(), &SMALL).unwrap());
    assert_eq!(update.guard().unwrap(), Guard::Blank);
    let done = update.write(&image, false, |_| {}).unwrap();
    assert_eq!((done.written, done.resumed), (image.len(), false));
    update.verify(&image).unwrap();
    update.chip().spi().reload().unwrap();
    let all = rtl.0.lock().unwrap();
    golden_is_untouched(&all.1, "through the RTL");
    assert_eq!(starts(&all.1.bytes, &[&image]), Started::Image(0));
    assert_eq!(all.1.faults, [""; 0]);
    println!("{} clocks", all.2);
}

#[test]
fn a_card_without_a_flash_says_so() {
    let rtl = Rtl::new(Config::full(), Nor::new([0; 3], SECTOR, 0));
    let error = CardSpi::open(Arc::new(rtl)).err().unwrap();
    assert!(matches!(error, Error::NoFlash { .. }), "{error}");
}
