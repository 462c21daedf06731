//! A volume behind links that are lost: requests wait for the next link, and what may be lost with the one before is
//! written again. Any transport can use it; none is named here.
//!
//! ```text
//! requests -> Supervisor -> Recovery     the machine: what runs, waits, and is written again
//!                 |      -> Connect      the transport: links, and what their failures mean
//!                 +------> Runtime      the system: time and tasks
//! ```

mod connect;
mod machine;
mod supervisor;

pub use connect::{
    Cause, Connect, Effect, Ended, Loss, Refused, RequestError, Runtime, Task, Verdict,
};
pub use machine::{
    Action, End, Failure, Kind, Over, Recovery, Replay, Salvage, Settings, Status, Turn,
};
pub use supervisor::Supervisor;
