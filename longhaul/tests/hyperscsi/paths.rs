//! One connection by several addresses of a server at once (docs/spec/hyperscsi.md, 14).

use std::path::Path;
use std::process::Command;

use longhaul::target::status::PathStatus;
use longhaul::{sealing, site_key};

use super::common::{LONGHAUL, Running as Program, run};
use super::*;

/// The disk by a server, and the paths to it.
async fn open_by(keys: &Keys, server: SocketAddr, paths: &[SocketAddr]) -> Arc<Disk> {
    let volume = Named { paths: paths.iter().copied().map(place).collect(), ..at(server) };
    let options = ScsiOptions { login_within: Duration::from_secs(2), ..ScsiOptions::default() };
    let disk = store::connect(&volume, &keys.credentials(), options).await;
    Arc::new(disk.expect("a session"))
}

const LOCALS: [SocketAddr; 2] = [local(1), local(2)];

const fn local(host: u8) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, host)), 0)
}

async fn serve_two(keys: &Keys) -> Running {
    serve_links(&LOCALS, offering(Some(memory()), keys), keys, DATA_MAX).await
}

fn paths(running: &Running) -> Vec<PathStatus> {
    let mut sessions = running.node.status().sessions;
    assert_eq!(sessions.len(), 1, "it is one session");
    sessions.remove(0).paths
}

fn are_active(running: &Running) -> Vec<bool> {
    paths(running).iter().map(|path| path.state == "active").collect()
}

/// Writes and reads a part of the disk, in pieces, all at a time; what is written differs each time.
async fn load(disk: &Arc<Disk>, round: u64) {
    const PIECE: u64 = 128 << 10;
    let pieces = (0..16).map(|at| {
        let disk = Arc::clone(disk);
        tokio::spawn(async move {
            let mut random = Random::new(round << 32 | at);
            let data: Bytes = (0..PIECE / 8).flat_map(|_| random.word().to_be_bytes()).collect();
            disk.write(at * PIECE, data.clone(), Durability::Volatile).await.expect("no error");
            let read = disk.read(Span::new(at * PIECE, PIECE)).await.expect("no error");
            assert!(read == data, "other data");
        })
    });
    for piece in pieces.collect::<Vec<_>>() {
        piece.await.unwrap();
    }
}

/// Works until each of the server's paths is in use, or is not.
async fn load_until(disk: &Arc<Disk>, running: &Running, expected: [bool; 2]) {
    let until = std::time::Instant::now() + PATIENCE;
    for round in 0.. {
        load(disk, round).await;
        if are_active(running) == expected {
            return;
        }
        assert!(std::time::Instant::now() < until, "{:?}", paths(running));
    }
}

#[tokio::test]
async fn connection_uses_all_addresses_at_once() {
    let keys = Keys::new();
    let running = serve_two(&keys).await;
    let disk = open_by(&keys, running.addresses[0], &running.addresses[1..]).await;
    load_until(&disk, &running, [true; 2]).await;
    // How much goes by each is the scheduler's choice.
    let until = std::time::Instant::now() + PATIENCE;
    while paths(&running).iter().any(|path| path.sent < 500) {
        load(&disk, 1).await;
        assert!(std::time::Instant::now() < until, "{:?}", paths(&running));
    }
    check::volume(1, disk).await;
}

/// Whichever it is.
#[tokio::test]
async fn address_that_is_cut_off_under_load_costs_no_error() {
    for cut in 0..2 {
        let keys = Keys::new();
        let running = serve_two(&keys).await;
        let mut ways = Vec::new();
        for (seed, address) in (1..).zip(&running.addresses) {
            ways.push(cuttable_way(*address, seed, 2).await);
        }
        let disk = open_by(&keys, ways[0].0, &[ways[1].0]).await;
        load_until(&disk, &running, [true; 2]).await;
        let (going, way) = (Arc::clone(&disk), ways[cut].1.clone());
        let sent = paths(&running)[cut].sent;
        let load_on = async {
            for round in 0..4 {
                load(&going, 2000 + round).await;
            }
        };
        let cut_off = async {
            while paths(&running)[cut].sent < sent + 500 {
                tokio::task::yield_now().await;
            }
            way.abort();
        };
        tokio::join!(load_on, cut_off);
        let mut expected = [true; 2];
        expected[cut] = false;
        load_until(&disk, &running, expected).await;
        assert_eq!(paths(&running).len(), 2, "it is the connection that there was");
        disk.flush().await.expect("nothing is lost");
    }
}

#[tokio::test]
async fn server_that_is_not_at_its_first_address_is_found_at_another_one() {
    let keys = Keys::new();
    let running = serve_two(&keys).await;
    // Nobody is there, and nobody comes as long as this lives.
    let nobody = UdpSocket::bind(local(3)).await.unwrap();
    let disk = open_by(&keys, nobody.local_addr().unwrap(), &running.addresses).await;
    load(&disk, 1).await;
}

fn longhaul(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(LONGHAUL);
    command.args(arguments).current_dir(home);
    command
}

/// `serve` at two addresses, and what `status` says of a client that uses both.
#[tokio::test]
async fn status_shows_the_paths_of_a_client() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let identity = |name: &str| sealing::create(&home.join(name)).unwrap();
    let (server, client) = (identity("server.id"), identity("client.id"));
    site_key::create(&home.join("site-key")).unwrap();
    let site = site_key::read(&home.join("site-key")).unwrap();
    let keys = Keys { server, client, site };
    let serving = [
        &["serve", "--volume", "disk=memory:8M", "--listen", "127.0.0.1:0", "--control", "c.sock"]
            [..],
        &["--listen", "hyperscsi://127.0.0.1:0", "--listen", "hyperscsi://127.0.0.2:0"],
        &["--identity", "server.id", "--site-key", "site-key"],
    ];
    let program = Program::start(&mut longhaul(home, &serving.concat()));
    let mut addresses = Vec::<SocketAddr>::new();
    while addresses.len() < 2 {
        let line = program.line().expect("it is ready");
        let Some(uri) = line.strip_prefix("ready hyperscsi://") else { continue };
        addresses.push(uri.split('/').next().unwrap().parse().unwrap());
    }
    let disk = open_by(&keys, addresses[0], &addresses[1..]).await;
    let until = std::time::Instant::now() + PATIENCE;
    let said = loop {
        load(&disk, 1).await;
        let (said, _) = run(&longhaul(home, &["status", "--interval", "1", "--control", "c.sock"]));
        if said.matches(" active: ").count() == 2 {
            break said;
        }
        assert!(std::time::Instant::now() < until, "{said}");
    };
    assert!(said.contains("path 0 to 127.0.0.1:") && said.contains("path 1 to 127.0.0."), "{said}");
    disk.close().await;
    assert!(program.stop().success());
}
