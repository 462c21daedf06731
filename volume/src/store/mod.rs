//! Stores that need no operating system: memory, one that fails on purpose, and one that waits.

pub mod faulty;
pub mod held;
pub mod memory;
