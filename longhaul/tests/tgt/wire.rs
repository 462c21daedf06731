//! A way to a target on which every PDU is seen, and some are kept back or changed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use longhaul::store::iscsi::IscsiTarget;
use longhaul::uri::Host;
use proto::iscsi::header::{BHS_LEN, Header, Lengths, ScsiResponse, TaskResponse};
use proto::scsi::Status;
use proto::scsi::sense::{Additional, Format, Key, Sense};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) struct Wire {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

struct Shared {
    upstream: SocketAddr,
    /// What each connection carried, both ways, in the order it came by.
    seen: watch::Sender<Vec<Vec<Header>>>,
    /// The connection whose answers are kept back.
    muted: AtomicUsize,
    /// The status that takes the place of the next good one, with its sense data.
    instead: Mutex<Option<(Status, Vec<u8>)>>,
    /// What takes the place of the next answer to task management.
    refusal: Mutex<Option<TaskResponse>>,
    running: Mutex<JoinSet<()>>,
}

impl Wire {
    pub(crate) async fn new(target: &IscsiTarget) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            upstream: format!("{}", target.portal).parse().unwrap(),
            seen: watch::Sender::new(Vec::new()),
            muted: AtomicUsize::new(usize::MAX),
            instead: Mutex::new(None),
            refusal: Mutex::new(None),
            running: Mutex::new(JoinSet::new()),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, _accepting: accepting }
    }

    /// The target, by this way.
    pub(crate) fn to(&self, target: &IscsiTarget) -> IscsiTarget {
        let portal = Host { name: self.address.ip().to_string(), port: self.address.port() };
        IscsiTarget { portal, ..target.clone() }
    }

    /// What each connection has carried so far, without the logins.
    pub(crate) fn seen(&self) -> Vec<Vec<Header>> {
        let login = |it: &Header| matches!(it, Header::LoginRequest(_) | Header::LoginResponse(_));
        let seen = self.shared.seen.borrow();
        seen.iter().map(|all| all.iter().filter(|it| !login(it)).copied().collect()).collect()
    }

    /// Keeps back all answers of the connection there is, and breaks it when it carries a command.
    pub(crate) async fn cut_at_next_command(&self) {
        let mut seen = self.shared.seen.subscribe();
        let last = seen.borrow().len() - 1;
        let before = commands(&seen.borrow()[last]);
        self.shared.muted.store(last, Ordering::SeqCst);
        seen.wait_for(|seen| commands(&seen[last]) > before).await.unwrap();
        let mut running = std::mem::take(&mut *self.shared.running.lock().unwrap());
        running.shutdown().await;
    }

    /// The next good status becomes this unit attention.
    pub(crate) fn attend(&self, attention: Additional) {
        let sense = Sense::new(Key::UnitAttention, attention).emit(Format::Fixed);
        *self.shared.instead.lock().unwrap() = Some((Status::CheckCondition, sense));
    }

    /// The next good status becomes this one, without sense data.
    pub(crate) fn answer(&self, status: Status) {
        *self.shared.instead.lock().unwrap() = Some((status, Vec::new()));
    }

    /// The next task management is answered with this.
    pub(crate) fn refuse(&self, refusal: TaskResponse) {
        *self.shared.refusal.lock().unwrap() = Some(refusal);
    }
}

fn commands(seen: &[Header]) -> usize {
    seen.iter().filter(|it| matches!(it, Header::ScsiCommand(_))).count()
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect(shared.upstream).await.unwrap();
        let mut number = 0;
        shared.seen.send_modify(|seen| {
            number = seen.len();
            seen.push(Vec::new());
        });
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (out, back) = (Arc::clone(&shared), Arc::clone(&shared));
        let converse = async move {
            tokio::select! {
                _ = carry(from_client, to_server, &out, number, false) => {}
                _ = carry(from_server, to_client, &back, number, true) => {}
            }
        };
        shared.running.lock().unwrap().spawn(converse);
    }
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    number: usize,
    answers: bool,
) -> std::io::Result<()> {
    loop {
        let mut bhs = [0; BHS_LEN];
        from.read_exact(&mut bhs).await?;
        let Lengths { ahs, data } = Lengths::parse(&bhs);
        let mut rest = vec![0; ahs + data.next_multiple_of(4)];
        from.read_exact(&mut rest).await?;
        let mut header = Header::parse(&bhs).expect("a PDU");
        shared.seen.send_modify(|seen| seen[number].push(header));
        if answers && shared.muted.load(Ordering::SeqCst) == number {
            continue;
        }
        if let Some(data) = shared.replace(&mut header) {
            bhs = header.emit(Lengths { ahs: 0, data: data.len() });
            rest = data;
            rest.resize(rest.len().next_multiple_of(4), 0);
        }
        to.write_all(&bhs).await?;
        to.write_all(&rest).await?;
    }
}

impl Shared {
    /// Makes of an answer what was asked for, if anything was; gives its data.
    fn replace(&self, header: &mut Header) -> Option<Vec<u8>> {
        match header {
            Header::ScsiResponse(response) => self.respond(response),
            Header::TaskManagementResponse(answer) => {
                answer.response = self.refusal.lock().unwrap().take()?;
                Some(Vec::new())
            }
            _ => None,
        }
    }

    /// Makes a good status the one that is to come; gives its sense data with their length (RFC 7143, 11.4.7.1).
    fn respond(&self, response: &mut ScsiResponse) -> Option<Vec<u8>> {
        if response.status != Status::Good as u8 {
            return None;
        }
        let (status, sense) = self.instead.lock().unwrap().take()?;
        response.status = status as u8;
        if sense.is_empty() {
            return Some(sense);
        }
        let len = u16::try_from(sense.len()).unwrap();
        Some([&len.to_be_bytes()[..], &sense].concat())
    }
}
