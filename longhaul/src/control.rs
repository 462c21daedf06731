//! The control socket: how a running server is asked how it is, and told to read its file again.
//!
//! A client sends one line and gets one line, a JSON value, or `error: ` and why. Only the owner of the
//! server can open the socket.

use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::client::ClientId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, test_kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::durable::make_directories;
use crate::failure::{Failure, OrFail, Outcome};
use crate::printable::{Quoted as _, Shown as _};
use crate::socket_file::SocketFile;

/// Where the socket is unless said otherwise.
pub const DEFAULT: &str = "/run/longhaul/control.sock";

/// Where control sockets are found without being named: of attachments, and of a server that runs as root.
#[must_use]
pub fn runtime_dir() -> Option<PathBuf> {
    // systemd.exec(5), `RuntimeDirectory=`; with several, separated by colons, it is the first.
    let service = std::env::var("RUNTIME_DIRECTORY").unwrap_or_default();
    if let Some(dir) = service.split(':').next().filter(|dir| dir.starts_with('/')) {
        return Some(dir.into());
    }
    if rustix::process::geteuid().is_root() {
        return Path::new(DEFAULT).parent().map(Path::to_owned);
    }
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    user.filter(|dir| dir.is_absolute()).map(|dir| dir.join("longhaul"))
}

/// The sockets where control sockets are, in the order of their names. Whether anybody listens, and to what, is not
/// known.
#[must_use]
pub fn found() -> Vec<PathBuf> {
    let dir = runtime_dir().and_then(|dir| std::fs::read_dir(dir).ok());
    let entries = dir.into_iter().flatten().flatten().map(|entry| entry.path());
    let sockets = entries.chain([PathBuf::from(DEFAULT)]);
    let is_socket = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "sock")
            && path.metadata().is_ok_and(|found| is_socket(&found))
    };
    let mut found: Vec<_> = sockets.filter(is_socket).collect();
    found.sort();
    found.dedup();
    found
}

/// The sockets of attachments among them.
#[must_use]
pub fn attachments() -> Vec<PathBuf> {
    found().into_iter().filter(|path| is_of_attachment(path)).collect()
}

/// Where an attachment listens that is the process with this number.
#[must_use]
pub fn of_attachment(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("{OF_ATTACHMENT}{pid}.sock"))
}

/// Whether it is called as the socket of an attachment.
#[must_use]
pub fn is_of_attachment(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(OF_ATTACHMENT))
}

/// Where a server listens that is this process, and was not told where.
#[must_use]
pub fn of_server(dir: &Path) -> PathBuf {
    dir.join(format!("{OF_SERVER}{}.sock", std::process::id()))
}

const OF_ATTACHMENT: &str = "attach-";
const OF_SERVER: &str = "serve-";

/// The sockets of what runs here and can be asked without being named, but attachments: servers, whatever they were told to
/// call theirs.
#[must_use]
pub fn servers() -> Vec<PathBuf> {
    let is_of_server = |path: &PathBuf| !is_of_attachment(path) && is_listened_on(path);
    found().into_iter().filter(is_of_server).collect()
}

/// Removes the socket of an attachment or a server if its process is gone; whether it was one.
pub fn remove_if_left(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let process = name.strip_prefix(OF_ATTACHMENT).or_else(|| name.strip_prefix(OF_SERVER));
    let process = process.and_then(|name| name.strip_suffix(".sock"));
    let process = process.and_then(|process| Pid::from_raw(process.parse().ok()?));
    let is_gone = |process| test_kill_process(process) == Err(Errno::SRCH);
    process.is_some_and(is_gone) && std::fs::remove_file(path).is_ok()
}

/// The longest request: an invitation to many volumes.
const REQUEST_MAX: u64 = 16 << 10;

/// The longest answer taken: a node of 65,535 sessions tells some 3 KiB of each.
const ANSWER_MAX: u64 = 256 << 20;

/// What an NBD server greets with (NBD protocol, newstyle negotiation).
const NBD_MAGIC: &str = "NBDMAGIC";

/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many requests wait to be taken.
const WAITING_MAX: usize = 64;

/// How many clients may be about to say what they want.
const HEARD_MAX: usize = 64;

/// The listening end.
pub struct Control {
    requests: mpsc::Receiver<Request>,
    listening: JoinHandle<()>,
    /// What this server has made, and takes away when it ends.
    file: Option<SocketFile>,
}

/// A request, waiting for its answer.
pub struct Request {
    asker: Asker,
    /// What is asked.
    pub verb: String,
    /// Since when.
    pub since: Instant,
}

/// Who waits for an answer.
enum Asker {
    /// A program of this machine.
    Socket(BufReader<UnixStream>),
    /// An administrator, in a session.
    Session { client: ClientId, answer: oneshot::Sender<Result<String, String>> },
}

/// The most bytes of the path of a socket (`sun_path` in unix(7), without the zero that ends it).
const PATH_MAX: usize = 107;

/// Why no socket can have this path, if it is that long.
pub(crate) fn too_long(path: &Path) -> Option<String> {
    let length = path.as_os_str().len();
    let why = || {
        format!(
            "the path of a socket has at most {PATH_MAX} bytes, and {} has {length}: use a shorter one, such as one \
             in /run",
            path.shown()
        )
    };
    (length > PATH_MAX).then(why)
}

/// Why there can be no socket at `path`, if its directory is not there. One in which they are looked for is made.
pub(crate) fn lacks_dir(path: &Path) -> Option<String> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists())?;
    let made = [runtime_dir().as_deref(), Path::new(DEFAULT).parent()].contains(&Some(dir));
    let (path, shown, quoted) = (path.shown(), dir.shown(), dir.quoted());
    (!made).then(|| {
        format!(
            "cannot listen on the control socket {path}: the directory {shown} does not exist\n  make it first: `mkdir {quoted}`"
        )
    })
}

impl Control {
    /// Listens at `path`. What a server that was killed has left there is replaced; one that is alive is not.
    pub fn bind(path: &Path) -> Outcome<Self> {
        let what = || format!("cannot listen on the control socket {}", path.shown());
        too_long(path).map_or(Ok(()), |why| Err(Failure::usage(what()).because(why)))?;
        if is_listened_on(path) {
            return Err(Failure::new(what()).because("another server listens there"));
        }
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if is_socket(&metadata) => std::fs::remove_file(path).or_fail(what)?,
            Ok(_) => return Err(Failure::new(what()).because("it exists and is not a socket")),
            Err(_) => {}
        }
        if let Some(dir) = path.parent() {
            make_directories(dir, 0o777).or_fail(what)?;
        }
        let listener = UnixListener::bind(path).or_fail(what)?;
        // Whoever came in between is turned away by `accept`, which looks at who it is.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).or_fail(what)?;
        let file = SocketFile::of(path).or_fail(what)?;
        Ok(Self::listening(listener, Some(file)))
    }

    /// Listens with a socket that somebody else has opened, and who decides who can reach it.
    pub fn on(listener: std::os::unix::net::UnixListener) -> Outcome<Self> {
        let listener = UnixListener::from_std(listener);
        let listener =
            listener.or_fail(|| "cannot use the control socket handed over".to_owned())?;
        Ok(Self::listening(listener, None))
    }

    fn listening(listener: UnixListener, file: Option<SocketFile>) -> Self {
        let (asked, requests) = mpsc::channel(WAITING_MAX);
        Self { requests, listening: tokio::spawn(listen(listener, asked)), file }
    }

    /// The next request. Whoever stops waiting for it loses none. One whose asker has left meanwhile, and has said that
    /// there was no answer, is not carried out.
    pub async fn request(&mut self) -> Request {
        loop {
            match self.requests.recv().await {
                Some(request) if request.is_left() => {
                    tracing::info!("control request dropped: its client has left before its turn");
                }
                Some(request) => return request,
                None => pending().await,
            }
        }
    }
}

/// Hears clients, each on a task of its own: one that says nothing keeps nobody else.
async fn listen(listener: UnixListener, asked: mpsc::Sender<Request>) {
    let mut heard = JoinSet::new();
    loop {
        while heard.try_join_next().is_some() {}
        if heard.len() >= HEARD_MAX {
            heard.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                heard.spawn(take(stream, asked.clone()));
            }
            Err(why) => {
                tracing::warn!(%why, "cannot accept a client of the control socket");
                // Out of descriptors or memory: those in use have to come back first.
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn take(stream: UnixStream, asked: mpsc::Sender<Request>) {
    match timeout(PATIENCE, hear(stream)).await {
        Ok(Ok(Some(request))) => drop(asked.send(request).await),
        // It has only seen that somebody listens.
        Ok(Ok(None)) => {}
        Ok(Err(why)) => tracing::warn!(%why, "control request refused"),
        Err(_) => tracing::warn!("a client of the control socket asks nothing"),
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.listening.abort();
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

/// Whether somebody listens there, also one that takes no more connections. It does not wait.
fn is_listened_on(path: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (Ok(socket), Ok(address)) = (socket, SocketAddrUnix::new(path)) else { return false };
    matches!(rustix::net::connect(socket, &address), Ok(()) | Err(Errno::AGAIN))
}

fn is_socket(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    metadata.file_type().is_socket()
}

/// The request of a client; `None` from one that ends without any.
async fn hear(stream: UnixStream) -> io::Result<Option<Request>> {
    let uid = stream.peer_cred()?.uid();
    if uid != rustix::process::geteuid().as_raw() && uid != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {uid} asks")));
    }
    let mut stream = BufReader::new(stream);
    let mut verb = String::new();
    if (&mut stream).take(REQUEST_MAX).read_line(&mut verb).await? == 0 {
        return Ok(None);
    }
    let (verb, asker) = (verb.trim_end().to_owned(), Asker::Socket(stream));
    Ok(Some(Request { asker, verb, since: Instant::now() }))
}

impl Request {
    /// Whether nobody waits for the answer any more: both directions are closed, not only that of the request.
    pub(crate) fn is_left(&self) -> bool {
        let stream = match &self.asker {
            Asker::Socket(stream) => stream.get_ref(),
            Asker::Session { answer, .. } => return answer.is_closed(),
        };
        let mut sockets = [PollFd::new(stream, PollFlags::empty())];
        let now = Timespec::default();
        let is_seen = poll(&mut sockets, Some(&now)).is_ok();
        is_seen && sockets[0].revents().contains(PollFlags::HUP)
    }

    /// One of an administrator, and what becomes its answer.
    #[must_use]
    pub(crate) fn in_session(
        client: ClientId,
        verb: String,
    ) -> (Self, oneshot::Receiver<Result<String, String>>) {
        let (answer, answered) = oneshot::channel();
        (Self { asker: Asker::Session { client, answer }, verb, since: Instant::now() }, answered)
    }

    /// The client that asks, if it is one of a session.
    pub(crate) const fn client(&self) -> Option<&ClientId> {
        match &self.asker {
            Asker::Socket(_) => None,
            Asker::Session { client, .. } => Some(client),
        }
    }

    /// One that nobody waits for.
    #[cfg(test)]
    pub(crate) fn detached(verb: &str) -> Self {
        let (stream, _) = UnixStream::pair().unwrap();
        let asker = Asker::Socket(BufReader::new(stream));
        Self { asker, verb: verb.to_owned(), since: Instant::now() }
    }

    /// Answers it. A client that does not listen any more is no matter, nor is one that is slow to.
    pub fn answer(self, answer: Outcome<String>) {
        let mut stream = match self.asker {
            Asker::Socket(stream) => stream,
            Asker::Session { answer: asker, .. } => {
                drop(asker.send(answer.map_err(|why| why.to_string())));
                return;
            }
        };
        let line = match answer {
            Ok(answer) => format!("{answer}\n"),
            Err(why) => format!("error: {why}\n"),
        };
        // A short one has left before the program can end.
        let sent = stream.get_ref().try_write(line.as_bytes()).unwrap_or(0);
        tokio::spawn(async move {
            drop(timeout(PATIENCE, stream.write_all(&line.as_bytes()[sent..])).await);
        });
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Whoever listened there is gone, and has left the socket.
    #[error("nobody listens there")]
    Left(#[source] io::Error),
    /// Nobody ever listened there, or not to this user.
    #[error(transparent)]
    Connect(io::Error),
    /// The connection failed.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// It takes connections, or has too many of them waiting, and says nothing.
    #[error("it does not answer")]
    Silent,
    /// It ended without an answer.
    #[error("it ended")]
    Ended,
    /// It is the socket of something else.
    #[error("it is an NBD server, not a control socket")]
    Foreign,
    /// It cannot do what was asked of it.
    #[error("{0}")]
    Refused(String),
}

/// Whether the other end let go without an answer, as it does with users that it does not answer.
fn is_hung_up(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

const WHO_MAY_ASK: &str = "only root, and the user that it runs as, may ask it: use `sudo`";

impl AskError {
    /// The failure as a person reads it.
    pub fn into_failure(self, path: &Path) -> Failure {
        let failure = Failure::new(format!("cannot ask {}", path.shown()));
        match self {
            Self::Refused(why) => Failure::new(why),
            Self::Connect(why)
                if path == Path::new(DEFAULT) && why.kind() == io::ErrorKind::NotFound =>
            {
                Failure::new("no server was found here").because(format!(
                    "none of this user has a control socket, and there is no {DEFAULT}"
                ))
                .hint("a server of another user is asked by that user, or where `--control PATH` names its socket")
            }
            Self::Connect(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                failure.because(why).hint(WHO_MAY_ASK)
            }
            Self::Left(_) | Self::Connect(_) => failure.because(self).hint(
                "`serve` listens there if it is told so: `control` in its file, or --control",
            ),
            Self::Broken(why) if is_hung_up(&why) => failure.because(why).hint(WHO_MAY_ASK),
            Self::Silent => failure
                .because(self)
                .hint("it may be stopped (`kill -CONT PID` lets it go on), or busy with a reload"),
            why => failure.because(why),
        }
    }
}

/// Asks the program whose socket is at `path`; its answer, which is waited for as long as `patience` says.
pub async fn ask(path: &Path, verb: &str, patience: Duration) -> Result<String, AskError> {
    timeout(patience, ask_patiently(path, verb)).await.unwrap_or(Err(AskError::Silent))
}

async fn ask_patiently(path: &Path, verb: &str) -> Result<String, AskError> {
    let mut stream = UnixStream::connect(path).await.map_err(|why| match why.kind() {
        io::ErrorKind::ConnectionRefused => AskError::Left(why),
        // Its backlog is full.
        io::ErrorKind::WouldBlock => AskError::Silent,
        _ => AskError::Connect(why),
    })?;
    stream.write_all(format!("{verb}\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer).await?;
    match answer.trim_end().strip_prefix("error: ") {
        Some(why) => Err(AskError::Refused(why.to_owned())),
        None if answer.is_empty() => Err(AskError::Ended),
        None if answer.starts_with(NBD_MAGIC) => Err(AskError::Foreign),
        None => Ok(answer.trim_end().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who looks whether a server runs asks nothing.
    #[tokio::test]
    async fn client_that_ends_without_a_word_asks_nothing() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(there);
        assert!(hear(here).await.unwrap().is_none());
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(b"status\n").await.unwrap();
        drop(there);
        assert_eq!(hear(here).await.unwrap().unwrap().verb, "status");
    }

    /// Each server has a socket of its own where none is named: the hint is not to name one.
    #[test]
    fn server_that_is_not_there_and_one_that_may_not_be_asked_are_told_as_such() {
        let told = |kind: io::ErrorKind, path: &str| {
            AskError::Connect(kind.into()).into_failure(Path::new(path)).to_string()
        };
        let none = told(io::ErrorKind::NotFound, DEFAULT);
        assert!(
            none.starts_with("no server was found here") && none.contains("--control"),
            "{none}"
        );
        let named = told(io::ErrorKind::NotFound, "control.sock");
        assert!(
            named.contains("cannot ask control.sock") && named.contains("listens there if"),
            "{named}"
        );
        let forbidden = told(io::ErrorKind::PermissionDenied, DEFAULT);
        assert!(
            forbidden.contains("only root") && !forbidden.contains("if it is told"),
            "{forbidden}"
        );
    }

    #[test]
    fn user_who_is_hung_up_on_is_told_who_may_ask() {
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        let said = AskError::from(reset).into_failure(Path::new("control.sock")).to_string();
        assert!(said.contains("control.sock") && said.contains("only root"), "{said}");
    }
}
