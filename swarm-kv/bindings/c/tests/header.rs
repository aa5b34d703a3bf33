//! The header that is checked in is the one that the crate makes.

use std::{env, fs};

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include/swarm.h");

/// With SWARM_WRITE_HEADER=1 it writes it anew.
#[test]
fn the_header_is_current() {
    let mut made = Vec::new();
    cbindgen::generate(env!("CARGO_MANIFEST_DIR")).expect("a header").write(&mut made);
    let made = String::from_utf8(made).expect("UTF-8");
    if env::var_os("SWARM_WRITE_HEADER").is_some() {
        fs::write(HEADER, &made).expect("the header can be written");
    }
    let header = fs::read_to_string(HEADER).expect("the header can be read");
    assert!(
        header == made,
        "include/swarm.h is not current: SWARM_WRITE_HEADER=1 cargo test --test header"
    );
}
