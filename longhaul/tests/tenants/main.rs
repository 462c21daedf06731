//! Clients of one server that mean each other harm: each proves itself, with CHAP or with a key, and takes the
//! other's names. A name is a claim; whatever belongs to a client belongs to the one that proved itself.
//!
//! Each test runs by all ways that have what it is about: iSCSI with CHAP, iSCSI with keys (secure sessions), HyperSCSI.
//! A `-` says that HyperSCSI has no such thing: there a name cannot be claimed, a command cannot name a device that was
//! not offered, and there is neither a discovery session nor a reset of a target (its clients are hit by those of iSCSI).
//!
//! | row | CHAP | key | HyperSCSI | tests |
//! |---|---|---|---|---|
//! | reinstatement by the name and ISID of another | x | x | x | `names` |
//! | joining a session of another; its TSIH, ExpCmdSN and MaxCmdSN | x | x | - | `names` |
//! | reservations, also after a restart; ports named in parameter lists | x | x | x | `names` |
//! | what was kept under a bare name | x | x | - | `names` |
//! | quotas of sessions and connections | x | x | x | `names`, `hyperscsi` |
//! | allow-list of a client that only reads | x | x | x | `read_only` |
//! | registrations of such a client, READ KEYS, READ FULL STATUS | x | x | x | `read_only` |
//! | EXTENDED COPY: units not seen, only read, reserved, of other targets | x | x | x | `copies` |
//! | TARGET RESET, of units not seen and of other targets | x | x | x | `resets` |
//! | LOGICAL UNIT RESET, CLEAR TASK SET by a client that only reads | x | x | x | `resets` |
//! | the same of a unit not seen | x | x | - | `resets` |
//! | ABORT TASK, ABORT TASK SET, TASK REASSIGN of tasks of another | x | x | x | `tasks` |
//! | rights taken away: sessions, and writes that wait for their data | x | x | x | `rights` |
//! | the same: discovery sessions | x | x | - | `discovery` |
//! | targets that are not told of | x | x | x | `discovery`, `hyperscsi` |
//! | floods of connections and of logins | x | x | x | `flood`, `hyperscsi` |

#[path = "../common/mod.rs"]
mod common;
#[expect(dead_code, reason = "each test uses its part")]
#[path = "../common/peer.rs"]
mod peer;
#[path = "../common/hyperscsi.rs"]
mod raw;

mod copies;
mod discovery;
mod flood;
mod hyperscsi;
mod names;
mod read_only;
mod resets;
mod rights;
mod session;
mod tasks;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use bytes::Bytes;
use common::{LONGHAUL, Running};
use longhaul::sealing;
use peer::Peer;
use proto::hyperscsi::transport_id::{HyperScsi, initiator_port as hyperscsi_port};
use proto::identity::PublicKey;
use proto::iscsi::chap::{Account, Algorithm, Credentials, Secret};
use proto::iscsi::header::{Header, NO_TAG, TaskFunction, TaskManagementRequest, TaskResponse};
use proto::iscsi::keys::Offer;
use proto::iscsi::login::Entropy;
use proto::iscsi::login::initiator::{Config, InitiatorLogin, Pinned, Progress};
use proto::iscsi::name::{IscsiName, Isid};
use proto::iscsi::sealed::Protection;
use proto::iscsi::transport_id::{Iscsi, initiator_port};
use proto::scsi::lun;
use proto::scsi::transport::{Transport as _, TransportId};
use rustix::process::Signal;
use session::{Client, Session};

/// The target of the units 0 and 1.
const TARGET: &str = "iqn.2026-11.dev.longhaul:shared";

/// What an initiator of alice calls itself.
const NAME: &str = "iqn.2001-04.com.example:alice";

const GOOD: u8 = 0x00;
const CHECK: u8 = 0x02;
const CONFLICT: u8 = 0x18;

/// By what clients come, and how they prove themselves there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoginMethod {
    /// iSCSI, with CHAP.
    Chap,
    /// iSCSI, in secure sessions, with keys.
    Key,
    /// HyperSCSI, with keys. There are no names to claim: a port is a number of its client.
    HyperScsi,
}

impl LoginMethod {
    /// The same proof by iSCSI: there targets can be reset, and a write can wait for its data.
    fn over_iscsi(self) -> Self {
        if self == Self::HyperScsi { Self::Key } else { self }
    }
}

const ALL: [LoginMethod; 3] = [LoginMethod::Chap, LoginMethod::Key, LoginMethod::HyperScsi];
const ISCSI: [LoginMethod; 2] = [LoginMethod::Chap, LoginMethod::Key];

/// The units of the target, by their numbers.
const UNITS: [&str; 2] = ["a", "b"];

/// The unit `c` of a target of its own, as a table of the server's file.
const PRIVATE: &str = "[volumes.c]\nuri = 'file:c.img'\nsize = '8M'\ntarget = 'private'\nlun = 0\n";
const PRIVATE_TARGET: &str = "iqn.2026-11.dev.longhaul:private";

/// The clients, of whom alice may use the private target too.
const WITH_PRIVATE: [(&str, &str); 5] =
    [("alice", "volumes = ['a', 'c']"), CLIENTS[1], CLIENTS[2], CLIENTS[3], CLIENTS[4]];

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
    by: LoginMethod,
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
    fn new(by: LoginMethod) -> Self {
        Self::with(by, "", &CLIENTS)
    }

    /// A server whose file has more in it, before its tables.
    fn with(by: LoginMethod, limits: &str, clients: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut key = None;
        let site_key = home.path().join("site-key");
        fs::write(&site_key, format!("lhsite1-{}\n", "07".repeat(32))).unwrap();
        fs::set_permissions(&site_key, fs::Permissions::from_mode(0o600)).unwrap();
        for (name, _) in [("server", "")].iter().chain(clients) {
            keep_secret(&home, name);
            if by != LoginMethod::Chap {
                let public = sealing::create(&home.path().join(format!("{name}.id"))).unwrap();
                key = key.or_else(|| Some(public.public()));
                fs::write(home.path().join(format!("{name}.pub")), public.public().to_string())
                    .unwrap();
            }
        }
        configure(&home, by, limits, clients);
        let (server, portal, hyperscsi) = start(&home);
        Self { by, home, server, portal, hyperscsi, key }
    }

    /// The server is killed and started again.
    fn restart(self) -> Self {
        self.server.kill();
        let (server, portal, hyperscsi) = start(&self.home);
        Self { server, portal, hyperscsi, ..self }
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

    /// A connection by iSCSI of client `who`, as initiator `name` with this ISID.
    fn try_log_in(
        &self,
        who: &str,
        (name, isid): (&str, u8),
        target: Option<&str>,
    ) -> Result<Peer, Refused> {
        let config = self.config(who, (name, isid), target);
        log_in(self.portal, config)
    }

    /// A session of client `who` with the units' target, as initiator `name` with this ISID; by HyperSCSI that is the
    /// number of the port. It has been told of the power on.
    fn log_in(&self, who: &str, name: &str, isid: u8) -> Session {
        self.log_in_by(self.by, who, (name, isid))
    }

    /// The same by a way of its own.
    fn log_in_by(&self, by: LoginMethod, who: &str, (name, isid): (&str, u8)) -> Session {
        if by == LoginMethod::HyperScsi {
            return Session::HyperScsi(Box::new(Client::connect(self, who, isid.into())));
        }
        let mut peer = self.try_log_in(who, (name, isid), Some(TARGET)).expect("it gets in");
        for lun in [0, 1] {
            peer.says(lun);
        }
        Session::Iscsi(Box::new(peer))
    }

    /// A session with the unit of the private target, and its number there; it has been told of the power on.
    fn log_in_to_private(&self, who: &str, name: &str, isid: u8) -> (Session, u16) {
        if self.by == LoginMethod::HyperScsi {
            return (self.log_in(who, name, isid), 2);
        }
        let mut peer =
            self.try_log_in(who, (name, isid), Some(PRIVATE_TARGET)).expect("it gets in");
        peer.says(0);
        (Session::Iscsi(Box::new(peer)), 0)
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
            account: (self.by == LoginMethod::Chap).then_some(account),
            pinned,
            algorithms: vec![Algorithm::Sha256],
            offer: Offer { max_connections: 4, ..Offer::for_long_links() },
        }
    }

    /// The TransportID of the initiator port that such a session comes from (SPC-4, 7.6.4).
    fn port_id(&self, who: &str, name: &str, isid: u8) -> Vec<u8> {
        if self.by == LoginMethod::HyperScsi {
            let key = fs::read_to_string(self.home.path().join(format!("{who}.pub"))).unwrap();
            let port = hyperscsi_port(key.trim(), isid.into());
            return HyperScsi.write(&TransportId::Port(port));
        }
        let port = initiator_port(&IscsiName::new(name).unwrap(), Isid([0x80, 0, 0, 0, 0, isid]));
        Iscsi.write(&TransportId::Port(port))
    }

    fn end(self) {
        assert!(self.server.stop().success());
    }
}

fn configure(home: &tempfile::TempDir, by: LoginMethod, limits: &str, clients: &[(&str, &str)]) {
    let mut file = "state = 'state'\ncontrol = 'control'\n".to_owned();
    file += match by {
        LoginMethod::Chap => "listen = ['127.0.0.1:0']\n",
        LoginMethod::Key | LoginMethod::HyperScsi => {
            "listen = ['127.0.0.1:0', 'hyperscsi://127.0.0.1:0']\nidentity = 'server.id'\n\
             site_key = 'site-key'\n"
        }
    };
    file += limits;
    for (lun, name) in UNITS.iter().enumerate() {
        file += &format!(
            "[volumes.{name}]\nuri = 'file:{name}.img'\nsize = '8M'\ntarget = 'shared'\nlun = {lun}\n"
        );
    }
    for (name, rights) in clients {
        file += &format!("[clients.{name}]\n{rights}\n");
        match by {
            LoginMethod::Chap => file += &format!("chap_secret_file = '{name}'\n"),
            LoginMethod::Key | LoginMethod::HyperScsi => {
                let key = fs::read_to_string(home.path().join(format!("{name}.pub"))).unwrap();
                file += &format!("key = '{key}'\n");
            }
        }
    }
    fs::write(home.path().join("longhaul.toml"), file).unwrap();
}

/// Starts the server, and waits until it is ready: where it listens for iSCSI, and for HyperSCSI, if it does.
fn start(home: &tempfile::TempDir) -> (Running, SocketAddr, Option<SocketAddr>) {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 2>&1\nexec \"$0\" serve --config longhaul.toml", LONGHAUL]);
    let server = Running::start(command.current_dir(home.path()));
    let ready = |scheme: &str| loop {
        let line = server.line().expect("it is ready");
        if let Some(uri) = line.strip_prefix(scheme) {
            break uri.split('/').next().unwrap().parse().unwrap();
        }
    };
    let portal = UNITS.map(|_unit| ready("ready iscsi://"))[0];
    let config = fs::read_to_string(home.path().join("longhaul.toml")).unwrap();
    let hyperscsi = config.contains("hyperscsi://").then(|| ready("ready hyperscsi://"));
    (server, portal, hyperscsi)
}

fn entropy() -> Entropy {
    Entropy::fresh(&mut |bytes| getrandom::fill(bytes).unwrap())
}

/// Connects, and logs in. What the first request needs is computed before.
fn log_in(portal: SocketAddr, config: Config) -> Result<Peer, Refused> {
    let (mut login, mut request) = InitiatorLogin::start(config, entropy());
    let mut peer = Peer::connect(portal);
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
fn run(session: &mut Session, lun: u16, cdb: &[u8], data: Vec<u8>) -> Option<u8> {
    session.run_on(lun, cdb, data, 0).map(|(status, _)| status)
}

/// Whether the session goes on, and nothing has happened to the unit.
fn is_undisturbed(session: &mut Session, lun: u16) -> bool {
    run(session, lun, &[0; 6], vec![]) == Some(GOOD)
}

/// Whether the session has ended.
fn is_over(session: &mut Session) -> bool {
    let lun = match session {
        Session::Iscsi(_) => 0,
        Session::HyperScsi(_) => session.units()[0],
    };
    run(session, lun, &[0; 6], vec![]).is_none()
}

/// WRITE (10) of one block.
fn write(session: &mut Session, lun: u16) -> Option<u8> {
    run(session, lun, &[0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0], vec![0x5A; 512])
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
    session: &mut Session,
    (action, kind): (u8, u8),
    (key, action_key): (u64, u64),
    flags: u8,
) -> Option<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    run(session, 0, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

/// PERSISTENT RESERVE IN on unit 0: the status, and the parameter data.
fn reserve_in(session: &mut Session, action: u8) -> (u8, Vec<u8>) {
    session
        .run_on(0, &[0x5E, action, 0, 0, 0, 0, 0, 2, 0, 0], Bytes::new(), 512)
        .expect("an answer")
}
