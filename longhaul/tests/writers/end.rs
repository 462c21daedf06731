//! A writer that ends while something of it is still under way.

use longhaul::store::iscsi::{ConnectOptions, Connections, IscsiTarget, Writers, connect};
use longhaul::uri::Uri;
use proto::iscsi::keys::Offer;
use proto::iscsi::name::IscsiName;
use volume::{Durability, Volume as _};

use super::Bench;
use super::common::PATIENCE;
use super::link::Link;

const MIB: usize = 1 << 20;

#[tokio::test]
async fn reservation_is_given_back_after_the_last_write_that_nobody_waits_for() {
    let bench = Bench::new(&[]);
    let link = Link::to(&bench.uri);
    let Ok(Uri::Iscsi(place)) = link.uri.parse() else { panic!("{}", link.uri) };
    let target = IscsiTarget { portal: place.host, name: place.target, lun: place.lun };
    // Data comes when the target asks for it, and not with the command.
    let offer = Offer { initial_r2t: true, immediate_data: false, ..Offer::for_long_links() };
    let options = ConnectOptions {
        offer,
        writers: Writers::One,
        connections: Connections::Fixed(1),
        ..ConnectOptions::new(IscsiName::new("iqn.2001-04.com.example:first").unwrap())
    };
    let disk = connect(&target, &options).await.unwrap();
    link.hold();
    let write = disk.write(0, vec![1; MIB].into(), Durability::Volatile);
    tokio::select! {
        _ = write => panic!("the target has not got the data"),
        held = tokio::time::timeout(PATIENCE, link.held()) => held.unwrap(),
    }
    let before = link.reserve_out();
    let session = disk.session();
    // What the end sends at once passes the link before the ping that it comes before.
    tokio::select! {
        biased;
        () = disk.close() => panic!("the write is under way"),
        answered = session.ping() => { answered.unwrap(); }
    }
    assert_eq!(link.reserve_out(), before, "it is given back while a write is under way");
    link.let_go();
    tokio::time::timeout(PATIENCE, disk.close()).await.unwrap();
    assert_eq!(link.reserve_out(), before + 1);
    assert!(bench.stored().iter().all(|byte| *byte == 1));
    let second = bench.attach("second", &[]);
    assert!(bench.reads(&second, 1) && second.process.stop().success());
}
