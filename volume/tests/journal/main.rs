//! The journal on a disk that tears and fails, over a store with a cache, under crashes: what
//! `docs/spec/journal.md` promises, asked of every state.

mod damage;
mod disk;
mod exhaustive;
mod history;
mod layer;
mod seeded;
mod simulation;
mod store;
