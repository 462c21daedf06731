//! Stores that need no operating system: memory, and one that fails on purpose.

pub mod faulty;
pub mod memory;
