//! Cards for other processes: a vfio-user socket per card, one thread that owns the room, paced time.
//!
//! ```text
//! client ── socket ── protocol thread ── requests ──▶ room thread: cards, wire, clock
//! client ── socket ── protocol thread ──┘        ◀── answers, eventfds, the clients' memory
//! QEMU ──── UDP ───── reader's thread ──┘        ──▶ UDP: frames, when side B of the wire is a port
//! ```
//!
//! In: connections to `DIR/cardN.sock`. Out: PCI functions with regions, DMA, interrupts and reset, as the VFIO of a
//! kernel gives them, and a request for the card back. One client per card; a second connection is refused in words that name the holder. When a client
//! goes away, however it ends, its memory is unmapped, the function is reset and enumerated again, and the next may come. A
//! client whose posted writes outrun the model waits in its own protocol thread.
//!
//! Time is paced: while a card, the wire or a root is busy the room advances as fast as it can; while all are quiet it
//! follows the wall clock 1:1, counted from the moment at which it became quiet, and sleeps. A write is queued and
//! answered at once, a read waits a bounded time; the protocol never waits for the model otherwise.
//!
//! Never: two clients in one card, a descriptor or a mapping that outlives its client, a busy loop while quiet.

mod pace;
mod protocol;

use crate::{Error, room::Room, wire::dgram::Dgram};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{DirBuilderExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

pub use pace::Summary;

/// Longest wait for a client's cleaning up before the next is refused.
const CLEANING: Duration = Duration::from_secs(5);

/// A room that is served.
pub struct Server {
    sockets: Vec<PathBuf>,
    holders: Vec<Arc<Holder>>,
    requests: mpsc::Sender<pace::Request>,
    stopping: Arc<AtomicBool>,
    port: Option<Dgram>,
    room: Option<JoinHandle<Result<Summary, Error>>>,
}

/// Who holds a card.
#[derive(Default)]
struct Holder {
    held: Mutex<Option<Held>>,
    freed: Condvar,
}

struct Held {
    pid: i32,
    /// Its connection, to see whether it has ended before its own thread sees it.
    stream: UnixStream,
    /// Where it hears that the card is wanted back.
    request: Option<OwnedFd>,
}

impl Held {
    /// Its connection has ended, or it is being cleaned up after.
    fn is_leaving(&self) -> bool {
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL | PollFlags::RDHUP;
        let mut fds = [PollFd::new(&self.stream, ended)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_err() || fds[0].revents().intersects(ended)
    }
}

impl Holder {
    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the card for the process `pid` at the other end of `stream`; the present holder's process if it stays held.
    /// A holder that has hung up is waited for: its card is being reset.
    fn take(&self, pid: i32, stream: UnixStream) -> Result<(), i32> {
        let leaving = |held: &mut Option<Held>| held.as_ref().is_some_and(Held::is_leaving);
        let (mut held, _) = self
            .freed
            .wait_timeout_while(self.lock(), CLEANING, leaving)
            .unwrap_or_else(PoisonError::into_inner);
        match &*held {
            Some(holder) => Err(holder.pid),
            None => {
                *held = Some(Held { pid, stream, request: None });
                Ok(())
            }
        }
    }

    /// Where the client listens for the request for its card.
    fn listen(&self, request: Option<OwnedFd>) {
        if let Some(held) = self.lock().as_mut() {
            held.request = request;
        }
    }

    /// Asks the client for its card; whether one listens.
    fn ask(&self) -> io::Result<bool> {
        let held = self.lock();
        let Some(request) = held.as_ref().and_then(|held| held.request.as_ref()) else { return Ok(false) };
        Ok(rustix::io::write(request, &1u64.to_ne_bytes()).map(|_| true)?)
    }

    /// Hangs up if the client has not: whoever comes now waits.
    fn leave(&self) {
        if let Some(held) = self.lock().as_ref() {
            let _ = held.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn free(&self) {
        *self.lock() = None;
        self.freed.notify_all();
    }
}

impl Server {
    /// Serves the cards of a room that is powered on, with sockets in `directory`, which is made with mode 0700.
    ///
    /// # Errors
    /// The directory or a socket cannot be made, or another simulator serves there.
    pub fn start(room: Room, directory: &Path) -> Result<Self, Error> {
        let refuse = |path: &Path| {
            let path = path.to_path_buf();
            move |source| Error::File { path, source }
        };
        own(directory).map_err(refuse(directory))?;
        let (requests, inbox) = mpsc::channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let mut server = Server {
            sockets: Vec::new(),
            holders: Vec::new(),
            requests: requests.clone(),
            stopping: stopping.clone(),
            port: None,
            room: None,
        };
        for (card, shape) in room.cards().iter().map(protocol::Shape::of).enumerate() {
            let path = directory.join(format!("card{card}.sock"));
            let listener = listen(&path).map_err(refuse(&path))?;
            server.sockets.push(path);
            let holder = Arc::<Holder>::default();
            server.holders.push(holder.clone());
            let door = protocol::Door { card, shape, requests: requests.clone(), holder };
            let stopping = stopping.clone();
            std::thread::spawn(move || door.keep(&listener, &stopping));
        }
        server.room = Some(std::thread::spawn(move || pace::run(room, &inbox)));
        Ok(server)
    }

    /// Makes side B of the wire a port: what leaves there goes out of `port`, what comes in enters there. A second card, or
    /// an endpoint, has no port.
    pub fn open_port(&mut self, port: Dgram) {
        self.port = Some(port.clone());
        let _ = self.requests.send(pace::Request::Port(port.clone()));
        let (requests, stopping) = (self.requests.clone(), self.stopping.clone());
        std::thread::spawn(move || {
            while let Ok(frame) = port.receive() {
                let ended = stopping.load(Ordering::Acquire);
                if ended || (!frame.is_empty() && requests.send(pace::Request::Frame(frame)).is_err()) {
                    return;
                }
            }
        });
    }

    /// The sockets, one per card.
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// Whether the room still runs: it ends by itself only when a model stops or a file cannot be written.
    pub fn is_running(&self) -> bool {
        self.room.as_ref().is_some_and(|room| !room.is_finished())
    }

    /// What has passed so far.
    pub fn summary(&self) -> Option<Summary> {
        let (reply, answer) = mpsc::channel();
        self.requests.send(pace::Request::Summary(reply)).ok()?;
        answer.recv_timeout(Duration::from_secs(10)).ok()
    }

    /// Asks whoever holds the card to let go of it, as a kernel does that is to remove it; false: nobody listens. Until the
    /// client has gone nothing changes.
    ///
    /// # Errors
    /// What the client listens at cannot be written.
    pub fn want_back(&self, card: usize) -> io::Result<bool> {
        self.holders.get(card).map_or(Ok(false), |holder| holder.ask())
    }

    /// Changes the room between two instants.
    pub fn change(&self, change: impl FnOnce(&mut Room) + Send + 'static) {
        // A room that has ended says why in `stop`.
        let _ = self.requests.send(pace::Request::Change(Box::new(change)));
    }

    /// Ends the service, removes the sockets, finishes captures and logs.
    ///
    /// # Errors
    /// What ended the room early, or a file that cannot be written.
    pub fn stop(mut self) -> Result<Summary, Error> {
        self.close();
        match self.room.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Summary::default()),
        }
    }

    fn close(&self) {
        self.stopping.store(true, Ordering::Release);
        let _ = self.requests.send(pace::Request::Stop);
        if let Some(port) = &self.port {
            port.wake();
        }
        for socket in &self.sockets {
            // Wakes the thread that waits at the door.
            let _ = UnixStream::connect(socket);
            let _ = fs::remove_file(socket);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
        if let Some(room) = self.room.take() {
            let _ = room.join();
        }
    }
}

/// Makes the directory, or checks that it is this user's, and closes it to all others.
fn own(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let data = fs::metadata(directory)?;
    if data.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the directory is another user's"));
    }
    if data.mode() & 0o077 != 0 {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Binds a socket; one that nobody listens to any more is replaced.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if path.exists() {
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another simulator serves there; end it, or set VERBENA_RUN to another directory",
            ));
        }
        fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}
