//! Benchmarks of Longhaul beside its peers.
#![forbid(unsafe_code)]

fn main() {}
