//! The target's side of a session in the full-feature phase, error recovery level 0.
//!
//! [`Session`] is a pure machine: frames and the time go in; events, output and the next deadline come
//! out. What it is made of has a file each: the tasks, their data-out and the memory for it, their order, the
//! requests that wait for them to end. `session` says what happens to them.
//!
//! A session has one connection or several (RFC 7143, 4.2.2 and 4.2.5.1). What belongs to one (StatSN,
//! output, pings, text) is in `connection`, and a connection is named by its CID. CmdSN, tasks and the
//! window belong to the session: commands are delivered in one order whatever connection they came by,
//! and each is served on the connection it came by. At error recovery level 0 a connection is not
//! recovered alone (RFC 7143, 7.1.5): the front ends a session one of whose connections is lost.
//!
//! A task that runs is never torn from under the front: an abort lets it end, keeps its answer from the
//! initiator, and only then says that it is dead, so that no write lands after its abort was reported.

mod budget;
mod connection;
mod exchange;
mod inbound;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod order;
mod pending;
mod session;
mod solicited_quota;
mod task;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::header::{TaskAttribute, TaskFunction};
use super::keys::Parameters;
use super::pdu::Pieces;
use crate::scsi::cdb::Block;
use crate::scsi::{Residual, Status};

pub use budget::Budget;
pub use pending::Request;
pub use session::Session;
pub use solicited_quota::Wanted;
pub use task::TaskId;

/// Commands in order a session may have outstanding: MaxCmdSN stays this far ahead at most. With 4 KiB
/// blocks it keeps a 1 Gbit/s link full at 4 ms; with 1 MiB blocks at a second.
pub const WINDOW: u32 = 128;

/// Immediate commands a session may have under way. The window does not hold them back, so that beyond this they
/// are rejected, but for one of each connection (RFC 7143, 4.2.2.1).
pub const IMMEDIATE_MAX: usize = 32;

/// Task management functions a session may have under way; here, too, each connection may have one all the same.
pub const MANAGEMENT_MAX: usize = 16;

/// Data that a request other than a command may carry that came before its turn: pings and texts, which
/// carry little. The data of commands are accounted for as all their data are.
pub const AHEAD_MAX: usize = 8 << 10;

/// How a session came to be, and its habits.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Only discovery is allowed.
    pub discovery: bool,
    /// The CmdSN expected next.
    pub exp_cmd_sn: u32,
    /// Commands in order it may have outstanding, as the login announced it.
    pub window: u32,
    /// As many as it may have outstanding later, [`WINDOW`] at most.
    pub window_max: u32,
    /// What it may hold of data nobody asked for, with all other sessions.
    pub unsolicited: Arc<Budget>,
    /// How many bytes of solicited data it may have on their way or in commands that run, until
    /// [`Session::allow_solicited`] says otherwise.
    pub solicited: u64,
    /// The longest text it takes.
    pub text_max: usize,
    /// After how long without a sign of life the initiator is pinged.
    pub ping_after: Duration,
    /// How long after the ping the connection is given up; and how long data may be awaited without any coming.
    pub ping_patience: Duration,
}

/// A connection whose login has just ended.
#[derive(Clone, Copy, Debug)]
pub struct Joining<'a> {
    /// Its number, which no other connection of the session has.
    pub cid: u16,
    /// The StatSN to send next on it.
    pub stat_sn: u32,
    /// What its login agreed on. What is not of one connection is that of the session.
    pub parameters: &'a Parameters,
}

/// What the front has to do, in order.
#[derive(Debug)]
pub enum Event {
    /// A command came, in command order. Answer with [`Session::want_data`].
    Command(Command),
    /// All data a command wants are there: run it, then [`Session::complete`].
    Execute {
        /// The command.
        command: Command,
        /// Its data-out.
        data: Vec<Bytes>,
    },
    /// A task the front has was aborted: nobody waits for its answer. It may be ended early, if that is
    /// possible at all, and has to be [completed](Session::complete) either way.
    Abort(TaskId),
    /// The units' part of a task management function. This session's tasks are seen to; do the rest
    /// (other sessions' tasks, the reset itself), then [`Session::managed`].
    Manage {
        /// Names the request.
        request: Request,
        /// What to do.
        function: TaskFunction,
        /// On which unit, as it was addressed; of no meaning to target resets.
        lun: [u8; 8],
    },
    /// Which targets are there? Answer with [`Session::targets`].
    SendTargets {
        /// The connection that asks.
        cid: u16,
        /// What it asks about.
        selection: Selection,
    },
    /// What [`Session::clear`] was asked to end has ended.
    Cleared {
        /// As it was given.
        ticket: u64,
    },
    /// Commands on a unit ended with their connection, and without an answer: the unit is to tell this nexus so,
    /// by a unit attention (RFC 7143, 11.14.5).
    CommandsCleared {
        /// The unit, as it was addressed.
        lun: [u8; 8],
    },
    /// A connection is over, and the session goes on: send what there is to send on it, then close it,
    /// then [`Session::remove`] it.
    CloseConnection(u16),
    /// The session is over: send what there is to send, then close.
    Close(Ending),
}

/// A SCSI command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Names the task.
    pub task: TaskId,
    /// The unit, as it was addressed.
    pub lun: [u8; 8],
    /// The command block. What it means depends on the type of the unit.
    pub cdb: Block,
    /// How it stands to other tasks.
    pub attribute: TaskAttribute,
    /// How much data-out the initiator announced.
    pub announced: u32,
    /// How much data-in the initiator has room for.
    pub room: u32,
}

/// How a command ended.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: Status,
    /// Data-in, not yet cut to what the initiator expects.
    pub data: Pieces,
    /// Sense data.
    pub sense: Bytes,
    /// Of the data-out that were asked for, the bytes that were not taken; or what there was beyond what was moved.
    pub residual: Residual,
}

/// Which targets an initiator asks about (RFC 7143, Appendix C).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All it may see.
    All,
    /// One by name.
    Named(String),
    /// The one it is logged in to.
    Current,
}

/// A target and where it can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRecord {
    /// Its name.
    pub name: String,
    /// Its portals, each with its portal group tag.
    pub portals: Vec<(SocketAddr, u16)>,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// The initiator logged out.
    #[error("logged out")]
    Logout,
    /// The initiator gave no sign of life.
    #[error("the initiator no longer answers")]
    Silent,
    /// The initiator sends no more of the data it was asked for or has announced.
    #[error("the initiator does not send the data it was asked for or has announced")]
    Stalled,
    /// It was asked to log out and did not.
    #[error("the initiator did not log out when asked to")]
    LogoutOverdue,
    /// A discovery session, of which no logout is asked.
    #[error("the target ends discovery")]
    Dismissed,
    /// TARGET COLD RESET.
    #[error("the target was reset")]
    ColdReset,
    /// A change or flush failed in a session that ends then, since what is behind it must not be carried out.
    #[error("a change failed, behind which nothing may be carried out")]
    Stopped,
}

#[cfg(test)]
mod tests;
