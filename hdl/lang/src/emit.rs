//! Emission of SystemVerilog that a person can read: one module per distinct configuration, names as written,
//! every width-sensitive result on a wire of its own width, sources named by file and line.

use crate::elaborate::Design;
use crate::ir::*;
use std::collections::{HashMap, HashSet};
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

struct Emitter<'a> {
    design: &'a Design,
    m: &'a ModuleDef,
    style: Style,
    uses: Vec<u32>,
    /// Name under which a node is already declared.
    name: Vec<Option<String>>,
    taken: HashSet<String>,
    /// Declarations of intermediate values, in order of dependence.
    wires: String,
    next: u32,
}

fn range(width: u32) -> String {
    if width == 1 { String::new() } else { format!("[{}:0] ", width - 1) }
}

impl<'a> Emitter<'a> {
    fn new(design: &'a Design, m: &'a ModuleDef, style: Style) -> Self {
        let mut taken: HashSet<String> = m.nodes.iter().filter_map(|n| n.name.clone()).collect();
        taken.extend(m.memories.iter().map(|x| x.name.clone()));
        taken.extend(m.instances.iter().map(|x| x.name.clone()));
        let name = m
            .nodes
            .iter()
            .map(|n| if matches!(n.kind, Kind::Op(..)) { None } else { n.name.clone() })
            .collect();
        Emitter { design, m, style, uses: vec![0; m.nodes.len()], name, taken, wires: String::new(), next: 0 }
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

    /// Counts uses from every root.
    fn count(&mut self) {
        let mut roots = vec![];
        fn walk(block: &[Stmt], roots: &mut Vec<Id>) {
            for s in block {
                match s {
                    Stmt::Assign { value, .. } => roots.push(*value),
                    Stmt::If { condition, then, otherwise } => {
                        // a condition is printed once per target: give it a name
                        roots.extend([*condition, *condition]);
                        walk(then, roots);
                        walk(otherwise, roots);
                    }
                    Stmt::Case { subject, arms } => {
                        roots.extend([*subject, *subject]);
                        arms.iter().for_each(|a| walk(&a.body, roots));
                    }
                }
            }
        }
        walk(&self.m.body, &mut roots);
        for x in &self.m.memories {
            for w in &x.writes {
                roots.extend([w.enable, w.address, w.data]);
                roots.extend(w.lanes);
            }
            for r in &x.reads {
                roots.extend(r.enable);
                roots.push(r.address);
            }
        }
        for i in &self.m.instances {
            roots.extend(&i.connections);
        }
        roots.extend(self.m.properties.iter().map(|p| p.condition));
        let mut stack = roots;
        while let Some(id) = stack.pop() {
            self.uses[id as usize] += 1;
            if self.uses[id as usize] == 1
                && let Kind::Op(_, args) = &self.m.nodes[id as usize].kind
            {
                stack.extend(args);
            }
        }
    }

    fn temporary(&mut self) -> String {
        loop {
            self.next += 1;
            let n = format!("_{}", self.next);
            if self.taken.insert(n.clone()) {
                return n;
            }
        }
    }

    /// A text for `id` that stands anywhere; `atom` asks for an identifier that can be sliced.
    fn read(&mut self, id: Id, atom: bool) -> String {
        if let Some(n) = &self.name[id as usize] {
            return n.clone();
        }
        let node = &self.m.nodes[id as usize];
        match &node.kind {
            Kind::Const(c) => {
                let text = format!("{}'h{}", node.width, c.hex());
                if !atom {
                    return text;
                }
                let n = self.temporary();
                writeln!(self.wires, "  localparam logic {}{n} = {text};", range(node.width))
                    .expect("string");
                self.name[id as usize] = Some(n.clone());
                n
            }
            Kind::Op(op, _) => {
                // results whose width Verilog would take from the context get a wire of their own
                let sized = matches!(op, Op::Add | Op::Sub | Op::Mul | Op::Shl | Op::Shr | Op::Not);
                if node.name.is_none() && self.uses[id as usize] <= 1 && !atom && !sized {
                    return self.expression(id);
                }
                let n = node.name.clone().unwrap_or_else(|| self.temporary());
                let e = self.expression(id);
                let (a, s) =
                    (self.attributes(id), if node.name.is_some() { self.source(id) } else { String::new() });
                writeln!(self.wires, "  {a}wire {}{n} = {e};{s}", range(node.width)).expect("string");
                self.name[id as usize] = Some(n.clone());
                n
            }
            _ => unreachable!("inputs, wires, registers and reads are named when made"),
        }
    }

    fn expression(&mut self, id: Id) -> String {
        let node = &self.m.nodes[id as usize];
        let Kind::Op(op, args) = node.kind.clone() else { return self.read(id, false) };
        let binary = |s: &mut Self, t: &str| {
            let (a, b) = (s.read(args[0], false), s.read(args[1], false));
            format!("({a} {t} {b})")
        };
        match op {
            Op::And => binary(self, "&"),
            Op::Or => binary(self, "|"),
            Op::Xor => binary(self, "^"),
            Op::Add => binary(self, "+"),
            Op::Sub => binary(self, "-"),
            Op::Mul => binary(self, "*"),
            Op::Eq => binary(self, "=="),
            Op::Ne => binary(self, "!="),
            Op::Lt => binary(self, "<"),
            Op::Le => binary(self, "<="),
            Op::Shl => binary(self, "<<"),
            Op::Shr => binary(self, ">>"),
            Op::Not => format!("(~{})", self.read(args[0], false)),
            Op::All => format!("(&{})", self.read(args[0], false)),
            Op::Any => format!("(|{})", self.read(args[0], false)),
            Op::Parity => format!("(^{})", self.read(args[0], false)),
            Op::Mux => {
                let (c, a, b) =
                    (self.read(args[0], false), self.read(args[1], false), self.read(args[2], false));
                format!("({c} ? {a} : {b})")
            }
            Op::Cat => {
                let parts: Vec<String> = args.iter().map(|a| self.read(*a, false)).collect();
                format!("{{{}}}", parts.join(", "))
            }
            Op::Repeat(n) => format!("{{{n}{{{}}}}}", self.read(args[0], false)),
            Op::Slice(low) => {
                let s = self.read(args[0], true);
                if node.width == 1 {
                    format!("{s}[{low}]")
                } else {
                    format!("{s}[{}:{low}]", low + node.width - 1)
                }
            }
            Op::Extend => {
                let from = self.m.nodes[args[0] as usize].width;
                let s = self.read(args[0], false);
                if from == node.width { s } else { format!("{{{}'h0, {s}}}", node.width - from) }
            }
        }
    }

    /// The statements of `block` that assign one of `wanted`.
    fn statements(&mut self, block: &[Stmt], wanted: &HashSet<Id>, indent: usize, arrow: &str) -> String {
        let pad = "  ".repeat(indent);
        let mut out = String::new();
        for s in block {
            match s {
                Stmt::Assign { target, value, .. } => {
                    if wanted.contains(target) {
                        let (t, v) = (self.read(*target, false), self.read(*value, false));
                        writeln!(out, "{pad}{t} {arrow} {v};").expect("string");
                    }
                }
                Stmt::If { condition, then, otherwise } => {
                    let a = self.statements(then, wanted, indent + 1, arrow);
                    let b = self.statements(otherwise, wanted, indent + 1, arrow);
                    if a.is_empty() && b.is_empty() {
                        continue;
                    }
                    let c = self.read(*condition, false);
                    if b.is_empty() {
                        write!(out, "{pad}if ({c}) begin\n{a}{pad}end\n").expect("string");
                    } else if a.is_empty() {
                        write!(out, "{pad}if (!{c}) begin\n{b}{pad}end\n").expect("string");
                    } else if let [Stmt::If { .. }] = &otherwise[..] {
                        let chain = self.statements(otherwise, wanted, indent, arrow);
                        write!(out, "{pad}if ({c}) begin\n{a}{pad}end else {}", chain.trim_start())
                            .expect("string");
                    } else {
                        write!(out, "{pad}if ({c}) begin\n{a}{pad}end else begin\n{b}{pad}end\n")
                            .expect("string");
                    }
                }
                Stmt::Case { subject, arms } => {
                    let bodies: Vec<String> =
                        arms.iter().map(|a| self.statements(&a.body, wanted, indent + 2, arrow)).collect();
                    if bodies.iter().all(String::is_empty) {
                        continue;
                    }
                    let c = self.read(*subject, false);
                    writeln!(out, "{pad}case ({c})").expect("string");
                    for (i, (arm, body)) in arms.iter().zip(&bodies).enumerate() {
                        let last = i + 1 == arms.len();
                        if body.is_empty() && !last {
                            writeln!(out, "{pad}  {}: ;", arm.label).expect("string");
                        } else if last {
                            write!(out, "{pad}  default: begin  // {}\n{body}{pad}  end\n", arm.label)
                                .expect("string");
                        } else {
                            write!(out, "{pad}  {}: begin\n{body}{pad}  end\n", arm.label).expect("string");
                        }
                    }
                    writeln!(out, "{pad}endcase").expect("string");
                }
            }
        }
        out
    }

    fn run(mut self) -> String {
        self.count();
        let m = self.m;
        let targets: Vec<Id> = {
            let mut t: Vec<Id> = crate::check::targets(&m.body).into_keys().collect();
            t.sort_unstable();
            t
        };
        // top-level statements that touch each target
        let mut touching: HashMap<Id, Vec<usize>> = HashMap::new();
        for (i, s) in m.body.iter().enumerate() {
            for t in crate::check::targets(std::slice::from_ref(s)).into_keys() {
                touching.entry(t).or_default().push(i);
            }
        }
        let ports: HashSet<Id> = m.ports.iter().map(|p| p.id).collect();
        let mut declared = String::new();
        let mut comb = String::new();
        for &t in &targets {
            let node = &m.nodes[t as usize];
            if !matches!(node.kind, Kind::Wire) {
                continue;
            }
            let block: Vec<Stmt> = touching[&t].iter().map(|i| m.body[*i].clone()).collect();
            let name = self.read(t, false);
            if !ports.contains(&t) {
                let (a, s) = (self.attributes(t), self.source(t));
                writeln!(declared, "  {a}logic {}{name};{s}", range(node.width)).expect("string");
            }
            if let [Stmt::Assign { value, .. }] = &block[..] {
                let v = self.read(*value, false);
                writeln!(comb, "  assign {name} = {v};").expect("string");
            } else {
                let body = self.statements(&block, &HashSet::from([t]), 2, "=");
                write!(comb, "  always_comb begin\n{body}  end\n").expect("string");
            }
        }
        for (id, node) in m.nodes.iter().enumerate() {
            let id = id as Id;
            if matches!(node.kind, Kind::Reg { .. } | Kind::Read { .. } | Kind::InstanceOutput { .. }) {
                let (a, s) = (self.attributes(id), self.source(id));
                let word = if matches!(node.kind, Kind::InstanceOutput { .. }) { "wire" } else { "logic" };
                let name = node.name.clone().expect("named when made");
                writeln!(declared, "  {a}{word} {}{name};{s}", range(node.width)).expect("string");
            }
        }
        let mut sequential = String::new();
        for (d, domain) in m.domains.iter().enumerate() {
            self.domain(d, domain, &targets, &touching, &mut sequential);
        }
        for x in &m.memories {
            self.memory(x, &mut declared, &mut sequential);
        }
        let mut properties = String::new();
        for p in &m.properties {
            let d = &m.domains[p.domain];
            let (clock, c) = (self.read(d.clock, false), self.read(p.condition, false));
            let unless = d.reset.map(|r| format!("if (!{}) ", self.read(r, false))).unwrap_or_default();
            let word = if p.cover { "cover" } else { "assert" };
            let n = &p.name;
            writeln!(properties, "  always_ff @(posedge {clock}) {unless}begin {n}: {word} ({c}); end")
                .expect("string");
        }
        if !properties.is_empty() {
            properties = format!("`ifndef SYNTHESIS\n{properties}`endif\n");
        }
        let mut instances = String::new();
        for i in &m.instances {
            let child = &self.design.modules[i.module];
            let parameters = match child.external.as_deref() {
                None | Some([]) => String::new(),
                Some(list) => {
                    let list: Vec<String> = list
                        .iter()
                        .map(|(k, v)| match v {
                            Parameter::Number(n) => format!(".{k}({n})"),
                            Parameter::Text(t) => format!(".{k}(\"{t}\")"),
                        })
                        .collect();
                    format!(" #({})", list.join(", "))
                }
            };
            let pins: Vec<String> = child
                .ports
                .iter()
                .zip(&i.connections)
                .map(|(p, id)| format!("    .{}({})", p.name, self.read(*id, false)))
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
        // a variant that labels no arm (tests of it print its code) would be an unused parameter
        let text = [&comb, &sequential].map(|t| t.to_string()).concat();
        for (name, width, code) in m.constants.iter().filter(|c| text.contains(&format!(" {}:", c.0))) {
            writeln!(out, "  localparam logic {}{name} = {width}'d{code};", range(*width)).expect("string");
        }
        writeln!(out, "{declared}{}{instances}{comb}{sequential}{properties}endmodule", self.wires)
            .expect("string");
        out
    }

    /// One `always_ff` per group of statements that share registers.
    fn domain(
        &mut self,
        index: usize,
        domain: &DomainDef,
        targets: &[Id],
        touching: &HashMap<Id, Vec<usize>>,
        out: &mut String,
    ) {
        let m = self.m;
        let mine: Vec<Id> = targets
            .iter()
            .copied()
            .filter(|t| matches!(m.nodes[*t as usize].kind, Kind::Reg { domain, .. } if domain == index))
            .collect();
        // union of statements that touch a common register
        let mut group: Vec<usize> = (0..m.body.len()).collect();
        fn find(group: &mut [usize], mut i: usize) -> usize {
            while group[i] != i {
                group[i] = group[group[i]];
                i = group[i];
            }
            i
        }
        for t in &mine {
            let s = &touching[t];
            for w in s.windows(2) {
                let (a, b) = (find(&mut group, w[0]), find(&mut group, w[1]));
                group[a.max(b)] = a.min(b);
            }
        }
        let mut by_group: Vec<(usize, Vec<Id>)> = vec![];
        for t in &mine {
            let g = find(&mut group, touching[t][0]);
            match by_group.iter_mut().find(|x| x.0 == g) {
                Some(x) => x.1.push(*t),
                None => by_group.push((g, vec![*t])),
            }
        }
        by_group.sort();
        let clock = self.read(domain.clock, false);
        for (_, registers) in by_group {
            let mut which: Vec<usize> = registers.iter().flat_map(|t| touching[t].iter().copied()).collect();
            which.sort_unstable();
            which.dedup();
            let block: Vec<Stmt> = which.iter().map(|i| m.body[*i].clone()).collect();
            let wanted: HashSet<Id> = registers.iter().copied().collect();
            let body = self.statements(&block, &wanted, 2, "<=");
            let mut resets = String::new();
            if let Some(r) = domain.reset {
                for t in &registers {
                    if let Kind::Reg { reset: Some(v), .. } = &m.nodes[*t as usize].kind {
                        let (n, w) = (self.read(*t, false), v.width());
                        writeln!(resets, "      {n} <= {w}'h{};", v.hex()).expect("string");
                    }
                }
                if !resets.is_empty() {
                    resets = format!("    if ({}) begin\n{resets}    end\n", self.read(r, false));
                }
            }
            write!(out, "  always_ff @(posedge {clock}) begin\n{body}{resets}  end\n").expect("string");
        }
    }

    fn memory(&mut self, x: &MemoryDef, declared: &mut String, out: &mut String) {
        let style = x.style.map(|s| format!("(* ram_style = \"{s}\" *) ")).unwrap_or_default();
        let source = if self.style.sources {
            format!("  // {}:{}", x.place.file(), x.place.line())
        } else {
            String::new()
        };
        let name = &x.name;
        writeln!(declared, "  {style}logic {}{name} [0:{}];{source}", range(x.width), x.depth - 1)
            .expect("string");
        if let Some(init) = &x.init {
            writeln!(out, "  initial begin").expect("string");
            for (i, b) in init.iter().enumerate() {
                writeln!(out, "    {name}[{i}] = {}'h{};", x.width, b.hex()).expect("string");
            }
            writeln!(out, "  end").expect("string");
        }
        for w in &x.writes {
            let clock = self.read(self.m.domains[w.domain].clock, false);
            let (en, address) = (self.read(w.enable, false), self.read(w.address, false));
            match w.lanes {
                None => {
                    let data = self.read(w.data, false);
                    write!(
                        out,
                        "  always_ff @(posedge {clock}) begin\n    if ({en}) {name}[{address}] <= {data};\n  end\n"
                    )
                    .expect("string");
                }
                Some(lanes) => {
                    let (data, lanes) = (self.read(w.data, true), self.read(lanes, true));
                    let count = x.width / x.lane;
                    writeln!(out, "  always_ff @(posedge {clock}) begin\n    if ({en}) begin")
                        .expect("string");
                    for i in 0..count {
                        let part = if count == 1 {
                            String::new()
                        } else {
                            format!("[{}:{}]", (i + 1) * x.lane - 1, i * x.lane)
                        };
                        let lane = if count == 1 { lanes.clone() } else { format!("{lanes}[{i}]") };
                        writeln!(out, "      if ({lane}) {name}[{address}]{part} <= {data}{part};")
                            .expect("string");
                    }
                    writeln!(out, "    end\n  end").expect("string");
                }
            }
        }
        for r in &x.reads {
            let (o, address) = (self.read(r.out, false), self.read(r.address, false));
            match r.domain {
                None => writeln!(out, "  assign {o} = {name}[{address}];").expect("string"),
                Some(d) => {
                    let clock = self.read(self.m.domains[d].clock, false);
                    let en = r.enable.map(|e| format!("if ({}) ", self.read(e, false))).unwrap_or_default();
                    write!(
                        out,
                        "  always_ff @(posedge {clock}) begin\n    {en}{o} <= {name}[{address}];\n  end\n"
                    )
                    .expect("string");
                }
            }
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
