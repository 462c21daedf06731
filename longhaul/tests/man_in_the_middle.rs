//! Somebody on the path between a client and a target forges, changes, drops, repeats, replays and cuts PDUs of one
//! login after the other, those of connections that join a session among them. When he lets one through the volume is
//! usable, and everything that was acknowledged is there: whether the client has the target's key, an account or nothing.

#[path = "common/connect.rs"]
mod connect;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use connect::connect_until_there;
use longhaul::ciphers::new_aes_256_gcm;
use longhaul::front::iscsi::{Node, Server};
use longhaul::stop::Stopper;
use longhaul::store::iscsi::{ConnectOptions, Connections, Disk};
use longhaul::target::lun::{Options, TargetDevice};
use proto::identity::Identity;
use proto::iscsi::chap::{Account, Algorithm, Credentials, Secret};
use proto::iscsi::initiator::Timeouts;
use proto::iscsi::keys::Offer;
use proto::iscsi::login::initiator::Pinned;
use proto::iscsi::login::policy::{Client, Policy};
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::{Limits, Protection, Sealing};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use volume::check::Random;
use volume::store::faulty::Faulty;
use volume::{Durability, Span, Volume};

const NAME: &str = "iqn.2026-11.dev.longhaul:disk";
const CASES: u64 = 150;
/// With several connections a strike ends, and has to make again, as many.
const CASES_OF_SEVERAL: u64 = 50;
const CASES_WITHOUT_KEY: u64 = 30;
/// Volumes that are disturbed at a time.
const PARTS: u64 = 5;
const BLOCKS: u64 = 64;
const BLOCK: u64 = 512;
const BHS: usize = 48;

/// Longer than anything takes on a loaded machine; only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the two ends know one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Authentication {
    Key,
    /// CHAP, of both if `mutual`.
    Account {
        mutual: bool,
    },
    Nothing,
}

impl Authentication {
    /// PDUs of a login, one way.
    const fn pdus(self) -> u64 {
        match self {
            Self::Key => 2,
            Self::Account { .. } => 4,
            Self::Nothing => 1,
        }
    }

    fn account(self) -> Option<Account> {
        let credentials = |name: &str, secret| Credentials {
            name: name.into(),
            secret: Secret::new(secret).unwrap(),
        };
        let ours = credentials("alice", "alice's secret");
        match self {
            Self::Account { mutual: true } => {
                Account::mutual(ours, credentials("disk", "the disk's secret")).ok()
            }
            Self::Account { mutual: false } => Some(Account::one_way(ours)),
            Self::Key | Self::Nothing => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Tampering {
    /// A login response with this status comes instead, or before.
    Forge {
        status: [u8; 2],
        before: bool,
    },
    /// A redirection comes instead.
    Redirect,
    Flip,
    Drop,
    Repeat,
    Replay,
    Truncate,
    Cut,
}

/// What is done, and to which PDU of a login one way.
#[derive(Clone, Copy, Debug)]
struct Plan {
    down: bool,
    pdu: usize,
    tampering: Tampering,
}

impl Tampering {
    /// Without a key he could change what is agreed and what is written. What is promised there holds against those
    /// who only keep a session from coming about.
    const fn keeps_data(self) -> bool {
        !matches!(self, Self::Flip | Self::Repeat | Self::Replay)
    }
}

impl Plan {
    fn any(random: &mut Random, proof: Authentication) -> Self {
        loop {
            let plan = Self::drawn(random, proof);
            if proof == Authentication::Key || plan.tampering.keeps_data() {
                return plan;
            }
        }
    }

    fn drawn(random: &mut Random, proof: Authentication) -> Self {
        let details = [(2, 11), (3, 2), (1, 2), (9, 9)];
        let (class, most) = details[random.below(4) as usize];
        let status = match random.below(3) {
            0 => [class, random.below(most + 1) as u8],
            n => [2, 3 + n as u8],
        };
        let before = random.below(2) == 0;
        let tampering = match random.below(12) {
            0..4 => Tampering::Forge { status, before },
            4 => Tampering::Redirect,
            5 => Tampering::Flip,
            6 => Tampering::Drop,
            7 => Tampering::Repeat,
            8..10 => Tampering::Replay,
            10 => Tampering::Truncate,
            _ => Tampering::Cut,
        };
        let forged = matches!(tampering, Tampering::Forge { .. } | Tampering::Redirect);
        Self {
            down: forged || random.below(3) > 0,
            pdu: random.below(proof.pdus()) as usize,
            tampering,
        }
    }
}

/// The one on the path.
struct Middleman {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

struct Shared {
    server: SocketAddr,
    random: Mutex<Random>,
    /// What is done to the connections to come, one after the other.
    plans: Mutex<Vec<Plan>>,
    recorded: Mutex<Vec<Vec<u8>>>,
    running: Mutex<JoinSet<()>>,
    /// What he has done.
    done: AtomicU64,
}

impl Middleman {
    async fn new(server: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server,
            random: Mutex::new(Random::new(seed)),
            plans: Mutex::default(),
            recorded: Mutex::default(),
            running: Mutex::default(),
            done: AtomicU64::default(),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, _accepting: accepting }
    }

    /// Ends what goes by him, and harms the next connections.
    async fn strike(&self, plans: Vec<Plan>) {
        *self.shared.plans.lock().unwrap() = plans;
        let mut running = std::mem::take(&mut *self.shared.running.lock().unwrap());
        running.shutdown().await;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect(shared.server).await else { continue };
        let plan = shared.plans.lock().unwrap().pop();
        let both = Arc::clone(&shared);
        shared.running.lock().unwrap().spawn(async move {
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let up = plan.filter(|plan| !plan.down);
            let down = plan.filter(|plan| plan.down);
            tokio::select! {
                () = pass(from_client, to_server, up, &both) => {}
                () = pass(from_server, to_client, down, &both) => {}
            }
        });
    }
}

/// Passes a login on, PDU by PDU, and then what follows; until the connection ends.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    plan: Option<Plan>,
    shared: &Shared,
) {
    for number in 0.. {
        let Some(pdu) = login_pdu(&mut from).await else { return };
        // RFC 7143, 11.12 and 11.13: the transit bit, and the next stage.
        let last = pdu[1] & 0x83 == 0x83;
        let harmed = match plan.filter(|plan| plan.pdu == number) {
            Some(plan) => {
                shared.done.fetch_add(1, Ordering::Relaxed);
                tampering(plan.tampering, &pdu, shared)
            }
            None => Some(pdu.clone()),
        };
        shared.recorded.lock().unwrap().push(pdu);
        let Some(bytes) = harmed else { return };
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        if last {
            break;
        }
    }
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

async fn login_pdu(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut pdu = vec![0; BHS];
    from.read_exact(&mut pdu).await.ok()?;
    let len = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]).next_multiple_of(4) as usize;
    pdu.resize(BHS + len, 0);
    from.read_exact(&mut pdu[BHS..]).await.ok()?;
    Some(pdu)
}

/// What comes instead of a PDU; nothing if the connection ends.
fn tampering(tampering: Tampering, pdu: &[u8], shared: &Shared) -> Option<Vec<u8>> {
    let mut random = shared.random.lock().unwrap();
    let mut bytes = pdu.to_vec();
    match tampering {
        Tampering::Forge { status, before } => {
            let mut forged = response(pdu, status, b"");
            forged.extend(before.then_some(bytes).into_iter().flatten());
            return Some(forged);
        }
        Tampering::Redirect => {
            return Some(response(pdu, [1, 1], b"TargetAddress=127.0.0.1:9,1\0"));
        }
        Tampering::Flip => {
            let at = random.below(bytes.len() as u64) as usize;
            // A longer PDU would only be waited for.
            let at = if (4..8).contains(&at) { 0 } else { at };
            bytes[at] ^= 1 << random.below(8);
        }
        Tampering::Drop => bytes.clear(),
        Tampering::Repeat => bytes.extend_from_within(..),
        Tampering::Replay => {
            let recorded = shared.recorded.lock().unwrap();
            bytes.clone_from(&recorded[random.below(recorded.len() as u64) as usize]);
        }
        Tampering::Truncate => bytes.truncate(bytes.len() / 2),
        Tampering::Cut => return None,
    }
    Some(bytes)
}

/// A login response that says this, with the ISID of the one in its place.
fn response(instead: &[u8], status: [u8; 2], text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; BHS];
    bytes[0] = 0x23;
    bytes[7] = text.len() as u8;
    bytes[8..16].copy_from_slice(&instead[8..16]);
    bytes[36..38].copy_from_slice(&status);
    bytes.extend(text);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn sealing(byte: u8) -> Sealing {
    let identity = Identity::fresh(&mut |buffer| buffer.fill(byte));
    Sealing { identity, new_cipher: new_aes_256_gcm, limits: Limits::SPEC }
}

fn policy(proof: Authentication, targets: Vec<IscsiName>) -> Policy {
    match proof {
        Authentication::Key => {
            let client = Client { key: Some(sealing(1).identity.public()), ..Client::default() };
            let all = targets.clone();
            let policy = Policy::closed(targets, vec![client], Vec::new());
            all.into_iter().fold(policy, |policy, it| policy.demanding(it, Protection::Encrypt))
        }
        Authentication::Account { .. } => {
            let client = Client { account: proof.account(), ..Client::default() };
            Policy::closed(targets, vec![client], Algorithm::STRONG.to_vec())
        }
        Authentication::Nothing => Policy::open(targets),
    }
}

async fn serve(volume: Arc<dyn Volume>, proof: Authentication) -> (Arc<Node>, SocketAddr, Stopper) {
    let device = TargetDevice::new(NAME, [(0, volume, Options::default())]);
    let several = Offer { max_connections: 8, ..Offer::for_long_links() };
    let node = Node::new([device], move |targets| policy(proof, targets));
    let node = Arc::new(node.with_sealing(sealing(2)).with_offer(several));
    let portals = [SocketAddr::from(([127, 0, 0, 1], 0))];
    let server = Server::bind(&portals, Arc::clone(&node)).await.unwrap();
    let address = server.portals()[0];
    let (stopper, stop) = Stopper::new();
    tokio::spawn(server.run(stop));
    (node, address, stopper)
}

fn options(proof: Authentication, connections: u16) -> ConnectOptions {
    let milliseconds = Duration::from_millis;
    let target = sealing(2).identity.public();
    let pinned =
        Pinned { sealing: sealing(1), target, protection: Protection::Encrypt, invitation: None };
    ConnectOptions {
        pinned: (proof == Authentication::Key).then_some(pinned),
        account: proof.account(),
        reconnect_for: None,
        reconnect_every: milliseconds(20),
        other_portals: false,
        // What is swallowed is found out soon; a slow answer taken for that only costs another login.
        timeouts: Timeouts {
            login: milliseconds(500),
            logout: milliseconds(500),
            idle: milliseconds(100),
            answer: milliseconds(400),
            ..Timeouts::default()
        },
        connections: Connections::Fixed(connections),
        ..ConnectOptions::new(IscsiName::new("iqn.2026-11.dev.longhaul:client").unwrap())
    }
}

async fn open(address: SocketAddr, options: &ConnectOptions) -> Disk {
    let connected = connect_until_there(address, NAME, options);
    tokio::time::timeout(PATIENCE, connected).await.expect("a session")
}

/// So many cases in all, side by side: they wait most of the time.
async fn disturb(proof: Authentication, connections: u16, cases: u64) {
    let mut parts = JoinSet::new();
    for seed in 1..=PARTS {
        parts.spawn(disturb_seeded(proof, connections, cases / PARTS, seed));
    }
    let joined: usize = parts.join_all().await.into_iter().sum();
    assert_eq!(connections > 1, joined > 0, "connections that joined");
}

/// A volume in use over sessions of so many connections, while somebody harms their logins. How often there were several.
async fn disturb_seeded(proof: Authentication, connections: u16, cases: u64, seed: u64) -> usize {
    println!("seed {seed}");
    let medium = Arc::new(Faulty::new(BLOCKS * BLOCK, BLOCK as u32));
    let (node, server, _stopper) = serve(Arc::<Faulty>::clone(&medium), proof).await;
    let middleman = Middleman::new(server, seed).await;
    let disk = open(middleman.address, &options(proof, connections)).await;
    let mut random = Random::new(seed);
    let mut model = vec![0; (BLOCKS * BLOCK) as usize];
    let mut joined = 0;
    for case in 0..cases {
        let at = random.below(BLOCKS) * BLOCK;
        let data = Bytes::from(case.to_le_bytes().repeat(BLOCK as usize / 8));
        model[at as usize..(at + BLOCK) as usize].copy_from_slice(&data);
        let most = 2 * u64::from(connections);
        let plans: Vec<_> =
            (0..=random.below(most)).map(|_| Plan::any(&mut random, proof)).collect();
        let what = format!("case {case}, {plans:?}");
        // Some are under way when it strikes, some are acknowledged and not flushed.
        let write = disk.write(at, data, Durability::Volatile);
        let used = async {
            let (written, ()) = tokio::join!(write, middleman.strike(plans));
            written.unwrap_or_else(|why| panic!("{what}: {why:?}"));
            let read = disk.read(Span::new(0, BLOCKS * BLOCK)).await;
            assert!(read.unwrap_or_else(|why| panic!("{what}: {why:?}")) == model, "{what}");
            if case % 7 == 0 {
                disk.flush().await.unwrap_or_else(|why| panic!("{what}: {why:?}"));
            }
        };
        let used = tokio::time::timeout(PATIENCE, used).await;
        assert!(used.is_ok(), "{what}: not usable: {:?} {:?}", disk.state(), disk.reason());
        let sessions = node.status().sessions;
        joined += usize::from(sessions.iter().any(|session| session.connections > 1));
    }
    disk.flush().await.expect("a flush");
    disk.close().await;
    assert!(medium.crash(seed).contents() == model && medium.contents() == model);
    let done = middleman.shared.done.load(Ordering::Relaxed);
    println!("seed {seed}: {done} harms, {joined} times several connections");
    assert!(done >= cases, "he did little: {done}");
    joined
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_is_usable_whenever_the_man_in_the_middle_lets_a_login_through() {
    disturb(Authentication::Key, 1, CASES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disturbed_logins_of_joining_connections_leave_a_secure_volume_usable() {
    disturb(Authentication::Key, 3, CASES_OF_SEVERAL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disturbed_logins_with_an_account_leave_a_volume_usable() {
    for mutual in [false, true] {
        disturb(Authentication::Account { mutual }, 1, CASES_WITHOUT_KEY).await;
        disturb(Authentication::Account { mutual }, 3, CASES_WITHOUT_KEY).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disturbed_logins_without_proof_leave_a_volume_usable() {
    disturb(Authentication::Nothing, 1, CASES_WITHOUT_KEY).await;
    disturb(Authentication::Nothing, 3, CASES_WITHOUT_KEY).await;
}
