//! The server's machine.

use bytes::Bytes;

use super::address::{Endpoint, Transmit};
use super::command::{Command, Device, Handle, Reply, Request, TaskFunction, TaskResponse};
use super::config::{Config, Fill};
use super::ended::Ended;
use crate::identity::PublicKey;
use crate::time::Time;

/// A connection of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// What a server's driver is told.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client has proven its key: to be answered with [`Server::accept`] or [`Server::refuse`].
    Proven {
        /// The new connection.
        connection: ConnectionId,
        /// The client's key.
        client: PublicKey,
        /// Where it is.
        from: Endpoint,
    },
    /// A command to be executed once, and answered with [`Server::complete`].
    Command {
        /// The connection.
        connection: ConnectionId,
        /// The request, unique within its connection.
        request: Request,
        /// The command with its data.
        command: Command,
    },
    /// A management request, to be answered with [`Server::managed`].
    Manage {
        /// The connection.
        connection: ConnectionId,
        /// The request.
        request: Request,
        /// Its TLVs.
        body: Bytes,
    },
    /// A task management function, to be answered with [`Server::task_managed`].
    TaskManagement {
        /// The connection.
        connection: ConnectionId,
        /// The request.
        request: Request,
        /// The device.
        device: Handle,
        /// The function.
        function: TaskFunction,
    },
    /// A connection is over. Its requests need no answers any more.
    Ended {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        reason: Ended,
    },
}

/// A server with all its connections.
#[derive(Debug)]
pub struct Server {}

impl Server {
    /// A server without connections.
    #[must_use]
    pub fn new(_now: Time, _config: Config, _random: Fill) -> Self {
        Self {}
    }

    /// Takes a packet, which is decrypted in place. What strangers send has no effect.
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
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        None
    }

    /// Lets a proven client use these devices.
    pub fn accept(&mut self, _now: Time, _connection: ConnectionId, _devices: Vec<Device>) {}

    /// Forgets a proven client without a word.
    pub fn refuse(&mut self, _now: Time, _connection: ConnectionId) {}

    /// Answers a command. Answers for connections that are over have no effect.
    pub fn complete(
        &mut self,
        _now: Time,
        _connection: ConnectionId,
        _request: Request,
        _reply: Reply,
    ) {
    }

    /// Answers a management request.
    pub fn managed(
        &mut self,
        _now: Time,
        _connection: ConnectionId,
        _request: Request,
        _body: Bytes,
    ) {
    }

    /// Answers a task management function.
    pub fn task_managed(
        &mut self,
        _now: Time,
        _connection: ConnectionId,
        _request: Request,
        _response: TaskResponse,
    ) {
    }

    /// Stops a client from beginning requests, or lets it go on. What has begun goes on.
    pub fn pause(&mut self, _now: Time, _connection: ConnectionId, _paused: bool) {}

    /// Ends a connection.
    pub fn close(&mut self, _now: Time, _connection: ConnectionId) {}
}
