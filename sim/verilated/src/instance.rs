//! Loaded models and their instances.
//!
//! In: the path of a built `model.so`. Out: [`Model`] (ports by name, instances) and [`Instance`] (one copy of the
//! hardware). An access is an identity check, a pointer fetch and one load or store; `eval` is one indirect call.

use crate::{Direction, Error, Input, Output, Port, PortInfo, Source, ports::Storage};
use std::{
    collections::HashMap,
    ffi::{CStr, CString, c_char, c_int, c_void},
    fs::File,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

/// Version of the shim's table, first word of it.
const ABI: u32 = 1;

#[repr(C)]
struct ShimPort {
    name: *const c_char,
    input: u32,
    width: u32,
    bytes: u32,
}

/// The shim's table; the same fields in the same order as in `cxx/shim.cpp`.
#[repr(C)]
struct Table {
    abi: u32,
    traced: u32,
    ports: *const ShimPort,
    create: unsafe extern "C" fn(*mut *mut c_void) -> *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
    eval: unsafe extern "C" fn(*mut c_void) -> c_int,
    failure: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    set_time: unsafe extern "C" fn(*mut c_void, u64),
    trace_open: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
    trace_dump: unsafe extern "C" fn(*mut c_void, u64),
    trace_flush: unsafe extern "C" fn(*mut c_void),
    trace_close: unsafe extern "C" fn(*mut c_void),
}

/// A point as `cxx/coverage.cpp` keeps it.
#[repr(C)]
struct ShimPoint {
    counter: *const u32,
    line: u32,
    page: *const c_char,
    comment: *const c_char,
}

/// A point that a model with coverage counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoverPoint {
    /// Module of the Verilog.
    pub module: String,
    /// Line of the Verilog.
    pub line: u32,
    /// `if`, `else`, `block`, the name of a `cover`, or the signal's bit.
    pub what: String,
}

type CoverageFn = unsafe extern "C" fn(*mut usize) -> *const ShimPoint;

struct Loaded {
    /// Points into `library`, which is dropped after it.
    table: *const Table,
    ports: Vec<PortInfo>,
    path: PathBuf,
    /// Distinguishes the models of this process; handles carry it.
    id: u32,
    coverage: Option<CoverageFn>,
    _library: libloading::Library,
}

// SAFETY: the table is constant data of a library that stays loaded as long as `Loaded` lives, and its functions may
// be called from any thread as long as one handle is used by one thread at a time, which `Instance` ensures.
unsafe impl Send for Loaded {}
// SAFETY: as above; nothing in `Loaded` changes after loading.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn table(&self) -> &Table {
        // SAFETY: `table` points to the constant of the library held by `self`.
        unsafe { &*self.table }
    }
}

/// A built and loaded model, shared by its instances. Clones are the same model.
#[derive(Clone)]
pub struct Model {
    loaded: Arc<Loaded>,
    top: Arc<str>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("top", &self.top)
            .field("path", &self.loaded.path)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Builds the source unless the cache has it, and loads it. Blocks for the length of the build.
    ///
    /// # Errors
    /// A tool is missing, Verilator or the compiler refuses, a file cannot be written or loaded.
    pub fn build(source: &Source<'_>) -> Result<Self, Error> {
        let path = source.build()?;
        Ok(Self { loaded: load(&path)?, top: source.top.into() })
    }

    /// Name of the top module.
    pub fn top(&self) -> &str {
        &self.top
    }

    /// The shared object; beside it stand `model.sv` and `verilator.log`.
    pub fn path(&self) -> &Path {
        &self.loaded.path
    }

    /// Whether instances can write waves.
    pub fn traced(&self) -> bool {
        self.loaded.table().traced != 0
    }

    /// All ports, in Verilator's order.
    pub fn ports(&self) -> &[PortInfo] {
        &self.loaded.ports
    }

    /// Resolves an input of the given width in bits.
    ///
    /// # Errors
    /// No such port, it is an output, or its width differs.
    pub fn input(&self, name: &str, width: u32) -> Result<Input, Error> {
        self.resolve(name, Direction::Input, width).map(Input)
    }

    /// Resolves an output of the given width in bits.
    ///
    /// # Errors
    /// No such port, it is an input, or its width differs.
    pub fn output(&self, name: &str, width: u32) -> Result<Output, Error> {
        self.resolve(name, Direction::Output, width).map(Output)
    }

    fn resolve(&self, name: &str, direction: Direction, width: u32) -> Result<Port, Error> {
        let top = || self.top.to_string();
        let Some(slot) = self.ports().iter().position(|port| port.name == name) else {
            let known: Vec<_> = self.ports().iter().map(|port| port.name.as_str()).collect();
            return Err(Error::NoPort { top: top(), name: name.into(), known: known.join(", ") });
        };
        let port = &self.ports()[slot];
        if port.direction != direction {
            let (actual, wanted) = (port.direction.name(), direction.name());
            return Err(Error::Direction { top: top(), name: name.into(), actual, wanted });
        }
        if port.width != width {
            return Err(Error::Width { top: top(), name: name.into(), actual: port.width, wanted: width });
        }
        Ok(Port::new(self.loaded.id, slot, width))
    }

    /// A new copy of the hardware: inputs and state without an initial value are zero, nothing is evaluated yet.
    ///
    /// # Errors
    /// Out of memory.
    pub fn instance(&self) -> Result<Instance, Error> {
        let mut pointers = vec![std::ptr::null_mut(); self.ports().len()];
        // SAFETY: the shim writes exactly one pointer per port of its table.
        let handle = unsafe { (self.loaded.table().create)(pointers.as_mut_ptr()) };
        let handle = NonNull::new(handle).ok_or_else(|| Error::Memory { top: self.top.to_string() })?;
        let mut points = 0;
        let coverage: &'static [ShimPoint] = match self.loaded.coverage {
            // SAFETY: the points of the instance made last on this thread, which is this one; they stay where they are
            // until it is destroyed.
            Some(all) => unsafe {
                let first = all(&mut points);
                if first.is_null() { &[] } else { std::slice::from_raw_parts(first, points) }
            },
            None => &[],
        };
        Ok(Instance {
            coverage,
            handle,
            pointers: pointers.into(),
            eval: self.loaded.table().eval,
            id: self.loaded.id,
            stopped: false,
            dumped: None,
            tracing: false,
            model: self.clone(),
        })
    }
}

/// Loads a shared object, or finds it loaded: one file is one model, so that handles fit all of its instances.
fn load(path: &Path) -> Result<Arc<Loaded>, Error> {
    static LOADED: OnceLock<Mutex<HashMap<PathBuf, Weak<Loaded>>>> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let refuse = |message: String| Error::Load { path: path.into(), message };
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().unwrap_or_else(|poison| poison.into_inner());
    if let Some(found) = loaded.get(path).and_then(Weak::upgrade) {
        return Ok(found);
    }
    // SAFETY: the object was built by this crate from a hash of its content; its only initialisers are those of
    // Verilator's runtime.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| refuse(error.to_string()))?;
    // SAFETY: the shim exports this symbol as a constant of type Table; its version is checked next.
    let table = unsafe { library.get::<*const Table>(b"verilated_model") }
        .map_err(|error| refuse(error.to_string()))?;
    let table: *const Table = *table;
    // SAFETY: `abi` is the first word of every version of the table.
    let abi = unsafe { (*table).abi };
    if abi != ABI {
        return Err(refuse(format!("its table has version {abi}, this program speaks {ABI}")));
    }
    let mut ports = Vec::new();
    // SAFETY: the port list is constant, NUL-terminated strings, ended by an entry whose name is null.
    unsafe {
        let mut port = (*table).ports;
        while !(*port).name.is_null() {
            let name = CStr::from_ptr((*port).name).to_string_lossy().into_owned();
            let (width, bytes) = ((*port).width, (*port).bytes);
            // The compiler's own size of the member: accesses below rest on it.
            if bytes != Storage::bytes(width) {
                return Err(refuse(format!("port `{name}` of {width} bits is stored in {bytes} bytes")));
            }
            let direction = if (*port).input == 0 { Direction::Output } else { Direction::Input };
            ports.push(PortInfo { name, direction, width });
            port = port.add(1);
        }
    }
    // SAFETY: only `cxx/coverage.cpp` exports a symbol of this name.
    let coverage = unsafe { library.get::<CoverageFn>(b"verilated_coverage") }.ok().map(|symbol| *symbol);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = Arc::new(Loaded { table, ports, path: path.into(), id, coverage, _library: library });
    loaded.retain(|_, model| model.strong_count() > 0);
    loaded.insert(path.into(), Arc::downgrade(&new));
    Ok(new)
}

/// One copy of the hardware. Lives on one thread at a time and may be moved between threads.
pub struct Instance {
    handle: NonNull<c_void>,
    /// One per port, into the model's own memory.
    pointers: Box<[*mut c_void]>,
    eval: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// Of a model with coverage: in the model's memory, alive as long as the handle.
    coverage: &'static [ShimPoint],
    id: u32,
    stopped: bool,
    dumped: Option<u64>,
    tracing: bool,
    model: Model,
}

// SAFETY: the handle and the port pointers are owned by this instance alone; the shim keeps nothing about it in
// thread-local storage between calls that outlive it.
unsafe impl Send for Instance {}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Instance {
    /// The model that this is an instance of.
    pub fn model(&self) -> &Model {
        &self.model
    }

    #[inline(always)]
    fn pointer(&self, port: Port) -> *mut c_void {
        if port.model != self.id {
            self.foreign();
        }
        // SAFETY: a handle of this model has a slot below the number of its ports, which is the table's length.
        unsafe { *self.pointers.get_unchecked(port.slot as usize) }
    }

    #[cold]
    #[inline(never)]
    fn foreign(&self) -> ! {
        panic!(
            "a port handle of another model was used on an instance of `{}`; resolve it on this model",
            self.model.top
        )
    }

    #[cold]
    #[inline(never)]
    fn too_wide(&self, port: Port) -> ! {
        let name = &self.model.ports()[port.slot as usize].name;
        panic!("port `{name}` of `{}` has {} bits: use set_wide and get_wide", self.model.top, port.width)
    }

    #[cold]
    #[inline(never)]
    fn wrong_words(&self, port: Port, words: usize) -> ! {
        let name = &self.model.ports()[port.slot as usize].name;
        panic!("port `{name}` of `{}` has {} words, the slice {words}", self.model.top, port.words())
    }

    /// Drives an input of up to 64 bits. Bits above its width are dropped (an assertion in debug builds).
    ///
    /// # Panics
    /// The handle is of another model, or the port has more than 64 bits.
    #[inline(always)]
    pub fn set(&mut self, port: Input, value: u64) {
        let port = port.0;
        let pointer = self.pointer(port);
        debug_assert!(
            port.storage == Storage::Words || value & !port.mask == 0,
            "{value:#x} does not fit the {} bits of `{}`",
            port.width,
            self.model.ports()[port.slot as usize].name
        );
        let value = value & port.mask;
        // SAFETY: the pointer is to this instance's port, whose size was checked against `storage` when it was loaded;
        // `&mut self` excludes other accesses.
        unsafe {
            match port.storage {
                Storage::U8 => pointer.cast::<u8>().write(value as u8),
                Storage::U16 => pointer.cast::<u16>().write(value as u16),
                Storage::U32 => pointer.cast::<u32>().write(value as u32),
                Storage::U64 => pointer.cast::<u64>().write(value),
                Storage::Words => self.too_wide(port),
            }
        }
    }

    /// Reads a port of up to 64 bits, as of the last `eval`.
    ///
    /// # Panics
    /// The handle is of another model, or the port has more than 64 bits.
    #[inline(always)]
    pub fn get(&self, port: impl Into<Port>) -> u64 {
        let port = port.into();
        let pointer = self.pointer(port);
        // SAFETY: as in `set`; `&self` excludes writers.
        unsafe {
            match port.storage {
                Storage::U8 => u64::from(pointer.cast::<u8>().read()),
                Storage::U16 => u64::from(pointer.cast::<u16>().read()),
                Storage::U32 => u64::from(pointer.cast::<u32>().read()),
                Storage::U64 => pointer.cast::<u64>().read(),
                Storage::Words => self.too_wide(port),
            }
        }
    }

    /// Drives an input of any width from 32-bit words, least significant first. Bits above the width are dropped.
    ///
    /// # Panics
    /// The handle is of another model, or `words` is not as long as the port ([`Port::words`]).
    #[inline]
    pub fn set_wide(&mut self, port: Input, words: &[u32]) {
        let handle = port;
        let port = port.0;
        if words.len() != port.words() {
            self.wrong_words(port, words.len());
        }
        if port.storage != Storage::Words {
            let high = words.get(1).map_or(0, |&word| u64::from(word) << 32);
            return self.set(handle, high | u64::from(words[0]));
        }
        let pointer = self.pointer(port).cast::<u32>();
        let last = words.len() - 1;
        // SAFETY: as in `set`; the port has as many words as the slice, checked above.
        unsafe {
            std::ptr::copy_nonoverlapping(words.as_ptr(), pointer, last);
            pointer.add(last).write(words[last] & port.mask as u32);
        }
    }

    /// Reads a port of any width into 32-bit words, least significant first.
    ///
    /// # Panics
    /// The handle is of another model, or `words` is not as long as the port ([`Port::words`]).
    #[inline]
    pub fn get_wide(&self, port: impl Into<Port>, words: &mut [u32]) {
        let port = port.into();
        if words.len() != port.words() {
            self.wrong_words(port, words.len());
        }
        if port.storage != Storage::Words {
            let value = self.get(port);
            words[0] = value as u32;
            if let Some(high) = words.get_mut(1) {
                *high = (value >> 32) as u32;
            }
            return;
        }
        let pointer = self.pointer(port).cast::<u32>();
        // SAFETY: as in `get`; the port has as many words as the slice, checked above.
        unsafe { std::ptr::copy_nonoverlapping(pointer, words.as_mut_ptr(), words.len()) }
    }

    /// What this instance counts; empty unless its model was built with coverage. Instances of one model count the same
    /// points in the same order.
    pub fn cover_points(&self) -> Vec<CoverPoint> {
        // SAFETY: the texts live as long as the handle.
        let text = |text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        let point = |point: &ShimPoint| {
            let page = text(point.page);
            let module = page.rsplit('/').next().unwrap_or_default().into();
            CoverPoint { module, line: point.line, what: text(point.comment) }
        };
        self.coverage.iter().map(point).collect()
    }

    /// How often each point of [`Instance::cover_points`] was passed since the instance was made (modulo 2^32).
    pub fn coverage(&self) -> impl Iterator<Item = u32> {
        // SAFETY: the counters live as long as the handle, and only `eval` writes them.
        self.coverage.iter().map(|point| unsafe { *point.counter })
    }

    /// Settles the logic for the present inputs; a clock input that rose since the last call is an edge. The first call
    /// runs `initial` blocks and sees no edge: make it with the clocks low.
    ///
    /// # Errors
    /// The model stopped. It stays stopped: every later call returns the same error.
    #[inline]
    pub fn eval(&mut self) -> Result<(), Error> {
        // SAFETY: the handle is this instance's, alive until drop.
        if self.stopped || unsafe { (self.eval)(self.handle.as_ptr()) } != 0 {
            Err(self.stop())
        } else {
            Ok(())
        }
    }

    #[cold]
    #[inline(never)]
    fn stop(&mut self) -> Error {
        self.stopped = true;
        // SAFETY: the shim returns a string that lives in the handle until the next eval, which cannot come.
        let message = unsafe { CStr::from_ptr((self.model.loaded.table().failure)(self.handle.as_ptr())) };
        Error::Stopped { top: self.model.top.to_string(), message: message.to_string_lossy().into_owned() }
    }

    /// Sets what `$time` and the messages of assertions say, in ps. The model does not otherwise know time.
    #[inline]
    pub fn set_time(&mut self, time: u64) {
        // SAFETY: the handle is this instance's.
        unsafe { (self.model.loaded.table().set_time)(self.handle.as_ptr(), time) }
    }

    /// Starts to write waves to an FST file, of which one is open at a time: an open one is closed first.
    ///
    /// # Errors
    /// The model was built without tracing, or the file cannot be created.
    pub fn trace(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        if !self.model.traced() {
            return Err(Error::NotTraced { top: self.model.top.to_string() });
        }
        self.trace_end();
        // The FST writer reports nothing: whether the file can be created is asked here.
        File::create(path).map_err(Error::file("create", path))?;
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|error| Error::file("create", path)(std::io::Error::other(error)))?;
        // SAFETY: the handle is this instance's, the name a C string that the shim does not keep.
        let open = unsafe { (self.model.loaded.table().trace_open)(self.handle.as_ptr(), name.as_ptr()) };
        if open == 0 {
            return Err(Error::file("create", path)(std::io::Error::other("the FST writer refused it")));
        }
        self.tracing = true;
        self.dumped = None;
        Ok(())
    }

    /// Writes the present values into the open trace at `time` ps; does nothing when none is open.
    ///
    /// # Errors
    /// `time` is not after the last one dumped into this file.
    #[inline]
    pub fn dump(&mut self, time: u64) -> Result<(), Error> {
        if !self.tracing {
            return Ok(());
        }
        if let Some(last) = self.dumped.filter(|&last| last >= time) {
            return Err(Error::TimeOrder { top: self.model.top.to_string(), time, last });
        }
        self.dumped = Some(time);
        self.set_time(time);
        // SAFETY: the handle is this instance's.
        unsafe { (self.model.loaded.table().trace_dump)(self.handle.as_ptr(), time) }
        Ok(())
    }

    /// Whether a trace is open.
    #[inline]
    pub fn tracing(&self) -> bool {
        self.tracing
    }

    /// Brings what was dumped so far into the file, for a viewer that looks while the simulation runs.
    pub fn trace_flush(&mut self) {
        // SAFETY: the handle is this instance's.
        unsafe { (self.model.loaded.table().trace_flush)(self.handle.as_ptr()) }
    }

    /// Closes the trace; a new one may be started later. Dropping the instance does the same.
    pub fn trace_end(&mut self) {
        self.tracing = false;
        // SAFETY: the handle is this instance's.
        unsafe { (self.model.loaded.table().trace_close)(self.handle.as_ptr()) }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: the handle is this instance's and not used again; the library is alive, held by `model`.
        unsafe { (self.model.loaded.table().destroy)(self.handle.as_ptr()) }
    }
}
