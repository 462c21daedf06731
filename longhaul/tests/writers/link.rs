//! A link between an attachment and a server: it can be cut, and it can hide that the target has reservations.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const SCSI_COMMAND: u8 = 0x01;
const DATA_OUT: u8 = 0x05;

#[derive(Default)]
struct State {
    is_cut: bool,
    /// PDUs with data of writes are kept back, and where they go.
    is_held: bool,
    held: Vec<(TcpStream, Vec<u8>)>,
    /// PERSISTENT RESERVE OUT commands.
    reserve_out: usize,
    /// So many more of them pass, and nothing after that.
    reserve_out_left: Option<usize>,
    is_stopped: bool,
    /// After so many more PERSISTENT RESERVE OUT commands all waits from the first other command on.
    parks_after: Option<usize>,
    is_parked: bool,
    parked: Vec<(TcpStream, Vec<u8>)>,
    /// A connection was ended meanwhile.
    is_left: bool,
    streams: Vec<TcpStream>,
}

impl State {
    /// Whether a PDU is kept back, with all that follows.
    fn parks(&mut self, operation: u8, command: u8) -> bool {
        let Some(left) = &mut self.parks_after else { return false };
        match (operation, command) {
            (SCSI_COMMAND, 0x5f) if *left > 0 => *left -= 1,
            (SCSI_COMMAND, 0x5e | 0x5f) => {}
            (SCSI_COMMAND, _) if *left == 0 => self.is_parked = true,
            _ => {}
        }
        self.is_parked
    }
}

pub(super) struct Link {
    pub(super) uri: String,
    state: Arc<Mutex<State>>,
}

impl Link {
    /// Carries all that is said.
    pub(super) fn to(uri: &str) -> Self {
        Self::new(uri, |_| {})
    }

    /// Asks for an operation that no target knows where PERSISTENT RESERVE IN or OUT was asked for.
    pub(super) fn without_reservations(uri: &str) -> Self {
        Self::new(uri, |header| {
            if header[0] & 0x3f == SCSI_COMMAND && matches!(header[32], 0x5e | 0x5f) {
                header[32] = 0xc0;
            }
        })
    }

    /// Asks for an operation that no target knows where the second 16 MiB are read, in blocks of 512 bytes.
    pub(super) fn with_unreadable_end(uri: &str) -> Self {
        Self::new(uri, |header| {
            let number =
                |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
            let block = match header[32] {
                0x28 => number(&header[34..38]),
                0x88 => number(&header[34..42]),
                _ => 0,
            };
            if header[0] & 0x3f == SCSI_COMMAND && block >= 1 << 15 {
                header[32] = 0xc0;
            }
        })
    }

    /// Keeps the data of writes back, with the command or apart from it, and lets all else pass.
    pub(super) fn hold(&self) {
        self.state.lock().unwrap().is_held = true;
    }

    /// Waits until there is such data.
    pub(super) async fn held(&self) {
        while self.state.lock().unwrap().held.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What was kept back goes on.
    pub(super) fn let_go(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_held = false;
        for (mut to, pdu) in state.held.drain(..) {
            // Its sender has gone, and the server may have ended the session.
            let _ = to.write_all(&pdu);
        }
    }

    /// What was kept back goes nowhere: who sent it is gone.
    pub(super) fn drop_held(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_held = false;
        for (to, _) in state.held.drain(..) {
            let _ = to.shutdown(Shutdown::Both);
        }
    }

    /// What was kept back stays on its way, also if its sender goes, and nothing more is kept back.
    pub(super) fn hold_no_more(&self) {
        self.state.lock().unwrap().is_held = false;
    }

    /// Lets so many PERSISTENT RESERVE OUT commands pass, and nothing from the next one on.
    pub(super) fn stop_before_reserve_out(&self, left: usize) {
        let mut state = self.state.lock().unwrap();
        (state.reserve_out_left, state.is_stopped) = (Some(left), false);
    }

    /// Waits until nothing passes any more.
    pub(super) async fn stopped(&self) {
        while !self.state.lock().unwrap().is_stopped {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Everything passes again.
    pub(super) fn go_on(&self) {
        let mut state = self.state.lock().unwrap();
        (state.reserve_out_left, state.is_stopped) = (None, false);
    }

    /// Keeps everything back, in its order, from the first command on that does not concern a reservation, once so many
    /// PERSISTENT RESERVE OUT commands have passed.
    pub(super) fn park_after_reserve_out(&self, passed: usize) {
        self.state.lock().unwrap().parks_after = Some(passed);
    }

    /// Waits until so many PDUs are kept back, or their sender has gone.
    pub(super) async fn parked(&self, pdus: usize) {
        let waits = |state: &State| state.parked.len() < pdus && !state.is_left;
        while waits(&self.state.lock().unwrap()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What was kept back goes on, and all that follows.
    pub(super) fn unpark(&self) {
        let mut state = self.state.lock().unwrap();
        (state.parks_after, state.is_parked, state.is_left) = (None, false, false);
        for (mut to, pdu) in state.parked.drain(..) {
            // Its sender, and so the server, may have gone.
            let _ = to.write_all(&pdu);
        }
    }

    /// How many PERSISTENT RESERVE OUT commands have passed.
    pub(super) fn reserve_out(&self) -> usize {
        self.state.lock().unwrap().reserve_out
    }

    /// Carries the first connection to the first server, and all later ones to the second.
    pub(super) fn to_one_then(first: &str, second: &str) -> Self {
        Self::between(first, vec![address(first), address(second)], |_| {})
    }

    fn new(uri: &str, change: fn(&mut [u8; 48])) -> Self {
        Self::between(uri, vec![address(uri)], change)
    }

    /// Each connection leads to its server, those after them to the last.
    fn between(uri: &str, servers: Vec<SocketAddr>, change: fn(&mut [u8; 48])) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            let last = servers[servers.len() - 1];
            let servers = servers.into_iter().chain(std::iter::repeat(last));
            for (client, server) in listener.incoming().zip(servers) {
                carry(&shared, client.unwrap(), server, change);
            }
        });
        Self { uri: uri.replace(&address(uri).to_string(), &here), state }
    }

    /// Ends every connection, and every new one at once.
    pub(super) fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_cut = true;
        for stream in state.streams.drain(..) {
            // The other side may have ended it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn mend(&self) {
        self.state.lock().unwrap().is_cut = false;
    }
}

fn address(uri: &str) -> SocketAddr {
    uri.split('/').nth(2).unwrap().parse().unwrap()
}

fn carry(
    shared: &Arc<Mutex<State>>,
    client: TcpStream,
    server: SocketAddr,
    change: fn(&mut [u8; 48]),
) {
    let mut state = shared.lock().unwrap();
    if state.is_cut {
        return;
    }
    let server = TcpStream::connect(server).unwrap();
    let clone = |stream: &TcpStream| stream.try_clone().unwrap();
    state.streams.extend([clone(&client), clone(&server)]);
    let state = Arc::clone(shared);
    let (mut answers, mut to_client) = (clone(&server), clone(&client));
    thread::spawn(move || {
        let _ = std::io::copy(&mut answers, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        let _ = carry_pdus(&state, client, &server, change);
        let mut shared = state.lock().unwrap();
        shared.is_left = shared.is_parked;
        // What is on its way arrives.
        if shared.held.is_empty() {
            let _ = server.shutdown(Shutdown::Both);
        }
    });
}

/// PDUs without digests (RFC 7143, 11.2): a header, additional segments, and data filled up to words.
fn carry_pdus(
    state: &Mutex<State>,
    mut from: TcpStream,
    mut to: &TcpStream,
    change: fn(&mut [u8; 48]),
) -> std::io::Result<()> {
    loop {
        let mut header = [0; 48];
        from.read_exact(&mut header)?;
        let data = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut rest = vec![0; usize::from(header[4]) * 4 + data.next_multiple_of(4)];
        from.read_exact(&mut rest)?;
        change(&mut header);
        let pdu = [&header[..], &rest].concat();
        let mut state = state.lock().unwrap();
        let operation = header[0] & 0x3f;
        let is_reserve_out = operation == SCSI_COMMAND && header[32] == 0x5f;
        state.reserve_out += usize::from(is_reserve_out);
        if is_reserve_out && let Some(left) = &mut state.reserve_out_left {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => state.is_stopped = true,
            }
        }
        if state.is_stopped {
            continue;
        }
        if state.parks(operation, header[32]) {
            state.parked.push((to.try_clone()?, pdu));
            continue;
        }
        let has_data = data > 0 && matches!(operation, SCSI_COMMAND | DATA_OUT);
        if state.is_held && has_data && !is_reserve_out {
            state.held.push((to.try_clone()?, pdu));
        } else {
            to.write_all(&pdu)?;
        }
    }
}
