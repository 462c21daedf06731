//! Stores that need no operating system: memory; and for tests one that fails, one that waits, and one with
//! a hook.

#[cfg(any(test, feature = "check"))]
pub mod blocked_writes;
#[cfg(any(test, feature = "check"))]
pub mod faulty;
#[cfg(any(test, feature = "check"))]
pub mod hooked;
pub mod memory;
#[cfg(test)]
pub(crate) mod virtual_time;
