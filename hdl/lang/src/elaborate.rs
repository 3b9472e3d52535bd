//! Elaboration: running the Rust description of a module once, recording what it says.
//!
//! A module is any value that implements [`Module`]; its `Debug` text is its identity, so that one Verilog module
//! comes out per distinct configuration. Clock and reset are implicit: the first register, memory or clocked child
//! of a module makes the ports `clock` and `reset`. Further clocks are [`Domain`]s.

use crate::bits::Bits;
use crate::check;
use crate::error::{Error, Place, Rule, refuse};
use crate::ir::*;
use crate::ports::{PortBuilder, Ports};
use crate::sig::Sig;
use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

/// A piece of hardware: a configuration (`self`), its ports, and the description of its inside.
pub trait Module: Debug + 'static {
    /// The ports, the same record inside and at an instance.
    type Io: Ports<Config = Self>;
    /// Name of the emitted Verilog module; must tell configurations apart.
    fn name(&self) -> String;
    /// One line that is emitted above the module.
    fn doc(&self) -> String {
        String::new()
    }
    /// Describes the inside. Not called for a black box.
    fn body(&self, io: &Self::Io);
    /// `Some(parameters)` makes this a black box: instantiated, never emitted.
    fn external(&self) -> Option<Vec<(String, Parameter)>> {
        None
    }
}

/// A clock with its synchronous reset, in the module that made it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Domain {
    pub(crate) index: usize,
    pub(crate) module: u32,
}

/// A whole elaborated and checked design; the last module is the top.
#[derive(Debug)]
pub struct Design {
    pub(crate) modules: Vec<ModuleDef>,
}

pub(crate) struct Builder {
    pub uid: u32,
    pub def: ModuleDef,
    /// Open statement lists, innermost last.
    blocks: Vec<Vec<Stmt>>,
    pub names: HashSet<String>,
    scopes: Vec<String>,
    /// Anonymous constants, constants of enums by label, and anonymous operators that exist.
    pub constants: HashMap<Bits, Id>,
    pub labels: HashMap<String, Id>,
    pub operations: HashMap<(Op, Vec<Id>, u32), Id>,
    domains: Vec<usize>,
    implicit: Option<usize>,
}

#[derive(Default)]
struct Context {
    stack: Vec<Builder>,
    done: Vec<ModuleDef>,
    known: HashMap<(TypeId, String), usize>,
    names: HashMap<String, usize>,
    next_uid: u32,
}

thread_local! { static CONTEXT: RefCell<Context> = RefCell::default(); }

pub(crate) fn with<R>(f: impl FnOnce(&mut Builder) -> R) -> R {
    CONTEXT.with(|c| {
        f(c.borrow_mut().stack.last_mut().expect("hardware can be described only inside of `hdl::elaborate`"))
    })
}

pub(crate) fn fail(rule: Rule, place: Place, message: impl Into<String>) -> ! {
    let module = CONTEXT.with(|c| c.borrow().stack.last().map(|m| m.def.name.clone())).unwrap_or_default();
    refuse(Error { rule, module, message: message.into(), place })
}

impl Builder {
    pub fn node(&mut self, kind: Kind, width: u32, name: Option<String>, place: Place) -> Sig {
        let id = self.def.nodes.len() as Id;
        self.def.nodes.push(Node { kind, width, name, place, attributes: vec![] });
        Sig { id, width, module: self.uid }
    }
    pub fn push(&mut self, statement: Stmt) {
        self.blocks.last_mut().expect("a statement list is always open").push(statement);
    }
    /// Claims `name` (with the open scopes before it) or says why not.
    fn claim(&mut self, name: &str) -> Result<String, (Rule, String)> {
        let mut full = self.scopes.concat();
        full.push_str(name);
        let identifier = full.starts_with(|c: char| c.is_ascii_alphabetic())
            && full.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !full.contains("__");
        if !identifier {
            return Err((
                Rule::Name,
                format!("`{full}` is not a plain identifier (letters, digits, single _)"),
            ));
        }
        if crate::emit::RESERVED.contains(&full.as_str()) {
            return Err((
                Rule::Name,
                format!("`{full}` is a reserved word of SystemVerilog; choose another name"),
            ));
        }
        if !self.names.insert(full.clone()) {
            return Err((Rule::NameClash, format!("`{full}` names something else in this module already")));
        }
        Ok(full)
    }
}

/// Claims a name in the module under construction.
pub(crate) fn claim(name: &str, place: Place) -> String {
    match with(|m| m.claim(name)) {
        Ok(name) => name,
        Err((rule, message)) => fail(rule, place, message),
    }
}

/// A named node.
pub(crate) fn named_node(kind: Kind, width: u32, name: &str, place: Place) -> Sig {
    if width == 0 {
        fail(Rule::ZeroWidth, place, format!("`{name}` has zero width"));
    }
    let name = claim(name, place);
    with(|m| m.node(kind, width, Some(name), place))
}

/// A named node whose name ignores the open scopes.
pub(crate) fn unscoped_node(kind: Kind, width: u32, name: &str, place: Place) -> Sig {
    let scopes = with(|m| std::mem::take(&mut m.scopes));
    let s = named_node(kind, width, name, place);
    with(|m| m.scopes = scopes);
    s
}

/// Prefixes every name made inside of `f` with `prefix_`.
pub fn scope<R>(prefix: &str, f: impl FnOnce() -> R) -> R {
    with(|m| m.scopes.push(format!("{prefix}_")));
    let r = f();
    with(|m| m.scopes.pop());
    r
}

/// Records the statements of `f` apart.
pub(crate) fn block(f: impl FnOnce()) -> Vec<Stmt> {
    with(|m| m.blocks.push(vec![]));
    f();
    with(|m| m.blocks.pop().expect("pushed above"))
}

/// The last statement of the open list, to which `elif` and `otherwise` attach.
pub(crate) fn amend(f: impl FnOnce(&mut Stmt)) {
    with(|m| f(m.blocks.last_mut().and_then(|b| b.last_mut()).expect("follows its `when`")));
}

/// The current domain, made on first use.
#[track_caller]
pub(crate) fn current_domain() -> usize {
    let place = Location::caller();
    let clash = |name| format!("`{name}` is the implicit {name} of this module; name yours otherwise");
    with(|m| {
        if let Some(&d) = m.domains.last() {
            return Ok(d);
        }
        if let Some(d) = m.implicit {
            return Ok(d);
        }
        if let Some(name) = ["clock", "reset"].into_iter().find(|n| m.names.contains(*n)) {
            return Err(clash(name));
        }
        let mut port = |name: &str| {
            m.names.insert(name.into());
            let s = m.node(Kind::Input, 1, Some(name.into()), place);
            m.def.ports.push(PortDef { dir: Dir::Input, name: name.into(), id: s.id, width: 1 });
            s.id
        };
        let (clock, reset) = (port("clock"), Some(port("reset")));
        m.def.domains.push(DomainDef { clock, reset });
        let d = m.def.domains.len() - 1;
        m.implicit = Some(d);
        Ok(d)
    })
    .unwrap_or_else(|message| fail(Rule::NameClash, place, message))
}

impl Domain {
    /// A domain of the clock `clock` and, if given, the synchronous reset `reset` (high = reset).
    #[track_caller]
    pub fn new(clock: Sig, reset: Option<Sig>) -> Domain {
        let place = Location::caller();
        clock.here(place);
        reset.inspect(|r| r.here(place));
        if clock.width != 1 || reset.is_some_and(|r| r.width != 1) {
            fail(Rule::Width, place, "clock and reset are single bits");
        }
        with(|m| {
            m.def.domains.push(DomainDef { clock: clock.id, reset: reset.map(|r| r.id) });
            Domain { index: m.def.domains.len() - 1, module: m.uid }
        })
    }
    /// The implicit domain of this module: ports `clock` and `reset`.
    #[track_caller]
    pub fn implicit() -> Domain {
        let index = current_domain();
        with(|m| Domain { index, module: m.uid })
    }
    /// The clock, for a child that takes several and names them all.
    pub fn clock(self) -> Sig {
        with(|m| Sig { id: m.def.domains[self.index].clock, width: 1, module: m.uid })
    }
    /// The reset; constantly low if the domain has none.
    #[track_caller]
    pub fn reset(self) -> Sig {
        let place = Location::caller();
        with(|m| match m.def.domains[self.index].reset {
            Some(id) => Sig { id, width: 1, module: m.uid },
            None => Sig { id: m.constant(Bits::zero(1), place), width: 1, module: m.uid },
        })
    }
    /// Registers, memory ports, assertions and child modules made in `f` use this domain.
    pub fn within<R>(self, f: impl FnOnce() -> R) -> R {
        with(|m| {
            assert_eq!(m.uid, self.module, "domain of another module");
            m.domains.push(self.index);
        });
        let r = f();
        with(|m| m.domains.pop());
        r
    }
}

fn define<M: Module>(module: &M, place: Place) -> usize {
    let key = (TypeId::of::<M>(), format!("{module:?}"));
    let name = module.name();
    let known = CONTEXT.with(|c| {
        let c = c.borrow();
        c.known.get(&key).copied().map(Ok).or_else(|| c.names.get(&name).map(|_| Err(())))
    });
    match known {
        Some(Ok(index)) => return index,
        Some(Err(())) => fail(
            Rule::NameClash,
            place,
            format!("two different modules are called `{name}`; the second is {}", key.1),
        ),
        None => {}
    }
    if crate::emit::RESERVED.contains(&name.as_str()) {
        fail(Rule::Name, place, format!("`{name}` is a reserved word of SystemVerilog"));
    }
    let external = module.external();
    let body = external.is_none();
    CONTEXT.with(|c| {
        let mut c = c.borrow_mut();
        c.next_uid += 1;
        let uid = c.next_uid;
        let def = ModuleDef {
            name: name.clone(),
            doc: module.doc(),
            external,
            nodes: vec![],
            ports: vec![],
            body: vec![],
            memories: vec![],
            instances: vec![],
            domains: vec![],
            properties: vec![],
            constants: vec![],
        };
        c.stack.push(Builder {
            uid,
            def,
            blocks: vec![vec![]],
            names: HashSet::new(),
            scopes: vec![],
            constants: HashMap::new(),
            labels: HashMap::new(),
            operations: HashMap::new(),
            domains: vec![],
            implicit: None,
        });
    });
    let io = M::Io::declare(module, &mut PortBuilder::inside());
    if body {
        module.body(&io);
    }
    let mut built = CONTEXT.with(|c| c.borrow_mut().stack.pop().expect("pushed above"));
    built.def.body = built.blocks.pop().expect("the outermost list");
    if body && let Err(error) = check::module(&built.def) {
        refuse(error);
    }
    CONTEXT.with(|c| {
        let mut c = c.borrow_mut();
        c.done.push(built.def);
        let index = c.done.len() - 1;
        c.known.insert(key, index);
        c.names.insert(name, index);
        index
    })
}

/// Places `module` inside the module under construction under the name `name`; gives its ports: inputs to be
/// `set`, outputs to be read. Its clock and reset are those of the current domain.
#[track_caller]
pub fn instance<M: Module>(name: &str, module: &M) -> M::Io {
    let place = Location::caller();
    let index = define(module, place);
    let full = claim(name, place);
    let number = with(|m| m.def.instances.len());
    with(|m| {
        m.def.instances.push(InstanceDef { module: index, name: full.clone(), connections: vec![] });
    });
    let mut ports = PortBuilder::instance(&full, number);
    let io = M::Io::declare(module, &mut ports);
    let mut connections = ports.connections();
    let child: Vec<String> =
        CONTEXT.with(|c| c.borrow().done[index].ports.iter().map(|p| p.name.clone()).collect());
    // implicit ports of the child that its record does not name
    for implicit in ["clock", "reset"] {
        if child.iter().any(|p| p == implicit) && !connections.contains_key(implicit) {
            let d = current_domain();
            let id = with(|m| {
                let d = &m.def.domains[d];
                match implicit {
                    "clock" => d.clock,
                    _ => d.reset.unwrap_or_else(|| m.constant(Bits::zero(1), place)),
                }
            });
            connections.insert(implicit.into(), id);
        }
    }
    let ordered: Vec<Id> = child.iter().map(|p| connections[p]).collect();
    with(|m| m.def.instances[number].connections = ordered);
    // the port index of an output is known only now
    with(|m| {
        let connections = m.def.instances[number].connections.clone();
        for (port, id) in connections.iter().enumerate() {
            if let Kind::InstanceOutput { instance, port: p } = &mut m.def.nodes[*id as usize].kind
                && *instance == number
            {
                *p = port;
            }
        }
    });
    io
}

/// Elaborates `top` and checks the whole design.
///
/// # Errors
/// The first broken [`Rule`], with the source line.
#[track_caller]
pub fn elaborate<M: Module>(top: &M) -> Result<Design, Error> {
    let place = Location::caller();
    let outer = CONTEXT.with(|c| std::mem::take(&mut *c.borrow_mut()));
    let result = catch_unwind(AssertUnwindSafe(|| {
        define(top, place);
    }));
    let context = CONTEXT.with(|c| std::mem::replace(&mut *c.borrow_mut(), outer));
    match result {
        Ok(()) => {
            let design = Design { modules: context.done };
            check::design(&design)?;
            Ok(design)
        }
        Err(payload) => match payload.downcast::<Error>() {
            Ok(error) => Err(*error),
            Err(other) => std::panic::resume_unwind(other as Box<dyn Any + Send>),
        },
    }
}

/// A property that must hold at every rising edge of the current domain outside of reset.
#[track_caller]
pub fn assert_always(name: &str, condition: Sig) {
    property(name, condition, false, Location::caller());
}

/// A situation that a good test reaches.
#[track_caller]
pub fn cover(name: &str, condition: Sig) {
    property(name, condition, true, Location::caller());
}

#[track_caller]
fn property(name: &str, condition: Sig, cover: bool, place: Place) {
    if condition.width != 1 {
        fail(Rule::Width, place, "a property is a single bit");
    }
    condition.here(place);
    let name = claim(name, place);
    let domain = current_domain();
    with(|m| m.def.properties.push(Property { name, domain, condition: condition.id, cover }));
}

impl Design {
    /// Name of the top module.
    pub fn top(&self) -> &str {
        &self.modules.last().expect("elaboration makes at least the top").name
    }
}
