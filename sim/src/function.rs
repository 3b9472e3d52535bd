//! What the host's kernel does with a PCI function for a user of VFIO: the MSI-X table and its descriptors, function
//! level reset with configuration space kept, the events of the root.
//!
//! In: descriptors for vectors, the wish for a reset, the root's [`Event`]s. Out: an increment of the vector's eventfd
//! for each interrupt, everything else as a list ([`Function::take_events`]). The table in BAR4 belongs to this side:
//! vector i has address [`MESSAGE_ADDRESS`] and data i. Never blocks: an eventfd whose counter is full stays full.

use crate::room::Room;
use pcie_sim::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;

/// Address of every interrupt message.
pub const MESSAGE_ADDRESS: u64 = 0xfee0_0000;
/// Device control register, upper byte (PCI Express capability at 0x60): bit 7 starts a function level reset.
const DEVICE_CONTROL_HIGH: usize = 0x69;
/// Message control of MSI-X (capability at 0xa0), upper byte: bit 7 enables.
const MSIX_CONTROL_HIGH: usize = 0xa3;
/// Registers that survive a reset because the kernel saves them: command, cache line, BARs, interrupt line, device,
/// link and device 2 control, MSI-X control.
const KEPT: [(usize, usize); 8] =
    [(0x0c, 1), (0x10, 24), (0x3c, 1), (0x68, 2), (0x70, 2), (0x88, 2), (0xa2, 2), (0x04, 2)];
/// Events that are kept until somebody takes them.
const MOST_EVENTS: usize = 4096;

/// Memory of this process that a driver has mapped for its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First byte in this process.
    pub address: u64,
    /// Its IO address.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
}

/// One function as its host sees it.
#[derive(Debug, Default)]
pub struct Function {
    vectors: Vec<Option<OwnedFd>>,
    events: Vec<Event>,
    /// In the order in which they were made.
    pub(crate) mappings: Vec<Mapping>,
    /// Interrupts that had a descriptor.
    interrupts: u64,
    saved: Option<Vec<Vec<u8>>>,
}

impl Function {
    fn notice(&mut self, event: Event) -> bool {
        match &event {
            Event::Msix { address: MESSAGE_ADDRESS, data, .. } => {
                if let Some(Some(fd)) = self.vectors.get(*data as usize) {
                    ring(fd);
                    self.interrupts += 1;
                    return false;
                }
            }
            Event::ResetDone { .. } => {
                self.events.push(event);
                return true;
            }
            _ => {}
        }
        if self.events.len() < MOST_EVENTS {
            self.events.push(event);
        }
        false
    }
}

/// Rings an eventfd. One whose counter is full is an interrupt that is pending anyway; it belongs to the client, who may
/// have made it blocking, so it is asked first.
fn ring(fd: &OwnedFd) {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0) {
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }
}

impl Room {
    /// Looks at what the roots have told: raises interrupts, ends resets, keeps the rest.
    pub fn attend(&mut self) {
        for card in 0..self.cards().len() {
            let mut done = false;
            for event in self.host(card, |root, _| root.take_events()) {
                done |= self.functions[card].notice(event);
            }
            if done {
                self.restore(card);
            }
        }
    }

    /// Takes what happened at a card's root beside interrupts that had a descriptor.
    pub fn take_events(&mut self, card: usize) -> Vec<Event> {
        self.attend();
        std::mem::take(&mut self.functions[card].events)
    }

    /// What the driver of a card in this process has mapped, oldest first.
    pub fn mappings(&self, card: usize) -> &[Mapping] {
        &self.functions[card].mappings
    }

    /// Interrupts of a card that reached a descriptor.
    pub fn interrupts(&self, card: usize) -> u64 {
        self.functions[card].interrupts
    }

    /// Connects vectors from `first` on with these descriptors, or disconnects them; MSI-X is on while any is connected.
    pub fn set_vectors(&mut self, card: usize, first: usize, descriptors: Vec<Option<OwnedFd>>) {
        let vectors = &mut self.functions[card].vectors;
        let end = first + descriptors.len();
        if vectors.len() < end {
            vectors.resize_with(end, || None);
        }
        for (place, fd) in vectors[first..].iter_mut().zip(descriptors) {
            *place = fd;
        }
        for vector in first..end {
            self.program_vector(card, vector);
        }
        self.enable_msix(card);
    }

    /// Disconnects every vector.
    pub fn clear_vectors(&mut self, card: usize) {
        let all = self.functions[card].vectors.len();
        self.set_vectors(card, 0, (0..all).map(|_| None).collect());
        self.functions[card].vectors.clear();
    }

    fn enable_msix(&mut self, card: usize) {
        let any = self.functions[card].vectors.iter().any(Option::is_some);
        self.host(card, |root, now| {
            let mut byte = [0];
            root.config_read(now, MSIX_CONTROL_HIGH, &mut byte);
            root.config_write(now, MSIX_CONTROL_HIGH, &[byte[0] & 0x3f | u8::from(any) << 7]);
        });
    }

    fn program_vector(&mut self, card: usize, vector: usize) {
        if !self.cards()[card].root().sideband().memory_enable {
            return;
        }
        let masked = u32::from(self.functions[card].vectors[vector].is_none());
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&MESSAGE_ADDRESS.to_le_bytes());
        entry[8..12].copy_from_slice(&(vector as u32).to_le_bytes());
        entry[12..].copy_from_slice(&masked.to_le_bytes());
        self.host(card, |root, now| root.mmio_write(now, 4, vector as u64 * 16, &entry));
    }

    /// Starts a function level reset. It ends while time passes: [`Room::is_resetting`].
    pub fn start_reset(&mut self, card: usize) {
        if self.functions[card].saved.is_some() {
            return;
        }
        let saved = self.host(card, |root, now| {
            let saved = KEPT.map(|(offset, length)| {
                let mut bytes = vec![0; length];
                root.config_read(now, offset, &mut bytes);
                bytes
            });
            let mut byte = [0];
            root.config_read(now, DEVICE_CONTROL_HIGH, &mut byte);
            root.config_write(now, DEVICE_CONTROL_HIGH, &[byte[0] | 0x80]);
            saved
        });
        self.functions[card].saved = Some(saved.into());
    }

    /// The client of a card is gone, however it ended: its memory is unmapped, its interrupts are disconnected, and the
    /// function is reset. Whoever sees the end of that enumerates it for the next.
    pub fn client_is_gone(&mut self, card: usize) {
        self.functions[card].mappings.clear();
        self.host(card, |root, _| root.memory_mut().clear());
        self.clear_vectors(card);
        self.start_reset(card);
    }

    /// Whether a function level reset is under way.
    pub fn is_resetting(&self, card: usize) -> bool {
        self.functions[card].saved.is_some()
    }

    fn restore(&mut self, card: usize) {
        let Some(saved) = self.functions[card].saved.take() else { return };
        self.host(card, |root, now| {
            for ((offset, _), bytes) in KEPT.iter().zip(saved) {
                root.config_write(now, *offset, &bytes);
            }
        });
        for vector in 0..self.functions[card].vectors.len() {
            self.program_vector(card, vector);
        }
    }
}
