//! What elaboration builds: modules of nodes (values), statements (assignments under conditions), memories and
//! instances. Ids are local to their module.

use crate::bits::Bits;
use crate::error::Place;

pub(crate) type Id = u32;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Op {
    And,
    Or,
    Xor,
    Not,
    Add,
    Sub,
    Mul,
    Eq,
    Ne,
    Lt,
    Le,
    Shl,
    Shr,
    All,
    Any,
    Parity,
    Mux,
    Cat,
    Repeat(u32),
    Slice(u32),
    Extend,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A constant; named if it is a variant of an enum.
    Const(Bits),
    Input,
    Wire,
    Reg {
        domain: usize,
        reset: Option<Bits>,
        /// Name of the reset value of an enum.
        reset_label: Option<String>,
        /// First flop of a synchroniser: may sample another clock.
        synchroniser: bool,
    },
    Op(Op, Vec<Id>),
    /// Output of read port `port` of memory `memory`.
    Read {
        memory: usize,
        port: usize,
    },
    /// Output port `port` (index into the child's ports) of instance `instance`.
    InstanceOutput {
        instance: usize,
        port: usize,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub kind: Kind,
    pub width: u32,
    pub name: Option<String>,
    pub place: Place,
    pub attributes: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Stmt {
    Assign {
        target: Id,
        value: Id,
        place: Place,
    },
    If {
        condition: Id,
        then: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    /// An exhaustive choice: codes that no arm names take the last arm.
    Case {
        subject: Id,
        arms: Vec<Arm>,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Arm {
    pub label: String,
    pub code: u64,
    pub body: Vec<Stmt>,
}

#[derive(Clone, Debug)]
pub(crate) struct WritePort {
    pub domain: usize,
    pub enable: Id,
    pub address: Id,
    pub data: Id,
    pub lanes: Option<Id>,
}

#[derive(Clone, Debug)]
pub(crate) struct ReadPort {
    /// `None`: combinational read.
    pub domain: Option<usize>,
    pub enable: Option<Id>,
    pub address: Id,
    pub out: Id,
}

#[derive(Clone, Debug)]
pub(crate) struct MemoryDef {
    pub name: String,
    pub width: u32,
    pub depth: u32,
    /// Bits under one write-enable lane.
    pub lane: u32,
    pub style: Option<&'static str>,
    /// A synchronous read in the clock of a write to its word may give anything.
    pub ignores_collisions: bool,
    pub init: Option<Vec<Bits>>,
    pub writes: Vec<WritePort>,
    pub reads: Vec<ReadPort>,
    pub place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dir {
    Input,
    Output,
}

#[derive(Clone, Debug)]
pub(crate) struct PortDef {
    pub dir: Dir,
    pub name: String,
    pub id: Id,
    pub width: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct InstanceDef {
    pub module: usize,
    pub name: String,
    /// Node of the parent for each port of the child, in the child's port order.
    pub connections: Vec<Id>,
}

#[derive(Clone, Debug)]
pub(crate) struct DomainDef {
    pub clock: Id,
    pub reset: Option<Id>,
}

#[derive(Clone, Debug)]
pub(crate) struct Property {
    pub name: String,
    pub domain: usize,
    pub condition: Id,
    pub cover: bool,
}

/// A value of a Verilog parameter of a black box.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// A number.
    Number(i64),
    /// A string.
    Text(String),
}

impl std::fmt::Display for Parameter {
    /// As a Verilog literal.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Parameter::Number(n) => write!(f, "{n}"),
            Parameter::Text(t) => write!(f, "\"{}\"", t.replace('\\', "\\\\").replace('"', "\\\"")),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ModuleDef {
    pub name: String,
    pub doc: String,
    /// `Some`: a black box, with its parameters.
    pub external: Option<Vec<(String, Parameter)>>,
    pub nodes: Vec<Node>,
    pub ports: Vec<PortDef>,
    pub body: Vec<Stmt>,
    pub memories: Vec<MemoryDef>,
    pub instances: Vec<InstanceDef>,
    pub domains: Vec<DomainDef>,
    pub properties: Vec<Property>,
    /// Enum constants in use: name, width, code.
    pub constants: Vec<(String, u32, u64)>,
}
