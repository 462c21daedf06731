//! The way to a server: its name, each of its addresses, its port, and what it says.

mod state;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::super::options::LoginArgs;
use super::{Finding, Place, State};
use crate::chain::{self, Login};
use crate::printable::Counted;
use crate::uri::Host;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn look(place: &Place, login: &LoginArgs) -> Vec<Finding> {
    let host = &place.host;
    let resolved = timeout(PATIENCE, lookup_host((host.name.as_str(), host.port))).await;
    let addresses: Vec<SocketAddr> = match resolved {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(why)) => return vec![unresolved(host, &why.to_string())],
        Err(_) => return vec![unresolved(host, "no name server answers")],
    };
    let mut findings = Vec::new();
    for address in &addresses {
        findings.push(connect(*address).await);
    }
    let is_reached = findings.iter().any(|finding| finding.state == State::Good);
    if is_reached {
        // One address that works is enough: others cost time.
        for finding in findings.iter_mut().filter(|finding| finding.state == State::Broken) {
            finding.state = State::Note;
        }
        findings.extend(ask(place, login).await);
    }
    findings.extend(state::loss(host).await);
    findings
}

fn unresolved(host: &Host, why: &str) -> Finding {
    Finding::broken(
        format!("the name {} has no address: {why}", host.name),
        "nothing can be reached by it",
        "is it spelled right? `getent ahosts NAME` asks as programs do; an address can stand in its place",
    )
}

async fn connect(address: SocketAddr) -> Finding {
    let began = Instant::now();
    let connected = timeout(PATIENCE, TcpStream::connect(address)).await;
    let what = |how: &str| format!("{address}: {how}");
    match connected {
        Ok(Ok(_)) => Finding::good(what(&format!(
            "connected in {:.1} ms",
            began.elapsed().as_secs_f64() * 1e3
        ))),
        Ok(Err(why)) => {
            let todo = match why.kind() {
                ErrorKind::ConnectionRefused => {
                    "nothing listens there: is `longhaul serve` running, with `--listen` on an address that is not loopback, and the port right?"
                }
                ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
                    match address.is_ipv6() {
                        true => {
                            "this machine has no way to IPv6 addresses, or the server is off: `ip -6 route`"
                        }
                        false => {
                            "this machine has no way there: `ip route get ADDRESS`; is the network up?"
                        }
                    }
                }
                _ => "look at the network between",
            };
            Finding::broken(what("cannot connect"), why.to_string(), todo)
        }
        Err(_) => Finding::broken(
            what("no answer"),
            "packets are dropped on the way, or the server is off",
            "does a firewall stand between, or at the server? it has to let TCP pass to this port",
        ),
    }
}

/// Logs in to ask what is there, which tells of keys, secrets and rights.
async fn ask(Place { host, pin, unit }: &Place, login: &LoginArgs) -> Vec<Finding> {
    let mut login = match login.login().await {
        Ok(login) => login,
        Err(why) => return vec![Finding::failure(&why)],
    };
    login.seal.pin = pin.or(login.seal.pin);
    let mut findings = vec![discover(host, &login).await];
    if let Some(unit) = unit
        && findings.iter().all(|finding| finding.state == State::Good)
    {
        findings.extend(state::look(unit, login).await);
    }
    findings
}

async fn discover(host: &Host, login: &Login) -> Finding {
    match timeout(PATIENCE * 3, chain::discover(host, login)).await {
        Ok(Ok(targets)) if targets.is_empty() => Finding::note(
            "the server lets this client in, and has no volume for it",
            "it may use none, or there is none",
            "on the server: `longhaul invite`, or the client's `volumes` in its file",
        ),
        Ok(Ok(targets)) => {
            let targets = Counted(targets.len(), "target");
            Finding::good(format!("the server lets this client in, to {targets}"))
        }
        Ok(Err(why)) => Finding::failure(&why),
        Err(_) => Finding::broken(
            format!("{host} takes connections and does not answer what is asked"),
            "it may be stopped, or large packets do not come through (`ping -M do -s 1400 HOST`)",
            "look at its log; where large packets are lost, lower the MTU of the interface, or let ICMP pass",
        ),
    }
}
