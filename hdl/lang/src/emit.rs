//! Emission of SystemVerilog that a person can read: one module per distinct configuration, names as written,
//! every width-sensitive result on a wire of its own width, sources named by file and line.

use crate::bits::Bits;
use crate::elaborate::Design;
use crate::ir::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;

/// How to emit.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Comments with the Rust source line of each declaration. Off: the text depends on the hardware alone.
    pub sources: bool,
}
impl Default for Style {
    fn default() -> Self {
        Style { sources: true }
    }
}

impl Design {
    /// The whole design as one SystemVerilog text, children before parents.
    pub fn verilog(&self, style: Style) -> String {
        self.files(style).into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("\n")
    }
    /// One `(module name, text)` per module, children before parents.
    pub fn files(&self, style: Style) -> Vec<(String, String)> {
        self.modules
            .iter()
            .filter(|m| m.external.is_none())
            .map(|m| (m.name.clone(), Emitter::new(self, m, style).run()))
            .collect()
    }
    /// Memories of the whole design: path of the module, name, depth, width, ports (read, write).
    pub fn memories(&self) -> Vec<(String, String, u32, u32)> {
        self.modules
            .iter()
            .flat_map(|m| m.memories.iter().map(|x| (m.name.clone(), x.name.clone(), x.depth, x.width)))
            .collect()
    }
}

/// Warnings of `verilator --lint-only -Wall` that emitted text may cause, each with the reason why it may stand.
pub const WAIVERS: &[(&str, &str)] = &[
    ("DECLFILENAME", "all modules of a design may stand in one file"),
    (
        "UNUSEDSIGNAL",
        "a port or a field of a record is part of the interface also where nothing reads all of it",
    ),
];

struct Emitter<'a> {
    design: &'a Design,
    m: &'a ModuleDef,
    style: Style,
    /// How often a node's text is printed.
    uses: Vec<u32>,
    /// The node is the whole right side of an assignment, and nothing else.
    direct: Vec<bool>,
    /// The node is sliced, so its text must be an identifier.
    sliced: Vec<bool>,
    /// How a node is read: its name, or an expression.
    text: Vec<String>,
    /// Declarations of intermediate values, in order of dependence.
    wires: String,
    next: u32,
}

fn range(width: u32) -> String {
    if width == 1 { String::new() } else { format!("[{}:0] ", width - 1) }
}

/// Longest expression that stands inside of another.
const INLINE: usize = 100;

/// `text` without the parentheses around all of it.
fn bare(text: &str) -> &str {
    let Some(inner) = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) else { return text };
    let mut depth = 0i32;
    for c in inner.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth < 0 {
            return text;
        }
    }
    inner
}

impl<'a> Emitter<'a> {
    fn new(design: &'a Design, m: &'a ModuleDef, style: Style) -> Self {
        let n = m.nodes.len();
        let (uses, text) = (vec![0; n], vec![String::new(); n]);
        let (direct, sliced) = (vec![false; n], vec![false; n]);
        Emitter { design, m, style, uses, direct, sliced, text, wires: String::new(), next: 0 }
    }

    fn source(&self, id: Id) -> String {
        if !self.style.sources {
            return String::new();
        }
        let p = self.m.nodes[id as usize].place;
        format!("  // {}:{}", p.file(), p.line())
    }

    fn attributes(&self, id: Id) -> String {
        let a = &self.m.nodes[id as usize].attributes;
        if a.is_empty() {
            return String::new();
        }
        let list: Vec<String> = a.iter().map(|(k, v)| format!("{k} = \"{v}\"")).collect();
        format!("(* {} *) ", list.join(", "))
    }

    fn read(&self, id: Id) -> &str {
        &self.text[id as usize]
    }

    /// Counts how often each node is printed by the statements of `block`; gives the targets in it: the wires, and
    /// whether there are registers.
    fn count_block(&mut self, block: &[Stmt]) -> (HashSet<Id>, bool) {
        let (mut wires, mut registers) = (HashSet::new(), false);
        for s in block {
            match s {
                Stmt::Assign { target, value, .. } => {
                    let value = *value as usize;
                    self.uses[value] += 1;
                    self.direct[value] = true;
                    match self.m.nodes[*target as usize].kind {
                        Kind::Reg { .. } => registers = true,
                        _ => {
                            wires.insert(*target);
                        }
                    }
                }
                Stmt::If { .. } | Stmt::Case { .. } => {
                    let mut inner = (HashSet::new(), false);
                    let mut add = |found: (HashSet<Id>, bool)| {
                        inner.0.extend(found.0);
                        inner.1 |= found.1;
                    };
                    let asked = match s {
                        Stmt::If { condition, then, otherwise } => {
                            add(self.count_block(then));
                            add(self.count_block(otherwise));
                            condition
                        }
                        Stmt::Case { subject, arms } => {
                            arms.iter().for_each(|a| add(self.count_block(&a.body)));
                            subject
                        }
                        Stmt::Assign { .. } => continue,
                    };
                    // a wire has its own block; registers share
                    self.uses[*asked as usize] += inner.0.len() as u32 + u32::from(inner.1);
                    wires.extend(inner.0);
                    registers |= inner.1;
                }
            }
        }
        (wires, registers)
    }

    /// Counts uses from every root.
    fn count(&mut self) {
        let m = self.m;
        self.count_block(&m.body);
        let mut roots = vec![];
        for d in &m.domains {
            // printed by every block of the domain
            roots.extend([d.clock, d.clock]);
            roots.extend(d.reset.into_iter().flat_map(|r| [r, r]));
        }
        for x in &m.memories {
            for w in &x.writes {
                roots.extend([w.enable, w.address, w.data]);
                if let Some(lanes) = w.lanes {
                    for id in [w.data, lanes] {
                        self.sliced[id as usize] |= x.lane != x.width;
                    }
                    // one line per lane
                    roots.extend([w.address, lanes]);
                }
            }
            for r in &x.reads {
                roots.extend(r.enable);
                roots.push(r.address);
                // printed again to tell a collision
                for w in x.writes.iter().filter(|w| x.ignores_collisions && Some(w.domain) == r.domain) {
                    roots.extend([w.enable, w.address, r.address, r.address]);
                }
            }
        }
        for i in &m.instances {
            roots.extend(&i.connections);
        }
        roots.extend(m.properties.iter().map(|p| p.condition));
        for id in roots {
            self.uses[id as usize] += 1;
            self.direct[id as usize] = false;
        }
        // operands have smaller ids than what uses them
        for id in (0..m.nodes.len()).rev() {
            // what has a name is written even if nothing reads it
            let written = self.uses[id] > 0 || m.nodes[id].name.is_some();
            if let (Kind::Op(op, args), true) = (&m.nodes[id].kind, written) {
                for a in args {
                    self.uses[*a as usize] += 1;
                    self.direct[*a as usize] = false;
                    self.sliced[*a as usize] |= matches!(op, Op::Slice(_));
                }
            }
        }
    }

    /// Finds the text of every node: a name, an expression that stands where it is used, or a wire of its own.
    fn write_nodes(&mut self) {
        let m = self.m;
        for (id, node) in m.nodes.iter().enumerate() {
            let name = node.name.clone().unwrap_or_default();
            self.text[id] = match &node.kind {
                Kind::Const(_) if node.name.is_some() => name,
                Kind::Const(c) if self.sliced[id] => {
                    let n = self.temporary();
                    let (r, w) = (range(node.width), node.width);
                    writeln!(self.wires, "  localparam logic {r}{n} = {w}'h{};", c.hex()).expect("string");
                    n
                }
                Kind::Const(c) => format!("{}'h{}", node.width, c.hex()),
                Kind::Op(..) if self.uses[id] == 0 && node.name.is_none() => continue,
                Kind::Op(op, args) => {
                    let text = self.expression(*op, args, node.width);
                    if self.stands_inline(id, *op, args, &text) {
                        text
                    } else {
                        let n = node.name.clone().unwrap_or_else(|| self.temporary());
                        let s = if node.name.is_some() { self.source(id as Id) } else { String::new() };
                        let (a, r) = (self.attributes(id as Id), range(node.width));
                        writeln!(self.wires, "  {a}wire {r}{n} = {text};{s}").expect("string");
                        n
                    }
                }
                _ => name,
            };
        }
    }

    fn temporary(&mut self) -> String {
        // no name of a user starts so
        self.next += 1;
        format!("_{}", self.next)
    }

    fn stands_inline(&self, id: usize, op: Op, args: &[Id], text: &str) -> bool {
        if self.m.nodes[id].name.is_some() || self.sliced[id] {
            return false;
        }
        if self.uses[id] == 1 && self.direct[id] {
            return true;
        }
        if text.len() > INLINE {
            return false;
        }
        // cheap and clear enough to be written, and evaluated, wherever it is used
        let plain = || args.iter().all(|a| !self.text[*a as usize].contains(['(', '{']));
        let constant = || args.iter().any(|a| matches!(self.m.nodes[*a as usize].kind, Kind::Const(_)));
        let light = match op {
            Op::Slice(_) => true,
            Op::Not => self.m.nodes[id].width == 1 && plain(),
            Op::Eq | Op::Ne => plain() && constant(),
            _ => false,
        };
        // a result that Verilog would size by its surroundings gets a wire of its own width
        let sized = matches!(op, Op::Add | Op::Sub | Op::Mul | Op::Shl | Op::Shr);
        light || self.uses[id] == 1 && !sized
    }

    fn expression(&self, op: Op, args: &[Id], width: u32) -> String {
        let part = |i: usize| self.read(args[i]);
        let infix = match op {
            Op::And => "&",
            Op::Or => "|",
            Op::Xor => "^",
            Op::Add => "+",
            Op::Sub => "-",
            Op::Mul => "*",
            Op::Eq => "==",
            Op::Ne => "!=",
            Op::Lt => "<",
            Op::Le => "<=",
            Op::Shl => "<<",
            Op::Shr => ">>",
            Op::Not => return format!("(~{})", part(0)),
            Op::All => return format!("(&{})", part(0)),
            Op::Any => return format!("(|{})", part(0)),
            Op::Parity => return format!("(^{})", part(0)),
            Op::Mux => return format!("({} ? {} : {})", part(0), part(1), part(2)),
            Op::Cat => {
                let parts: Vec<&str> = args.iter().map(|a| self.read(*a)).collect();
                let long = parts.iter().map(|p| p.len() + 2).sum::<usize>() > INLINE;
                return format!("{{{}}}", parts.join(if long { ",\n    " } else { ", " }));
            }
            Op::Repeat(n) => return format!("{{{n}{{{}}}}}", part(0)),
            Op::Slice(low) if width == 1 => return format!("{}[{low}]", part(0)),
            Op::Slice(low) => return format!("{}[{}:{low}]", part(0), low + width - 1),
            Op::Extend => {
                let from = self.m.nodes[args[0] as usize].width;
                let s = part(0);
                return if from == width { s.into() } else { format!("{{{}'h0, {s}}}", width - from) };
            }
        };
        // a chain of one associative operator needs no inner parentheses
        let chained = |i: usize| {
            let text = part(i);
            match &self.m.nodes[args[i] as usize].kind {
                Kind::Op(inner, _) if *inner == op && matches!(op, Op::And | Op::Or | Op::Xor) => bare(text),
                _ => text,
            }
        };
        format!("({} {infix} {})", chained(0), chained(1))
    }

    /// The value of a condition that the configuration decides.
    fn known(&self, condition: Id) -> Option<bool> {
        match &self.m.nodes[condition as usize].kind {
            Kind::Const(c) => Some(c.low() == 1),
            _ => None,
        }
    }

    /// What `block` assigns, except where its condition never holds.
    fn targets(&self, block: &[Stmt], out: &mut BTreeSet<Id>) {
        for s in block {
            match s {
                Stmt::Assign { target, .. } => {
                    out.insert(*target);
                }
                Stmt::If { condition, then, otherwise } => {
                    let known = self.known(*condition);
                    if known != Some(false) {
                        self.targets(then, out);
                    }
                    if known != Some(true) {
                        self.targets(otherwise, out);
                    }
                }
                Stmt::Case { arms, .. } => arms.iter().for_each(|a| self.targets(&a.body, out)),
            }
        }
    }

    /// The statements of `block` that assign one of `wanted`.
    fn statements(
        &self,
        block: &mut dyn Iterator<Item = &Stmt>,
        wanted: &HashSet<Id>,
        indent: usize,
        arrow: &str,
    ) -> String {
        let pad = "  ".repeat(indent);
        let mut out = String::new();
        for s in block {
            match s {
                Stmt::Assign { target, value, .. } => {
                    if wanted.contains(target) {
                        out += &format!("{pad}{} {arrow} {};\n", self.read(*target), self.read(*value));
                    }
                }
                Stmt::If { condition, then, otherwise } => {
                    if let Some(holds) = self.known(*condition) {
                        let taken = if holds { then } else { otherwise };
                        out += &self.statements(&mut taken.iter(), wanted, indent, arrow);
                        continue;
                    }
                    let a = self.statements(&mut then.iter(), wanted, indent + 1, arrow);
                    let chain = match &otherwise[..] {
                        [Stmt::If { condition, .. }] => !a.is_empty() && self.known(*condition).is_none(),
                        _ => false,
                    };
                    let inner = if chain { indent } else { indent + 1 };
                    let b = self.statements(&mut otherwise.iter(), wanted, inner, arrow);
                    let c = self.read(*condition);
                    out += &match (a.is_empty(), b.is_empty()) {
                        (true, true) => continue,
                        (false, true) => format!("{pad}if ({}) begin\n{a}{pad}end\n", bare(c)),
                        (true, false) => format!("{pad}if (!{c}) begin\n{b}{pad}end\n"),
                        _ if chain => {
                            format!("{pad}if ({}) begin\n{a}{pad}end else {}", bare(c), b.trim_start())
                        }
                        _ => {
                            format!("{pad}if ({}) begin\n{a}{pad}end else begin\n{b}{pad}end\n", bare(c))
                        }
                    };
                }
                Stmt::Case { subject, arms } => {
                    let bodies: Vec<String> = arms
                        .iter()
                        .map(|a| self.statements(&mut a.body.iter(), wanted, indent + 2, arrow))
                        .collect();
                    let Some((last, rest)) = bodies.split_last() else { continue };
                    if bodies.iter().all(String::is_empty) {
                        continue;
                    }
                    writeln!(out, "{pad}case ({})", bare(self.read(*subject))).expect("string");
                    let labels = |wanted: bool| {
                        arms.iter()
                            .zip(rest)
                            .filter(move |(_, b)| b.is_empty() != wanted)
                            .map(|(a, b)| (&a.label, b))
                    };
                    for (label, body) in labels(true) {
                        write!(out, "{pad}  {label}: begin\n{body}{pad}  end\n").expect("string");
                    }
                    if last.is_empty() {
                        writeln!(out, "{pad}  default: ;").expect("string");
                    } else {
                        let idle: Vec<&str> = labels(false).map(|(label, _)| label.as_str()).collect();
                        if !idle.is_empty() {
                            writeln!(out, "{pad}  {}: ;", idle.join(", ")).expect("string");
                        }
                        let label = arms.last().map_or("", |a| &a.label);
                        write!(out, "{pad}  default: begin  // {label}\n{last}{pad}  end\n").expect("string");
                    }
                    writeln!(out, "{pad}endcase").expect("string");
                }
            }
        }
        out
    }

    fn run(mut self) -> String {
        self.count();
        self.write_nodes();
        let m = self.m;
        // top-level statements that touch each target
        let mut touching: BTreeMap<Id, Vec<usize>> = BTreeMap::new();
        for (i, s) in m.body.iter().enumerate() {
            let mut targets = BTreeSet::new();
            self.targets(std::slice::from_ref(s), &mut targets);
            for t in targets {
                touching.entry(t).or_default().push(i);
            }
        }
        let ports: HashSet<Id> = m.ports.iter().map(|p| p.id).collect();
        let (mut declared, mut comb, mut sequential) = (String::new(), String::new(), String::new());
        for (id, node) in m.nodes.iter().enumerate() {
            let id = id as Id;
            let word = match node.kind {
                Kind::Reg { .. } | Kind::Read { .. } => "logic",
                Kind::Wire if !ports.contains(&id) => "logic",
                Kind::InstanceOutput { .. } => "wire",
                _ => continue,
            };
            let (a, s, name) = (self.attributes(id), self.source(id), self.read(id));
            writeln!(declared, "  {a}{word} {}{name};{s}", range(node.width)).expect("string");
        }
        for (&t, which) in &touching {
            if !matches!(m.nodes[t as usize].kind, Kind::Wire) {
                continue;
            }
            if let [only] = which[..]
                && let Stmt::Assign { value, .. } = &m.body[only]
            {
                writeln!(comb, "  assign {} = {};", self.read(t), self.read(*value)).expect("string");
            } else {
                let mut block = which.iter().map(|i| &m.body[*i]);
                let body = self.statements(&mut block, &HashSet::from([t]), 2, "=");
                write!(comb, "  always_comb begin\n{body}  end\n").expect("string");
            }
        }
        for (d, domain) in m.domains.iter().enumerate() {
            self.domain(d, domain, &touching, &mut sequential);
        }
        for x in &m.memories {
            self.memory(x, &mut declared, &mut sequential);
        }
        let mut properties = String::new();
        for p in &m.properties {
            let d = &m.domains[p.domain];
            let (clock, c, n) = (self.read(d.clock), bare(self.read(p.condition)), &p.name);
            let unless = d.reset.map(|r| format!("if (!{}) ", self.read(r))).unwrap_or_default();
            let word = if p.cover { "cover" } else { "assert" };
            writeln!(properties, "  always_ff @(posedge {clock}) {unless}begin {n}: {word} ({c}); end")
                .expect("string");
        }
        if !properties.is_empty() {
            properties = format!("`ifndef SYNTHESIS\n{properties}`endif\n");
        }
        let mut instances = String::new();
        for i in &m.instances {
            let child = &self.design.modules[i.module];
            let list: Vec<String> =
                child.external.iter().flatten().map(|(k, v)| format!(".{k}({v})")).collect();
            let parameters = if list.is_empty() { String::new() } else { format!(" #({})", list.join(", ")) };
            let pins: Vec<String> = child
                .ports
                .iter()
                .zip(&i.connections)
                .map(|(p, id)| format!("    .{}({})", p.name, self.read(*id)))
                .collect();
            writeln!(instances, "  {}{parameters} {} (\n{}\n  );", child.name, i.name, pins.join(",\n"))
                .expect("string");
        }
        let mut listed: Vec<&PortDef> = m.ports.iter().collect();
        listed.sort_by_key(|p| match p.name.as_str() {
            "clock" => 0,
            "reset" => 1,
            _ => 2,
        });
        let ports: Vec<String> = listed
            .iter()
            .map(|p| {
                let dir = if p.dir == Dir::Input { "input  wire " } else { "output logic " };
                format!("  {dir}{}{}", range(p.width), p.name)
            })
            .collect();
        let mut out = String::new();
        for line in m.doc.lines() {
            writeln!(out, "// {line}").expect("string");
        }
        writeln!(out, "module {} (\n{}\n);", m.name, ports.join(",\n")).expect("string");
        let texts = [&self.wires, &instances, &comb, &sequential, &properties];
        let code = texts.iter().flat_map(|t| t.lines()).map(|l| l.split("//").next().unwrap_or(l));
        let used: HashSet<&str> =
            code.flat_map(|l| l.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')).collect();
        for (name, width, code) in m.constants.iter().filter(|c| used.contains(c.0.as_str())) {
            writeln!(out, "  localparam logic {}{name} = {width}'d{code};", range(*width)).expect("string");
        }
        writeln!(out, "{declared}{}{instances}{comb}{sequential}{properties}endmodule", self.wires)
            .expect("string");
        out
    }

    /// One `always_ff` per group of statements that share registers.
    fn domain(
        &self,
        index: usize,
        domain: &DomainDef,
        touching: &BTreeMap<Id, Vec<usize>>,
        out: &mut String,
    ) {
        let m = self.m;
        let mine: Vec<(Id, &[usize])> = (0..)
            .zip(&m.nodes)
            .filter(|(_, n)| matches!(n.kind, Kind::Reg { domain, .. } if domain == index))
            .map(|(t, _)| (t, touching.get(&t).map_or(&[][..], |which| which)))
            .collect();
        let clock = self.read(domain.clock);
        // union of statements that touch a common register
        let mut group: Vec<usize> = (0..m.body.len()).collect();
        fn find(group: &mut [usize], mut i: usize) -> usize {
            while group[i] != i {
                group[i] = group[group[i]];
                i = group[i];
            }
            i
        }
        for (_, which) in &mine {
            for w in which.windows(2) {
                let (a, b) = (find(&mut group, w[0]), find(&mut group, w[1]));
                group[a.max(b)] = a.min(b);
            }
        }
        let mut by_group: BTreeMap<usize, (Vec<Id>, BTreeSet<usize>)> = BTreeMap::new();
        for (t, which) in mine {
            let Some(first) = which.first() else {
                self.unset(t, domain, out);
                continue;
            };
            let entry = by_group.entry(find(&mut group, *first)).or_default();
            entry.0.push(t);
            entry.1.extend(which);
        }
        for (registers, which) in by_group.into_values() {
            let wanted: HashSet<Id> = registers.iter().copied().collect();
            let body = self.statements(&mut which.iter().map(|i| &m.body[*i]), &wanted, 2, "<=");
            let mut resets = String::new();
            if let Some(r) = domain.reset {
                for t in &registers {
                    if let Some(value) = self.reset_value(*t) {
                        writeln!(resets, "      {} <= {value};", self.read(*t)).expect("string");
                    }
                }
                if !resets.is_empty() {
                    resets = format!("    if ({}) begin\n{resets}    end\n", bare(self.read(r)));
                }
            }
            write!(out, "  always_ff @(posedge {clock}) begin\n{body}{resets}  end\n").expect("string");
        }
    }

    fn reset_value(&self, register: Id) -> Option<String> {
        match &self.m.nodes[register as usize].kind {
            Kind::Reg { reset_label: Some(label), .. } => Some(label.clone()),
            Kind::Reg { reset: Some(v), .. } => Some(format!("{}'h{}", v.width(), v.hex())),
            _ => None,
        }
    }

    /// A register that only reset sets, or nothing: it stays at zero, as it starts.
    fn unset(&self, register: Id, domain: &DomainDef, out: &mut String) {
        let name = self.read(register);
        match (domain.reset, self.reset_value(register)) {
            (Some(reset), Some(value)) => writeln!(
                out,
                "  always_ff @(posedge {}) if ({}) {name} <= {value};",
                self.read(domain.clock),
                bare(self.read(reset))
            ),
            _ => writeln!(out, "  assign {name} = {}'h0;", self.m.nodes[register as usize].width),
        }
        .expect("string");
    }

    fn memory(&self, x: &MemoryDef, declared: &mut String, out: &mut String) {
        // yosys and Vivado each have their own word for it
        let collisions = x.ignores_collisions.then(|| "no_rw_check, rw_addr_collision = \"no\"".into());
        let style = x.style.map(|s| format!("ram_style = \"{s}\""));
        let attributes: Vec<String> = style.into_iter().chain(collisions).collect();
        let attributes = match attributes.len() {
            0 => String::new(),
            _ => format!("(* {} *) ", attributes.join(", ")),
        };
        let source = if self.style.sources {
            format!("  // {}:{}", x.place.file(), x.place.line())
        } else {
            String::new()
        };
        let name = &x.name;
        writeln!(declared, "  {attributes}logic {}{name} [0:{}];{source}", range(x.width), x.depth - 1)
            .expect("string");
        if let Some(init) = &x.init {
            writeln!(out, "  initial begin").expect("string");
            let zero = Bits::zero(x.width);
            for i in 0..x.depth as usize {
                let word = init.get(i).unwrap_or(&zero);
                writeln!(out, "    {name}[{i}] = {}'h{};", x.width, word.hex()).expect("string");
            }
            writeln!(out, "  end").expect("string");
        }
        // the write ports of one clock stand in one block, so that the last one wins
        let mut by_clock: BTreeMap<Id, String> = BTreeMap::new();
        for w in &x.writes {
            let (en, address, data) = (bare(self.read(w.enable)), self.read(w.address), self.read(w.data));
            let body = by_clock.entry(self.m.domains[w.domain].clock).or_default();
            let Some(lanes) = w.lanes else {
                writeln!(body, "    if ({en}) {name}[{address}] <= {data};").expect("string");
                continue;
            };
            let lanes = self.read(lanes);
            writeln!(body, "    if ({en}) begin").expect("string");
            let count = x.width / x.lane;
            for i in 0..count {
                let (high, low) = ((i + 1) * x.lane - 1, i * x.lane);
                let part = match count {
                    1 => String::new(),
                    _ if x.lane == 1 => format!("[{i}]"),
                    _ => format!("[{high}:{low}]"),
                };
                let lane = if count == 1 { lanes.into() } else { format!("{lanes}[{i}]") };
                writeln!(body, "      if ({lane}) {name}[{address}]{part} <= {data}{part};").expect("string");
            }
            writeln!(body, "    end").expect("string");
        }
        for (clock, body) in by_clock {
            let clock = self.read(clock);
            write!(out, "  always_ff @(posedge {clock}) begin\n{body}  end\n").expect("string");
        }
        for r in &x.reads {
            let (o, address) = (self.read(r.out), self.read(r.address));
            let Some(domain) = r.domain else {
                writeln!(out, "  assign {o} = {name}[{address}];").expect("string");
                continue;
            };
            if r.enable.and_then(|e| self.known(e)) == Some(false) {
                // a word that is never read stays at zero
                writeln!(out, "  assign {o} = {}'h0;", x.width).expect("string");
                continue;
            }
            let clock = self.read(self.m.domains[domain].clock);
            let en = r.enable.map(|e| self.read(e)).filter(|e| *e != "1'h1");
            let en = en.map(|e| format!("if ({}) ", bare(e))).unwrap_or_default();
            let whole = format!("  always_ff @(posedge {clock}) {en}{o} <= {name}[{address}]");
            let writes = x.writes.iter().filter(|w| x.ignores_collisions && w.domain == domain);
            let meets: Vec<String> = writes
                .map(|w| format!("({} && {} == {address})", self.read(w.enable), self.read(w.address)))
                .collect();
            if meets.is_empty() {
                writeln!(out, "{whole};").expect("string");
                continue;
            }
            writeln!(out, "`ifdef VERILATOR").expect("string");
            writeln!(out, "{whole} ^ {{{}{{{}}}}};", x.width, meets.join(" || ")).expect("string");
            writeln!(out, "`else\n{whole};\n`endif").expect("string");
        }
    }
}

/// Reserved words of IEEE 1800 that may not name anything.
pub(crate) const RESERVED: &[&str] = &[
    "accept_on",
    "alias",
    "always",
    "always_comb",
    "always_ff",
    "always_latch",
    "and",
    "assert",
    "assign",
    "assume",
    "automatic",
    "before",
    "begin",
    "bind",
    "bins",
    "binsof",
    "bit",
    "break",
    "buf",
    "bufif0",
    "bufif1",
    "byte",
    "case",
    "casex",
    "casez",
    "cell",
    "chandle",
    "checker",
    "class",
    "clocking",
    "cmos",
    "config",
    "const",
    "constraint",
    "context",
    "continue",
    "cover",
    "covergroup",
    "coverpoint",
    "cross",
    "deassign",
    "default",
    "defparam",
    "design",
    "disable",
    "dist",
    "do",
    "edge",
    "else",
    "end",
    "endcase",
    "endchecker",
    "endclass",
    "endclocking",
    "endconfig",
    "endfunction",
    "endgenerate",
    "endgroup",
    "endinterface",
    "endmodule",
    "endpackage",
    "endprimitive",
    "endprogram",
    "endproperty",
    "endsequence",
    "endspecify",
    "endtable",
    "endtask",
    "enum",
    "event",
    "eventually",
    "expect",
    "export",
    "extends",
    "extern",
    "final",
    "first_match",
    "for",
    "force",
    "foreach",
    "forever",
    "fork",
    "forkjoin",
    "function",
    "generate",
    "genvar",
    "global",
    "highz0",
    "highz1",
    "if",
    "iff",
    "ifnone",
    "ignore_bins",
    "illegal_bins",
    "implements",
    "implies",
    "import",
    "incdir",
    "include",
    "initial",
    "inout",
    "input",
    "inside",
    "instance",
    "int",
    "integer",
    "interconnect",
    "interface",
    "intersect",
    "join",
    "join_any",
    "join_none",
    "large",
    "let",
    "liblist",
    "library",
    "local",
    "localparam",
    "logic",
    "longint",
    "macromodule",
    "matches",
    "medium",
    "modport",
    "module",
    "nand",
    "negedge",
    "nettype",
    "new",
    "nexttime",
    "nmos",
    "nor",
    "noshowcancelled",
    "not",
    "notif0",
    "notif1",
    "null",
    "or",
    "output",
    "package",
    "packed",
    "parameter",
    "pmos",
    "posedge",
    "primitive",
    "priority",
    "program",
    "property",
    "protected",
    "pull0",
    "pull1",
    "pulldown",
    "pullup",
    "pulsestyle_ondetect",
    "pulsestyle_onevent",
    "pure",
    "rand",
    "randc",
    "randcase",
    "randsequence",
    "rcmos",
    "real",
    "realtime",
    "ref",
    "reg",
    "reject_on",
    "release",
    "repeat",
    "restrict",
    "return",
    "rnmos",
    "rpmos",
    "rtran",
    "rtranif0",
    "rtranif1",
    "s_always",
    "s_eventually",
    "s_nexttime",
    "s_until",
    "s_until_with",
    "scalared",
    "sequence",
    "shortint",
    "shortreal",
    "showcancelled",
    "signed",
    "small",
    "soft",
    "solve",
    "specify",
    "specparam",
    "static",
    "string",
    "strong",
    "strong0",
    "strong1",
    "struct",
    "super",
    "supply0",
    "supply1",
    "sync_accept_on",
    "sync_reject_on",
    "table",
    "tagged",
    "task",
    "this",
    "throughout",
    "time",
    "timeprecision",
    "timeunit",
    "tran",
    "tranif0",
    "tranif1",
    "tri",
    "tri0",
    "tri1",
    "triand",
    "trior",
    "trireg",
    "type",
    "typedef",
    "union",
    "unique",
    "unique0",
    "unsigned",
    "until",
    "until_with",
    "untyped",
    "use",
    "uwire",
    "var",
    "vectored",
    "virtual",
    "void",
    "wait",
    "wait_order",
    "wand",
    "weak",
    "weak0",
    "weak1",
    "while",
    "wildcard",
    "wire",
    "with",
    "within",
    "wor",
    "xnor",
    "xor",
];
