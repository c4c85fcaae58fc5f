//! Where the program lies in memory.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // Linux maps 64 KB of a file around a page that is touched. Aligned so, a program has the same pages resident in
        // every process, wherever it is put: what it takes can be predicted.
        println!("cargo:rustc-link-arg-bins=-Wl,-z,max-page-size=65536");
    }
}
