//! The crates' public API: each operation has its blocking twin, and no type of another project is
//! in a public signature, except for a short list: such a project's next major version would force
//! one of ours.
//!
//! The test reads text: signatures, fields, variants, and `impl` lines. It does not see what macros
//! generate, which traits a type has by `derive`, or what an `impl Trait` hides. `pub` items of
//! private modules count as well.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// `crate: path` of what may be in public signatures.
const ALLOWED: [&str; 7] = [
    // Of the simulator, with the feature `sim`: the random source of a test's schedules.
    "swarm-core: fastrand::Rng",
    // A value's type requires it, with the features of these names.
    "swarm-kv: serde::DeserializeOwned",
    "swarm-kv: serde::Serialize",
    "swarm-kv: zerocopy::FromBytes",
    "swarm-kv: zerocopy::Immutable",
    "swarm-kv: zerocopy::IntoBytes",
    // Under loom only, in a private module: the type of words.
    "swarm-shm: loom",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn files(at: &Path) -> Vec<PathBuf> {
    if at.is_file() {
        return vec![at.to_owned()];
    }
    let entries = fs::read_dir(at).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
    entries.flat_map(|entry| files(&entry.expect("it is readable").path())).collect()
}

/// Returns a crate's code, file by file, without comments and unit tests.
fn sources(name: &str) -> Vec<String> {
    let all = files(&repository().join(name).join("src"));
    let rust = all.iter().filter(|path| path.extension().is_some_and(|found| found == "rs"));
    let is_test = |path: &&PathBuf| path.ends_with("tests.rs");
    rust.filter(|path| !is_test(path))
        .map(|path| code(&fs::read_to_string(path).expect("text")))
        .collect()
}

fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let bare = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    bare.collect::<Vec<_>>().join("\n")
}

/// Returns a text's words and what is between them, except spaces.
fn words(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len()).max(if is_word(first) {
            0
        } else {
            first.len_utf8()
        });
        let length = if rest.starts_with("::") { 2 } else { length };
        let (word, behind) = rest.split_at(length);
        parts.push(word);
        rest = behind.trim_start();
    }
    parts
}

/// Returns the crates of other projects that `code` may name, by its crate's manifest.
fn foreign(manifest: &str) -> BTreeSet<String> {
    let mut is_dependency = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_dependency = line.ends_with("dependencies]") && !line.contains("dev-");
        } else if is_dependency && let Some((name, _)) = line.split_once(['.', ' ', '=']) {
            let name = name.replace('-', "_");
            names.extend((!name.starts_with("swarm_") && !name.starts_with('#')).then_some(name));
        }
    }
    names
}

/// Returns the names that `code` imports from these crates by `use`, with their crates.
fn imported(code: &str, crates: &BTreeSet<String>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for tree in code.split("\nuse ").skip(1).map(|rest| rest.split(';').next().unwrap_or_default())
    {
        let words = words(tree);
        let Some(root) = words.first().filter(|root| crates.contains(**root)) else { continue };
        let ends = words.iter().enumerate().filter(|(at, _)| words.get(at + 1) != Some(&"::"));
        found.extend(ends.map(|(_, name)| ((*name).to_owned(), (*root).to_owned())));
    }
    found.retain(|(name, _)| name.chars().all(|c| c.is_alphanumeric() || c == '_'));
    found
}

/// Returns the public part of `code`.
fn public(code: &str) -> Vec<String> {
    let lines = code.lines().collect::<Vec<_>>();
    let mut seen = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let bare = line.trim_start();
        let indented = line.len() - bare.len();
        let is_whole = bare.starts_with("pub enum ") || bare.starts_with("pub trait ");
        if is_whole {
            let is_end = |line: &&&str| line.starts_with(&format!("{}}}", " ".repeat(indented)));
            let length = lines[at..].iter().take_while(|line| !is_end(line)).count();
            seen.push(lines[at..at + length].join("\n"));
        } else if bare.starts_with("pub ") || bare.starts_with("impl") {
            let is_end =
                |line: &&str| line.ends_with(['{', ';', ',', '}']) && !line.ends_with("(,");
            let length = lines[at..].iter().take_while(|line| !is_end(line)).count();
            let last = (at + length).min(lines.len() - 1);
            // The arguments of a function are on lines of their own.
            let until = if bare.contains("fn ") && line.ends_with('(') {
                at + lines[at..].iter().take_while(|line| !line.ends_with(['{', ';'])).count()
            } else {
                last
            };
            seen.push(lines[at..=until.min(lines.len() - 1)].join("\n"));
        }
    }
    seen
}

/// Returns `crate: name` of each foreign name in the public part of this code.
fn exposed(name: &str, code: &str, crates: &BTreeSet<String>) -> BTreeSet<String> {
    let imported = imported(code, crates);
    let mut found = BTreeSet::new();
    for text in public(code) {
        let words = words(&text);
        for (at, word) in words.iter().enumerate() {
            let is_first = at == 0 || words[at - 1] != "::";
            if is_first && crates.contains(*word) && words.get(at + 1) == Some(&"::") {
                found.insert(format!("{name}: {word}"));
            }
            if let Some((_, root)) =
                imported.iter().find(|(imported, _)| is_first && imported == word)
            {
                found.insert(format!("{name}: {root}::{word}"));
            }
        }
    }
    found
}

#[test]
fn no_foreign_type_is_in_the_public_api_but_those_listed() {
    let mut found = BTreeSet::new();
    for name in ["swarm-core", "swarm-shm", "swarm-kv", "swarm-rdma"] {
        let manifest =
            fs::read_to_string(repository().join(name).join("Cargo.toml")).expect("text");
        let crates = foreign(&manifest);
        assert!(crates.contains("heapless") || crates.contains("libc"), "{name}: {crates:?}");
        for code in sources(name) {
            found.extend(exposed(name, &code, &crates));
        }
    }
    let allowed = ALLOWED.map(str::to_owned).into_iter().collect::<BTreeSet<_>>();
    assert_eq!(found, allowed, "in the public API, and on the list");
}

/// The check sees each way to name a type.
#[test]
fn a_foreign_type_is_reported() {
    let crates = BTreeSet::from(["other".to_owned()]);
    for shown in [
        "pub fn f(x: other::Thing) {",
        "\nuse other::{A, Thing};\npub fn f(\n    x: u8,\n    y: Thing,\n) -> u8 {",
        "\nuse other::Thing;\npub struct S {\n    pub field: Thing,\n}",
        "\nuse other::Thing;\npub enum E {\n    One(u8),\n    Two(Thing),\n}",
        "\nuse other::Thing;\nimpl From<Thing> for S {",
        "pub use other::Thing;",
    ] {
        assert_eq!(exposed("ours", shown, &crates).len(), 1, "{shown}");
    }
    for hidden in [
        "\nuse other::Thing;\nfn f(x: Thing) {",
        "\nuse other::Thing;\npub(crate) fn f(x: Thing) {",
        "\nuse other::Thing;\npub struct S {\n    field: Thing,\n}",
        "pub fn f(x: own::other::Thing) {",
    ] {
        assert_eq!(exposed("ours", hidden, &crates), BTreeSet::new(), "{hidden}");
    }
}

/// Returns the words of the type (or the trait) behind the head's `impl` and its parameters.
fn implemented<'h>(head: &'h [&'h str]) -> &'h [&'h str] {
    let mut depth = 0;
    let is_type = |word: &&str| {
        depth += i32::from(*word == "<") - i32::from(*word == ">");
        depth == 0 && *word != ">"
    };
    &head[1 + head[1..].iter().position(is_type).expect("it names a type")..]
}

/// Returns `Type::name` of each public async function of a type in this code, and of each public function of a blocking twin, by
/// the type whose twin it is. (A trait's functions are its implementations'.)
fn operations_and_twins(code: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut operations, mut twins) = (BTreeSet::new(), BTreeSet::new());
    let public = public(code);
    let mut head = Vec::new();
    for text in &public {
        if text.starts_with("impl") {
            head = words(text);
        }
        let Some((_, function)) = text.split_once("fn ") else { continue };
        if head.is_empty() || !text.starts_with("    pub ") {
            continue;
        }
        let of = implemented(&head);
        let twin_of = match of {
            ["Blocking", ..] => Some("Client"),
            ["BlockingObject", "<", object, ..] => Some(*object),
            _ => of[0].strip_prefix("Blocking"),
        };
        let name = words(function)[0];
        let is_async = text.contains(" async fn ") || text.contains("-> impl Future<");
        match twin_of {
            Some(of) if !is_async => twins.insert(format!("{of}::{name}")),
            None if is_async => operations.insert(format!("{}::{name}", of[0])),
            _ => continue,
        };
    }
    (operations, twins)
}

/// `for_each` and `usage` had none, and locks of a handle. (What leaves sleeping to its caller has none: a caller that blocks sleeps.)
#[test]
fn each_operation_has_its_blocking_twin() {
    let (mut operations, mut twins) = (BTreeSet::new(), BTreeSet::new());
    for code in sources("swarm-kv") {
        let (more_operations, more_twins) = operations_and_twins(&code);
        operations.extend(more_operations);
        twins.extend(more_twins);
    }
    for known in
        ["Client::get", "Client::usage", "Lock::acquire", "Store::get_many", "StoreLock::evict"]
    {
        assert!(operations.contains(known), "{known} is not in {operations:?}");
    }
    // What sleeps itself: its twin is `blocks`.
    let missing = operations.difference(&twins);
    let missing = missing.filter(|name| !name.ends_with("_paced") && *name != "Pause::yields");
    let missing = missing.collect::<Vec<_>>();
    assert!(missing.is_empty(), "these have no blocking twin: {missing:?}");
}

/// The check is not content with a function of another type.
#[test]
fn a_twin_is_of_the_same_type() {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    let code = "impl<F: Fabric<Of = u8>> Client<F> {\n    pub async fn get(&self) -> u8 {\n    }\n\
                \x20   pub fn put(\n        &self,\n    ) -> impl Future<Output = u8> {\n    }\n\
                \x20   pub fn len(&self) -> u8 {\n    }\n    pub(crate) async fn own(&self) {\n    }\n}\n\
                impl<T: Copy, F: Fabric>\n    Atomic<T, F>\n{\n    pub async fn get(&self) -> T {\n    }\n}\n";
    let operations = names(&["Client::get", "Client::put", "Atomic::get"]);
    for (twin, of) in [
        ("impl<'c, F: Fabric> Blocking<'c, F> {", "Client::get"),
        ("impl<F> BlockingStore<'_, F> {", "Store::get"),
        ("impl<T: Copy, F: Fabric>\n    BlockingAtomic<T, F>\n{", "Atomic::get"),
        ("impl<T, F> BlockingObject<StoreAtomic<T, F>> {", "StoreAtomic::get"),
    ] {
        let code = format!("{code}{twin}\n    pub fn get(&self) -> u8 {{\n    }}\n}}");
        assert_eq!(operations_and_twins(&code), (operations.clone(), names(&[of])), "{twin}");
    }
}
