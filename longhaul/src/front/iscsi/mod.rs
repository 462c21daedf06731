//! The iSCSI target: listens, logs initiators in, and runs a session of [`proto::iscsi::target`] for
//! each, on one task that owns all of its state and its connections.
//!
//! ```no_run
//! # async fn run(device: longhaul::target::lun::TargetDevice, stop: longhaul::stop::Stop) -> std::io::Result<()> {
//! use longhaul::front::iscsi::{Node, Server};
//! use proto::iscsi::login::policy::Policy;
//!
//! let node = Node::new([device], Policy::open);
//! let portal = std::net::SocketAddr::from(([127, 0, 0, 1], 3260));
//! let server = Server::bind(&[portal], node).await?;
//! println!("ready {:?}", server.portals());
//! server.run(stop).await;
//! # Ok(())
//! # }
//! ```

mod attached_target;
mod clock;
mod commands;
mod connection;
mod connections;
mod driver;
mod end;
mod enrolment;
pub(in crate::front) mod joining;
mod login;
mod logins;
mod mailbox;
mod node;
mod pdu_stream;
mod server;
mod session;
mod shutdown;
mod targets;
mod task_management;
mod wake_flag;

pub use enrolment::{Enrolled, Enrolment, NewClient};
pub use node::{Limits, Node, Offering};
pub use server::{AcceptProbe, Portal, Server};
