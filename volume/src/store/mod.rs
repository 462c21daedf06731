//! Stores that need no operating system: memory; and for tests one that fails, one that waits, and one with
//! a hook.

pub mod faulty;
pub mod held;
pub mod hooked;
pub mod memory;
