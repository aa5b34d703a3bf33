//! The layers of this crate are what the table in lib.rs says: a module uses only modules in rows below its own,
//! so that no two of them can use each other, in a circle of whatever length.
//!
//! What it reads is text: `crate::` paths and chains of `super::` that leave a folder, tests included, comments not.
//! A path that a macro puts together would not be seen. There is none.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The rows of a table of layers in a module's documentation, top to bottom: the modules in the first column.
fn rows(documentation: &str) -> Vec<Vec<String>> {
    let lines = documentation.lines().skip_while(|line| !line.starts_with("//! | layer |"));
    let rows = lines.skip(2).map_while(|line| line.strip_prefix("//! | "));
    let modules = |row: &str| {
        let first = row.split(" |").next().unwrap_or_default();
        first.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    rows.map(modules).collect()
}

/// The modules that a crate's root declares.
fn declared(root: &str) -> BTreeSet<String> {
    let module = |line: &str| {
        let (_, name) = line.strip_suffix(';')?.split_once("mod ")?;
        Some(name.to_owned())
    };
    root.lines().filter_map(module).collect()
}

/// The first words of a path or of a group of paths, as in `{a::b, c}::…`.
fn heads(path: &str) -> Vec<String> {
    let word = |text: &str| {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![word(path)] };
    let (mut depth, mut parts) = (0_usize, vec![String::new()]);
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("there is one").push(c),
        }
        depth += usize::from(c == '{');
        depth -= usize::from(c == '}');
    }
    parts.iter().map(|part| word(part)).filter(|name: &String| !name.is_empty()).collect()
}

/// The modules at the crate's root that a file uses which lies `depth` modules below the root.
fn used(text: &str, depth: usize) -> BTreeSet<String> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let code = code.collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        found.extend(heads(&code[at + "crate::".len()..]));
    }
    // Modules within the file, by how far their closing brace is indented.
    let mut within = Vec::new();
    let mut at = 0;
    for line in code.lines() {
        let indented = line.len() - line.trim_start().len();
        if line.contains("mod ") && line.ends_with('{') {
            within.push(indented);
        } else if line.trim() == "}" && within.last() == Some(&indented) {
            within.pop();
        }
        let mut rest = line;
        while let Some((_, chain)) = rest.split_once("super::") {
            let mut ups = 1;
            rest = chain;
            while let Some(further) = rest.strip_prefix("super::") {
                (ups, rest) = (ups + 1, further);
            }
            if ups >= depth + within.len() {
                // A group may go on in the next lines.
                let from = at + line.len() - rest.len();
                found.extend(heads(&code[from..]));
            }
        }
        at += line.len() + 1;
    }
    found.remove("");
    found
}

/// What is wrong with this module's use of others.
fn wrong(rows: &[Vec<String>], module: &str, used: &BTreeSet<String>) -> Vec<String> {
    let row_of = |name: &str| rows.iter().position(|row| row.iter().any(|other| other == name));
    let own = row_of(module);
    let is_wrong = |other: &&String| *other != module && row_of(other) <= own;
    used.iter().filter(is_wrong).map(|other| format!("{module} uses {other}")).collect()
}

fn files(at: &Path) -> Vec<PathBuf> {
    if at.is_file() {
        return vec![at.to_owned()];
    }
    let entries = fs::read_dir(at).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
    entries.flat_map(|entry| files(&entry.expect("it is readable").path())).collect()
}

#[test]
fn a_layer_uses_only_those_below_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = fs::read_to_string(source.join("lib.rs")).expect("lib.rs");
    let rows = rows(&root);
    let listed = rows.iter().flatten().cloned().collect::<BTreeSet<_>>();
    assert_eq!(listed, declared(&root), "the table in lib.rs, and the modules that there are");
    let mut all_wrong = Vec::new();
    let mut arrows = 0;
    for module in &listed {
        let file = source.join(format!("{module}.rs"));
        let folder = source.join(module);
        for path in files(if file.is_file() { &file } else { &folder }) {
            let steps = path.strip_prefix(&source).expect("it is below").components().count();
            let depth = steps - usize::from(path.ends_with("mod.rs"));
            let used = used(&fs::read_to_string(&path).expect("it is readable"), depth);
            arrows += used.len();
            all_wrong.extend(wrong(&rows, module, &used).iter().map(|what| {
                format!("{}: {what}", path.strip_prefix(&source).expect("it is below").display())
            }));
        }
    }
    assert!(all_wrong.is_empty(), "a layer uses only those below it:\n{}", all_wrong.join("\n"));
    assert!(arrows > 100, "the files were not read: {arrows} uses");
}

/// The check sees each way to name a module, and tells what is wrong of it.
#[test]
fn a_use_of_a_layer_above_is_told() {
    let table = "//! | layer | what |\n//! | --- | --- |\n//! | [`top`], `beside` | x `y` |\n//! | [`low`] | |\n";
    let rows = rows(table);
    assert_eq!(rows, [vec!["top".to_owned(), "beside".to_owned()], vec!["low".to_owned()]]);
    let told = |module, text, depth| wrong(&rows, module, &used(text, depth));
    for upwards in [
        "use crate::top::Thing;",
        "use crate::{low::Other, top};",
        "use crate::{\n    low::{A, B},\n    top::Thing,\n};",
        "fn f() { crate::top::f() }",
        "use super::top::Thing;",
        "use super::{\n    top,\n};",
        "mod tests {\n    use super::super::top;\n}",
    ] {
        assert_eq!(told("low", upwards, 1), ["low uses top"], "{upwards}");
    }
    assert_eq!(told("low", "use super::super::top;", 2), ["low uses top"]);
    // Two of one row would be a circle, if they were allowed to use each other; what is not in the table is no layer.
    assert_eq!(told("top", "use crate::beside::f;", 1), ["top uses beside"]);
    assert_eq!(told("beside", "use crate::top::f;", 1), ["beside uses top"]);
    assert_eq!(told("top", "use crate::other::f;", 1), ["top uses other"]);
    for downwards in [
        "use crate::low::Thing;",
        "use crate::top::Thing; // crate::beside",
        "use super::sibling::Thing;",
        "/// See [`x`](crate::beside::x).",
        "mod tests {\n    use super::*;\n}\nuse super::sibling;",
    ] {
        assert_eq!(told("top", downwards, 2), Vec::<String>::new(), "{downwards}");
    }
}
