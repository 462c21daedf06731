use tokio::sync::mpsc;
use volume::store::hooked::{Hooked, go_on};
use volume::store::memory::Memory;
use volume::{Error as VolumeError, Verb};

use super::*;

const SIZE: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// A kernel: what is written has bytes of the number of its block.
struct Kernel {
    answers: mpsc::UnboundedSender<(u16, i32)>,
    read: Mutex<Vec<u8>>,
}

impl Device for Kernel {
    fn data(&self, request: &Request) -> io::Result<Vec<u8>> {
        Ok(vec![(request.at / BLOCK as u64) as u8; request.len as usize])
    }

    fn fill(&self, _: &Request, data: &[u8]) -> io::Result<()> {
        *self.read.lock().unwrap() = data.to_owned();
        Ok(())
    }

    fn answer(&self, tag: u16, result: i32) {
        let _ = self.answers.send((tag, result));
    }
}

struct Served {
    server: Server,
    kernel: Arc<Kernel>,
    answers: mpsc::UnboundedReceiver<(u16, i32)>,
}

impl Served {
    fn new(volume: Arc<dyn Volume>) -> Self {
        let (sender, answers) = mpsc::unbounded_channel();
        let kernel = Arc::new(Kernel { answers: sender, read: Mutex::default() });
        let volume = Arc::new(Recorded::new(volume, Record::default()));
        let device = Arc::clone(&kernel) as Arc<dyn Device>;
        let work = Arc::new(Work::new(device, volume, Handle::current()));
        let (path, queue) = (PathBuf::from("/run/none"), Mutex::new(None));
        let server = Server { path, number: 0, work, queue, failure: OnceLock::new() };
        Self { server, kernel, answers }
    }

    fn ask(&self, tag: u16, operation: Operation, block: u64) {
        let request = Request { tag, operation, at: block * BLOCK as u64, len: BLOCK as u64 };
        self.server.work.take(request);
    }

    async fn answer(&mut self) -> (u16, i32) {
        self.answers.recv().await.unwrap()
    }
}

const WRITE: Operation = Operation::Write { fua: false };
const MOVED: i32 = BLOCK as i32;

fn failed(why: Errno) -> i32 {
    -why.raw_os_error()
}

#[tokio::test]
async fn each_operation_reaches_the_volume_and_is_answered() {
    let mut served = Served::new(Arc::new(Memory::new(SIZE, 512)));
    served.ask(1, WRITE, 7);
    assert_eq!(served.answer().await, (1, MOVED));
    served.ask(2, Operation::Read, 7);
    assert_eq!(served.answer().await, (2, MOVED));
    assert_eq!(*served.kernel.read.lock().unwrap(), vec![7; BLOCK]);
    served.ask(3, Operation::WriteZeroes { fua: true, keeps_space: false }, 7);
    assert_eq!(served.answer().await, (3, 0));
    served.ask(4, Operation::Read, 7);
    assert_eq!(served.answer().await, (4, MOVED));
    assert_eq!(*served.kernel.read.lock().unwrap(), vec![0; BLOCK]);
    for (tag, operation) in [(5, Operation::Discard), (6, Operation::Flush)] {
        served.ask(tag, operation, 7);
        assert_eq!(served.answer().await, (tag, 0));
    }
    assert_eq!(served.server.clients().count(), 1);
}

#[tokio::test]
async fn fua_is_durable_and_failures_have_the_numbers_of_the_block_layer() {
    let volume = Hooked::new(Memory::new(SIZE, 512), |verb, span| match (verb, span.at) {
        (Verb::Write, 0) => {
            Box::pin(async move { Err(VolumeError::new(Kind::NoSpace, verb, span)) })
        }
        (Verb::Read, _) => Box::pin(async move { Err(VolumeError::new(Kind::Gone, verb, span)) }),
        _ => go_on(),
    });
    let mut served = Served::new(Arc::new(volume));
    served.ask(1, Operation::Write { fua: true }, 0);
    assert_eq!(served.answer().await, (1, failed(Errno::NOSPC)));
    served.ask(2, Operation::Read, 1);
    assert_eq!(served.answer().await, (2, failed(Errno::IO)));
    served.server.close().await;
    assert!(served.server.failure().unwrap().contains("no space left"));
}

#[tokio::test]
async fn hand_over_answers_what_runs_and_begins_nothing_more() {
    let mut served = Served::new(Arc::new(Memory::new(SIZE, 512)));
    served.ask(1, WRITE, 3);
    served.server.hand_over().await.unwrap();
    assert_eq!(served.answer().await, (1, MOVED));
    served.ask(2, WRITE, 4);
    assert!(served.answers.try_recv().is_err(), "it is for the next process");
    // That could not begin.
    served.server.serve_on();
    assert_eq!(served.answer().await, (2, MOVED));
}

#[tokio::test]
async fn server_goes_on_where_what_it_had_answered_cannot_be_flushed() {
    let failing = Hooked::new(Memory::new(SIZE, 512), |verb, span| match verb {
        Verb::Flush => Box::pin(async move { Err(VolumeError::new(Kind::Medium, verb, span)) }),
        _ => go_on(),
    });
    let mut served = Served::new(Arc::new(failing));
    let refused = served.server.hand_over().await.unwrap_err();
    assert!(matches!(refused, HandOverError::Flush(_)), "{refused}");
    served.ask(1, WRITE, 1);
    assert_eq!(served.answer().await, (1, MOVED));
}

#[tokio::test]
async fn request_after_the_end_fails_at_once() {
    let mut served = Served::new(Arc::new(Memory::new(SIZE, 512)));
    served.server.hand_over().await.unwrap();
    served.ask(1, WRITE, 1);
    served.server.close().await;
    assert_eq!(served.answer().await, (1, failed(Errno::IO)));
    served.ask(2, Operation::Flush, 0);
    assert_eq!(served.answer().await, (2, failed(Errno::IO)));
    assert_eq!(served.server.failure(), None);
}

#[tokio::test]
async fn end_of_the_device_is_seen_by_its_clients() {
    let served = Served::new(Arc::new(Memory::new(SIZE, 512)));
    let clients = served.server.clients();
    let gone = tokio::spawn(async move { clients.gone().await });
    tokio::task::yield_now().await;
    assert!(!gone.is_finished());
    Taking(Arc::clone(&served.server.work)).ended(Ok(()));
    gone.await.unwrap();
}

#[test]
fn device_is_like_its_volume() {
    let shape = Shape { read_only: true, ..Shape::in_memory(SIZE, 512) };
    let found = parameters(&shape, &[0; FRONT as usize]);
    assert_eq!((found.size, found.block_size, found.read_only), (SIZE, 4096, true));
    assert_eq!((found.discard, found.writes_zeroes), (Some(4096), true));
    let shape = Shape { discard: None, fast_zeroes: false, ..shape };
    let found = parameters(&shape, &[0; FRONT as usize]);
    assert_eq!((found.discard, found.writes_zeroes), (None, false));
}
