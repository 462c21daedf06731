//! `longhaul cat`: the contents of a file of a volume.

use std::io::{self, Write as _};
use std::path::PathBuf;

use super::files::{FilesArgs, bytes_of};
use super::standard_output;
use crate::failure::{Failure, Outcome};
use crate::front::ext4::FilesError;

/// Write the contents of a file of an ext2, ext3 or ext4 file system on a volume to standard output
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  longhaul cat file:backup.img /etc/fstab")]
pub struct Args {
    #[command(flatten)]
    files: FilesArgs,
    /// The file
    path: PathBuf,
}

#[derive(Debug)]
enum CatError {
    Files(FilesError),
    Output(io::Error),
}

impl From<FilesError> for CatError {
    fn from(why: FilesError) -> Self {
        Self::Files(why)
    }
}

/// Writes it.
pub async fn run(args: Args) -> Outcome {
    let path = bytes_of(&args.path);
    let written = args.files.read(move |fs| {
        standard_output().map_err(CatError::Output)?;
        let mut out = io::stdout().lock();
        fs.read(&path, |piece| out.write_all(piece).map_err(CatError::Output))?;
        out.flush().map_err(CatError::Output)
    });
    let (written, is_all) = written.await?;
    written.map_err(|why| match why {
        CatError::Files(why) => args.files.explain(why),
        CatError::Output(why) if why.kind() == io::ErrorKind::BrokenPipe => {
            Failure::output_closed()
        }
        CatError::Output(why) => Failure::new(super::cannot_write()).because(why),
    })?;
    is_all
}
