//! `longhaul discover`: which volumes a server offers.

use proto::scsi::command::{Command, luns};
use serde::Serialize;

use super::options::LoginArgs;
use super::units::{UnitInfo, describe_unit};
use crate::chain::{self, Login, UnitOptions, open_unit};
use crate::config::ListenAt;
use crate::failure::{Outcome, print_error};
use crate::printable::OneLine;
use crate::uri::{Host, HyperScsiServer, Uri};

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
    /// Ask each target for its units, and tell what each is
    #[arg(long)]
    units: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    login: LoginArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul discover server
  longhaul discover server --units
  longhaul discover hyperscsi://server
  longhaul discover --ethernet eth0
  longhaul discover [2001:db8::1]:3261 --chap-user laptop --chap-secret-file laptop.secret";

/// Prints the URI of the first logical unit of each target, by its first portal.
pub async fn run(args: Args) -> Outcome {
    let login = args.login.login().await?;
    let host = match (args.ethernet, args.host) {
        (Some(server), _) | (None, Some(ListenAt::HyperScsi(server))) => {
            return volumes(&server, &login, (args.units, args.json)).await;
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
    let mut found: Vec<_> = targets.into_iter().map(|target| target.into_found(&pin)).collect();
    if args.units {
        ask_for_units(&mut found, &login).await;
    }
    Offer { server: host.to_string(), volumes: found }.tell(args.json)
}

fn interface(name: &str) -> Result<HyperScsiServer, String> {
    let server = HyperScsiServer::parse("hseth", name).and_then(Result::ok);
    server.ok_or_else(|| format!("`{name}` is no name of a network interface"))
}

/// Prints the URI of each volume that this machine may use.
async fn volumes(server: &HyperScsiServer, login: &Login, (units, json): (bool, bool)) -> Outcome {
    let names = chain::volumes(server, login).await?;
    let pin = login.seal.pin.map_or_else(String::new, |key| format!("?pin={key}"));
    let found = names.into_iter().map(|name| {
        let uris = vec![format!("{server}/{name}{pin}")];
        Found { name, uris, unusable: Vec::new(), units: None }
    });
    let mut found: Vec<_> = found.collect();
    if units {
        ask_for_units(&mut found, login).await;
    }
    Offer { server: server.to_string(), volumes: found }.tell(json)
}

/// Logs in to each, and asks what units it has and what these are. One that cannot be asked is told of, and has none.
async fn ask_for_units(all: &mut [Found], login: &Login) {
    for found in all {
        let mut units = Vec::new();
        if let Some(Ok(uri)) = found.uris.first().map(|uri| uri.parse::<Uri>())
            && let Err(why) = units_of(&uri, login, &mut units).await
        {
            print_error(&format_args!("longhaul: {why}"));
        }
        found.units = Some(units);
    }
}

async fn units_of(uri: &Uri, login: &Login, units: &mut Vec<UnitInfo>) -> Outcome {
    let options = UnitOptions { login: login.clone(), ..UnitOptions::default() };
    let unit = open_unit(uri, &options).await?;
    let listed = unit.ask_at(0, Command::report_luns(UNITS_MAX)).await;
    units.push(describe_unit(uri, &*unit).await);
    unit.close().await;
    let listed = listed.ok().and_then(|listed| luns(&listed).ok()).unwrap_or_default();
    for other in listed.into_iter().filter_map(|lun| uri.other_unit(lun)) {
        let unit = open_unit(&other, &options).await?;
        units.push(describe_unit(&other, &*unit).await);
        unit.close().await;
    }
    Ok(())
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
    /// What its units are, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<Vec<UnitInfo>>,
}

/// The most units of a target that are told of.
const UNITS_MAX: u16 = 256;

impl Offer {
    fn tell(&self, json: bool) -> Outcome {
        if json {
            return super::say_json(self);
        }
        for Found { uris, units, .. } in &self.volumes {
            match units {
                Some(units) => units.iter().try_for_each(|unit| {
                    super::say(
                        &OneLine(format_args!("{}  {}", unit.uri(), unit.summary())).to_string(),
                    )
                })?,
                None => uris.iter().try_for_each(|uri| super::say(&OneLine(uri).to_string()))?,
            }
        }
        Ok(())
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
        Found { name, uris, unusable, units: None }
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
