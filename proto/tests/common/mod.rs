//! What the pair tests share.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod login;
pub mod pair;
pub mod sealed;
