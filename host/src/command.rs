//! The command queue: one command at a time, each with a bounded wait.
//!
//! ```text
//! entry > command ring > release barrier > register command_producer > card > response ring (phase) > acquire barrier
//! ```
//!
//! In: opcode, object number, context words. Out: the response's words, or an error that names command, object and
//! status. A command that the card could not read was not executed: it is asked again, [`ATTEMPTS`] times in all. One
//! that is not answered in time ends the queue: its answer may still come, so nothing later could be
//! told apart, and memory it concerns may still be in use; the card must be reset. One whose card is gone ends at once, of a
//! card that was pulled within a second.

use crate::device::{write32, write64};
use crate::dma::{DmaBuffer, DmaSpace};
use crate::presence::LOOK;
use crate::{Departure, Error, Result, barrier};
use contract::register as reg;
use contract::ring::phase;
use contract::{CommandEntry, CommandOpcode, CommandResponse, CommandStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Sixteen entries: one page for each ring.
const LOG_DEPTH: u32 = 4;
const ENTRY: usize = CommandEntry::BYTES;
/// How often a command is written that the card cannot read.
const ATTEMPTS: u32 = 4;

pub(crate) struct Commands {
    space: Arc<DmaSpace>,
    requests: DmaBuffer,
    responses: DmaBuffer,
    state: Mutex<State>,
    timeout: Duration,
}

struct State {
    producer: u32,
    dead: bool,
}

/// What a command writes besides its opcode and object number.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Arguments {
    pub(crate) word_mask: u16,
    pub(crate) init_receive: bool,
    pub(crate) init_send: bool,
    pub(crate) reset_all: bool,
    pub(crate) data: [u64; 16],
}

impl Commands {
    /// Gives the card both rings and enables the queue.
    pub(crate) fn start(space: &Arc<DmaSpace>, timeout: Duration) -> Result<Commands> {
        let backend = &*space.backend;
        let requests = DmaBuffer::new(space, (ENTRY << LOG_DEPTH) as u64)?;
        let responses = DmaBuffer::new(space, (ENTRY << LOG_DEPTH) as u64)?;
        write32(backend, reg::COMMAND_ENABLE, 0)?;
        write64(backend, reg::COMMAND_BASE, requests.iova())?;
        write64(backend, reg::RESPONSE_BASE, responses.iova())?;
        write32(backend, reg::COMMAND_LOG_DEPTH, LOG_DEPTH)?;
        write32(backend, reg::COMMAND_PRODUCER, 0)?;
        write32(backend, reg::COMMAND_ENABLE, 1)?;
        let state = Mutex::new(State { producer: 0, dead: false });
        Ok(Commands { space: space.clone(), requests, responses, state, timeout })
    }

    /// Executes one command and waits for its response.
    pub(crate) fn execute(
        &self,
        opcode: CommandOpcode,
        object: u32,
        arguments: &Arguments,
    ) -> Result<[u64; 16]> {
        let mut attempt = 1;
        loop {
            match self.attempt(opcode, object, arguments) {
                Err(Error::CommandRefused { status: CommandStatus::Internal, .. }) if attempt < ATTEMPTS => {
                    tracing::warn!(opcode = opcode.name(), object, attempt, "the card could not read it");
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    fn attempt(&self, opcode: CommandOpcode, object: u32, arguments: &Arguments) -> Result<[u64; 16]> {
        let (backend, presence) = (&*self.space.backend, &self.space.presence);
        let name = || backend.name().to_owned();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.dead {
            return Err(Error::CommandQueueDead { name: name(), opcode, object });
        }
        let index = state.producer;
        let slot = (index as usize & ((1 << LOG_DEPTH) - 1)) * ENTRY;
        let entry = CommandEntry {
            opcode: opcode.code(),
            index: object,
            sequence: index as u16,
            word_mask: arguments.word_mask,
            init_receive: arguments.init_receive,
            init_send: arguments.init_send,
            reset_all: arguments.reset_all,
            ..CommandEntry::default()
        };
        self.requests.write(slot, &entry.with_data(&arguments.data).pack());
        barrier::before_doorbell();
        state.producer = index.wrapping_add(1);
        if let Err(error) = write32(backend, reg::COMMAND_PRODUCER, state.producer & 0xffff) {
            state.dead = true;
            return Err(error);
        }
        let start = backend.now();
        let (mut turn, mut look) = (0u32, LOOK);
        while self.responses.phase(slot + ENTRY - 1) != phase(index, LOG_DEPTH) {
            let waited = backend.now().saturating_sub(start);
            if let Err(error) = self.space.check(opcode.name()) {
                state.dead = true;
                return Err(error);
            }
            if waited >= look && presence.is_off() {
                state.dead = true;
                presence.mark(Departure::Off);
                return Err(presence.gone(opcode.name()));
            }
            if waited >= look {
                look = waited + LOOK;
            }
            if waited > self.timeout {
                state.dead = true;
                return Err(Error::CommandTimeout {
                    name: name(),
                    opcode,
                    object,
                    waited_ms: waited.as_millis(),
                });
            }
            backend.relax(turn);
            turn = turn.saturating_add(1);
        }
        barrier::after_valid();
        let response = CommandResponse::unpack(&self.responses.read(slot));
        let garbled = |what| Error::CommandGarbled { name: name(), opcode, object, what };
        // of an entry that could not be read the card knows neither sequence nor opcode
        if response.status == CommandStatus::Internal.code() {
            return Err(Error::CommandRefused {
                name: name(),
                opcode,
                object,
                status: CommandStatus::Internal,
            });
        }
        if response.sequence != index as u16 || response.opcode != opcode.code() {
            state.dead = true;
            let what = format!("sequence {} instead of {}", response.sequence, index as u16);
            return Err(garbled(format!("{what}, opcode {}", response.opcode)));
        }
        match CommandStatus::from_code(response.status) {
            Some(CommandStatus::Ok) => Ok(response.data()),
            Some(status) => Err(Error::CommandRefused { name: name(), opcode, object, status }),
            None => Err(garbled(format!("status {}", response.status))),
        }
    }
}
