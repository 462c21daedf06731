//! One unit by several paths: portal groups, how the unit is accessed by each, and reservations of each.

#[expect(dead_code, reason = "each test uses its part")]
mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use common::{LONGHAUL, Running};
use peer::{Peer, login, text};
use proto::iscsi::header::{Header, LoginRequest, TextRequest};
use proto::iscsi::pdu::Pdu;
use proto::scsi::Sense;
use proto::scsi::sense::{Additional, Key};
use rustix::process::Signal;

const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";
const NAME: &str = "iqn.2001-04.com.example:host";

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const CONFLICT: u8 = 0x18;

/// Writes the file `longhaul.toml`: what is said of each portal.
fn configure(dir: &Path, portals: &[&str]) {
    let place = |said: &&str| format!("{{ address = '127.0.0.1:0', {said} }}");
    let places: Vec<_> = portals.iter().map(place).collect();
    let listen = format!("listen = [{}]\n", places.join(", "));
    fs::write(dir.join("longhaul.toml"), listen + "[volumes.disk]\nuri = 'memory:1M'\n").unwrap();
}

/// A server, and its portals with their groups, as it tells them itself.
struct Fixture {
    home: tempfile::TempDir,
    server: Running,
    portals: Vec<(SocketAddr, u16)>,
}

impl Fixture {
    fn new(portals: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        configure(home.path(), portals);
        let mut command = Command::new("sh");
        command.args(["-c", "exec 2>&1\nexec \"$0\" serve --config longhaul.toml", LONGHAUL]);
        let server = Running::start(command.current_dir(home.path()));
        let ready = server.line().unwrap();
        let first = ready.split('/').nth(2).unwrap_or_else(|| panic!("{ready}")).parse().unwrap();
        let portals = discover(first);
        Self { home, server, portals }
    }

    /// A session by the portal at this place in the file, under a name that is the same by each.
    fn path(&self, at: usize) -> Peer {
        let (portal, group) = self.portals[at];
        let (mut peer, tag) = ask(portal, login(1));
        assert_eq!(tag, group, "RFC 7143, 13.9: the group that discovery tells");
        assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
        peer
    }

    /// Has it read its file again; what it says of that.
    fn reload(&self, portals: &[&str]) -> String {
        configure(self.home.path(), portals);
        self.server.signal(Signal::HUP);
        let mut lines = std::iter::from_fn(|| self.server.line());
        lines.find(|line| line.contains("configuration")).unwrap()
    }

    fn end(self) {
        assert!(self.server.stop().success());
    }
}

/// Logs in; the portal group the answer names.
fn ask(portal: SocketAddr, request: LoginRequest) -> (Peer, u16) {
    let mut peer = Peer::connect(portal);
    peer.send(request, text(NAME, TARGET));
    let Pdu { header, data, .. } = peer.receive().expect("an answer");
    let Header::LoginResponse(response) = header else { panic!("{header:?}") };
    assert_eq!((response.status_class, response.status_detail), (0, 0));
    let told = String::from_utf8(data.to_vec()).unwrap();
    let tag = told.split('\0').find_map(|pair| pair.strip_prefix("TargetPortalGroupTag="));
    (peer, tag.expect("a portal group").parse().unwrap())
}

/// SendTargets: `TargetAddress=ADDRESS,GROUP`, in the order of the file.
fn discover(portal: SocketAddr) -> Vec<(SocketAddr, u16)> {
    let keys = format!("InitiatorName={NAME}\0SessionType=Discovery\0");
    let (mut peer, _) = Peer::ask(portal, login(9), keys.into());
    let request =
        TextRequest { is_final: true, itt: 2, ttt: peer::NO_ITT, ..TextRequest::default() };
    peer.send(request, "SendTargets=All\0");
    let told = String::from_utf8(peer.receive().expect("an answer").data.to_vec()).unwrap();
    let addresses = told.split('\0').filter_map(|pair| pair.strip_prefix("TargetAddress="));
    let portals = addresses.map(|address| {
        let (portal, group) = address.split_once(',').unwrap();
        (portal.parse().unwrap(), group.parse().unwrap())
    });
    portals.collect()
}

/// The data of a command that is answered GOOD.
fn good(peer: &mut Peer, cdb: &[u8]) -> Vec<u8> {
    let (status, data) = peer.run_on(0, cdb, Bytes::new(), 252).unwrap();
    assert_eq!(status, GOOD, "{:?}", Sense::parse(&data));
    data
}

/// REPORT TARGET PORT GROUPS: the group, its state, STATUS CODE and its ports.
fn groups(peer: &mut Peer) -> Vec<(u16, u8, u8, Vec<u16>)> {
    let data = good(peer, &[0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 252, 0, 0]);
    let number = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    let (mut groups, mut at) = (Vec::new(), 4);
    while at < data.len() {
        let count = usize::from(data[at + 7]);
        let ports = (0..count).map(|port| number(at + 8 + 4 * port + 2)).collect();
        groups.push((number(at + 2), data[at] & 0x0F, data[at + 5], ports));
        at += 8 + 4 * count;
    }
    assert_eq!(usize::from(number(2)), data.len() - 4);
    groups
}

/// The relative target port and the target port group that the identification page names.
fn own_port(peer: &mut Peer) -> (u16, u16) {
    let data = good(peer, &[0x12, 1, 0x83, 0, 252, 0]);
    let (mut at, mut port, mut group) = (4, 0, 0);
    while at < data.len() {
        let value = u16::from_be_bytes([data[at + 6], data[at + 7]]);
        match data[at + 1] & 0x3F {
            0x14 => port = value,
            0x15 => group = value,
            _ => {}
        }
        at += 4 + usize::from(data[at + 3]);
    }
    (port, group)
}

/// What a command that moves a block is refused with, if it is.
fn refusal(peer: &mut Peer) -> Option<(Key, Additional)> {
    let (status, data) =
        peer.run_on(0, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], Bytes::new(), 512).unwrap();
    if status == GOOD {
        return None;
    }
    assert_eq!(status, CHECK_CONDITION);
    Sense::parse(&data).map(|sense| (sense.key, sense.additional))
}

const STANDBY: Option<(Key, Additional)> = Some((Key::NotReady, Additional::PORT_IN_STANDBY));
const UNAVAILABLE: Option<(Key, Additional)> = Some((Key::NotReady, Additional::PORT_UNAVAILABLE));

/// SPC-4, 5.16: the same initiator port by each portal group is another nexus, to which the unit says what
/// it is by that.
#[test]
fn each_portal_group_is_a_target_port_with_its_own_state() {
    let fixture = Fixture::new(&[
        "protection = 'none'", // Nothing is said of its group.
        "group = 2, access = 'non-optimized'",
        "group = 7, access = 'standby'",
        "group = 255, access = 'unavailable'",
    ]);
    let told: Vec<_> = fixture.portals.iter().map(|(_, group)| *group).collect();
    assert_eq!(told, [1, 2, 7, 255]);
    let mut paths = [0, 1, 2, 3].map(|at| fixture.path(at));
    for (path, port, qualifier, refused) in
        [(0, 1, 0, None), (1, 2, 0, None), (2, 7, 0, STANDBY), (3, 255, 1, UNAVAILABLE)]
    {
        let peer = &mut paths[path];
        let states =
            [(1, 0, 0, vec![1]), (2, 1, 0, vec![2]), (7, 2, 0, vec![7]), (255, 3, 0, vec![255])];
        assert_eq!(groups(peer), states);
        assert_eq!(own_port(peer), (port, port));
        assert_eq!(refusal(peer), refused);
        let inquiry = good(peer, &[0x12, 0, 0, 0, 96, 0]);
        // PERIPHERAL QUALIFIER, TPGS, MULTIP.
        assert_eq!((inquiry[0] >> 5, inquiry[5] >> 4 & 3, inquiry[6] & 0x10), (qualifier, 1, 0x10));
        let sense = Sense::parse(&good(peer, &[0x03, 0, 0, 0, 252, 0])).unwrap();
        assert_eq!(refused.is_some(), sense.key == Key::NotReady);
        assert_eq!(peer.luns(), [0]);
    }
    // What is written by one path is read by the other.
    assert_eq!(paths[1].write(90, 3, vec![0xA5; 512], false), Some(true));
    assert_eq!(paths[0].read(91, 3, 1), Some(vec![0xA5; 512]));
    assert_eq!(paths[2].write(92, 3, vec![0; 512], false), Some(false));
    fixture.end();
}

/// RFC 7143, 6.3.5: the nexus has the portal group in it.
#[test]
fn a_session_is_replaced_by_its_own_portal_group_only() {
    let fixture = Fixture::new(&["group = 1", "group = 2", "group = 2"]);
    let mut first = fixture.path(0);
    let mut second = fixture.path(1);
    // Another portal of the same group.
    let mut third = fixture.path(2);
    while second.receive().is_some() {}
    assert_eq!((first.says(0), third.says(0)), (None, None));
    assert_eq!(own_port(&mut third), (2, 2));
    fixture.end();
}

/// RFC 7143, 4.4.1 and 11.13.5: the connections of a session come in by one portal group.
#[test]
fn a_session_has_its_connections_in_one_portal_group() {
    let fixture = Fixture::new(&["group = 1", "group = 1", "group = 2"]);
    let keys = [&text(NAME, TARGET)[..], b"MaxConnections=8\0"].concat();
    let (mut first, response) = Peer::ask(fixture.portals[0].0, login(3), keys.into());
    first.settle();
    let request = LoginRequest { tsih: response.tsih, cmd_sn: first.cmd_sn, ..login(3) };
    let identity = || format!("InitiatorName={NAME}\0TargetName={TARGET}\0SessionType=Normal\0");
    let join = |at: usize, cid| {
        let request = LoginRequest { cid, ..request };
        let (peer, response) = Peer::ask(fixture.portals[at].0, request, identity().into());
        (peer, (response.status_class, response.status_detail))
    };
    let (_other, joined) = join(1, 1);
    assert_eq!(joined, (0, 0), "another portal of the group");
    assert_eq!(join(2, 2).1, (2, 8), "another group");
    assert_eq!(first.says(0), None);
    fixture.end();
}

/// SPC-4, 5.16: every nexus is told, and nobody has to log in anew.
#[test]
fn access_changes_while_sessions_are_on() {
    let fixture = Fixture::new(&["group = 1", "group = 2, access = 'standby'"]);
    let mut paths = [fixture.path(0), fixture.path(1)];
    assert_eq!(paths.each_mut().map(refusal), [None, STANDBY]);
    let said = fixture.reload(&["group = 1, access = 'unavailable'", "group = 2"]);
    assert!(said.contains("access of group 1 is unavailable, group 2 is optimized"), "{said}");
    for peer in &mut paths {
        assert_eq!(refusal(peer), Some((Key::UnitAttention, Additional::ACCESS_STATE_CHANGED)));
        // STATUS CODE: altered implicitly.
        assert_eq!(groups(peer), [(1, 3, 2, vec![1]), (2, 0, 2, vec![2])]);
    }
    assert_eq!(paths.each_mut().map(refusal), [UNAVAILABLE, None]);
    let said = fixture.reload(&["group = 1, access = 'unavailable'", "group = 2"]);
    assert!(said.contains("nothing to tell sessions"), "{said}");
    assert_eq!(paths.each_mut().map(refusal), [UNAVAILABLE, None]);
    // Where a portal belongs is not changed under those who came in by it.
    let said = fixture.reload(&["group = 1", "group = 3"]);
    assert!(said.contains("`listen` cannot change"), "{said}");
    fixture.end();
}

/// PERSISTENT RESERVE OUT with the flags of the basic list.
fn reserve_out(peer: &mut Peer, action: u8, kind: u8, keys: [u64; 2], flags: u8) -> u8 {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    let (status, _) = peer.run_on(0, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list, 0).unwrap();
    status
}

/// READ FULL STATUS: the port of each registration, whether it holds the reservation, and its key.
fn registrations(peer: &mut Peer) -> Vec<(u16, bool, u64)> {
    let data = good(peer, &[0x5E, 3, 0, 0, 0, 0, 0, 0, 252, 0]);
    let mut registrations = Vec::new();
    let mut at = 8;
    while at < data.len() {
        let key = u64::from_be_bytes(data[at..at + 8].try_into().unwrap());
        let port = u16::from_be_bytes([data[at + 18], data[at + 19]]);
        registrations.push((port, data[at + 12] & 1 == 1, key));
        at += 24 + u32::from_be_bytes(data[at + 20..at + 24].try_into().unwrap()) as usize;
    }
    registrations
}

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const CLEAR: u8 = 3;
const WRITE_EXCLUSIVE: u8 = 1;
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
const ALL_TG_PT: u8 = 0x04;

/// SPC-4, 5.13.7: a registration is of one nexus, or with ALL_TG_PT of one by each target port.
#[test]
fn registrations_are_of_each_path_unless_all_ports_are_meant() {
    let fixture = Fixture::new(&["group = 1", "group = 2", "group = 3, access = 'standby'"]);
    let [mut one, mut two, mut three] = [0, 1, 2].map(|at| fixture.path(at));
    let write = |peer: &mut Peer| {
        let (status, _) =
            peer.run_on(0, &[0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0], vec![7; 512], 0).unwrap();
        status
    };
    assert_eq!(reserve_out(&mut one, REGISTER, 0, [0, 7], 0), GOOD);
    assert_eq!(registrations(&mut two), [(1, false, 7)]);
    assert_eq!(reserve_out(&mut two, RESERVE, WRITE_EXCLUSIVE, [7, 0], 0), CONFLICT, "not its key");
    assert_eq!(reserve_out(&mut one, RESERVE, WRITE_EXCLUSIVE, [7, 0], 0), GOOD);
    assert_eq!((write(&mut one), write(&mut two)), (GOOD, CONFLICT));
    assert_eq!(reserve_out(&mut one, CLEAR, 0, [7, 0], 0), GOOD);

    // By a port in standby, for all of them.
    assert_eq!(reserve_out(&mut three, REGISTER, 0, [0, 8], ALL_TG_PT), GOOD);
    assert_eq!(registrations(&mut one), [(1, false, 8), (2, false, 8), (3, false, 8)]);
    let shared = WRITE_EXCLUSIVE_REGISTRANTS;
    assert_eq!(reserve_out(&mut two, RESERVE, shared, [8, 0], 0), GOOD);
    assert_eq!(registrations(&mut three), [(1, false, 8), (2, true, 8), (3, false, 8)]);
    assert_eq!((write(&mut one), write(&mut two)), (GOOD, GOOD));
    fixture.end();
}
