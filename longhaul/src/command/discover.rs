//! `longhaul discover`: which volumes a server offers.

use serde::Serialize;

use super::options::LoginArgs;
use crate::chain::{self, Login};
use crate::config::ListenAt;
use crate::failure::{Outcome, print_error};
use crate::printable::OneLine;
use crate::uri::{Host, HyperScsiServer};

/// Ask a server which targets this machine may use
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The server, as HOST or HOST:PORT, or hyperscsi://HOST[:PORT]
    #[arg(required_unless_present = "ethernet", conflicts_with = "ethernet")]
    host: Option<ListenAt>,
    /// Ask the HyperSCSI servers on the network of this interface
    #[arg(long, value_name = "INTERFACE", value_parser = interface)]
    ethernet: Option<HyperScsiServer>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    login: LoginArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul discover server
  longhaul discover hyperscsi://server
  longhaul discover --ethernet eth0
  longhaul discover [2001:db8::1]:3261 --chap-user laptop --chap-secret-file laptop.secret";

/// Prints the URI of the first logical unit of each target, by its first portal.
pub async fn run(args: Args) -> Outcome {
    let login = args.login.login().await?;
    let host = match (args.ethernet, args.host) {
        (Some(server), _) | (None, Some(ListenAt::HyperScsi(server))) => {
            return volumes(&server, &login, args.json).await;
        }
        (None, Some(ListenAt::Iscsi(host))) => host,
        // One of the two is there.
        (None, None) => return Ok(()),
    };
    let targets: Vec<Target> = chain::discover(&host, &login)
        .await?
        .into_iter()
        .map(|target| Target {
            portals: target.portals.iter().map(ToString::to_string).collect(),
            name: target.name,
            unusable: target.unusable,
        })
        .collect();
    for why in targets.iter().filter_map(|target| target.complaint(&host)) {
        print_error(&format_args!("longhaul: {why}"));
    }
    // What is sealed here has to be sealed there.
    let pin = login.seal.pin.map_or_else(String::new, |key| format!("?pin={key}"));
    let found = targets.into_iter().map(|target| target.into_found(&pin)).collect();
    Offer { server: host.to_string(), volumes: found }.tell(args.json)
}

fn interface(name: &str) -> Result<HyperScsiServer, String> {
    let server = HyperScsiServer::parse("hseth", name).and_then(Result::ok);
    server.ok_or_else(|| format!("`{name}` is no name of a network interface"))
}

/// Prints the URI of each volume that this machine may use.
async fn volumes(server: &HyperScsiServer, login: &Login, json: bool) -> Outcome {
    let names = chain::volumes(server, login).await?;
    let pin = login.seal.pin.map_or_else(String::new, |key| format!("?pin={key}"));
    let found = names.into_iter().map(|name| {
        let uris = vec![format!("{server}/{name}{pin}")];
        Found { name, uris, unusable: Vec::new() }
    });
    Offer { server: server.to_string(), volumes: found.collect() }.tell(json)
}

/// What a server offers, of whichever protocol.
#[derive(Debug, Serialize)]
struct Offer {
    server: String,
    volumes: Vec<Found>,
}

#[derive(Debug, Serialize)]
struct Found {
    /// What the server calls it: the name of its target, or of the volume.
    name: String,
    /// How to name it here, by each portal.
    uris: Vec<String>,
    /// Addresses that the server tells and that are of no use here.
    unusable: Vec<String>,
}

impl Offer {
    fn tell(&self, json: bool) -> Outcome {
        if json {
            return super::say_json(self);
        }
        let mut uris = self.volumes.iter().flat_map(|found| &found.uris);
        uris.try_for_each(|uri| super::say(&OneLine(uri).to_string()))
    }
}

/// A target that a portal tells of.
#[derive(Debug)]
struct Target {
    name: String,
    portals: Vec<String>,
    /// Addresses that it tells and that are of no use here.
    unusable: Vec<String>,
}

impl Target {
    /// The same with the URI of its first logical unit, by each portal.
    fn into_found(self, pin: &str) -> Found {
        let Self { name, portals, unusable } = self;
        let uris = portals.iter().map(|portal| format!("iscsi://{portal}/{name}/0{pin}")).collect();
        Found { name, uris, unusable }
    }

    /// What is wrong with the addresses that it tells.
    fn complaint(&self, asked: &Host) -> Option<String> {
        let Self { name, portals, unusable } = self;
        let (first, name) = (unusable.first()?, OneLine(name));
        let told = OneLine(unusable.join(" and "));
        let what =
            format!("{name} says that it listens at {told}, where nobody finds it from here");
        let is_asked = portals.len() == 1 && portals.first() == Some(&asked.to_string());
        let shown = match is_asked {
            true => format!("{asked} is shown, which was asked and may not have it"),
            false => "only its other addresses are shown".to_owned(),
        };
        let one = if unusable.len() == 1 {
            OneLine(first.as_str()).to_string()
        } else {
            "them".to_owned()
        };
        Some(format!(
            "{what}: {shown}\n  change the server's configuration, where {one} should be an address that clients can reach"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_addresses_are_named_with_what_to_do() {
        let asked: Host = "server".parse().unwrap();
        let target = |portals: &[&str], unusable: &[&str]| {
            let list = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
            let target =
                Target { name: "iqn.a".into(), portals: list(portals), unusable: list(unusable) };
            target.complaint(&asked)
        };
        assert_eq!(target(&["server:3260"], &[]), None);
        let some = target(&["10.0.0.1:3260"], &["0.0.0.0,1"]).unwrap();
        assert!(
            some.starts_with("iqn.a says that it listens at 0.0.0.0,1, where nobody"),
            "{some}"
        );
        assert!(some.contains("only its other addresses are shown\n"), "{some}");
        let all = target(&["server:3260"], &["\u{1b}[2J", "127.0.0.1,1"]).unwrap();
        assert!(
            all.contains("server:3260 is shown, which was asked") && all.contains("them"),
            "{all}"
        );
        assert!(!all.contains('\u{1b}'), "{all}");
    }
}
