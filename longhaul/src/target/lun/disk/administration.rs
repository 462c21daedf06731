//! Requests to the server by way of a unit, from a client that may administer it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use proto::client::ClientId;
use proto::scsi::administration;

use super::super::Administrator;
use super::super::data;
use super::{Core, Disk};

/// What one session has asked the server for.
pub struct Administration {
    client: ClientId,
    administrator: Arc<dyn Administrator>,
    /// The answer to its last request.
    answer: Mutex<Bytes>,
}

impl Administration {
    /// Of a session of `client`, which may administer the server.
    pub fn new(client: ClientId, administrator: Arc<dyn Administrator>) -> Self {
        let nothing = administration::emit(&Err("nothing was asked for".to_owned()));
        Self { client, administrator, answer: Mutex::new(nothing.into()) }
    }

    /// Has a request carried out, whose answer is kept until the next.
    async fn carry_out(&self, request: &[u8]) {
        let answer = match std::str::from_utf8(request) {
            Ok(text) if !text.contains(char::is_control) => {
                self.administrator.carry_out(&self.client, text.to_owned()).await
            }
            _ => Err("the request is not a line of text".to_owned()),
        };
        let answer = administration::emit(&answer).into();
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    fn answer(&self) -> Bytes {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Disk {
    /// The same disk for an initiator that may administer the server.
    #[must_use]
    pub fn for_administrator(&self, administration: &Arc<Administration>) -> Self {
        let Core { volume, unit, generation, tape, disc, state, .. } = &*self.core;
        let core = Core {
            volume: Arc::clone(volume),
            unit: unit.for_administrator(),
            peers: OnceLock::new(),
            generation: *generation,
            tape: tape.clone(),
            disc: disc.clone(),
            administration: Some(Arc::clone(administration)),
            state: Arc::clone(state),
        };
        Self { core: Arc::new(core) }
    }
}

impl Core {
    pub(super) async fn carry_out(&self, request: Vec<Bytes>, length: u32) {
        if let Some(administration) = &self.administration {
            administration.carry_out(&data::joined(request, length as usize)).await;
        }
    }

    pub(super) fn answer_of_server(&self, allocation: u32) -> Vec<Bytes> {
        let answer = self.administration.as_ref().map(|administration| administration.answer());
        let answer = answer.unwrap_or_default();
        vec![answer.slice(..answer.len().min(allocation as usize))]
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use proto::identity::PublicKey;
    use proto::scsi::cdb::Parsed;
    use proto::scsi::command::Command as Request;
    use proto::scsi::sense::Additional;
    use proto::scsi::{DeviceType, Sense, Status};
    use volume::store::memory::Memory;

    use super::super::super::{Command, LogicalUnit as _, Response, Waiting};
    use super::super::Options;
    use super::super::tests::*;
    use super::*;

    /// It answers with what it was asked, and is silent if that is `wait`.
    struct Echo;

    impl Administrator for Echo {
        fn carry_out(&self, client: &ClientId, request: String) -> Waiting<Result<String, String>> {
            let client = client.clone();
            Box::pin(async move {
                match request.as_str() {
                    "wait" => std::future::pending().await,
                    "fail" => Err(request),
                    _ => Ok(format!("{client} {request}")),
                }
            })
        }
    }

    fn administered() -> Disk {
        let client = ClientId::Key(PublicKey::from_bytes([7; 32]));
        let administration = Arc::new(Administration::new(client, Arc::new(Echo)));
        disk(Memory::new(SIZE, BLOCK), Options::default()).for_administrator(&administration)
    }

    fn run(disk: &Disk, request: Request, data: &'static [u8]) -> Response {
        run_as(disk, ME, request.cdb, vec![Bytes::from_static(data)])
    }

    fn ask(disk: &Disk, request: &'static [u8]) -> administration::Received {
        let out = Request::management_out(request.len() as u32);
        assert_eq!(
            disk.data_out_len(&Parsed::of(&out.cdb, DeviceType::Disk)),
            request.len() as u32
        );
        assert_eq!(run(disk, out, request).status, Status::Good);
        administration::parse(&good(run(disk, Request::management_in(1024), b""))).unwrap()
    }

    #[test]
    fn administrator_is_answered_and_told_by_which_key_it_asked() {
        let disk = administered();
        let before = good(run(&disk, Request::management_in(1024), b""));
        assert!(!administration::parse(&before).unwrap().is_done, "nothing was asked for");
        let answer = ask(&disk, b"clients");
        let expected = format!("{} clients", PublicKey::from_bytes([7; 32]));
        assert!(answer.is_done && answer.text == expected.as_bytes());
        let cut = good(run(&disk, Request::management_in(12), b""));
        assert_eq!(administration::parse(&cut).unwrap().text, expected.as_bytes()[..4]);
        assert!(!ask(&disk, b"fail").is_done);
        for no_text in [&b"a\nb"[..], b"\xFF"] {
            let answer = ask(&disk, no_text);
            assert!(!answer.is_done && answer.text == b"the request is not a line of text");
        }
    }

    #[test]
    fn for_others_there_are_no_such_commands() {
        let disk = disk(Memory::new(SIZE, BLOCK), Options::default());
        let unknown = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
        let out = Request::management_out(7);
        assert_eq!(disk.data_out_len(&Parsed::of(&out.cdb, DeviceType::Disk)), 0);
        assert_eq!(sense(&run(&disk, out, b"clients")), unknown);
        assert_eq!(sense(&run(&disk, Request::management_in(8), b"")), unknown);
    }

    #[test]
    fn request_of_no_length_or_another_protocol_is_refused() {
        let disk = administered();
        for length in [0, administration::REQUEST_MAX + 1] {
            let out = Request::management_out(length);
            assert_eq!(sense(&run(&disk, out, b"")), Sense::invalid_cdb(6, None));
        }
        let mut other = Request::management_out(7);
        other.cdb[2] = 0;
        assert_eq!(sense(&run(&disk, other, b"clients")), Sense::invalid_cdb(2, None));
    }

    /// A request may end the session that it came by, and that waits for its commands.
    #[tokio::test]
    async fn request_that_is_aborted_is_not_waited_for() {
        let disk = administered();
        let parsed = Parsed::of(&Request::management_out(4).cdb, DeviceType::Disk);
        let data = vec![Bytes::from_static(b"wait")];
        let mut answer = disk.execute(ME, Command { parsed, data, announced: 4 });
        assert!((&mut answer).now_or_never().is_none());
        answer.abort();
        assert!(answer.now_or_never().is_some());
    }
}
