//! HyperSCSI 2: SCSI over raw Ethernet and UDP (`docs/spec/hyperscsi.md`, whose sections are cited as "spec").
//!
//! [`Client`] and [`Server`] are machines. A driver has the links (sockets) and the clock:
//!
//! ```text
//! loop {
//!     received:   machine.handle_packet(now, Endpoint { link, address }, ecn, &mut bytes)
//!     due:        machine.handle_timeout(now)
//!     requests:   client.submit(now, command)      server.complete(now, connection, request, reply)
//!     then:       while let Some(event) = machine.poll_event() { .. }
//!                 machine.transmit(now, &mut outbox)
//!                 sleep until machine.next_deadline(), a packet, or a request
//! }
//! ```
//!
//! A packet is the payload of a frame (EtherType [`ETHERTYPE`]; padding behind it is ignored) or of a datagram (UDP port
//! [`PORT`]). `transmit` puts nothing into its [`Outbox`] while the congestion window or the pace forbids it, nor data for
//! links that take none now; `next_deadline` says when to ask again. `poll_transmit` gives one packet. A client is one
//! connection: after [`ClientEvent::Ended`] its driver makes a new one, and requests that were not answered may have been executed. A server is asked about each client that has proven its key
//! ([`ServerEvent::Proven`]), and executes each command that it is given exactly once.

mod address;
mod aead;
mod client;
mod codec;
mod command;
mod compression;
mod config;
mod congestion;
mod ecn;
mod ended;
mod epochs;
mod incoming;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod keys;
mod noise;
mod numbers;
mod outgoing;
mod pacer;
mod path;
mod path_mtu;
mod range_set;
mod recovery;
mod replay;
mod rtt;
mod server;
mod spurious;
mod transport;
pub mod transport_id;
mod whole_window;

pub use address::{Address, Endpoint, LinkId, Outbox, Transmit};
pub use aead::{Aead, Ciphers};
pub use client::{Client, ClientEvent, SubmitError};
pub use command::{
    CDB_MAX, CDB_MIN, Command, Device, Handle, Level, Reply, Request, RequestId, SENSE_MAX,
    TaskAttribute, TaskFunction, TaskResponse,
};
pub use compression::{Algorithm, Codec, Codecs};
pub use config::{
    Config, CongestionControl, DATA_MAX, Fill, PACKET_MIN, PATHS_MAX, Remote, SITE_KEY_LEN, SLOTS,
    SiteKey, Terms, Timing,
};
pub use ecn::Ecn;
pub use ended::Ended;
pub use path::{PathState, PathStats};
pub use server::{ChangeStep, ConnectionId, Server, ServerEvent};

/// The EtherType of HS/eth.
pub const ETHERTYPE: u16 = 0x889a;

/// The UDP port of HS/IP.
pub const PORT: u16 = 5674;
