//! `longhaul info`: what a volume is.

use serde::Serialize;
use volume::Shape;

use super::options::LoginArgs;
use crate::chain::{self, OpenOptions, Uri};
use crate::failure::{OrFail, Outcome};
use crate::size::Size;

/// Show what a volume is and can do
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume
    uri: Uri,
    /// Open it read-only: what takes writes (discard, zeroes) is then not shown
    #[arg(long)]
    read_only: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    login: LoginArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul info file:/srv/backup.img
  longhaul info iscsi://server/iqn.2026-11.dev.longhaul:backup/0 --json";

/// Opens the volume as it would be used, and describes it.
pub async fn run(args: Args) -> Outcome {
    let login = args.login.login().await?;
    let options = OpenOptions { read_only: args.read_only, login, ..OpenOptions::default() };
    let chain = chain::open(&args.uri, options).await?;
    let info = Info::new(&args.uri, chain.volume().shape());
    chain.close().await?;
    if args.json {
        let json = serde_json::to_string(&info).or_fail(|| "cannot print JSON".to_owned())?;
        return super::say(&json);
    }
    super::say(info.to_string().trim_end())
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
}

impl Info {
    fn new(uri: &Uri, shape: &Shape) -> Self {
        Self {
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
        writeln!(f, "  fast zeroes  {}", yes(self.fast_zeroes))
    }
}
