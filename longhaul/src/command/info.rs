//! `longhaul info`: what a volume is.

use serde::Serialize;
use serde_json::{Map, Value};
use volume::Shape;
use volume::layer::pipeline::Settings;

use super::named;
use super::options::{DiscardArgs, LoginArgs, OutageArgs, contents};
use super::unit_type::short_name;
use super::units::describe_unit;
use super::unsent::{Unsent, tell_of_unsent};
use crate::chain::{self, Chain, Contents, LayerInfo, OpenOptions, UnitOptions, open_unit};
use crate::failure::{Failure, Outcome};
use crate::luks::{self, Summary};
use crate::printable::OneLine;
use crate::secret::SecretArgs;
use crate::size::Size;
use crate::store::abilities::{TargetInfo, TransportInfo};
use crate::uri::{Location, Uri};

/// Show what a volume is and can do
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume: its URI, or the name that `mount` remembers it by
    #[arg(value_parser = named::volume)]
    uri: Uri,
    /// Open it without the right to write
    #[arg(long)]
    read_only: bool,
    /// Show what the volume is made of when `attach` opens it: the layers, from the top, and the store. An encrypted
    /// volume is opened read-only, with its pass-phrase
    #[arg(long)]
    chain: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul info file:/srv/backup.img
  longhaul info iscsi://server/iqn.2026-11.dev.longhaul:backup/0 --json
  longhaul info --chain iscsi://server/iqn.2026-11.dev.longhaul:backup/0";

/// Opens the volume as it would be used, and describes it.
pub async fn run(args: Args) -> Outcome {
    if args.chain {
        return show_chain(args).await;
    }
    if args.secret.is_given() {
        let what = "a pass-phrase is only asked for with --chain: the header is shown without it";
        return Err(Failure::usage(what));
    }
    let login = args.login.login_to(&[&args.uri]).await?;
    let reconnect_limit = args.outage.reconnect_limit().unwrap_or_default();
    let options = OpenOptions {
        read_only: args.read_only,
        existing_only: true,
        inspect_only: true,
        login,
        reconnect_limit,
        ..OpenOptions::default()
    };
    let unit =
        UnitOptions { login: options.login.clone(), reconnect_limit, ..UnitOptions::default() };
    let chain = match chain::open(&args.uri, options).await {
        Ok(chain) => chain,
        Err(why) => return tell_of_other(&args, &unit, why).await,
    };
    let info = look(&args.uri, &chain).await;
    chain.release().await;
    let info = info?;
    if args.json {
        return super::say_json(&info);
    }
    super::say(info.to_string().trim_end())
}

/// Tells of a unit that is no volume now: a tape drive, a changer, a drive without a disc. Anything else could not be opened
/// for this reason.
async fn tell_of_other(args: &Args, options: &UnitOptions, why: Failure) -> Outcome {
    if !matches!(args.uri.location(), Location::Unit(_) | Location::Served(_)) {
        return Err(why);
    }
    let Ok(unit) = open_unit(&args.uri, options).await else { return Err(why) };
    let info = describe_unit(&args.uri, &*unit).await;
    unit.close().await;
    if info.is_disk() {
        return Err(why);
    }
    if args.json {
        return super::say_json(&info);
    }
    super::say(info.to_string().trim_end())
}

/// Opens the volume as `attach` does, and says what it is made of.
async fn show_chain(args: Args) -> Outcome {
    let login = args.login.login_to(&[&args.uri]).await?;
    let open = async |read_only, contents| {
        let reconnect_limit = args.outage.reconnect_limit().unwrap_or_default();
        let pipeline = Some(Settings::default());
        let login = login.clone();
        let options = OpenOptions {
            read_only,
            existing_only: true,
            inspect_only: true,
            login,
            reconnect_limit,
            contents,
            pipeline,
            ..OpenOptions::default()
        };
        chain::open(&args.uri, options).await
    };
    let mut chain = open(args.read_only, Contents::Unseen).await?;
    let is_encrypted = luks::recognise(chain.volume()).await.map(|found| found.is_some());
    if args.secret.is_given() || matches!(is_encrypted, Ok(true)) {
        chain.release().await;
        // To write it would have to be reserved.
        let name = args.uri.to_string();
        let demanded = args.secret.is_given();
        chain = open(true, contents(&args.secret, DiscardArgs::default(), demanded, &name)).await?;
    }
    tell_of_unsent(&args.uri, &Unsent::of(&chain).await, "what is read");
    let layers = chain.layers().iter().rev().cloned().collect();
    let made = ChainInfo { uri: args.uri.to_string(), layers };
    chain.release().await;
    is_encrypted?;
    if args.json {
        return super::say_json(&made);
    }
    super::say(made.to_string().trim_end())
}

/// What a volume is made of, from the top.
#[derive(Debug, Serialize)]
struct ChainInfo {
    uri: String,
    layers: Vec<LayerInfo>,
}

impl std::fmt::Display for ChainInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.uri)?;
        for LayerInfo { name, size, block_size, write_cache, read_only, abilities } in &self.layers
        {
            write!(f, "  {name:12} {}, blocks of {block_size}", Size(*size))?;
            f.write_str(if *write_cache { ", write cache" } else { "" })?;
            f.write_str(if *read_only { ", read-only" } else { "" })?;
            match abilities[..] {
                [] => writeln!(f)?,
                _ => writeln!(f, "; can {}", abilities.join(", "))?,
            }
        }
        Ok(())
    }
}

async fn look(uri: &Uri, chain: &Chain) -> Outcome<Info> {
    let probe = chain.probe().await?;
    let encrypted = luks::recognise(chain.volume()).await?.map(|found| found.summary());
    Ok(Info::new(uri, chain.volume().shape(), encrypted, probe.map(Target::from)))
}

#[derive(Debug, Serialize)]
struct Info {
    uri: String,
    size: u64,
    block_size: u32,
    physical_block_size: u32,
    discard_granularity: Option<u32>,
    discard_reads_zeroes: bool,
    fast_zeroes: bool,
    write_cache: bool,
    read_only: bool,
    encrypted: Option<Summary>,
    target: Option<Target>,
}

/// A unit of a target, and how the two sides talk.
#[derive(Debug, Serialize)]
struct Target {
    #[serde(rename = "type")]
    kind: &'static str,
    vendor: String,
    product: String,
    revision: String,
    serial: Option<String>,
    round_trip_us: u64,
    #[serde(flatten)]
    values: Map<String, Value>,
    #[serde(skip)]
    text: Vec<(&'static str, Vec<String>)>,
}

impl From<TargetInfo> for Target {
    fn from(probe: TargetInfo) -> Self {
        let TransportInfo { values, text } = probe.transport;
        Self {
            kind: short_name(probe.device_type),
            vendor: probe.vendor,
            product: probe.product,
            revision: probe.revision,
            serial: probe.serial,
            round_trip_us: u64::try_from(probe.round_trip.as_micros()).unwrap_or(u64::MAX),
            values,
            text,
        }
    }
}

impl Info {
    fn new(uri: &Uri, shape: &Shape, encrypted: Option<Summary>, target: Option<Target>) -> Self {
        Self {
            encrypted,
            target,
            uri: uri.to_string(),
            size: shape.size,
            block_size: shape.block_size,
            physical_block_size: shape.physical_block_size,
            discard_granularity: shape.discard.map(|discard| discard.granularity),
            discard_reads_zeroes: shape.discard.is_some_and(|discard| discard.reads_zeroes),
            fast_zeroes: shape.fast_zeroes,
            write_cache: shape.write_cache,
            read_only: shape.read_only,
        }
    }
}

impl std::fmt::Display for Info {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let yes = |yes| if yes { "yes" } else { "no" };
        writeln!(f, "{}", self.uri)?;
        writeln!(f, "  size         {} ({} bytes)", Size(self.size), self.size)?;
        writeln!(f, "  block size   {}, best {}", self.block_size, self.physical_block_size)?;
        writeln!(f, "  write cache  {}", yes(self.write_cache))?;
        match self.discard_granularity {
            Some(unit) if self.discard_reads_zeroes => {
                writeln!(f, "  discard      in units of {unit}, then reads as zeroes")?;
            }
            Some(unit) => writeln!(f, "  discard      in units of {unit}")?,
            None => writeln!(f, "  discard      no")?,
        }
        writeln!(f, "  fast zeroes  {}", yes(self.fast_zeroes))?;
        if let Some(encrypted) = &self.encrypted {
            describe(encrypted, f)?;
        }
        self.target.as_ref().map_or(Ok(()), |target| target.fmt(f))
    }
}

/// What the header says, which the store could have written: it must not steer the terminal.
fn describe(found: &Summary, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    writeln!(f, "  encrypted    {}", OneLine(found.name()))?;
    if let Some(label) = &found.label {
        writeln!(f, "  label        {}", OneLine(label))?;
    }
    if let Some(size) = found.size {
        let discards = if found.discards { "passed on" } else { "refused" };
        writeln!(f, "  contents     {} ({size} bytes), discards {discards}", Size(size))?;
    }
    if let (Some(_), Some(trouble)) = (&found.uuid, &found.trouble) {
        writeln!(f, "  damage       {trouble}")?;
    }
    Ok(())
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, vendor, product, revision, .. } = self;
        writeln!(f, "  type         {kind}")?;
        writeln!(f, "  device       {}", OneLine(format_args!("{vendor} {product} {revision}")))?;
        if let Some(serial) = &self.serial {
            writeln!(f, "  serial       {}", OneLine(serial))?;
        }
        writeln!(f, "  round trip   {:.3} ms", self.round_trip_us as f64 / 1e3)?;
        for (what, lines) in &self.text {
            let labels = std::iter::once(*what).chain(std::iter::repeat(""));
            labels.zip(lines).try_for_each(|(label, line)| writeln!(f, "  {label:12} {line}"))?;
        }
        Ok(())
    }
}
