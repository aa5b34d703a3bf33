//! In each crate a module uses only modules in rows below its own, as the table of layers in the
//! root file's documentation lists them. So no two modules can use each other, in a circle of
//! whatever length.
//!
//! The test reads text: `crate::` paths, and chains of `super::` that leave a folder. It does not
//! read comments, and unit tests only in swarm-core: those of other crates build whole stores. A
//! path that a macro puts together would not be seen. There is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{files, only_for_tests, repository, without_unit_tests};

/// A crate's root file, and whether its unit tests keep to the layers, too.
const CRATES: [(&str, bool); 6] = [
    ("swarm-core/src/lib.rs", true),
    ("swarm-shm/src/lib.rs", false),
    ("swarm-rdma/src/lib.rs", false),
    ("swarm-kv/src/lib.rs", false),
    ("swarm-kv/cli/src/main.rs", false),
    ("swarm-kv/cli/worker/src/lib.rs", false),
];

/// Splits at the commas outside of inner groups, up to the brace that ends this one.
fn parts(group: &str) -> Vec<String> {
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
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// The first words of a path or of a group of paths, as in `{a::b, c}::…`.
fn heads(path: &str) -> Vec<String> {
    let word = |text: &str| {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    match path.strip_prefix('{') {
        Some(group) => parts(group).iter().map(|part| word(part)).collect(),
        None => vec![word(path)],
    }
}

/// All paths of a `use` tree, written out.
fn paths(tree: &str) -> Vec<String> {
    let Some((prefix, group)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let within = parts(group).into_iter().flat_map(|part| paths(&part));
    within.map(|path| format!("{}{path}", prefix.trim_start())).collect()
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect()
}

/// A crate's layers.
struct Layers {
    /// The name of what the root file itself defines, which lies above all rows.
    root: String,
    /// The modules of each row, top to bottom.
    rows: Vec<Vec<String>>,
    /// The modules that the root file declares, but for tests.
    declared: BTreeSet<String>,
    /// The module of each name that the root file exports.
    exported: BTreeMap<String, String>,
}

impl Layers {
    fn of(root: &str, text: &str) -> Self {
        let lines = text.lines().skip_while(|line| !line.starts_with("//! | layer |"));
        let rows = lines.skip(2).map_while(|line| line.strip_prefix("//! | "));
        let modules = |row: &str| {
            let first = row.split(" |").next().unwrap_or_default();
            first.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let rows = rows.map(modules).collect();
        let code = without_comments(text);
        let module = |line: &str| Some(line.strip_suffix(';')?.split_once("mod ")?.1.to_owned());
        let mut declared: BTreeSet<String> = code.lines().filter_map(module).collect();
        for (attribute, line) in code.lines().zip(code.lines().skip(1)) {
            if attribute == "#[cfg(test)]"
                && let Some(tests) = module(line)
            {
                declared.remove(&tests);
            }
        }
        let uses = code.split("use ").skip(1).filter_map(|text| text.split_once(';'));
        let exports = uses.flat_map(|(tree, _)| paths(tree)).filter_map(|path| {
            let path = path.trim_start_matches("self::").trim_start_matches("crate::");
            let (first, _) = path.split_once("::")?;
            let name = path.rsplit([':', ' ']).next()?;
            declared.contains(first).then(|| (name.to_owned(), first.to_owned()))
        });
        let exported = exports.collect();
        Self { root: root.to_owned(), rows, declared, exported }
    }

    /// Returns the module that a name at the crate's root belongs to.
    fn module_of(&self, name: String) -> String {
        if self.declared.contains(&name) {
            return name;
        }
        self.exported.get(&name).unwrap_or(&self.root).clone()
    }

    /// Returns the modules that a file uses which lies `depth` modules below the root.
    fn used(&self, text: &str, depth: usize, with_tests: bool) -> BTreeSet<String> {
        let code = without_comments(text);
        let code = if with_tests { code } else { without_unit_tests(&code) };
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
        found.into_iter().map(|name| self.module_of(name)).collect()
    }

    /// Returns those of the used modules that are not in a row below this module's.
    fn wrong(&self, module: &str, used: &BTreeSet<String>) -> Vec<String> {
        let row_of = |name: &str| self.rows.iter().position(|row| row.iter().any(|it| it == name));
        let own = row_of(module);
        let is_wrong = |other: &&String| *other != module && row_of(other) <= own;
        used.iter().filter(is_wrong).cloned().collect()
    }
}

#[test]
fn a_layer_uses_only_those_below_it() {
    let mut found = BTreeSet::new();
    let mut arrows = 0;
    for (root, with_tests) in CRATES {
        let root = Path::new(root);
        let source = repository().join(root.parent().expect("it lies in src"));
        let text = fs::read_to_string(repository().join(root)).expect("it is text");
        let name = root.file_stem().expect("it has a name").to_string_lossy();
        let tests = only_for_tests(&files(&source));
        let layers = Layers::of(&name, &text);
        let listed: BTreeSet<String> = layers.rows.iter().flatten().cloned().collect();
        let file = root.display();
        assert_eq!(listed, layers.declared, "{file}: its table of layers, and its modules");
        for module in &listed {
            let file = source.join(format!("{module}.rs"));
            let mut all = if file.is_file() { vec![file] } else { vec![] };
            let folder = source.join(module);
            all.extend(if folder.is_dir() { files(&folder) } else { vec![] });
            for path in all.iter().filter(|path| with_tests || !tests.contains(*path)) {
                let below = path.strip_prefix(&source).expect("it is below");
                let depth = below.components().count() - usize::from(path.ends_with("mod.rs"));
                let text = fs::read_to_string(path).expect("it is text");
                let used = layers.used(&text, depth, with_tests);
                arrows += used.len();
                let file = root.with_file_name(below).display().to_string();
                found.extend(layers.wrong(module, &used).into_iter().map(|it| (file.clone(), it)));
            }
        }
    }
    assert!(arrows > 400, "the files were not read: {arrows} uses");
    assert!(
        found.is_empty(),
        "these files use a module in a row above or beside theirs: {found:#?}"
    );
}

/// The test sees each way to name a module, and reports each use that goes upwards.
#[test]
fn a_use_of_a_layer_above_is_reported() {
    let root = "//! | layer | what |\n//! | --- | --- |\n//! | [`top`], `beside` | x `y` |\n\
        //! | [`low`] | |\nmod top;\npub mod beside;\nmod low;\n#[cfg(test)]\nmod tests;\n\
        pub use self::{\n    low::Deep,\n    top::inner::{High, Other as Renamed},\n};\n\
        pub use swarm_core::quorum::Timeouts;\npub trait Own {}\n";
    let layers = Layers::of("lib", root);
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(layers.rows, [owned(&["top", "beside"]), owned(&["low"])]);
    assert_eq!(Vec::from_iter(layers.declared.clone()), owned(&["beside", "low", "top"]));
    let upwards_of = |module, text, depth| layers.wrong(module, &layers.used(text, depth, true));
    for upwards in [
        "use crate::top::Thing;",
        "use crate::High;",
        "use crate::{Deep, Renamed};",
        "use crate::{low::Other, top};",
        "use crate::{\n    low::{A, B},\n    top::Thing,\n};",
        "fn f() { crate::top::f() }",
        "use super::top::Thing;",
        "use super::{\n    top,\n};",
        "mod tests {\n    use super::super::top;\n}",
    ] {
        assert_eq!(upwards_of("low", upwards, 1), ["top"], "{upwards}");
    }
    assert_eq!(upwards_of("low", "use super::super::top;", 2), ["top"]);
    // Two modules of one row would be a circle if each might use the other.
    assert_eq!(upwards_of("top", "use crate::beside::f;", 1), ["beside"]);
    assert_eq!(upwards_of("beside", "use crate::top::f;", 1), ["top"]);
    // What the root file itself defines lies above all rows.
    assert_eq!(upwards_of("top", "use crate::{Deep, Own};", 1), ["lib"]);
    for downwards in [
        "use crate::low::Thing;",
        "use crate::{Deep, High};",
        "use crate::top::Thing; // crate::beside",
        "use super::sibling::Thing;",
        "/// See [`x`](crate::beside::x).",
        "mod tests {\n    use super::*;\n}\nuse super::sibling;",
    ] {
        assert_eq!(upwards_of("top", downwards, 2), Vec::<String>::new(), "{downwards}");
    }
    let tested =
        "use crate::low::A;\n#[cfg(test)]\nmod tests {\n    use crate::top::B;\n}\nfn f() {}\n";
    assert_eq!(upwards_of("low", tested, 1), ["top"]);
    assert_eq!(layers.used(tested, 1, false), BTreeSet::from(["low".to_owned()]));
}
