//! `longhaul cd read`: what is on the disc in the drive of a server, as a file.

use std::path::PathBuf;

use bytes::Bytes;
use volume::layer::pipeline::Settings;
use volume::{Span, Volume};

use super::toc::{Contents, TrackContents};
use super::{DriveArgs, refuse_other};
use crate::chain::{self, Chain, OpenOptions, open_unit};
use crate::command::output::{Output, is_stream};
use crate::command::{closing, say_done, stop_on_signals, unless_stopped};
use crate::failure::{Failure, Outcome, print_error};
use crate::printable::Shown as _;
use crate::progress::Progress;
use crate::size::Size;
use crate::stop::Stop;
use crate::uri::Uri;

#[derive(Debug, clap::Args)]
pub(super) struct ReadArgs {
    #[command(flatten)]
    drive: DriveArgs,
    /// The file to write; standard output if it is `-`
    #[arg(default_value = "-")]
    to: PathBuf,
    /// Read this track alone
    #[arg(long, value_name = "N", conflicts_with = "session")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=99))]
    track: Option<u8>,
    /// Read this session alone, from its first track on
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=99))]
    session: Option<u8>,
    /// Read only so many bytes, the first: a disc that is written over has no end of its own
    #[arg(long)]
    size: Option<Size>,
}

/// How much is read at once.
const PIECE: u64 = 1 << 20;

/// Writes a disc, track or session to a file or to standard output. What lies between tracks, and cannot be read, is zeroes
/// there.
pub(super) async fn run(args: ReadArgs) -> Outcome {
    let stop = stop_on_signals()?;
    let mut out = Output::to(&args.to, &stop).await?;
    let read = unless_stopped(&stop, read(&args, &stop, &mut out)).await;
    let size = match read {
        Ok(size) => size,
        Err(why) => return Err(out.fail(&stop, why).await),
    };
    out.finish(&stop).await?;
    match is_stream(&args.to) {
        true => Ok(()),
        false => say_done(&format!("{}: {} bytes", args.to.shown(), Size(size))),
    }
}

async fn read(args: &ReadArgs, stop: &Stop, out: &mut Output) -> Outcome<u64> {
    let uri = &args.drive.uri;
    let options = args.drive.options().await?;
    let unit = open_unit(uri, &options).await?;
    let contents = Contents::of(uri, &*unit).await;
    unit.close().await;
    let tracks = args.wanted(contents?.tracks)?;
    if let Some(open) = tracks.iter().find(|track| track.open) {
        let number = open.number;
        print_error(&format_args!(
            "longhaul: track {number} is not closed: more may be written to it"
        ));
    }
    let options = OpenOptions {
        read_only: true,
        existing_only: true,
        login: options.login,
        reconnect_limit: options.reconnect_limit,
        pipeline: Some(Settings::default()),
        stop: stop.clone(),
        ..OpenOptions::default()
    };
    let chain = chain::open(uri, options).await?;
    closing(chain, async |chain: &Chain| {
        if let Some(target) = chain.probe().await? {
            refuse_other(uri, target.device_type)?;
        }
        let volume = chain.volume();
        let wanted = args.size.map_or(u64::MAX, |Size(size)| size);
        Reading { uri, disc: &*volume, out, wanted }.tracks(&tracks, args.is_whole()).await
    })
    .await
}

impl ReadArgs {
    const fn is_whole(&self) -> bool {
        self.track.is_none() && self.session.is_none()
    }

    /// The tracks that are to be read.
    fn wanted(&self, mut tracks: Vec<TrackContents>) -> Outcome<Vec<TrackContents>> {
        let cannot = || Failure::new(format!("cannot read the disc in {}", self.drive.uri));
        if tracks.is_empty() {
            return Err(cannot().because("nothing is on it"));
        }
        if let Some(session) = self.session {
            tracks.retain(|track| track.session == Some(session));
        }
        if let Some(number) = self.track {
            tracks.retain(|track| track.number == number);
        }
        if tracks.is_empty() {
            return Err(cannot()
                .because("it has none of that number")
                .hint("`cd toc` shows what it has"));
        }
        match tracks.iter().find(|track| !track.is_data()) {
            Some(TrackContents { number, .. }) => Err(cannot()
                .because(format!("track {number} is audio"))
                .hint("--track reads one of data alone")),
            None => Ok(tracks),
        }
    }
}

/// A disc on its way to a file.
struct Reading<'a> {
    uri: &'a Uri,
    disc: &'a dyn Volume,
    out: &'a mut Output,
    /// So many bytes are still wanted.
    wanted: u64,
}

impl Reading<'_> {
    /// Reads these tracks, each as far from the first as it is on the disc; a whole disc from its first block on. How many
    /// bytes these are.
    async fn tracks(&mut self, tracks: &[TrackContents], is_whole: bool) -> Outcome<u64> {
        let block = u64::from(self.disc.shape().block_size);
        let first = if is_whole { 0 } else { tracks.first().map_or(0, |track| track.first) };
        let (first, wanted) = (u64::from(first) * block, self.wanted);
        let end = first.saturating_add(wanted.saturating_add(block - 1) / block * block);
        let spans = tracks.iter().map(|track| {
            let at = u64::from(track.first) * block;
            Span::new(at, end.saturating_sub(at).min(u64::from(track.blocks) * block))
        });
        let spans: Vec<_> = spans.filter(|span| span.len > 0).collect();
        let progress = Progress::new("reading", spans.iter().map(|span| span.len).sum(), false);
        let mut at = first;
        for span in spans {
            self.write_zeroes(span.at.saturating_sub(at)).await?;
            self.track(span, &progress).await?;
            at = span.at + span.len;
        }
        Ok(wanted - self.wanted)
    }

    async fn track(&mut self, track: Span, progress: &Progress) -> Outcome {
        let (mut at, end) = (track.at, track.at + track.len);
        while at < end {
            let piece = Span { at, len: PIECE.min(end - at) };
            match self.disc.read(piece).await {
                Ok(data) => self.write(data).await?,
                Err(why) => return Err(self.up_to_first_unreadable(piece, why).await),
            }
            at += piece.len;
            progress.advance(piece.len);
        }
        Ok(())
    }

    /// Writes what can be read of a piece: what failed may have been any block of it.
    async fn up_to_first_unreadable(&mut self, piece: Span, mut why: volume::Error) -> Failure {
        let block = u64::from(self.disc.shape().block_size);
        let mut at = piece.at;
        while at < piece.at + piece.len {
            match self.disc.read(Span { at, len: block }).await {
                Ok(data) => {
                    if let Err(failure) = self.write(data).await {
                        return failure;
                    }
                }
                Err(of_this_one) => {
                    why = of_this_one;
                    break;
                }
            }
            at += block;
        }
        let (lba, uri) = (at / block, self.uri);
        Failure::new(format!("cannot read block {lba} of the disc in {uri}")).because(why)
    }

    async fn write(&mut self, mut data: Bytes) -> Outcome {
        if data.iter().all(|byte| *byte == 0) {
            return self.write_zeroes(data.len() as u64).await;
        }
        data.truncate(self.wanted.min(data.len() as u64) as usize);
        self.wanted -= data.len() as u64;
        self.out.write(data).await
    }

    async fn write_zeroes(&mut self, len: u64) -> Outcome {
        let len = len.min(self.wanted);
        self.wanted -= len;
        self.out.write_zeroes(len).await
    }
}
