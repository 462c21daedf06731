//! Our initiator against tgtd, a target we did not write.

#[path = "../common/mod.rs"]
mod common;
mod lost;
mod optical;
#[path = "../common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;
#[path = "../common/port.rs"]
mod port;
mod server;
mod wire;
mod writers;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longhaul::store::abilities::Probe as _;
use longhaul::store::iscsi::{ConnectError, ConnectOptions, Disk, connect, discover};
use proto::iscsi::chap::{Account, Algorithm, Credentials, Secret};
use proto::iscsi::keys::{DigestWish, Offer, Parameters};
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::initiator::LoginError;
use proto::iscsi::name::IscsiName;
use server::{NAME, Tgt};
use volume::{Durability, Gate, Kind, Span, Volume, check};

fn options() -> ConnectOptions {
    ConnectOptions::new(IscsiName::new("iqn.2026-11.dev.longhaul:test").unwrap())
}

fn offering(change: impl FnOnce(&mut Offer)) -> ConnectOptions {
    let mut options = options();
    change(&mut options.offer);
    options
}

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials { name: name.into(), secret: Secret::new(secret).unwrap() }
}

/// tgtd knows MD5 only.
fn with_account(account: Account) -> ConnectOptions {
    ConnectOptions { account: Some(account), algorithms: vec![Algorithm::Md5], ..options() }
}

async fn open(tgt: &Tgt, options: &ConnectOptions) -> Disk {
    connect(&tgt.disk(), options).await.expect("a session with tgtd")
}

fn parameters(disk: &Disk) -> Parameters {
    disk.session().established().parameters.clone()
}

/// Writes a pattern with every length that crosses a border, and reads it back whole and in parts.
async fn carries_data(disk: &Disk) {
    let mut at = 0;
    for len in [512, 8192, 8704, 65_536, 66_048, 262_144, 1 << 20, 9 << 20] {
        let data: Bytes = (0..len).map(|i| (i * 31 + i / 509 + at) as u8).collect();
        disk.write(at as u64, data.clone(), Durability::Volatile).await.expect("write");
        let whole = disk.read(Span::new(at as u64, len as u64)).await.expect("read");
        assert!(whole == data, "{len} bytes at {at} came back changed");
        let tail = disk.read(Span::new((at + len - 512) as u64, 512)).await.expect("read the end");
        assert_eq!(tail, data.slice(len - 512..));
        at += len;
    }
    disk.flush().await.expect("flush");
}

async fn carries_data_and_ends(disk: Disk) {
    carries_data(&disk).await;
    disk.close().await;
    let error = disk.read(Span::new(0, 512)).await.expect_err("a read after the logout");
    assert_eq!(error.kind, Kind::Gone);
}

#[tokio::test]
async fn a_volume_on_tgtd_keeps_every_promise() {
    let tgt = Tgt::start();
    let disk = open(&tgt, &options()).await;
    let session = disk.session();
    let shape = disk.shape();
    assert_eq!((shape.size, shape.block_size), (64 << 20, 512));
    assert!(shape.write_cache && shape.discard.is_some() && shape.fast_zeroes, "{shape:?}");
    check::volume(1, Arc::new(disk)).await;
    session.close().await;
}

#[tokio::test]
async fn plain() {
    let tgt = Tgt::start();
    let disk = open(&tgt, &options()).await;
    let probe = disk.probe().await.expect("probe");
    assert_eq!((probe.vendor.as_str(), probe.product.as_str()), ("IET", "VIRTUAL-DISK"));
    assert!(probe.serial.is_some() && !probe.round_trip.is_zero());
    carries_data_and_ends(disk).await;
}

#[tokio::test]
async fn chap() {
    let tgt = Tgt::start();
    tgt.account("alice", "alice's secret", false);
    let account = Account::one_way(credentials("alice", "alice's secret"));
    carries_data_and_ends(open(&tgt, &with_account(account)).await).await;

    let wrong = Account::one_way(credentials("alice", "another secret"));
    let error = connect(&tgt.disk(), &with_account(wrong)).await.expect_err("a wrong secret");
    let refused = LoginError::Refused(LoginStatus::AUTHENTICATION_FAILURE);
    assert_eq!(error.login(), Some(&refused), "{error}");
    assert!(connect(&tgt.disk(), &options()).await.is_err(), "no credentials at all");
}

#[tokio::test]
async fn mutual_chap() {
    let tgt = Tgt::start();
    tgt.account("alice", "alice's secret", false);
    tgt.account("disk", "the disk's secret", true);
    let mutual = |secret| {
        let alice = credentials("alice", "alice's secret");
        with_account(Account::mutual(alice, credentials("disk", secret)).unwrap())
    };
    carries_data_and_ends(open(&tgt, &mutual("the disk's secret")).await).await;

    let error = connect(&tgt.disk(), &mutual("not the disk's")).await.expect_err("an impostor");
    assert!(matches!(error.login(), Some(LoginError::Chap(_))), "{error:?}");
}

#[tokio::test]
async fn both_digests() {
    let tgt = Tgt::start();
    tgt.set("HeaderDigest", "CRC32C");
    tgt.set("DataDigest", "CRC32C");
    let disk = open(
        &tgt,
        &offering(|offer| {
            offer.header_digest = DigestWish::Require;
            offer.data_digest = DigestWish::Require;
        }),
    )
    .await;
    assert!(parameters(&disk).header_digest && parameters(&disk).data_digest);
    carries_data_and_ends(disk).await;
}

#[tokio::test]
async fn segments_of_8_kib() {
    let tgt = Tgt::start();
    let disk = open(&tgt, &offering(|offer| offer.max_recv_data_segment = 8192)).await;
    let agreed = parameters(&disk);
    assert_eq!((agreed.max_recv_data_segment, agreed.max_send_data_segment), (8192, 8192));
    carries_data_and_ends(disk).await;
}

#[tokio::test]
async fn every_write_waits_for_an_r2t() {
    let tgt = Tgt::start();
    tgt.set("InitialR2T", "Yes");
    tgt.set("ImmediateData", "No");
    let disk = open(&tgt, &options()).await;
    assert!(parameters(&disk).initial_r2t && !parameters(&disk).immediate_data);
    assert_eq!(parameters(&disk).unsolicited(), 0);
    carries_data_and_ends(disk).await;
}

#[tokio::test]
async fn unsolicited_data_and_many_r2ts() {
    let tgt = Tgt::start();
    tgt.set("InitialR2T", "No");
    tgt.set("MaxOutstandingR2T", "8");
    tgt.set("FirstBurstLength", "262144");
    let disk = open(&tgt, &options()).await;
    let agreed = parameters(&disk);
    assert!(!agreed.initial_r2t && agreed.immediate_data);
    assert_eq!((agreed.first_burst, agreed.max_outstanding_r2t), (262_144, 8));
    carries_data_and_ends(disk).await;
}

#[tokio::test]
async fn discovery_lists_the_target() {
    let tgt = Tgt::start();
    let found = discover(&tgt.portal(), &options()).await.expect("discovery");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, NAME);
    assert!(found[0].portals.contains(&tgt.portal()), "{found:?}");
}

#[tokio::test]
async fn a_target_that_is_not_there_is_named() {
    let tgt = Tgt::start();
    let mut target = tgt.disk();
    target.name = IscsiName::new("iqn.2026-11.dev.longhaul:none").unwrap();
    let error = connect(&target, &options()).await.expect_err("no such target");
    assert_eq!(error.login(), Some(&LoginError::Refused(LoginStatus::NOT_FOUND)));
    target = tgt.disk();
    target.lun = 7;
    let error = connect(&target, &options()).await.expect_err("no such unit");
    assert!(matches!(error, ConnectError::Device(_) | ConnectError::Unit(_)), "{error:?}");
}

#[tokio::test]
async fn a_lost_target_is_reported_at_once_where_no_outage_is_ridden_out() {
    let tgt = Tgt::start();
    let options = ConnectOptions { reconnect_for: Some(Duration::ZERO), ..options() };
    let disk = Gate::new("iscsi", open(&tgt, &options).await);
    let len = 4 << 20;
    disk.write(0, vec![1; len].into(), Durability::Volatile).await.expect("write");
    // The kill may be faster than some of the reads, not than all that follow.
    let reads = (0..64).map(|_| disk.read(Span::new(0, len as u64)));
    let ((), ended) = tokio::join!(async { tgt.kill() }, futures_util::future::join_all(reads));
    for error in ended.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind, Kind::Gone);
    }
    let error = disk.flush().await.expect_err("a flush after the loss");
    assert_eq!(error.kind, Kind::Gone);
    assert!(std::error::Error::source(&error).is_some(), "the loss has a reason");
}
