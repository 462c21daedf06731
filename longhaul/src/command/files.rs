//! What `ls`, `get` and `cat` have in common: files of a volume, without the kernel.

use volume::layer::pipeline::Settings;

use super::named;
use super::options::{DiscardArgs, LoginArgs, OutageArgs, contents};
use super::unsent::{Unsent, refuse_unsent, tell_of_unsent};
use super::{closing, stop_on_signals, unless_stopped};
use crate::chain::{self, OpenOptions};
use crate::failure::{Failure, Outcome};
use crate::front::ext4::{FileSystem, FilesError, Reason, read_files};
use crate::printable::Shown as _;
use crate::secret::SecretArgs;
use crate::uri::Uri;

/// A volume with a file system, and how to get there.
#[derive(Debug, clap::Args)]
pub(super) struct FilesArgs {
    /// The volume: its URI, or the name that `mount` remembers it by; an encrypted one is recognised
    #[arg(value_parser = named::volume)]
    pub(super) uri: Uri,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
}

impl FilesArgs {
    /// What comes of `work` on the file system of the volume, which is opened read-only; and whether what was read is all
    /// that was written, which is said once that was printed.
    pub(super) async fn read<T: Send + 'static, E: From<FilesError> + Send + 'static>(
        &self,
        work: impl FnOnce(&FileSystem) -> Result<T, E> + Send + 'static,
    ) -> Outcome<(Result<T, E>, Outcome)> {
        let stop = stop_on_signals()?;
        let options = OpenOptions {
            read_only: true,
            login: self.login.login_to(&[&self.uri]).await?,
            contents: contents(
                &self.secret,
                DiscardArgs::default(),
                self.secret.is_given(),
                &self.uri.to_string(),
            ),
            pipeline: Some(Settings::default()),
            reconnect_limit: self.outage.reconnect_limit().unwrap_or_default(),
            stop: stop.clone(),
            ..OpenOptions::default()
        };
        let chain = chain::open(&self.uri, options).await?;
        chain.leave_on(stop.clone());
        let (read, journals) = closing(chain, async |chain| {
            let journals = unless_stopped(&stop, async { Ok(Unsent::of(chain).await) }).await?;
            tell_of_unsent(&self.uri, &journals, "what is read");
            let reading = read_files(chain.volume(), stop.clone(), work);
            let read = unless_stopped(&stop, async { Ok(reading.await) }).await?;
            Ok((read, journals))
        })
        .await?;
        Ok((read, refuse_unsent(&self.uri, &journals, "what was read")))
    }

    /// What the user can do about it.
    pub(super) fn explain(&self, why: FilesError) -> Failure {
        let hint = match &why {
            FilesError::Absent(_) => {
                "only a file system that begins where the volume does is read; of others, and of partitions, `longhaul copy` brings the \
                 whole volume"
            }
            FilesError::Geometry(_)
            | FilesError::Load(_)
            | FilesError::Reader
            | FilesError::Loop => {
                "`longhaul copy` brings the whole volume to a file, which `e2fsck` may repair there"
            }
            FilesError::Path(_, Reason::NotFound) => "`longhaul ls` shows what there is",
            FilesError::Path(_, Reason::IsDirectory) => {
                "`longhaul ls` lists it, `longhaul get` brings all of it"
            }
            FilesError::Path(..) | FilesError::Volume(_) | FilesError::Stopped => "",
        };
        let failure = Failure::new(format!("cannot read files of {}", self.uri)).because(why);
        if hint.is_empty() { failure } else { failure.hint(hint) }
    }
}

/// The path of a file on a volume as its bytes.
pub(super) fn bytes_of(path: &std::path::Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt as _;
    path.as_os_str().as_bytes().to_vec()
}

/// The failure to write what is at `path` here.
pub(super) fn cannot_write(path: &std::path::Path, why: std::io::Error) -> Failure {
    Failure::new(format!("cannot write {}", path.shown())).because(why)
}
