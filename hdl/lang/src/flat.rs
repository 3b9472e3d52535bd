//! The whole design as one netlist: hierarchy dissolved, conditional assignments turned into multiplexers. The
//! interpreter runs it; loop and clock-crossing checks walk it.

use crate::bits::Bits;
use crate::elaborate::Design;
use crate::error::{Error, Place, Rule};
use crate::ir::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
pub(crate) enum FlatKind {
    Const(Bits),
    /// Top input, or an output of a black box.
    Input,
    Alias(u32),
    Op(Op, Vec<u32>),
    Reg {
        clock: u32,
        reset: Option<(u32, Bits)>,
        next: u32,
        synchroniser: bool,
    },
    ReadSync {
        memory: usize,
        port: usize,
    },
    ReadNow {
        memory: usize,
        address: u32,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct FlatNode {
    pub kind: FlatKind,
    pub width: u32,
    /// Hierarchical name; empty for anonymous values.
    pub path: String,
    pub module: usize,
    pub place: Place,
}

#[derive(Clone, Debug)]
pub(crate) struct FlatWrite {
    pub clock: u32,
    pub enable: u32,
    pub address: u32,
    pub data: u32,
    pub lanes: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct FlatRead {
    pub clock: Option<u32>,
    pub enable: Option<u32>,
    pub address: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct FlatMemory {
    pub path: String,
    pub place: Place,
    pub width: u32,
    pub depth: u32,
    pub lane: u32,
    pub ignores_collisions: bool,
    pub init: Option<Vec<Bits>>,
    pub writes: Vec<FlatWrite>,
    pub reads: Vec<FlatRead>,
}

#[derive(Clone, Debug)]
pub(crate) struct FlatProperty {
    pub path: String,
    pub clock: u32,
    pub reset: Option<u32>,
    pub condition: u32,
    pub cover: bool,
}

pub(crate) struct Flat {
    pub top: String,
    pub nodes: Vec<FlatNode>,
    pub memories: Vec<FlatMemory>,
    pub properties: Vec<FlatProperty>,
    pub inputs: HashMap<String, u32>,
    pub outputs: HashMap<String, u32>,
    modules: Vec<String>,
}

struct Env<'a> {
    parent: Option<&'a Env<'a>>,
    map: HashMap<Id, u32>,
}
impl Env<'_> {
    fn get(&self, id: Id) -> Option<u32> {
        self.map.get(&id).copied().or_else(|| self.parent.and_then(|p| p.get(id)))
    }
}

impl Flat {
    pub fn new(design: &Design) -> Flat {
        let mut flat = Flat {
            top: design.top().into(),
            nodes: vec![],
            memories: vec![],
            properties: vec![],
            inputs: HashMap::new(),
            outputs: HashMap::new(),
            modules: design.modules.iter().map(|m| m.name.clone()).collect(),
        };
        let top = design.modules.len() - 1;
        let base = flat.add(design, top, "", None);
        for p in &design.modules[top].ports {
            let map = if p.dir == Dir::Input { &mut flat.inputs } else { &mut flat.outputs };
            map.insert(p.name.clone(), base + p.id);
        }
        flat.resolve_clocks();
        flat
    }

    /// Adds module `index` under `path`; `bindings` are the flat nodes of its ports in the parent.
    fn add(&mut self, design: &Design, index: usize, path: &str, bindings: Option<&[u32]>) -> u32 {
        let m = &design.modules[index];
        let base = self.nodes.len() as u32;
        let memory_base = self.memories.len();
        let join = |name: &str| if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
        for n in &m.nodes {
            let kind = match &n.kind {
                Kind::Const(c) => FlatKind::Const(c.clone()),
                Kind::Input | Kind::Wire | Kind::InstanceOutput { .. } => FlatKind::Input,
                Kind::Op(op, args) => FlatKind::Op(*op, args.iter().map(|a| base + a).collect()),
                Kind::Reg { domain, reset, synchroniser, .. } => {
                    let d = &m.domains[*domain];
                    FlatKind::Reg {
                        clock: base + d.clock,
                        reset: reset.clone().and_then(|v| d.reset.map(|r| (base + r, v))),
                        next: u32::MAX,
                        synchroniser: *synchroniser,
                    }
                }
                Kind::Read { memory, port } => {
                    let r = &m.memories[*memory].reads[*port];
                    match r.domain {
                        Some(_) => FlatKind::ReadSync { memory: memory_base + memory, port: *port },
                        None => FlatKind::ReadNow { memory: memory_base + memory, address: base + r.address },
                    }
                }
            };
            let path = match (&n.kind, &n.name) {
                (Kind::Const(_), _) | (_, None) => String::new(),
                (_, Some(name)) => join(name),
            };
            self.nodes.push(FlatNode { kind, width: n.width, path, module: index, place: n.place });
        }
        if let Some(bindings) = bindings {
            for (p, outer) in m.ports.iter().zip(bindings) {
                match p.dir {
                    Dir::Input => self.nodes[(base + p.id) as usize].kind = FlatKind::Alias(*outer),
                    Dir::Output if m.external.is_none() => {
                        self.nodes[*outer as usize].kind = FlatKind::Alias(base + p.id);
                    }
                    Dir::Output => {}
                }
            }
        }
        for x in &m.memories {
            let clock = |d: usize| base + m.domains[d].clock;
            self.memories.push(FlatMemory {
                path: join(&x.name),
                place: x.place,
                width: x.width,
                depth: x.depth,
                lane: x.lane,
                ignores_collisions: x.ignores_collisions,
                init: x.init.clone(),
                writes: x
                    .writes
                    .iter()
                    .map(|w| FlatWrite {
                        clock: clock(w.domain),
                        enable: base + w.enable,
                        address: base + w.address,
                        data: base + w.data,
                        lanes: w.lanes.map(|l| base + l),
                    })
                    .collect(),
                reads: x
                    .reads
                    .iter()
                    .map(|r| FlatRead {
                        clock: r.domain.map(clock),
                        enable: r.enable.map(|e| base + e),
                        address: base + r.address,
                    })
                    .collect(),
            });
        }
        for p in &m.properties {
            let d = &m.domains[p.domain];
            self.properties.push(FlatProperty {
                path: join(&p.name),
                clock: base + d.clock,
                reset: d.reset.map(|r| base + r),
                condition: base + p.condition,
                cover: p.cover,
            });
        }
        let mut env = Env { parent: None, map: HashMap::new() };
        self.lower(m, index, base, &m.body, &mut env);
        for (id, n) in m.nodes.iter().enumerate() {
            let flat = base + id as u32;
            let value = env.get(id as Id);
            match (&n.kind, &mut self.nodes[flat as usize].kind) {
                (Kind::Wire, kind) => {
                    if let Some(v) = value {
                        *kind = FlatKind::Alias(v);
                    }
                }
                (Kind::Reg { .. }, FlatKind::Reg { next, .. }) => *next = value.unwrap_or(flat),
                _ => {}
            }
        }
        for i in &m.instances {
            let bindings: Vec<u32> = i.connections.iter().map(|c| base + c).collect();
            self.add(design, i.module, &join(&i.name), Some(&bindings));
        }
        base
    }

    fn anonymous(&mut self, kind: FlatKind, width: u32, module: usize, place: Place) -> u32 {
        self.nodes.push(FlatNode { kind, width, path: String::new(), module, place });
        self.nodes.len() as u32 - 1
    }

    fn lower(&mut self, m: &ModuleDef, index: usize, base: u32, block: &[Stmt], env: &mut Env) {
        for s in block {
            match s {
                Stmt::Assign { target, value, .. } => {
                    env.map.insert(*target, base + value);
                }
                Stmt::If { condition, then, otherwise } => {
                    let c = base + condition;
                    let branches: Vec<HashMap<Id, u32>> = [then, otherwise]
                        .into_iter()
                        .map(|b| {
                            let mut inner = Env { parent: Some(env), map: HashMap::new() };
                            self.lower(m, index, base, b, &mut inner);
                            inner.map
                        })
                        .collect();
                    let mut keys: Vec<Id> = branches.iter().flat_map(|b| b.keys().copied()).collect();
                    keys.sort_unstable();
                    keys.dedup();
                    for k in keys {
                        let before = self.before(m, index, base, k, env);
                        let [a, b] = [0, 1].map(|i| branches[i].get(&k).copied().unwrap_or(before));
                        let n = &m.nodes[k as usize];
                        let v = self.anonymous(FlatKind::Op(Op::Mux, vec![c, a, b]), n.width, index, n.place);
                        env.map.insert(k, v);
                    }
                }
                Stmt::Case { subject, arms } => {
                    let subject_width = m.nodes[*subject as usize].width;
                    let branches: Vec<HashMap<Id, u32>> = arms
                        .iter()
                        .map(|a| {
                            let mut inner = Env { parent: Some(env), map: HashMap::new() };
                            self.lower(m, index, base, &a.body, &mut inner);
                            inner.map
                        })
                        .collect();
                    let mut keys: Vec<Id> = branches.iter().flat_map(|b| b.keys().copied()).collect();
                    keys.sort_unstable();
                    keys.dedup();
                    // one comparison per arm, made when a target needs it
                    let mut is: Vec<Option<u32>> = vec![None; arms.len()];
                    for k in keys {
                        let before = self.before(m, index, base, k, env);
                        let n = &m.nodes[k as usize];
                        let pick = |i: usize| branches[i].get(&k).copied().unwrap_or(before);
                        let last = pick(arms.len() - 1);
                        let mut v = last;
                        for (i, arm) in arms.iter().enumerate().rev().skip(1) {
                            // codes exclude each other: an arm that does what the last one does needs no choice
                            if pick(i) == last {
                                continue;
                            }
                            let is = *is[i].get_or_insert_with(|| {
                                let code = Bits::new(subject_width, u128::from(arm.code));
                                let code = FlatKind::Const(code);
                                let code = self.anonymous(code, subject_width, index, n.place);
                                let is = FlatKind::Op(Op::Eq, vec![base + subject, code]);
                                self.anonymous(is, 1, index, n.place)
                            });
                            let choice = FlatKind::Op(Op::Mux, vec![is, pick(i), v]);
                            v = self.anonymous(choice, n.width, index, n.place);
                        }
                        env.map.insert(k, v);
                    }
                }
            }
        }
    }

    /// Value of a target before a conditional statement: what was assigned, a register's own value, or, for a wire
    /// that every path of the statement assigns, zero.
    fn before(&mut self, m: &ModuleDef, index: usize, base: u32, id: Id, env: &Env) -> u32 {
        env.get(id).unwrap_or_else(|| {
            let n = &m.nodes[id as usize];
            if matches!(n.kind, Kind::Reg { .. }) {
                base + id
            } else {
                self.anonymous(FlatKind::Const(Bits::zero(n.width)), n.width, index, n.place)
            }
        })
    }

    /// The node behind a chain of aliases.
    pub fn root(&self, mut id: u32) -> u32 {
        // bounded: a longer chain is a loop, which `order` names
        for _ in 0..self.nodes.len() {
            match self.nodes[id as usize].kind {
                FlatKind::Alias(to) => id = to,
                _ => break,
            }
        }
        id
    }

    fn resolve_clocks(&mut self) {
        for i in 0..self.nodes.len() {
            if let FlatKind::Reg { clock, .. } = self.nodes[i].kind {
                let root = self.root(clock);
                if let FlatKind::Reg { clock, .. } = &mut self.nodes[i].kind {
                    *clock = root;
                }
            }
        }
        let mut memories = std::mem::take(&mut self.memories);
        for m in &mut memories {
            m.writes.iter_mut().for_each(|w| w.clock = self.root(w.clock));
            m.reads.iter_mut().for_each(|r| r.clock = r.clock.map(|c| self.root(c)));
        }
        self.memories = memories;
        let mut properties = std::mem::take(&mut self.properties);
        properties.iter_mut().for_each(|p| p.clock = self.root(p.clock));
        self.properties = properties;
    }

    /// What `id` depends on in the same instant.
    pub fn operands(&self, id: u32, mut f: impl FnMut(u32)) {
        match &self.nodes[id as usize].kind {
            FlatKind::Alias(a) | FlatKind::ReadNow { address: a, .. } => f(*a),
            FlatKind::Op(_, args) => args.iter().for_each(|a| f(*a)),
            _ => {}
        }
    }

    pub fn error(&self, rule: Rule, n: &FlatNode, message: String) -> Error {
        Error { rule, module: self.modules[n.module].clone(), message, place: n.place }
    }

    /// All combinational nodes, operands first.
    ///
    /// # Errors
    /// The named signals of a combinational loop.
    pub fn order(&self) -> Result<Vec<u32>, Error> {
        const NEW: u8 = 0;
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![NEW; self.nodes.len()];
        let mut order = vec![];
        let mut stack: Vec<(u32, Vec<u32>)> = vec![];
        for start in 0..self.nodes.len() as u32 {
            if state[start as usize] != NEW {
                continue;
            }
            let open = |id: u32, state: &mut Vec<u8>| {
                state[id as usize] = OPEN;
                let mut args = vec![];
                self.operands(id, |a| args.push(a));
                (id, args)
            };
            stack.push(open(start, &mut state));
            while let Some((id, args)) = stack.last_mut() {
                match args.pop() {
                    None => {
                        state[*id as usize] = DONE;
                        if matches!(
                            self.nodes[*id as usize].kind,
                            FlatKind::Alias(_) | FlatKind::Op(..) | FlatKind::ReadNow { .. }
                        ) {
                            order.push(*id);
                        }
                        stack.pop();
                    }
                    Some(a) if state[a as usize] == NEW => {
                        let next = open(a, &mut state);
                        stack.push(next);
                    }
                    Some(a) if state[a as usize] == OPEN => {
                        let from = stack.iter().position(|s| s.0 == a).unwrap_or(0);
                        let mut names: Vec<&str> = stack[from..]
                            .iter()
                            .map(|s| self.nodes[s.0 as usize].path.as_str())
                            .filter(|p| !p.is_empty())
                            .collect();
                        names.dedup();
                        let named = stack[from..].iter().find(|s| !self.nodes[s.0 as usize].path.is_empty());
                        let n = &self.nodes[named.map_or(a, |s| s.0) as usize];
                        return Err(self.error(
                            Rule::Loop,
                            n,
                            format!("combinational loop through {}", names.join(" <- ")),
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(order)
    }
}
