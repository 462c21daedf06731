//! An initiator made of bare PDUs, which behaves as a test wants it to.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use bytes::{Bytes, BytesMut};
use proto::iscsi::header::{
    AsyncEvent, DataIn, DataOut, Header, LoginRequest, LoginResponse, LogoutRequest, NO_TAG, NopIn,
    ScsiCommand,
};
use proto::iscsi::pdu::{Decoder, Frame, Outbox, Pdu};
use proto::iscsi::sealed::{Seals, Transcript};
use proto::scsi::sense::Additional;
use proto::scsi::{Sense, command, lun};

use crate::common::PATIENCE;

/// One connection.
pub(crate) struct Peer {
    stream: TcpStream,
    decoder: Decoder,
    /// What is sent goes through it: in a secure session it encrypts.
    outbox: Outbox,
    buffer: BytesMut,
    pub(crate) cmd_sn: u32,
}

impl Peer {
    /// A connection that has sent nothing yet.
    pub(crate) fn connect(portal: SocketAddr) -> Self {
        Self::on(TcpStream::connect(portal).unwrap())
    }

    /// The same, on a connection that is there.
    pub(crate) fn on(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut decoder = Decoder::new();
        decoder.set_data_max(1 << 24);
        Self { stream, decoder, outbox: Outbox::new(), buffer: BytesMut::new(), cmd_sn: 0 }
    }

    /// The same connection, to send on it by another thread.
    pub(crate) fn twin(&self) -> Self {
        let twin = Self::on(self.stream.try_clone().unwrap());
        Self { cmd_sn: self.cmd_sn, ..twin }
    }

    /// A session of initiator `name` with `target`. The last answer says whether it began.
    pub(crate) fn log_in(portal: SocketAddr, name: &str, isid: u8, target: &str) -> Self {
        let (peer, response) = Self::ask(portal, login(isid), text(name, target));
        assert_eq!((response.status_class, response.status_detail), (0, 0));
        peer
    }

    /// A connection that has asked to be let in, and what it was told.
    pub(crate) fn ask(
        portal: SocketAddr,
        request: LoginRequest,
        text: Bytes,
    ) -> (Self, LoginResponse) {
        let mut peer = Self::connect(portal);
        peer.send(request, text);
        let answer = peer.receive().expect("an answer to the login");
        let Header::LoginResponse(response) = answer.header else { panic!("{answer:?}") };
        (peer, response)
    }

    /// Sends one PDU, whole.
    pub(crate) fn send(&mut self, header: impl Into<Header>, data: impl Into<Bytes>) {
        self.try_send(header, data).unwrap();
    }

    /// The same, on a connection that may have ended.
    pub(crate) fn try_send(
        &mut self,
        header: impl Into<Header>,
        data: impl Into<Bytes>,
    ) -> std::io::Result<()> {
        self.outbox.push_pdu(Pdu::with_data(header, data.into()));
        self.stream.write_all(&drain(&mut self.outbox))
    }

    /// All that has come so far, for a login that is checked as a whole.
    #[allow(dead_code, reason = "not every test logs in with a key")]
    pub(crate) fn transcript(&self) -> Transcript {
        self.decoder.transcript()
    }

    /// Whatever is sent and comes from here on is encrypted.
    #[allow(dead_code, reason = "not every test logs in with a key")]
    pub(crate) fn secure(&mut self, seals: Seals) {
        self.decoder.set_opener(seals.opener);
        self.outbox.set_sealer(seals.sealer);
    }

    /// Sends bytes as they are; whether the other end took them.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// The next PDU; `None` when the connection has ended. Pings are passed over: what is sent next answers
    /// them.
    pub(crate) fn receive(&mut self) -> Option<Pdu> {
        loop {
            let pdu = self.receive_any()?;
            if !matches!(pdu.header, Header::NopIn(NopIn { itt: NO_TAG, .. })) {
                return Some(pdu);
            }
        }
    }

    /// The next PDU, also if it is a ping.
    pub(crate) fn receive_any(&mut self) -> Option<Pdu> {
        loop {
            match self.decoder.decode(&mut self.buffer).unwrap() {
                Some(Frame::Pdu(pdu)) => return Some(pdu),
                Some(flawed) => panic!("{flawed:?}"),
                None => {
                    let mut chunk = [0; 65536];
                    match self.stream.read(&mut chunk) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            panic!("nothing comes, nor an end");
                        }
                        Ok(0) | Err(_) => return None,
                        Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
                    }
                }
            }
        }
    }

    /// Whether the connection ends without another byte.
    pub(crate) fn is_over(&mut self) -> bool {
        self.receive_any().is_none() && self.buffer.is_empty()
    }

    /// Waits until something has come, and leaves it where it is.
    #[allow(dead_code, reason = "not every test holds back")]
    pub(crate) fn peek(&self) {
        assert_eq!(self.stream.peek(&mut [0]).unwrap(), 1);
    }

    /// The next command block, as a command of this session.
    pub(crate) fn command(&mut self, itt: u32, cdb: [u8; 16]) -> ScsiCommand {
        let cmd_sn = self.cmd_sn;
        self.cmd_sn += 1;
        ScsiCommand { is_final: true, itt, cmd_sn, cdb, ..ScsiCommand::default() }
    }

    /// What unit `lun` says of itself when it is asked whether it is ready; nothing if it is.
    pub(crate) fn says(&mut self, lun: u16) -> Option<Additional> {
        let (_, sense) = self.run_on(lun, &[0; 6], Bytes::new(), 0).expect("an answer");
        Sense::parse(&sense).map(|sense| sense.additional)
    }

    /// The numbers that REPORT LUNS lists, asked of unit 0.
    pub(crate) fn luns(&mut self) -> Vec<u16> {
        let asked = command::Command::report_luns(64);
        let (status, list) = self.run(asked.cdb, Bytes::new(), 520).expect("an answer");
        assert_eq!(status, 0);
        command::luns(&list).unwrap()
    }

    /// Reads `blocks` of 512 bytes, over as many PDUs as it takes; `None` unless the status is good.
    pub(crate) fn read(&mut self, itt: u32, lba: u32, blocks: u32) -> Option<Vec<u8>> {
        let command = self.command(itt, read_16(lba, blocks));
        self.send(ScsiCommand { read: true, expected_len: blocks * 512, ..command }, Bytes::new());
        let mut bytes = Vec::new();
        loop {
            let Pdu { header, data, .. } = self.receive()?;
            match header {
                Header::DataIn(DataIn { itt: tag, has_status, status, .. }) if tag == itt => {
                    bytes.extend_from_slice(&data);
                    if has_status {
                        return (status == 0).then_some(bytes);
                    }
                }
                Header::ScsiResponse(response) if response.itt == itt => {
                    return (response.status == 0).then_some(bytes);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Writes whole blocks that fit into immediate data; whether the status is good.
    pub(crate) fn write(&mut self, itt: u32, lba: u32, data: Vec<u8>, fua: bool) -> Option<bool> {
        let blocks = data.len() as u32 / 512;
        let mut command = self.command(itt, write_16(lba, blocks));
        command.cdb[1] = u8::from(fua) << 3;
        command.write = true;
        command.expected_len = data.len() as u32;
        self.try_send(command, data).ok()?;
        self.status(itt)
    }

    /// Writes whole blocks, of which nothing is sent before it is asked for; whether the status is good.
    #[allow(dead_code, reason = "not every test writes much")]
    pub(crate) fn write_solicited(&mut self, itt: u32, lba: u32, data: &[u8]) -> Option<bool> {
        let command = self.command(itt, write_16(lba, data.len() as u32 / 512));
        let expected_len = data.len() as u32;
        self.send(ScsiCommand { write: true, expected_len, ..command }, Bytes::new());
        loop {
            let Header::R2t(r2t) = self.receive()?.header else { panic!("nothing is asked for") };
            let (at, len) = (r2t.buffer_offset as usize, r2t.desired_len as usize);
            let mut parts = data[at..at + len].chunks(64 << 10).zip(0..).peekable();
            while let Some((part, data_sn)) = parts.next() {
                let buffer_offset = r2t.buffer_offset + data_sn * (64 << 10);
                let is_final = parts.peek().is_none();
                let ttt = r2t.ttt;
                let header =
                    DataOut { is_final, itt, ttt, data_sn, buffer_offset, ..DataOut::default() };
                self.send(header, part.to_vec());
            }
            if at + len == data.len() {
                return self.status(itt);
            }
        }
    }

    /// Is asked to log out (RFC 7143, 11.9.1), does so, and sees the end of the connection.
    pub(crate) fn leave(mut self) {
        let asked = self.receive().map(|pdu| pdu.header);
        assert!(
            matches!(&asked, Some(Header::AsyncMessage(message)) if message.event == AsyncEvent::LOGOUT_REQUEST),
            "{asked:?}"
        );
        self.log_out();
        assert!(self.is_over());
    }

    /// Closes the session (RFC 7143, 11.14).
    pub(crate) fn log_out(&mut self) {
        self.send(
            LogoutRequest { itt: self.cmd_sn, cmd_sn: self.cmd_sn, ..LogoutRequest::default() },
            Bytes::new(),
        );
        let answer = self.receive().map(|pdu| pdu.header);
        assert!(matches!(answer, Some(Header::LogoutResponse(_))), "{answer:?}");
    }

    /// The status of a command without data; whether it is good. `None` when the connection has ended.
    pub(crate) fn status(&mut self, itt: u32) -> Option<bool> {
        match self.receive()?.header {
            Header::ScsiResponse(response) if response.itt == itt => Some(response.status == 0),
            Header::AsyncMessage(_) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Runs a command of unit 0 to its end, with data-out that fit into immediate data or room for data-in: its
    /// status, and what came or its sense data. `None` when the connection has ended.
    #[allow(dead_code, reason = "not every test runs other commands")]
    pub(crate) fn run(
        &mut self,
        cdb: [u8; 16],
        data: impl Into<Bytes>,
        room: u32,
    ) -> Option<(u8, Vec<u8>)> {
        self.run_on(0, &cdb, data, room)
    }

    /// The same, of unit `lun`.
    #[allow(dead_code, reason = "not every test runs other commands")]
    pub(crate) fn run_on(
        &mut self,
        lun: u16,
        cdb: &[u8],
        data: impl Into<Bytes>,
        room: u32,
    ) -> Option<(u8, Vec<u8>)> {
        let mut block = [0; 16];
        block[..cdb.len()].copy_from_slice(cdb);
        let (itt, data) = (self.cmd_sn, data.into());
        let lun = u64::from_be_bytes(lun::encode(lun));
        let expected_len = room + data.len() as u32;
        let (read, write) = (room > 0, !data.is_empty());
        let command = ScsiCommand { lun, read, write, expected_len, ..self.command(itt, block) };
        self.try_send(command, data).ok()?;
        let mut came = Vec::new();
        loop {
            let Pdu { header, data, .. } = self.receive()?;
            match header {
                Header::DataIn(header) if header.itt == itt => {
                    came.extend_from_slice(&data);
                    if header.has_status {
                        return Some((header.status, came));
                    }
                }
                Header::ScsiResponse(response) if response.itt == itt => {
                    // Sense data follow their length.
                    came.extend_from_slice(data.get(2..).unwrap_or_default());
                    return Some((response.status, came));
                }
                Header::AsyncMessage(_) => return None,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Takes the unit attentions that a new session is told.
    pub(crate) fn settle(&mut self) {
        while self.read(0xFFFF, 0, 1).is_none() {}
    }
}

/// A login request for the full-feature phase in one step.
pub(crate) fn login(isid: u8) -> LoginRequest {
    LoginRequest {
        transit: true,
        current_stage: 1,
        next_stage: 3,
        isid: [0x80, 0, 0, 0, 0, isid],
        itt: 1,
        ..LoginRequest::default()
    }
}

/// What such a request says.
pub(crate) fn text(name: &str, target: &str) -> Bytes {
    format!(
        "InitiatorName={name}\0TargetName={target}\0SessionType=Normal\0\
         InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=262144\0MaxRecvDataSegmentLength=262144\0"
    )
    .into()
}

/// READ(16).
pub(crate) fn read_16(lba: u32, blocks: u32) -> [u8; 16] {
    transfer(0x88, lba, blocks)
}

/// WRITE(16).
pub(crate) fn write_16(lba: u32, blocks: u32) -> [u8; 16] {
    transfer(0x8a, lba, blocks)
}

fn transfer(opcode: u8, lba: u32, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[6..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// One PDU as it is on the wire, without digests.
pub(crate) fn frame(header: impl Into<Header>, data: impl Into<Bytes>) -> Vec<u8> {
    let mut outbox = Outbox::new();
    outbox.push_pdu(Pdu::with_data(header, data.into()));
    drain(&mut outbox)
}

fn drain(outbox: &mut Outbox) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(outbox.len());
    while !outbox.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[])];
        outbox.slices(&mut slices);
        bytes.extend_from_slice(&slices[0]);
        let sent = slices[0].len();
        outbox.advance(sent);
    }
    bytes
}

/// An initiator task tag that means none.
pub(crate) const NO_ITT: u32 = NO_TAG;
