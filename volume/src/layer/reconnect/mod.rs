//! A volume behind links that are lost: requests wait for the next link, and what may be lost with the one before is
//! written again. Any transport can use it; none is named here.

mod machine;
mod time;

pub use machine::{
    Action, End, Failure, Kind, Over, Recovery, Replay, Salvage, Settings, Status, Turn,
};
pub use time::Time;
