//! The rules that need a whole module (drivers, latches) or the whole design (loops, clock crossings).

use crate::elaborate::Design;
use crate::error::{Error, Place, Rule};
use crate::flat::{Flat, FlatKind};
use crate::ir::*;
use std::collections::HashMap;

/// Drivers and latches of one module.
pub(crate) fn module(m: &ModuleDef) -> Result<(), Error> {
    let fail = |rule, place, message: String| Err(Error { rule, module: m.name.clone(), message, place });
    order(m, &m.body)?;
    let assigned = targets(&m.body);
    let mut touching: HashMap<Id, Vec<&Stmt>> = HashMap::new();
    for s in &m.body {
        for t in targets(std::slice::from_ref(s)).into_keys() {
            touching.entry(t).or_default().push(s);
        }
    }
    for (id, node) in m.nodes.iter().enumerate() {
        if !matches!(node.kind, Kind::Wire) {
            continue;
        }
        let id = id as Id;
        let name = node.name.as_deref().unwrap_or("?");
        if !assigned.contains_key(&id) {
            return fail(Rule::Undriven, node.place, format!("nothing drives `{name}`"));
        }
        if !touching[&id].iter().any(|s| complete(std::slice::from_ref(*s), id)) {
            return fail(
                Rule::Latch,
                node.place,
                format!("`{name}` keeps its old value on some path; set a default before the `when`"),
            );
        }
    }
    Ok(())
}

/// Targets assigned anywhere in `block`, with the place of the first assignment.
pub(crate) fn targets(block: &[Stmt]) -> HashMap<Id, Place> {
    fn walk(block: &[Stmt], out: &mut HashMap<Id, Place>) {
        for s in block {
            match s {
                Stmt::Assign { target, place, .. } => {
                    out.entry(*target).or_insert(place);
                }
                Stmt::If { then, otherwise, .. } => {
                    walk(then, out);
                    walk(otherwise, out);
                }
                Stmt::Case { arms, .. } => arms.iter().for_each(|a| walk(&a.body, out)),
            }
        }
    }
    let mut out = HashMap::new();
    walk(block, &mut out);
    out
}

/// No unconditional assignment may follow another assignment to the same target in one list.
fn order(m: &ModuleDef, block: &[Stmt]) -> Result<(), Error> {
    let mut seen: HashMap<Id, bool> = HashMap::new();
    for s in block {
        match s {
            Stmt::Assign { target, place, .. } => {
                let name = m.nodes[*target as usize].name.clone().unwrap_or_default();
                let (rule, message) = match seen.insert(*target, true) {
                    None => continue,
                    Some(true) => (Rule::DoubleDriven, format!("`{name}` is driven twice here")),
                    Some(false) => (
                        Rule::DefaultAfterWhen,
                        format!("this default of `{name}` voids the `when` before it; move it up"),
                    ),
                };
                return Err(Error { rule, module: m.name.clone(), message, place });
            }
            Stmt::If { then, otherwise, .. } => {
                order(m, then)?;
                order(m, otherwise)?;
            }
            Stmt::Case { arms, .. } => arms.iter().try_for_each(|a| order(m, &a.body))?,
        }
        if !matches!(s, Stmt::Assign { .. }) {
            for t in targets(std::slice::from_ref(s)).into_keys() {
                seen.entry(t).or_insert(false);
            }
        }
    }
    Ok(())
}

/// Every path through `block` assigns `target`.
fn complete(block: &[Stmt], target: Id) -> bool {
    block.iter().any(|s| match s {
        Stmt::Assign { target: t, .. } => *t == target,
        Stmt::If { then, otherwise, .. } => complete(then, target) && complete(otherwise, target),
        Stmt::Case { arms, .. } => !arms.is_empty() && arms.iter().all(|a| complete(&a.body, target)),
    })
}

/// Loops and clock crossings of the whole design.
pub(crate) fn design(d: &Design) -> Result<(), Error> {
    let flat = Flat::new(d);
    crossings(&flat, &flat.order()?)
}

fn crossings(flat: &Flat, order: &[u32]) -> Result<(), Error> {
    let mut clocks: Vec<u32> = vec![];
    let mut bit = |clock: u32| {
        let i = clocks.iter().position(|c| *c == clock).unwrap_or_else(|| {
            clocks.push(clock);
            clocks.len() - 1
        });
        1u64 << i.min(63)
    };
    // source clocks of every node, in evaluation order
    let mut sources = vec![0u64; flat.nodes.len()];
    for (id, n) in flat.nodes.iter().enumerate() {
        match &n.kind {
            FlatKind::Reg { clock, .. } => sources[id] = bit(*clock),
            FlatKind::ReadSync { memory, port } => {
                sources[id] = bit(flat.memories[*memory].reads[*port].clock.expect("a synchronous port"));
            }
            _ => {}
        }
    }
    for &id in order {
        let mut s = sources[id as usize];
        flat.operands(id, |o| s |= sources[o as usize]);
        if let FlatKind::ReadNow { memory, .. } = flat.nodes[id as usize].kind {
            for w in &flat.memories[memory].writes {
                s |= bit(w.clock);
            }
        }
        sources[id as usize] = s;
    }
    for n in &flat.nodes {
        if let FlatKind::Reg { clock, next, synchroniser: false, .. } = &n.kind {
            let foreign = sources[*next as usize] & !bit(*clock);
            if foreign != 0 {
                return Err(flat.error(
                    Rule::ClockCrossing,
                    n,
                    format!("`{}` samples another clock; use `synchronise` or an asynchronous FIFO", n.path),
                ));
            }
        }
    }
    for m in &flat.memories {
        let writes =
            m.writes.iter().map(|w| (w.clock, [Some(w.enable), Some(w.address), Some(w.data), w.lanes]));
        let reads =
            m.reads.iter().filter_map(|r| r.clock.map(|c| (c, [r.enable, Some(r.address), None, None])));
        for (clock, pins) in writes.chain(reads) {
            for pin in pins.into_iter().flatten() {
                if sources[pin as usize] & !bit(clock) != 0 {
                    return Err(Error {
                        rule: Rule::ClockCrossing,
                        module: flat.top.clone(),
                        message: format!("a port of memory `{}` is driven from another clock", m.path),
                        place: m.place,
                    });
                }
            }
        }
    }
    Ok(())
}
