//! Names the shared library as programs look for it when they run. Before 1.0 a minor version may break what was.

use std::env;

fn main() {
    let part = |name: &str| env::var(name).expect("Cargo sets it");
    let (major, minor) = (part("CARGO_PKG_VERSION_MAJOR"), part("CARGO_PKG_VERSION_MINOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libswarm.so.{major}.{minor}");
    println!("cargo::rerun-if-changed=build.rs");
}
