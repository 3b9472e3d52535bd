//! `cargo ci spec [--check] [ID]`: what the card must do, where it does it, and which test shows it.
//!
//! ```text
//!   hdl/nic/spec/README.md ──> grounds, open words ──┐
//!   hdl/nic/spec/*.md ──> rows ──> references ──> found in the tree? ──> table, hdl/nic/spec/report.md
//!   *.rs of the tree ──> ids that comments cite ─────┘
//! ```
//! In: the sheets, one requirement per table row (their form: `hdl/nic/spec/README.md`), and the sources that they
//! name. Out: a table per sheet; the report, and in the head of each file of the card which rows name it, both written
//! or, with `--check`, compared. With the beginning of an id: those requirements, with `path:line` of each place and
//! test. It builds and runs nothing, so it takes a moment.
//!
//! It fails when a file, an item or a test that a row names is not there, an id stands twice, a ground of the README
//! has no requirement, a test is ignored or only the reference endpoint is tested, a comment cites an id that no sheet
//! has, or more than 5 % are exceptions; with `--check` also when what it writes is stale. It lists all faults.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::{Args, Task, run, step::Verdict};

const FOLDER: &str = "hdl/nic/spec";
/// Where the sources are that rows may name.
const SOURCES: [&str; 4] = ["ci", "hdl", "host", "sim"];
/// A test of this program alone tells nothing of the card.
const ORACLE: &str = "sim/peer/";
/// Where a file that rows name says so in its head.
const CITING: &str = "hdl/nic/";
/// How: this, and the prefixes of their ids.
const CITATION: &str = "//! Requirements: ";
/// Most exceptions, in per cent.
const EXCEPTIONS: usize = 5;
/// The open word of what is built but not shown.
const UNTESTED: &str = "test";

/// The task `spec`.
pub const TASK: Task = Task {
    name: "spec",
    args: "[--check] [ID]",
    about: "check the requirement sheets against code and tests, and write their report",
    needs: &["hdl/nic/spec/README.md"],
    run: |mut args: Args| {
        let (mut checking, mut id) = (false, None);
        while let Some(arg) = args.next()? {
            match arg {
                Long("check") => checking = true,
                Value(value) if id.is_none() => id = Some(value.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        match id {
            Some(id) => show(&id),
            None if checking => check().map(drop),
            None => write(),
        }
    },
};

/// One requirement.
struct Row {
    id: String,
    text: String,
    grounds: Vec<String>,
    places: Vec<Place>,
    tests: Vec<Place>,
    state: State,
}

/// Where something is: a file, and a name that it defines.
struct Place {
    /// Path from the root.
    file: String,
    name: String,
    line: usize,
}

#[derive(PartialEq)]
enum State {
    Shown,
    /// Not there yet: the word of the README that says what is missing.
    Open(String),
    /// Never: the reason.
    Exception(String),
}

impl Row {
    fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }
    fn is_exception(&self) -> bool {
        matches!(self.state, State::Exception(_))
    }
    fn is_implemented(&self) -> bool {
        self.is_tested() || self.state == State::Open(UNTESTED.to_owned())
    }
    fn is_tested(&self) -> bool {
        self.state == State::Shown
    }
}

/// One file of requirements.
struct Sheet {
    name: String,
    rows: Vec<Row>,
}

/// The README's two lists, and the sheets.
struct Spec {
    /// What the requirements stand on, with its subject.
    grounds: Vec<(String, String)>,
    /// What is missing, by the word that rows use.
    words: Vec<(String, String)>,
    sheets: Vec<Sheet>,
}

/// Text of every source, by path from the root.
type Tree = BTreeMap<String, String>;

fn read(folder: &Path, prefix: &str, tree: &mut Tree) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {prefix}"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}/{name}");
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.starts_with('.') {
                read(&entry.path(), &path, tree)?;
            }
        } else if name.ends_with(".rs") || name.ends_with(".py") {
            let text = fs::read_to_string(entry.path()).with_context(|| format!("cannot read {path}"))?;
            tree.insert(path, text);
        }
    }
    Ok(())
}

/// `needle` in `line`, as a whole word: what stands before and after each.
fn words<'a>(line: &'a str, needle: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(needle)
        .map(|(at, _)| (&line[..at], &line[at + needle.len()..]))
        .filter(move |(before, after)| !before.ends_with(inside) && !after.starts_with(inside))
}

/// The line, from 1, on which `text` defines `name`: an item, a binding, a named signal, a register, a field or a variant.
fn definition(text: &str, name: &str) -> Option<usize> {
    const KEYWORDS: [&str; 10] =
        ["fn", "struct", "enum", "const", "static", "type", "trait", "mod", "macro_rules!", "def"];
    let line = text.lines().position(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub ").unwrap_or(line);
        !line.starts_with("//")
            && words(line, name).any(|(before, after)| {
                KEYWORDS.iter().any(|keyword| before.ends_with(&format!("{keyword} ")))
                    || line.starts_with("let ") && !before.contains('=')
                    || before.ends_with('"') && after.starts_with('"')
                    || before.is_empty()
                        && ([": ", " = ", ", ", " {"].iter().any(|next| after.starts_with(next))
                            || after == ","
                            || after.split(' ').nth(2).is_some_and(|offset| offset.starts_with("0x")))
            })
    });
    line.map(|at| at + 1)
}

/// The line, from 1, of the test `name`, or why it is none.
fn test(text: &str, name: &str) -> Result<usize, &'static str> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let python = format!("def {name}(");
    if let Some(at) = lines.iter().position(|line| line.starts_with(&python) && name.starts_with("test")) {
        return Ok(at + 1);
    }
    // of a co-simulation: by its decorator
    let cocotb = format!("async def {name}(");
    let is_test = |pair: &[&str]| pair[0].starts_with("@cocotb.test(") && pair[1].starts_with(&cocotb);
    if let Some(at) = lines.windows(2).position(is_test) {
        return Ok(at + 2);
    }
    let head = format!("fn {name}(");
    let Some(at) = lines.iter().position(|line| line.starts_with(&head)) else {
        return Err("has no such function");
    };
    let attributes: Vec<_> = lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).collect();
    if !attributes.iter().any(|line| **line == "#[test]") {
        return Err("has it, but it is no test");
    }
    if attributes.iter().any(|line| line.starts_with("#[ignore")) {
        return Err("has it, but it is ignored");
    }
    Ok(at + 1)
}

/// The one file whose path ends with `path`.
fn file<'a>(tree: &'a Tree, path: &str) -> Result<&'a str, String> {
    let ends = format!("/{path}");
    let mut found = tree.keys().filter(|key| *key == path || key.ends_with(&ends));
    match (found.next(), found.next()) {
        (Some(key), None) => Ok(key),
        (None, _) => Err(format!("no file ends with `{path}`")),
        (Some(one), Some(two)) => Err(format!("`{path}` may be {one} or {two}: write more of it")),
    }
}

/// What the backticks of a cell name. `file::name`; a following `::name` is in the same file.
fn places(cell: &str, tree: &Tree, tests: bool) -> Result<Vec<Place>, String> {
    let mut all: Vec<Place> = Vec::new();
    for (i, part) in cell.split('`').enumerate() {
        if i % 2 == 0 {
            if !part.trim().is_empty() {
                return Err(format!("`{}` is no reference in backticks", part.trim()));
            }
            continue;
        }
        let (path, name) = part.split_once("::").ok_or(format!("`{part}` names a file and no item"))?;
        let file = match all.last() {
            Some(last) if path.is_empty() => last.file.clone(),
            _ => file(tree, path)?.to_owned(),
        };
        let last = name.rsplit("::").next().unwrap_or(name);
        let line = if tests {
            test(&tree[&file], last).map_err(|why| format!("test `{last}`: {file} {why}"))?
        } else {
            definition(&tree[&file], last).ok_or(format!("item `{last}`: {file} does not define it"))?
        };
        all.push(Place { file, name: name.to_owned(), line });
    }
    Ok(all)
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// `ABC-123`.
fn is_id(text: &str) -> bool {
    text.split_once('-').is_some_and(|(prefix, number)| {
        prefix.len() > 1
            && prefix.bytes().all(|b| b.is_ascii_uppercase())
            && number.len() == 3
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// Rows of the tables of `text` whose first column is called `first`, with their line.
fn table<'a>(text: &'a str, first: &str) -> Vec<(usize, Vec<&'a str>)> {
    let (mut rows, mut inside) = (Vec::new(), false);
    for (at, line) in text.lines().enumerate() {
        if !line.starts_with('|') {
            inside = false;
            continue;
        }
        let cells = cells(line);
        if inside && !line.starts_with("|-") {
            rows.push((at + 1, cells));
        } else if cells[0] == first {
            inside = true;
        }
    }
    rows
}

/// One line of a sheet.
fn row(cells: &[&str], spec: &Spec, tree: &Tree) -> Result<Row, String> {
    let [id, text, source, by, shown] = cells else {
        return Err(format!("{} cells, not id, requirement, source, by, shown by", cells.len()));
    };
    if !is_id(id) {
        return Err(format!("`{id}` is no id like RESP-017"));
    }
    if !text.contains(" shall ") || !text.ends_with('.') {
        return Err("is no sentence with `shall`".to_owned());
    }
    let known = |word: &&str| spec.grounds.iter().any(|(ground, _)| ground == *word);
    let grounds: Vec<String> = source.split([' ', ',', ';']).filter(known).map(str::to_owned).collect();
    if grounds.is_empty() {
        return Err(format!("source `{source}` names no ground of the README"));
    }
    let (shown, state) = if let Some((shown, reason)) = shown.split_once("exception:") {
        (shown, State::Exception(reason.trim().to_owned()))
    } else if let Some((shown, word)) = shown.split_once("open:") {
        let word = word.trim();
        if !spec.words.iter().any(|(known, _)| known == word) {
            return Err(format!("`{word}` is no open word of the README"));
        }
        (shown, State::Open(word.to_owned()))
    } else {
        (*shown, State::Shown)
    };
    let places_of = |cell: &str, tests| if cell == "-" { Ok(Vec::new()) } else { places(cell, tree, tests) };
    let row = Row {
        id: (*id).to_owned(),
        text: (*text).to_owned(),
        grounds,
        places: places_of(by, false)?,
        tests: places_of(shown, true)?,
        state,
    };
    if row.state == State::Exception(String::new()) {
        return Err("an exception without its reason".to_owned());
    }
    if row.is_implemented() && row.places.is_empty() {
        return Err("names no place that does it".to_owned());
    }
    if row.is_tested() && row.tests.iter().all(|test| test.file.starts_with(ORACLE)) {
        return Err("is shown by no test of the card; say `open:` or `exception:`".to_owned());
    }
    Ok(row)
}

/// Reads README and sheets (name without `.md`, text); every fault of either is a line.
fn parse(readme: &str, sheets: &[(String, String)], tree: &Tree) -> (Spec, Vec<String>) {
    let pairs = |first: &str| {
        let rows = table(readme, first).into_iter();
        rows.map(|(_, cells)| (cells[0].to_owned(), cells.get(1).copied().unwrap_or("").to_owned())).collect()
    };
    let mut spec = Spec { grounds: pairs("ground"), words: pairs("word"), sheets: Vec::new() };
    let mut faults = Vec::new();
    let mut ids = BTreeSet::new();
    for (name, text) in sheets {
        let mut sheet = Sheet { name: name.clone(), rows: Vec::new() };
        for (line, cells) in table(text, "id") {
            let at = format!("{FOLDER}/{name}.md:{line}");
            match row(&cells, &spec, tree) {
                Ok(row) => {
                    if !ids.insert(row.id.clone()) {
                        faults.push(format!("{at}: {} stands twice", row.id));
                    }
                    if sheet.rows.last().is_some_and(|last| last.id > row.id) {
                        faults.push(format!("{at}: {} is out of order", row.id));
                    }
                    sheet.rows.push(row);
                }
                Err(fault) => faults.push(format!("{at}: {}: {fault}", cells[0])),
            }
        }
        spec.sheets.push(sheet);
    }
    let cited: BTreeSet<_> = spec.rows().flat_map(|row| &row.grounds).collect();
    for (ground, subject) in spec.grounds.iter().filter(|(ground, _)| !cited.contains(ground)) {
        faults.push(format!("{FOLDER}/README.md: no requirement stands on {ground} ({subject})"));
    }
    let prefixes: BTreeSet<_> =
        ids.iter().filter_map(|id| id.split_once('-')).map(|(prefix, _)| prefix).collect();
    for (path, text) in tree.iter().filter(|(path, _)| !path.ends_with(file!())) {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//")) {
            let parts =
                line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(|part| is_id(part));
            for id in parts.filter(|id| prefixes.contains(&id[..id.len() - 4]) && !ids.contains(*id)) {
                faults.push(format!("{path}:{}: cites {id}, which no sheet has", at + 1));
            }
        }
    }
    let (all, exceptions) = (spec.rows().count(), spec.rows().filter(|row| row.is_exception()).count());
    if exceptions * 100 > all * EXCEPTIONS {
        faults.push(format!("{exceptions} exceptions of {all} requirements are more than {EXCEPTIONS} %"));
    }
    (spec, faults)
}

impl Spec {
    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.sheets.iter().flat_map(|sheet| &sheet.rows)
    }

    /// Name, requirements, implemented, tested, exceptions, open of each sheet and of all.
    fn counts(&self) -> Vec<(String, [usize; 5])> {
        let count = |rows: &mut dyn Iterator<Item = &Row>| {
            let mut n = [0; 5];
            for row in rows {
                let is = [true, row.is_implemented(), row.is_tested(), row.is_exception(), row.is_open()];
                for (n, is) in n.iter_mut().zip(is) {
                    *n += usize::from(is);
                }
            }
            n
        };
        let each = self.sheets.iter().map(|s| (s.name.clone(), count(&mut s.rows.iter())));
        each.chain([("total".to_owned(), count(&mut self.rows()))]).collect()
    }

    /// What `cargo ci spec` prints.
    fn table(&self) -> String {
        let mut text = format!(
            "{:14}{:>14}{:>14}{:>9}{:>13}{:>7}\n",
            "sheet", "requirements", "implemented", "tested", "exceptions", "open"
        );
        for (name, [all, implemented, tested, exceptions, open]) in self.counts() {
            let _ = writeln!(text, "{name:14}{all:>14}{implemented:>14}{tested:>9}{exceptions:>13}{open:>7}");
        }
        text
    }

    /// The committed snapshot.
    fn report(&self) -> String {
        let mut text = "# What is required, built and shown\n\nWritten by `cargo ci spec`; do not edit. \
             The sheets and their form: [README](README.md).\n\n\
             | sheet | requirements | implemented | tested | exceptions | open |\n|---|---|---|---|---|---|\n"
            .to_owned();
        for (name, [all, implemented, tested, exceptions, open]) in self.counts() {
            let name = if name == "total" { "**total**".to_owned() } else { format!("[{name}]({name}.md)") };
            let _ = writeln!(text, "| {name} | {all} | {implemented} | {tested} | {exceptions} | {open} |");
        }
        let ids = |wanted: &dyn Fn(&Row) -> bool| {
            let ids: Vec<_> = self.rows().filter(|row| wanted(row)).map(|row| row.id.as_str()).collect();
            ids.join(" ")
        };
        text += "\n## Open, by what is missing\n\n| word | what | requirements |\n|---|---|---|\n";
        for (word, what) in &self.words {
            let open = State::Open(word.clone());
            let _ = writeln!(text, "| {word} | {what} | {} |", ids(&|row| row.state == open));
        }
        text += "\n## Exceptions\n\n| id | requirement | reason |\n|---|---|---|\n";
        for row in self.rows() {
            if let State::Exception(reason) = &row.state {
                let _ = writeln!(text, "| {} | {} | {reason} |", row.id, row.text);
            }
        }
        text += "\n## By ground\n\n| ground | subject | requirements |\n|---|---|---|\n";
        for (ground, subject) in &self.grounds {
            let _ = writeln!(text, "| {ground} | {subject} | {} |", ids(&|row| row.grounds.contains(ground)));
        }
        text += "\n## By file\n\n| file | does | shows |\n|---|---|---|\n";
        let files: BTreeSet<_> =
            self.rows().flat_map(|r| r.places.iter().chain(&r.tests)).map(|p| &p.file).collect();
        for file in files {
            let does = ids(&|row| row.places.iter().any(|place| place.file == *file));
            let shows = ids(&|row| row.tests.iter().any(|test| test.file == *file));
            let _ = writeln!(text, "| {file} | {does} | {shows} |");
        }
        text
    }

    /// The requirements whose id begins with `id`, with every place as `path:line`.
    fn show(&self, id: &str) -> String {
        let mut text = String::new();
        for row in self.rows().filter(|row| row.id.starts_with(id)) {
            let state = match &row.state {
                State::Shown => String::new(),
                State::Open(word) => format!(" (open: {word})"),
                State::Exception(reason) => format!(" (exception: {reason})"),
            };
            let _ = writeln!(text, "{} {}{state}", row.id, row.text);
            for (what, places) in [("by", &row.places), ("shown by", &row.tests)] {
                for place in places {
                    let _ = writeln!(text, "    {what:8} {}:{} {}", place.file, place.line, place.name);
                }
            }
        }
        text
    }
}

/// The files of the card that rows name and whose head does not say so, with the text that does.
fn uncited(spec: &Spec, tree: &Tree) -> Vec<(String, String)> {
    let mut heads: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in spec.rows() {
        let cites = |place: &&Place| place.file.starts_with(CITING) && place.file.ends_with(".rs");
        for place in row.places.iter().chain(&row.tests).filter(cites) {
            heads.entry(&place.file).or_default().insert(row.id.split('-').next().unwrap_or(""));
        }
    }
    let cited = heads.into_iter().map(|(file, prefixes)| {
        let mut lines: Vec<_> = tree[file].lines().filter(|line| !line.starts_with(CITATION)).collect();
        let citation = CITATION.to_owned() + &Vec::from_iter(prefixes).join(" ");
        let mut end = lines.iter().take_while(|line| line.starts_with("//!")).count();
        while end > 0 && lines[end - 1] == "//!" {
            end -= 1;
            lines.remove(end);
        }
        lines.splice(end..end, ["//!", &citation]);
        (file.to_owned(), lines.join("\n") + "\n")
    });
    cited.filter(|(file, text)| tree[file] != *text).collect()
}

/// The spec of this tree and its sources; faults are printed.
fn load() -> Result<(Spec, Tree)> {
    let root = run::root();
    let mut tree = Tree::new();
    for folder in SOURCES {
        read(&root.join(folder), folder, &mut tree)?;
    }
    let mut sheets = Vec::new();
    for entry in fs::read_dir(root.join(FOLDER)).context("cannot list hdl/nic/spec")? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|end| end == "md") && name != "README" && name != "report" {
            sheets.push((name, fs::read_to_string(&path)?));
        }
    }
    sheets.sort();
    let readme = fs::read_to_string(root.join(FOLDER).join("README.md"))?;
    let (spec, faults) = parse(&readme, &sheets, &tree);
    for fault in &faults {
        println!("{fault}");
    }
    if !faults.is_empty() {
        bail!("{} fault(s) in the requirement sheets; each line above names one", faults.len());
    }
    Ok((spec, tree))
}

fn show(id: &str) -> Result<()> {
    let text = load()?.0.show(id);
    if text.is_empty() {
        bail!("no requirement begins with {id:?}; `cargo ci spec` counts them by sheet");
    }
    print!("{text}");
    Ok(())
}

fn write() -> Result<()> {
    let (spec, tree) = load()?;
    print!("{}", spec.table());
    for (file, text) in uncited(&spec, &tree) {
        println!("changed: {file}");
        fs::write(run::root().join(file), text)?;
    }
    fs::write(run::root().join(FOLDER).join("report.md"), spec.report()).context("cannot write the report")
}

/// Demands that all references live, that the card's files cite what names them, and that the report is current.
pub fn check() -> Result<Verdict> {
    let (spec, tree) = load()?;
    print!("{}", spec.table());
    let committed = fs::read_to_string(run::root().join(FOLDER).join("report.md")).unwrap_or_default();
    current(&spec, &tree, &committed)?;
    Ok(Verdict::Passed)
}

fn current(spec: &Spec, tree: &Tree, committed: &str) -> Result<()> {
    let mut stale: Vec<_> = uncited(spec, tree).into_iter().map(|(file, _)| file).collect();
    if spec.report() != committed {
        stale.push(format!("{FOLDER}/report.md"));
    }
    if !stale.is_empty() {
        bail!("{} stale; repair with `cargo ci spec` and commit", stale.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = "\
| ground | subject |
|---|---|
| §1 | packets |

| word | what |
|---|---|
| atomics | atomics |
| test | built, not shown |
";

    fn tree() -> Tree {
        let code = "const LIMIT: u32 = 3;\npub struct Check {\n    pub epsn: Sig,\n}\nlet (gap, late) = two();\n\
                    x.named(\"nak\");\n// fn ghost()\nBadFcs = 0,\nMAX_SGE max_sge 0x3c 32\n    epsn.set(1);\n";
        let test =
            "#[test]\nfn it_is_so() {}\nfn helper() {}\n#[test]\n#[ignore = \"slow\"]\nfn later() {}\n";
        let files = [
            ("hdl/src/check.rs", code),
            ("hdl/tests/check.rs", test),
            ("sim/tests/a.rs", test),
            ("sim/peer/tests/a.rs", test),
        ];
        files.map(|(path, text)| (path.to_owned(), text.to_owned())).into()
    }

    fn sheet(rows: &[&str]) -> (Spec, Vec<String>) {
        let head = "| id | requirement | source | by | shown by |\n|---|---|---|---|---|\n";
        parse(README, &[("s".to_owned(), format!("# S\n\n{head}{}\n", rows.join("\n")))], &tree())
    }

    const GOOD: &str = "| AB-001 | It shall be so. | §1 IBA 9.2 | `src/check.rs::LIMIT` `::Check::epsn` | `tests/check.rs::it_is_so` |";

    /// The one fault of a sheet whose first row is good and whose second is this.
    fn fault(row: &str) -> String {
        let (_, faults) = sheet(&[GOOD, row]);
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.into_iter().next().unwrap()
    }

    #[test]
    fn every_one_of_the_twenty_inputs_is_brought_by_tests_that_exist() {
        let root = run::root();
        let mut tree = Tree::new();
        for folder in SOURCES {
            read(&root.join(folder), folder, &mut tree).unwrap();
        }
        let text = fs::read_to_string(root.join("docs/inputs.md")).unwrap();
        let rows = table(&text, "no.");
        for (n, (line, cells)) in rows.iter().enumerate() {
            assert_eq!(cells[0], (n + 1).to_string(), "docs/inputs.md:{line}");
            let tests = places(cells[2], &tree, true);
            let tests = tests.unwrap_or_else(|why| panic!("docs/inputs.md:{line}: {why}"));
            assert!(tests.iter().any(|test| !test.file.starts_with(ORACLE)), "docs/inputs.md:{line}");
        }
        assert_eq!(rows.len(), 20);
    }

    #[test]
    fn a_row_is_read_counted_and_shown_with_its_lines() {
        let (spec, faults) = sheet(&[
            GOOD,
            "| AB-002 | It shall add. | §1 | - | open: atomics |",
            "| AB-004 | It shall sing. | §1 | - | exception: it has no voice |",
        ]);
        // two rows are few: one exception is more than 5 %
        assert_eq!(faults, ["1 exceptions of 3 requirements are more than 5 %"]);
        assert_eq!(spec.counts()[1], ("total".to_owned(), [3, 1, 1, 1, 1]));
        assert_eq!(
            spec.show("AB-001"),
            "AB-001 It shall be so.\n    by       hdl/src/check.rs:1 LIMIT\n    by       hdl/src/check.rs:3 Check::epsn\n    \
             shown by hdl/tests/check.rs:2 it_is_so\n"
        );
        let report = spec.report();
        assert!(report.contains("| atomics | atomics | AB-002 |"), "{report}");
        assert!(report.contains("| AB-004 | It shall sing. | it has no voice |"), "{report}");
        assert!(report.contains("| hdl/tests/check.rs |  | AB-001 |"), "{report}");
    }

    #[test]
    fn a_test_of_a_co_simulation_is_known_by_its_decorator() {
        let text = "async def help(dut):\n    pass\n@cocotb.test(timeout_time=1)\nasync def it_runs(dut):\n";
        assert_eq!(test(text, "it_runs"), Ok(4));
        assert_eq!(test(text, "help"), Err("has no such function"));
    }

    #[test]
    fn a_dead_reference_is_a_fault_that_names_it() {
        let dead = |by: &str, shown: &str| fault(&format!("| AB-002 | It shall do. | §1 | {by} | {shown} |"));
        let (code, test) = ("`src/check.rs::LIMIT`", "`tests/check.rs::it_is_so`");
        for (fault, says) in [
            (dead("`src/chick.rs::LIMIT`", test), "no file ends with `src/chick.rs`"),
            (dead("`src/check.rs::ghost`", test), "hdl/src/check.rs does not define it"),
            (dead("`src/check.rs::set`", test), "does not define it"),
            (dead("`check.rs::LIMIT`", test), "may be hdl/src/check.rs or hdl/tests/check.rs"),
            (dead("`src/check.rs`", test), "names a file and no item"),
            (dead("the check", test), "no reference in backticks"),
            (dead(code, "`tests/check.rs::it_was_so`"), "has no such function"),
            (dead(code, "`tests/check.rs::helper`"), "no test"),
            (dead(code, "`tests/check.rs::later`"), "ignored"),
            (dead("-", test), "names no place"),
            (dead(code, "-"), "shown by no test of the card"),
            (dead(code, "`sim/peer/tests/a.rs::it_is_so`"), "shown by no test of the card"),
            (dead(code, "open: atomic"), "no open word"),
            (dead(code, "exception:"), "without its reason"),
        ] {
            assert!(
                fault.starts_with("hdl/nic/spec/s.md:6: AB-002: ") && fault.contains(says),
                "{fault} / {says}"
            );
        }
    }

    #[test]
    fn ids_are_unique_ascending_and_of_one_form_and_requirements_are_sentences_with_a_source() {
        let rest = "`src/check.rs::nak` | `tests/check.rs::it_is_so` |";
        assert!(fault(GOOD).ends_with("AB-001 stands twice"));
        for (row, says) in [
            (format!("| AB-000 | It shall do. | §1 | {rest}"), "out of order"),
            (format!("| AB-2 | It shall do. | §1 | {rest}"), "no id"),
            (format!("| AB-002 | It does. | §1 | {rest}"), "no sentence"),
            (format!("| AB-002 | It shall do. | IBA 9 | {rest}"), "names no ground"),
            ("| AB-002 | It shall do. | §1 |".to_owned(), "3 cells"),
        ] {
            let fault = fault(&row);
            assert!(fault.contains(says), "{fault} / {says}");
        }
    }

    #[test]
    fn a_ground_without_a_requirement_and_a_citation_of_none_are_faults() {
        let (_, faults) = sheet(&[]);
        assert_eq!(faults, ["hdl/nic/spec/README.md: no requirement stands on §1 (packets)"]);
        let mut tree = tree();
        tree.insert("hdl/src/place.rs".to_owned(), "// AB-001 and AB-009; not CRC-032\n".to_owned());
        let text = format!("| id | a | b | c | d |\n|---|---|---|---|---|\n{GOOD}\n");
        let (_, faults) = parse(README, &[("s".to_owned(), text)], &tree);
        assert_eq!(faults, ["hdl/src/place.rs:1: cites AB-009, which no sheet has"]);
    }

    #[test]
    fn a_file_of_the_card_that_rows_name_cites_them_in_its_head() {
        let mut tree = tree();
        tree.insert("hdl/nic/src/rx/check.rs".to_owned(), "//! Judges.\n\nconst NAK: u8 = 1;\n".to_owned());
        let row = GOOD.replace("src/check.rs::LIMIT` `::Check::epsn", "rx/check.rs::NAK");
        let text = format!("| id | a | b | c | d |\n|---|---|---|---|---|\n{row}\n");
        let (spec, faults) = parse(README, &[("s".to_owned(), text)], &tree);
        assert_eq!(faults, [""; 0]);
        let error = current(&spec, &tree, &spec.report()).unwrap_err().to_string();
        assert_eq!(error, "hdl/nic/src/rx/check.rs stale; repair with `cargo ci spec` and commit");
        let repaired = uncited(&spec, &tree);
        assert_eq!(repaired[0].1, "//! Judges.\n//!\n//! Requirements: AB\n\nconst NAK: u8 = 1;\n");
        tree.extend(repaired);
        current(&spec, &tree, &spec.report()).unwrap();
        tree.values_mut().for_each(|text| *text = text.replace("Requirements: AB", "Requirements: XY"));
        assert_eq!(uncited(&spec, &tree).len(), 1);
    }

    #[test]
    fn a_definition_is_found_in_every_form_that_the_rtl_has_and_a_use_is_none() {
        let code = &tree()["hdl/src/check.rs"];
        let lines =
            ["LIMIT", "Check", "epsn", "gap", "late", "nak", "BadFcs", "MAX_SGE", "ghost", "two", "Sig"]
                .map(|name| definition(code, name));
        let expected = [1, 2, 3, 5, 5, 6, 8, 9].map(Some);
        assert_eq!(lines[..8], expected);
        assert_eq!(lines[8..], [None; 3]);
    }

    #[test]
    fn a_stale_report_fails_with_the_repair_command() {
        let (spec, faults) = sheet(&[GOOD]);
        assert_eq!(faults, [""; 0]);
        current(&spec, &tree(), &spec.report()).unwrap();
        let error = current(&spec, &tree(), "# What\n").unwrap_err().to_string();
        assert_eq!(error, "hdl/nic/spec/report.md stale; repair with `cargo ci spec` and commit");
    }
}
