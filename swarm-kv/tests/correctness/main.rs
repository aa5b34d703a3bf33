//! docs/CORRECTNESS.md names checks, files and functions that exist, and it names all that it has
//! to: scenarios, mutations and invariants. A check that a reviewer cannot find covers nothing, and
//! neither does one that no document names. An invariant is cited in the code that keeps it.
//! [`layers`] checks which module uses which.

mod layers;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Scripted scenarios. CORRECTNESS.md names each of them where it says what they cover.
const STORIES: [&str; 4] = [
    "swarm-core/tests/cell/stories.rs",
    "swarm-core/tests/register/stories.rs",
    "swarm-kv/long/tests/store_stories",
    "swarm-kv/long/tests/move_stories",
];

/// Invariants that no line of code keeps by itself, each with the reason. They are cited nowhere.
const KEPT_BY_NO_LINE: [(&str, &str); 0] = [];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn document() -> String {
    fs::read_to_string(repository().join("docs/CORRECTNESS.md")).expect("it is there")
}

/// All files under a path.
fn files(at: &Path) -> Vec<PathBuf> {
    if at.is_file() {
        return vec![at.to_owned()];
    }
    let entries = fs::read_dir(at).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
    entries.flat_map(|entry| files(&entry.expect("it is readable").path())).collect()
}

/// All files of the crates.
fn sources() -> Vec<PathBuf> {
    let crates = ["swarm-core", "swarm-shm", "swarm-kv", "swarm-rdma"];
    crates.iter().flat_map(|name| files(&repository().join(name))).collect()
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found == ending)
}

/// Returns the names of a text's functions, or of its tests only.
fn functions(text: &str, only_tests: bool) -> Vec<String> {
    let mut is_test = false;
    let mut names = Vec::new();
    for line in text.lines().map(str::trim_start) {
        is_test |= line == "#[test]";
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        if let Some(name) = words.skip_while(|&word| word != "fn").nth(1)
            && !line.starts_with("//")
        {
            names.extend((is_test || !only_tests).then(|| name.to_owned()));
            is_test = false;
        }
    }
    names
}

/// Returns what is between two of these marks on one line.
fn between(text: &str, mark: char) -> BTreeSet<&str> {
    text.lines().flat_map(|line| line.split(mark).skip(1).step_by(2)).collect()
}

/// Takes the unit tests out of a text: modules under `#[cfg(test)]`, up to the brace that ends
/// them.
fn without_unit_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let is_aside = |line: &&str| {
            let line = line.trim_start();
            line.is_empty() || line.starts_with("#[") || line.starts_with("//")
        };
        if line.trim_start() == "#[cfg(test)]" {
            let mut between = vec![line];
            while let Some(next) = lines.next_if(is_aside) {
                between.push(next);
            }
            let opens = |line: &&str| line.contains("mod ") && line.ends_with('{');
            if let Some(module) = lines.next_if(opens) {
                let indent = &module[..module.len() - module.trim_start().len()];
                let end = format!("{indent}}}");
                lines.by_ref().find(|line| *line == end).expect("the module ends");
            } else {
                kept.extend(between.into_iter().flat_map(|line| [line, "\n"]));
            }
        } else {
            kept.extend([line, "\n"]);
        }
    }
    kept
}

/// Returns those files that only tests have: of modules that are declared under `#[cfg(test)]`, and
/// below.
fn only_for_tests(files: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut roots = Vec::new();
    for file in files.iter().filter(|file| has_ending(file, "rs")) {
        let is_root = ["mod.rs", "lib.rs", "main.rs"].iter().any(|name| file.ends_with(name));
        let below = if is_root { file.parent().expect("a folder") } else { file };
        let text = fs::read_to_string(file).expect("it is text");
        for (attribute, line) in text.lines().zip(text.lines().skip(1)) {
            let name = line.trim().strip_suffix(';').and_then(|line| line.split_once("mod "));
            if let (Some((_, name)), "#[cfg(test)]") = (name, attribute.trim()) {
                roots.push(below.with_extension("").join(name));
            }
        }
    }
    let is_below = |file: &PathBuf| {
        let module = file.with_extension("");
        roots.iter().any(|root| module.starts_with(root))
    };
    files.iter().filter(|file| is_below(file)).cloned().collect()
}

/// The letters that invariants' names begin with. A definition by another one is noticed.
const LETTERS: &str = "CEGHIKLMNOQSVWX";

/// Whether a word is an invariant's name, such as E7 or E4a.
fn is_invariant(word: &str) -> bool {
    let Some(rest) = word.strip_prefix(|c: char| LETTERS.contains(c)) else { return false };
    let digits = rest.strip_suffix(|c: char| c.is_ascii_lowercase()).unwrap_or(rest);
    (1..=2).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_digit())
}

/// Returns the invariants that a document defines: a line that begins with `**E7. …` defines E7.
fn defined(document: &str) -> BTreeSet<String> {
    let name = |line: &str| Some(line.strip_prefix("**")?.split_once(". ")?.0.to_owned());
    document.lines().filter_map(name).filter(|name| is_invariant(name)).collect()
}

/// Returns how many lines of a document look like a definition: bold, and a capital with a digit.
fn lines_like_definitions(document: &str) -> usize {
    let bold = document.lines().filter_map(|line| line.strip_prefix("**"));
    let is_like = |text: &&str| {
        let mut first = text.chars();
        first.next().is_some_and(char::is_uppercase) && first.next().is_some_and(char::is_numeric)
    };
    bold.filter(is_like).count()
}

/// Returns the invariants that the comments of a text cite.
fn cited(text: &str) -> BTreeSet<String> {
    let comments = text.lines().filter_map(|line| Some(line.split_once("//")?.1));
    let words =
        comments.flat_map(|comment| comment.split(|c: char| !c.is_alphanumeric() && c != '_'));
    words.filter(|word| is_invariant(word)).map(str::to_owned).collect()
}

#[test]
fn every_invariant_is_cited_where_it_is_kept() {
    let document = document();
    let defined = defined(&document);
    assert!(defined.len() > 50, "{defined:?}");
    assert_eq!(defined.len(), lines_like_definitions(&document), "each defines one: {defined:?}");
    let has = |letter| defined.iter().any(|name| name.starts_with(letter));
    assert!(LETTERS.chars().all(has), "{LETTERS} has a letter that {defined:?} has not");
    let mut kept = BTreeSet::new();
    let sources = sources();
    let tests = only_for_tests(&sources);
    for source in sources.iter().filter(|path| has_ending(path, "rs")) {
        let path = source.strip_prefix(repository()).expect("it is below");
        let below: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        if below[1] != "src" {
            continue;
        }
        let text = fs::read_to_string(repository().join(path)).expect("it is text");
        let unknown: Vec<_> = cited(&text).difference(&defined).cloned().collect();
        let file = path.display();
        assert!(
            unknown.is_empty(),
            "{file} cites what CORRECTNESS.md does not define: {unknown:?}"
        );
        // A test of an invariant does not keep it, and neither does what only tests use.
        let is_for_tests = ["sim", "conformance", "history"].contains(&below[2].as_ref());
        if !is_for_tests && !tests.contains(source) {
            kept.extend(cited(&without_unit_tests(&text)));
        }
    }
    let excused: BTreeSet<String> =
        KEPT_BY_NO_LINE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(excused.len(), KEPT_BY_NO_LINE.len(), "each is listed once");
    let unknown: Vec<_> = excused.difference(&defined).collect();
    assert!(unknown.is_empty(), "listed, and CORRECTNESS.md does not define them: {unknown:?}");
    let missing: Vec<_> =
        defined.difference(&kept).filter(|name| !excused.contains(*name)).collect();
    assert!(missing.is_empty(), "no comment in swarm-*/src cites these invariants: {missing:?}");
    let needless: Vec<_> = excused.intersection(&kept).collect();
    assert!(needless.is_empty(), "these are cited by now, take them out: {needless:?}");
}

/// The test above tells citations from other words, and comments from code.
#[test]
fn a_citation_is_a_word_of_a_comment() {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    let text = "/// Renews first (E7).\nlet e = E8; // E4a: read again, see V1 to V6\n\
                // E5-2690, xE9, E_1, EF, E123, T4, e7";
    let document = "**E7. So.** By T8.\n**E10a. So\n**Deletes** write. It\n**V1. So\n";
    let invariants = defined(document);
    assert_eq!(invariants, names(&["E7", "E10a", "V1"]));
    assert_eq!(lines_like_definitions(document), invariants.len());
    // The second defines the same again, and the others nothing.
    let faulty = "**X1. So\n**X1. So\n**X2: so\n**X3ab. So\n**X 4. So\n";
    assert_eq!(defined(faulty), names(&["X1"]));
    assert_eq!(lines_like_definitions(faulty), 4);
    // By a letter that is not known nothing is defined.
    assert_eq!(defined("**T1. So\n"), names(&[]));
    assert_eq!(lines_like_definitions("**T1. So\n"), 1);
    assert_eq!(cited(text), names(&["E7", "E4a", "V1", "V6", "E5"]));
    let tested =
        "// E1\n#[cfg(test)]\nmod tests {\n    // E2\n}\n// E3\n#[cfg(test)]\nuse a::b; // E4\n";
    assert_eq!(cited(&without_unit_tests(tested)), names(&["E1", "E3", "E4"]));
}

#[test]
fn every_story_is_named() {
    let document = document();
    let named = between(&document, '`');
    for stories in STORIES {
        let files = files(&repository().join(stories));
        let texts = files.iter().map(|file| fs::read_to_string(file).expect("it is text"));
        let all: Vec<_> = texts.flat_map(|text| functions(&text, true)).collect();
        assert!(all.len() > 5, "{stories} holds stories");
        for story in all {
            assert!(
                named.contains(story.as_str()),
                "{stories} has {story}, and CORRECTNESS.md does not name it"
            );
        }
    }
}

#[test]
fn every_mutation_is_named_and_there() {
    let document = document();
    let patches = sources().into_iter().filter(|path| has_ending(path, "patch"));
    let patches: BTreeSet<String> = patches
        .map(|path| path.file_stem().expect("it has a name").to_string_lossy().into_owned())
        .collect();
    let named = between(&document, '*').into_iter().filter(|name| {
        name.contains('-') && name.chars().all(|c| c.is_ascii_lowercase() || c == '-')
    });
    let named: BTreeSet<String> = named.map(str::to_owned).collect();
    assert!(named.len() > 50, "{named:?}");
    let differ: Vec<_> = named.symmetric_difference(&patches).collect();
    assert!(differ.is_empty(), "named and not there, or there and not named: {differ:?}");
}

/// A name that no test has runs none, and a check that runs no test passes.
#[test]
fn every_mutation_names_tests_that_are_there() {
    let sources = sources();
    let mut names: BTreeSet<String> = BTreeSet::new();
    for file in sources.iter().filter(|path| has_ending(path, "rs")) {
        names.extend(functions(&fs::read_to_string(file).expect("it is text"), false));
        names.insert(file.file_stem().expect("it has a name").to_string_lossy().into_owned());
    }
    let is_there = |part: &str| names.iter().any(|name| name.contains(part));
    let mut checked = 0;
    for patch in sources.iter().filter(|path| has_ending(path, "patch")) {
        let text = fs::read_to_string(patch).expect("it is text");
        let head = text.lines().take_while(|line| !line.starts_with("diff "));
        for line in head.filter_map(|line| line.strip_prefix("caught by: ")) {
            for part in line.split_whitespace().skip(2).flat_map(|name| name.split("::")) {
                assert!(is_there(part), "{}: there is no {part}", patch.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "{checked}");
}

#[test]
fn every_name_and_file_is_there() {
    let document = document();
    let sources = sources();
    let is_there = |wanted: &str| {
        repository().join(wanted).exists() || sources.iter().any(|path| path.ends_with(wanted))
    };
    let rust = sources.iter().filter(|path| has_ending(path, "rs"));
    let mut names: BTreeSet<String> = BTreeSet::new();
    for file in rust {
        names.extend(functions(&fs::read_to_string(file).expect("it is text"), false));
    }
    for quoted in between(&document, '`') {
        let mut words = quoted.split_whitespace();
        while let Some(word) = words.next() {
            if word == "--test" {
                let test = words.next().expect("it names one");
                let file = format!("tests/{test}.rs");
                let folder = format!("tests/{test}/main.rs");
                assert!(is_there(&file) || is_there(&folder), "there is no test {test}");
            }
        }
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if quoted.contains('_') && quoted.chars().all(is_name) {
            let is_test = is_there(&format!("tests/{quoted}.rs"))
                || is_there(&format!("tests/{quoted}/main.rs"));
            assert!(names.contains(quoted) || is_test, "there is no {quoted}");
        }
        let file = quoted.split(' ').next().unwrap_or_default();
        if file.ends_with(".rs") || file.ends_with(".sh") || file.contains("/tests/") {
            assert!(is_there(file), "there is no {file}");
        }
    }
}
