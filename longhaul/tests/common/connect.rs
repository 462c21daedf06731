//! A session with a target that cannot be reached at once.

use std::net::SocketAddr;

use longhaul::store::iscsi::{ConnectOptions, Disk, IscsiTarget, connect};
use longhaul::uri::Host;
use proto::iscsi::name::IscsiName;

/// Opens unit 0 of a target. A login that fails is tried again: it may have been disturbed, or have taken longer than it is
/// given, as on a busy machine. It is for the caller to bound that.
pub(crate) async fn connect_until_there(
    address: SocketAddr,
    name: &str,
    options: &ConnectOptions,
) -> Disk {
    let portal = Host { name: address.ip().to_string(), port: address.port() };
    let target = IscsiTarget { portal, name: IscsiName::new(name).unwrap(), lun: 0 };
    loop {
        match connect(&target, options).await {
            Ok(disk) => return disk,
            Err(why) => println!("connecting again: {why}"),
        }
    }
}
