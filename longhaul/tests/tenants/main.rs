//! Clients of one server that mean each other harm: each proves itself, with CHAP or with a key, and takes the
//! other's names. A name is a claim; whatever belongs to a client belongs to the one that proved itself.

#[path = "../common/mod.rs"]
mod common;
#[expect(dead_code, reason = "each test uses its part")]
#[path = "../common/peer.rs"]
mod peer;
#[path = "../common/hyperscsi.rs"]
mod raw;

mod discovery;
mod flood;
mod hyperscsi;
mod names;
mod read_only;
mod resets;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use bytes::Bytes;
use common::{LONGHAUL, Running};
use longhaul::sealing;
use peer::Peer;
use proto::identity::PublicKey;
use proto::iscsi::chap::{Account, Algorithm, Credentials, Secret};
use proto::iscsi::header::{Header, NO_TAG, TaskFunction, TaskManagementRequest, TaskResponse};
use proto::iscsi::keys::Offer;
use proto::iscsi::login::Entropy;
use proto::iscsi::login::initiator::{Config, InitiatorLogin, Pinned, Progress};
use proto::iscsi::name::{IscsiName, Isid};
use proto::iscsi::sealed::Protection;
use proto::scsi::lun;
use rustix::process::Signal;

/// The target of the units 0 and 1.
const TARGET: &str = "iqn.2026-11.dev.longhaul:shared";

/// What an initiator of alice calls itself.
const NAME: &str = "iqn.2001-04.com.example:alice";

const GOOD: u8 = 0x00;
const CHECK: u8 = 0x02;
const CONFLICT: u8 = 0x18;

/// How clients prove themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    Chap,
    Key,
}

const BOTH: [Proof; 2] = [Proof::Chap, Proof::Key];

/// Each client, and what it may use of the units `a`, which is 0, and `b`, which is 1.
const CLIENTS: [(&str, &str); 5] = [
    ("alice", "volumes = ['a']"),
    ("bob", "volumes = ['a', 'b']"),
    ("mallory", "volumes = ['b']"),
    ("reader", "read_only = ['a']"),
    ("mixed", "volumes = ['b']\nread_only = ['a']"),
];

/// A server of two units and five clients.
struct Fixture {
    by: Proof,
    home: tempfile::TempDir,
    server: Running,
    portal: SocketAddr,
    /// Where it listens for HyperSCSI, if clients have keys.
    hyperscsi: Option<SocketAddr>,
    key: Option<PublicKey>,
}

/// The file with the secret of `name`, which only its owner may read.
fn keep_secret(home: &tempfile::TempDir, name: &str) {
    let path = home.path().join(name);
    fs::write(&path, format!("the secret of {name}")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Why a login was refused: status class and detail.
type Refused = (u8, u8);

impl Fixture {
    fn new(by: Proof) -> Self {
        Self::with(by, "", &CLIENTS)
    }

    /// A server whose file has more in it, before its tables.
    fn with(by: Proof, limits: &str, clients: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut key = None;
        let site_key = home.path().join("site-key");
        fs::write(&site_key, format!("lhsite1-{}\n", "07".repeat(32))).unwrap();
        fs::set_permissions(&site_key, fs::Permissions::from_mode(0o600)).unwrap();
        for (name, _) in [("server", "")].iter().chain(clients) {
            keep_secret(&home, name);
            if by == Proof::Key {
                let public = sealing::create(&home.path().join(format!("{name}.id"))).unwrap();
                key = key.or_else(|| Some(public.public()));
                fs::write(home.path().join(format!("{name}.pub")), public.public().to_string())
                    .unwrap();
            }
        }
        configure(&home, by, limits, clients);
        let (server, portal) = start(&home);
        let hyperscsi = (by == Proof::Key).then(|| hyperscsi_address(&server));
        Self { by, home, server, portal, hyperscsi, key }
    }

    /// The server is killed and started again.
    fn restart(self) -> Self {
        self.server.kill();
        let (server, portal) = start(&self.home);
        Self { server, portal, ..self }
    }

    /// The file changes, and is read again.
    fn reload(&self, limits: &str, clients: &[(&str, &str)]) {
        configure(&self.home, self.by, limits, clients);
        self.server.signal(Signal::HUP);
        self.logs("configuration");
    }

    /// Waits for a line of the log that says this.
    fn logs(&self, what: &str) -> String {
        loop {
            let line = self.server.line().unwrap_or_else(|| panic!("nothing is said of: {what}"));
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Client `who` as initiator `name` with this ISID.
    fn try_log_in(
        &self,
        who: &str,
        (name, isid): (&str, u8),
        target: Option<&str>,
    ) -> Result<Peer, Refused> {
        let config = self.config(who, (name, isid), target);
        log_in(Peer::connect(self.portal), config)
    }

    /// The same, which gets in, at the units' target; it has been told of the power on.
    fn log_in(&self, who: &str, name: &str, isid: u8) -> Peer {
        let mut peer = self.try_log_in(who, (name, isid), Some(TARGET)).expect("it gets in");
        for lun in [0, 1] {
            peer.says(lun);
        }
        peer
    }

    fn config(&self, who: &str, (name, isid): (&str, u8), target: Option<&str>) -> Config {
        let secret = Secret::new(format!("the secret of {who}")).unwrap();
        let account = Account::one_way(Credentials { name: who.to_owned(), secret });
        let pinned = self.key.map(|target| {
            let sealing = sealing::sealing(&self.home.path().join(format!("{who}.id"))).unwrap();
            Pinned { sealing, target, protection: Protection::Encrypt, invitation: None }
        });
        Config {
            initiator: IscsiName::new(name).unwrap(),
            isid: Isid([0x80, 0, 0, 0, 0, isid]),
            target: target.map(|target| IscsiName::new(target).unwrap()),
            account: (self.by == Proof::Chap).then_some(account),
            pinned,
            algorithms: vec![Algorithm::Sha256],
            offer: Offer { max_connections: 4, ..Offer::for_long_links() },
        }
    }

    fn end(self) {
        assert!(self.server.stop().success());
    }
}

fn configure(home: &tempfile::TempDir, by: Proof, limits: &str, clients: &[(&str, &str)]) {
    let mut file = "state = 'state'\ncontrol = 'control'\n".to_owned();
    file += match by {
        Proof::Chap => "listen = ['127.0.0.1:0']\n",
        Proof::Key => {
            "listen = ['127.0.0.1:0', 'hyperscsi://127.0.0.1:0']\nidentity = 'server.id'\n\
             site_key = 'site-key'\n"
        }
    };
    file += limits;
    for (lun, name) in ["a", "b"].iter().enumerate() {
        file += &format!(
            "[volumes.{name}]\nuri = 'file:{name}.img'\nsize = '8M'\ntarget = 'shared'\nlun = {lun}\n"
        );
    }
    for (name, rights) in clients {
        file += &format!("[clients.{name}]\n{rights}\n");
        match by {
            Proof::Chap => file += &format!("chap_secret_file = '{name}'\n"),
            Proof::Key => {
                let key = fs::read_to_string(home.path().join(format!("{name}.pub"))).unwrap();
                file += &format!("key = '{key}'\n");
            }
        }
    }
    fs::write(home.path().join("longhaul.toml"), file).unwrap();
}

/// Where a server listens for HyperSCSI, as it says when it is ready.
fn hyperscsi_address(server: &Running) -> SocketAddr {
    loop {
        let line = server.line().expect("it is ready");
        if let Some(uri) = line.strip_prefix("ready hyperscsi://") {
            return uri.split('/').next().unwrap().parse().unwrap();
        }
    }
}

/// Starts the server, and waits until it is ready.
fn start(home: &tempfile::TempDir) -> (Running, SocketAddr) {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 2>&1\nexec \"$0\" serve --config longhaul.toml", LONGHAUL]);
    let server = Running::start(command.current_dir(home.path()));
    let mut portal = None;
    for _unit in 0..2 {
        let uri = loop {
            let line = server.line().expect("it is ready");
            if let Some(uri) = line.strip_prefix("ready iscsi://") {
                break uri.to_owned();
            }
        };
        portal = uri.split('/').next().map(|address| address.parse().unwrap());
    }
    (server, portal.expect("a portal"))
}

/// Takes a connection through its login.
fn log_in(mut peer: Peer, config: Config) -> Result<Peer, Refused> {
    let entropy = Entropy::fresh(&mut |bytes| getrandom::fill(bytes).unwrap());
    let (mut login, mut request) = InitiatorLogin::start(config, entropy);
    loop {
        peer.try_send(request.header, request.data).map_err(|_| (0, 0))?;
        let answer = peer.receive().ok_or((0, 0))?;
        let Header::LoginResponse(response) = answer.header else { panic!("{answer:?}") };
        if response.status_class != 0 {
            return Err((response.status_class, response.status_detail));
        }
        match login.handle(&response, &answer.data, &peer.transcript()).expect("a login") {
            Progress::Continue(next, pdu) => (login, request) = (next, pdu),
            Progress::Done(established, seals) => {
                peer.cmd_sn = established.cmd_sn;
                if let Some(seals) = seals {
                    peer.secure(*seals);
                }
                return Ok(peer);
            }
        }
    }
}

/// The status of a command without data-in; `None` if the session has ended.
fn run(peer: &mut Peer, lun: u16, cdb: &[u8], data: Vec<u8>) -> Option<u8> {
    peer.run_on(lun, cdb, data, 0).map(|(status, _)| status)
}

/// Whether the session goes on, and nothing has happened to the unit.
fn is_undisturbed(peer: &mut Peer, lun: u16) -> bool {
    run(peer, lun, &[0; 6], vec![]) == Some(GOOD)
}

/// Whether the session has ended.
fn is_over(peer: &mut Peer) -> bool {
    run(peer, 0, &[0; 6], vec![]).is_none()
}

/// WRITE (10) of one block.
fn write(peer: &mut Peer, lun: u16) -> Option<u8> {
    run(peer, lun, &[0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0], vec![0x5A; 512])
}

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const EXCLUSIVE_ACCESS: u8 = 3;

const APTPL: u8 = 0x01;

/// PERSISTENT RESERVE OUT on unit 0.
fn reserve_out(
    peer: &mut Peer,
    (action, kind): (u8, u8),
    (key, action_key): (u64, u64),
    flags: u8,
) -> Option<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    run(peer, 0, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

/// PERSISTENT RESERVE IN on unit 0: the status, and the parameter data.
fn reserve_in(peer: &mut Peer, action: u8) -> (u8, Vec<u8>) {
    peer.run_on(0, &[0x5E, action, 0, 0, 0, 0, 0, 2, 0, 0], Bytes::new(), 512).expect("an answer")
}

/// Task management; `None` if the session ends without an answer.
fn manage(peer: &mut Peer, function: TaskFunction, unit: u16) -> Option<TaskResponse> {
    let request = TaskManagementRequest {
        immediate: true,
        function,
        lun: u64::from_be_bytes(lun::encode(unit)),
        itt: 0x7A5C,
        referenced_tag: NO_TAG,
        cmd_sn: peer.cmd_sn,
        ..TaskManagementRequest::default()
    };
    peer.try_send(request, Bytes::new()).ok()?;
    match peer.receive()?.header {
        Header::TaskManagementResponse(response) => Some(response.response),
        Header::AsyncMessage(_) => None,
        other => panic!("{other:?}"),
    }
}
