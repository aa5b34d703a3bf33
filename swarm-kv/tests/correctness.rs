//! What docs/CORRECTNESS.md names is there, and names all that is to be named: a check that a reviewer
//! cannot find covers nothing, and neither does one that is not heard of.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Tests that tell stories, and that are each named at what they cover.
const STORIES: [&str; 4] = [
    "swarm-core/tests/cell/stories.rs",
    "swarm-core/tests/register/stories.rs",
    "swarm-kv/tests/store_stories",
    "swarm-kv/tests/move_stories",
];

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

/// What a text's functions are called; of tests only, if so.
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

/// What stands between two of these on one line.
fn between(text: &str, mark: char) -> BTreeSet<&str> {
    text.lines().flat_map(|line| line.split(mark).skip(1).step_by(2)).collect()
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
                "{stories} tells {story}, and what it covers says nothing of it"
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
            let is_test = is_there(&format!("tests/{quoted}.rs"));
            assert!(names.contains(quoted) || is_test, "there is no {quoted}");
        }
        let file = quoted.split(' ').next().unwrap_or_default();
        if file.ends_with(".rs") || file.ends_with(".sh") || file.contains("/tests/") {
            assert!(is_there(file), "there is no {file}");
        }
    }
}
