//! Block devices by ublk: the kernel asks this process by io_uring. [`kernel`] says which kernels are trusted with that, [`server`]
//! answers, and [`device`] is what others do to a device.

mod device;
mod kernel;
mod server;

pub use device::{abandon, detach, go_with_its_mount, has};
pub use kernel::{Error, check, is_trusted};
pub use server::Server;
