//! Every input meets the same card: a child of the process that brought it up carries it out and is forgotten.
//!
//! ```text
//! parent: Machine, up ──fork──> child: run(input) ──> page: how it ended, what of the RTL it used
//!            ^                                          │
//!            └──────────────── waits, one child at a time, reads
//! ```
//! In: an input. Out: [`Outcome`]. A panic of the harness or the end of the child by a signal is a fault like any other.
//! The child is a copy of the thread that forks; it takes no lock that another thread may hold, and leaves by `_exit`.

use crate::machine::{Fault, Machine};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
};

/// Bytes of words from the child.
const TEXT: usize = 64 << 10;
/// Bytes before the words: length and verdict, clocks.
const HEAD: usize = 16;

/// What an input did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The promise that was broken.
    pub fault: Option<String>,
    /// What was done, a line each.
    pub story: String,
    /// Core clocks.
    pub clocks: u64,
    /// For each point of the RTL how often it was passed, 255 and more as 255; empty without a model that counts.
    pub used: Vec<u8>,
}

/// A card that is up, and memory shared with the children.
pub struct Isolated {
    machine: Machine,
    page: NonNull<u8>,
    points: usize,
}

// SAFETY: the page belongs to this value alone, whichever thread has it.
unsafe impl Send for Isolated {}

impl Isolated {
    /// Children of this machine.
    ///
    /// # Errors
    /// No memory.
    pub fn new(machine: Machine) -> std::io::Result<Self> {
        let points = machine.top().coverage().count();
        // SAFETY: a fresh anonymous mapping; nothing else is touched.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                HEAD + TEXT + points,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        match NonNull::new(page.cast::<u8>()) {
            Some(page) if page.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { machine, page, points }),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// The machine, as every input finds it.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    fn page(&mut self) -> &mut [u8] {
        // SAFETY: mapped with this length until drop; while a child writes, the parent waits.
        unsafe { std::slice::from_raw_parts_mut(self.page.as_ptr(), HEAD + TEXT + self.points) }
    }

    /// Carries out an input.
    ///
    /// # Errors
    /// No process can be made.
    pub fn run(&mut self, input: &[u8]) -> std::io::Result<Outcome> {
        self.page().fill(0);
        // SAFETY: the child goes on with its copy of this thread alone, and never returns from `child`.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => return Err(std::io::Error::last_os_error()),
            0 => self.child(input),
            _ => {}
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made; `status` is its own.
        while unsafe { libc::waitpid(pid, &mut status, 0) } == -1 {
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let page = self.page();
        let length = u32::from_le_bytes(page[..4].try_into().expect("4 bytes")) as usize;
        let text = String::from_utf8_lossy(&page[HEAD..HEAD + length.min(TEXT)]).into_owned();
        let (fault, story) = text.split_once('\n').unwrap_or_default();
        let story = story.to_owned();
        let fault = match page[4] {
            1 => None,
            2 => Some(fault.to_owned()),
            _ => Some(format!("the child ended with status {status:#x}")),
        };
        let clocks = u64::from_le_bytes(page[8..16].try_into().expect("8 bytes"));
        Ok(Outcome { fault, story, clocks, used: page[HEAD + TEXT..].to_vec() })
    }

    fn child(&mut self, input: &[u8]) -> ! {
        let before: Vec<u32> = self.machine.top().coverage().collect();
        let clocks = self.machine.clocks();
        std::panic::set_hook(Box::new(|_| {}));
        // Ctrl-C is the parent's to answer: a child that ends by it would look like a fault.
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: ignoring a signal runs no code.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        let end = catch_unwind(AssertUnwindSafe(|| self.machine.run(input)));
        let fault = end.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(Fault(format!("panic: {}", text.unwrap_or_default())))
        });
        let used: Vec<u8> = (self.machine.top().coverage().zip(before))
            .map(|(now, before)| now.wrapping_sub(before).min(255) as u8)
            .collect();
        let clocks = self.machine.clocks() - clocks;
        let broken = fault.as_ref().err().map(|fault| fault.0.replace('\n', " ")).unwrap_or_default();
        let text = format!("{broken}\n{}", self.machine.story().join("\n"));
        let text = &text.as_bytes()[..text.len().min(TEXT)];
        let page = self.page();
        page[HEAD..HEAD + text.len()].copy_from_slice(text);
        page[HEAD + TEXT..].copy_from_slice(&used);
        page[..4].copy_from_slice(&(text.len() as u32).to_le_bytes());
        page[8..16].copy_from_slice(&clocks.to_le_bytes());
        page[4] = if fault.is_ok() { 1 } else { 2 };
        // SAFETY: ends this process without the parent's destructors and handlers.
        unsafe { libc::_exit(0) }
    }
}

impl Drop for Isolated {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, not used after this.
        unsafe { libc::munmap(self.page.as_ptr().cast(), HEAD + TEXT + self.points) };
    }
}
