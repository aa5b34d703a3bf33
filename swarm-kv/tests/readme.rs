//! The program in README.md is the one that is compiled.

#[test]
fn the_readmes_program_is_the_example() {
    let readme = include_str!("../../README.md");
    let example = include_str!("../examples/hello.rs");
    assert!(
        readme.contains(&format!("```rust\n{example}```")),
        "README.md must show swarm-kv/examples/hello.rs as it is"
    );
}
