//! `longhaul cd close`: what was burnt to a disc can be read by all drives, and nothing more can be added to it.

use proto::scsi::unit::optical::DiscStatus;

use super::DriveArgs;
use super::recorder::{Kind, Recorder};
use crate::command::{say_done, stop_on_signals};
use crate::failure::{Failure, Outcome};

#[derive(Debug, clap::Args)]
pub(super) struct CloseArgs {
    #[command(flatten)]
    drive: DriveArgs,
    /// Let another session follow; without this nothing can be added afterwards
    #[arg(long)]
    multi: bool,
}

pub(super) async fn run(args: CloseArgs) -> Outcome {
    let stop = stop_on_signals()?;
    let closed = Recorder::with(
        &args.drive,
        &stop,
        "close",
        async |recorder| close(recorder, args.multi).await,
        async |_| {},
    );
    closed.await?;
    let more = if args.multi { "another session may follow" } else { "nothing can be added" };
    say_done(&format!("{}: closed: {more}", args.drive.uri))
}

async fn close(recorder: &Recorder, multi: bool) -> Outcome {
    let kind = recorder.kind().await?;
    if kind == Kind::Overwritable {
        return Err(Failure::new("there is nothing to close")
            .because("the disc is one that is written over, and stays as it is"));
    }
    let info = recorder.disc_info().await?;
    match info.status {
        DiscStatus::Complete => return Err(Failure::new("it is closed already")),
        DiscStatus::Blank => return Err(Failure::new("nothing is on it")),
        DiscStatus::Appendable if multi && !info.is_session_open => {
            return Err(Failure::new("its last session is closed already")
                .hint("without --multi it is closed so that nothing can be added"));
        }
        DiscStatus::Appendable => {}
    }
    let last = match recorder.open_track(kind, info.last_track).await {
        Ok(track) if track.next != Some(track.first) => track.number,
        // All are closed, or the disc is full, and none can be written.
        _ => info.last_track,
    };
    recorder.close(kind, info.is_session_open.then_some(last), multi).await?;
    Ok(())
}
