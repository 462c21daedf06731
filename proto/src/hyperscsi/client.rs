//! The client's machine.

use bytes::Bytes;

use super::address::{Endpoint, Transmit};
use super::command::{Command, Device, Handle, Reply, RequestId, TaskFunction, TaskResponse};
use super::config::{Config, Fill, Remote};
use super::ended::Ended;
use crate::identity::PublicKey;
use crate::time::Time;

/// What a client's driver is told.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The server has proven its key and accepted this client.
    Connected {
        /// The server's key.
        server: PublicKey,
        /// The devices that this client may use.
        devices: Vec<Device>,
    },
    /// A command has ended.
    Completed(RequestId, Reply),
    /// A management request was answered.
    Managed(RequestId, Bytes),
    /// A task management function has ended.
    TaskManaged(RequestId, TaskResponse),
    /// The connection is over; the machine is of no more use. What these requests did is not known.
    Ended {
        /// Why.
        reason: Ended,
        /// The requests without an answer.
        unanswered: Vec<RequestId>,
    },
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// There is no connection: not yet, or no more.
    #[error("there is no connection")]
    NotConnected,
    /// Too many requests wait.
    #[error("too many requests wait")]
    QueueFull,
    /// The command block or the data are too long or too short.
    #[error("the command block or its data have no permitted length")]
    Length,
    /// No such device.
    #[error("the connection has no such device")]
    NoSuchDevice,
}

/// A client and its one connection.
#[derive(Debug)]
pub struct Client {}

impl Client {
    /// Begins to connect.
    #[must_use]
    pub fn new(_now: Time, _config: Config, _remote: Remote, _random: Fill) -> Self {
        Self {}
    }

    /// Takes a packet, which is decrypted in place.
    pub fn handle_packet(&mut self, _now: Time, _from: Endpoint, _packet: &mut [u8]) {}

    /// Does what is due.
    pub fn handle_timeout(&mut self, _now: Time) {}

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; it changes with every other call.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// The next packet to be sent, until there is none.
    pub fn poll_transmit(&mut self, _now: Time) -> Option<Transmit> {
        None
    }

    /// The next event, until there is none.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        None
    }

    /// Submits a command.
    pub fn submit(&mut self, _now: Time, _command: Command) -> Result<RequestId, SubmitError> {
        Err(SubmitError::NotConnected)
    }

    /// Submits a management request: TLVs (spec, 11).
    pub fn manage(&mut self, _now: Time, _request: Bytes) -> Result<RequestId, SubmitError> {
        Err(SubmitError::NotConnected)
    }

    /// Aborts a command that was submitted. Its completion, if any, comes before the answer.
    pub fn abort(&mut self, _now: Time, _id: RequestId) -> Result<RequestId, SubmitError> {
        Err(SubmitError::NotConnected)
    }

    /// Submits a task management function for a device.
    pub fn manage_tasks(
        &mut self,
        _now: Time,
        _device: Handle,
        _function: TaskFunction,
    ) -> Result<RequestId, SubmitError> {
        Err(SubmitError::NotConnected)
    }

    /// Ends the connection: one packet, without an answer (spec, 12).
    pub fn disconnect(&mut self, _now: Time) {}
}
