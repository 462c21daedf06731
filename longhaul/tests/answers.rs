//! What the answers of a unit tell of earlier commands, and what becomes of it at our initiator.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use longhaul::front::iscsi::{Limits, Node, Offering, Server};
use longhaul::stop::Stopper;
use longhaul::store::iscsi::{
    ConnectOptions, Connections, Disk, IscsiTarget, Loss, State, connect,
};
use longhaul::target::lun::{Command, Nexus, Options, TargetDevice};
use longhaul::uri::Host;
use proto::iscsi::header::{
    BHS_LEN, Header, NopOut, TaskFunction, TaskManagementRequest, TaskResponse,
};
use proto::iscsi::initiator::Timeouts;
use proto::iscsi::keys::Offer;
use proto::iscsi::login::policy::Policy;
use proto::iscsi::name::IscsiName;
use proto::scsi::DeviceType;
use proto::scsi::Status;
use proto::scsi::cdb::Parsed;
use proto::scsi::ports::AccessState;
use proto::scsi::sense::Key;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use volume::store::blocked_writes::BlockedWrites;
use volume::store::faulty::Faulty;
use volume::store::memory::Memory;
use volume::{Durability, Space, Span, Volume};

#[expect(dead_code, reason = "each test uses its part")]
mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;
#[path = "common/relay.rs"]
mod relay;

use peer::Peer;
use relay::{CDB, UNKNOWN, is_command, is_unknown_operation, pass};

const NAME: &str = "iqn.2026-11.dev.longhaul:disk";
const SIZE: u64 = 4 << 20;

/// A target that runs as long as this lives.
struct RunningTarget {
    portal: SocketAddr,
    device: Arc<TargetDevice>,
    node: Arc<Node>,
    _stopper: Stopper,
}

async fn serve(volume: Arc<dyn Volume>) -> RunningTarget {
    let device = Arc::new(TargetDevice::new(NAME, [(0, volume, Options::default())]));
    let offer = Offer { max_connections: 2, ..Offer::for_long_links() };
    let node = Arc::new(Node::new([Arc::clone(&device)], Policy::open).with_offer(offer));
    let portals = [SocketAddr::from(([127, 0, 0, 1], 0))];
    let server = Server::bind(&portals, Arc::clone(&node)).await.unwrap();
    let portal = server.portals()[0];
    let (stopper, stop) = Stopper::new();
    tokio::spawn(server.run(stop));
    RunningTarget { portal, device, node, _stopper: stopper }
}

impl RunningTarget {
    /// Another initiator switches the cache: MODE SELECT (6) of the caching page.
    async fn switch_cache(&self, on: bool) {
        let mut page = [0_u8; 20];
        (page[0], page[1], page[2]) = (0x08, 18, if on { 0x04 } else { 0 });
        let list = [&[0; 4][..], &page].concat();
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[4]) = (0x15, 0x10, 24);
        let parsed = Parsed::of(&cdb, DeviceType::Disk);
        let select = Command { parsed, data: vec![list.into()], announced: 24 };
        let done = self.device.unit([0; 8]).execute(Nexus(u64::MAX), select).await;
        assert_eq!(done.status, Status::Good, "{:02x?}", done.sense);
    }

    /// A reload gives the only portal group another state.
    async fn set_access(&self, access: AccessState) {
        let policy = Policy::open(vec![IscsiName::new(NAME).unwrap()]);
        let devices = vec![Arc::clone(&self.device)];
        let access = BTreeMap::from([(1, access)]).into();
        let offering = Offering { devices, policy, limits: Limits::default(), access };
        let (leaving, done) = self.node.replace(offering);
        assert_eq!(leaving, 0);
        done.await;
    }
}

async fn open(address: SocketAddr) -> Arc<Disk> {
    open_by(address, 1).await
}

async fn open_by(address: SocketAddr, connections: u16) -> Arc<Disk> {
    open_with(address, connections, Timeouts::default()).await
}

/// Asks the unit often how it is, and soon gives up what stalls.
async fn open_impatient(address: SocketAddr) -> Arc<Disk> {
    let (idle, stall) = (Duration::from_millis(50), Duration::from_millis(600));
    open_with(address, 1, Timeouts { idle, stall, ..Timeouts::default() }).await
}

async fn open_with(address: SocketAddr, connections: u16, timeouts: Timeouts) -> Arc<Disk> {
    let portal = Host { name: address.ip().to_string(), port: address.port() };
    let target = IscsiTarget { portal, name: IscsiName::new(NAME).unwrap(), lun: 0 };
    let name = IscsiName::new("iqn.2026-11.dev.longhaul:client").unwrap();
    let options = ConnectOptions {
        reconnect_for: None,
        reconnect_every: Duration::from_millis(20),
        connections: Connections::Fixed(connections),
        timeouts,
        ..ConnectOptions::new(name)
    };
    Arc::new(connect(&target, &options).await.expect("a session"))
}

/// No deferred error is to come.
const NONE: u8 = 0xFF;

/// A way to a target on which the next WRITE (16) is not carried out, and is answered with a deferred error of the
/// sense key that `deferred` holds then.
async fn way_with_deferred_errors(to: SocketAddr, deferred: Arc<AtomicU8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let way = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(to).await.unwrap();
            tokio::spawn(relay(near, far, Arc::clone(&deferred)));
        }
    });
    way
}

async fn relay(near: TcpStream, far: TcpStream, deferred: Arc<AtomicU8>) {
    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
    let told = AtomicU8::new(NONE);
    let up = pass(from_near, to_far, |pdu| {
        if is_command(pdu) && pdu[CDB] == 0x8A {
            let key = deferred.swap(NONE, Ordering::SeqCst);
            if key != NONE {
                told.store(key, Ordering::SeqCst);
                pdu[CDB] = UNKNOWN;
            }
        }
    });
    let down = pass(from_far, to_near, |pdu| {
        if is_unknown_operation(pdu) {
            let key = told.swap(NONE, Ordering::SeqCst);
            let sense = &mut pdu[BHS_LEN + 2..];
            if key != NONE {
                (sense[0], sense[2], sense[12]) = (0x71, key, 0x0C);
            }
        }
    });
    tokio::select! { () = up => {}, () = down => {} }
}

/// SPC-4, 4.5.7: the command that is told of it was not processed, and an earlier one has failed after GOOD, unless
/// the sense key says that it was carried out.
#[tokio::test]
async fn deferred_error_fails_flushes_and_the_command_runs_again() {
    for (key, lost) in [
        (Key::MediumError, true),
        (Key::AbortedCommand, true),
        (Key::UnitAttention, true),
        (Key::RecoveredError, false),
        (Key::NoSense, false),
    ] {
        let running = serve(Arc::new(Memory::new(SIZE, 512))).await;
        let deferred = Arc::new(AtomicU8::new(NONE));
        let disk =
            open(way_with_deferred_errors(running.portal, Arc::clone(&deferred)).await).await;
        deferred.store(key as u8, Ordering::SeqCst);
        let data = Bytes::from(vec![7; 4096]);
        disk.write(0, data.clone(), Durability::Volatile).await.unwrap();
        assert_eq!(deferred.load(Ordering::SeqCst), NONE, "it came to the unit");
        assert!(disk.read(Span::new(0, 4096)).await.unwrap() == data, "{key:?}: it was written");
        let flushed = disk.flush().await;
        assert_eq!(flushed.is_err(), lost, "{key:?}: {flushed:?}");
        let durable = disk.write(0, data, Durability::Durable).await;
        assert_eq!(durable.is_err(), lost, "{key:?}: {durable:?}");
    }
}

/// A way to a target on which what comes back by the first connection waits while it is shut.
struct DelayedConnection {
    address: SocketAddr,
    shut: watch::Sender<bool>,
    /// Answers that wait.
    late: Arc<AtomicUsize>,
    /// Commands that went by the second connection.
    by_second: Arc<AtomicUsize>,
}

impl DelayedConnection {
    async fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shut, is_shut) = watch::channel(false);
        let (late, by_second) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let link = Self { address, shut, late, by_second };
        let (late, by_second) = (Arc::clone(&link.late), Arc::clone(&link.by_second));
        tokio::spawn(async move {
            for number in 1.. {
                let (near, _) = listener.accept().await.unwrap();
                let far = TcpStream::connect(to).await.unwrap();
                let ((from_near, to_near), (from_far, to_far)) =
                    (near.into_split(), far.into_split());
                let by_second = Arc::clone(&by_second);
                tokio::spawn(pass(from_near, to_far, move |pdu| {
                    let counts = number == 2 && is_command(pdu);
                    by_second.fetch_add(usize::from(counts), Ordering::SeqCst);
                }));
                match number {
                    1 => tokio::spawn(delay(from_far, to_near, is_shut.clone(), Arc::clone(&late))),
                    _ => tokio::spawn(pass(from_far, to_near, |_| {})),
                };
            }
        });
        link
    }
}

async fn delay(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut is_shut: watch::Receiver<bool>,
    late: Arc<AtomicUsize>,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(got @ 1..) = from.read(&mut bytes).await {
        if *is_shut.borrow() {
            late.fetch_add(1, Ordering::SeqCst);
        }
        let _ = is_shut.wait_for(|shut| !shut).await;
        if to.write_all(&bytes[..got]).await.is_err() {
            return;
        }
    }
}

/// Only one command is told of a reset (SAM-5, 5.14), and its answer may come last: those of other connections
/// overtake it. What they say of a unit that has lost its cache must not be believed before.
#[tokio::test]
async fn answers_that_overtake_that_of_a_reset_are_not_believed() {
    let store = Arc::new(Faulty::new(SIZE, 512));
    let running = serve(Arc::clone(&store) as Arc<dyn Volume>).await;
    let link = DelayedConnection::new(running.portal).await;
    let disk = open_by(link.address, 2).await;
    let read = |at: u64, len: u64| {
        let disk = Arc::clone(&disk);
        tokio::spawn(async move { disk.read(Span::new(at, len)).await.unwrap() })
    };
    while link.by_second.load(Ordering::SeqCst) == 0 {
        let (_, _) = tokio::join!(read(1 << 20, 4096), read(1 << 20, 4096));
    }
    let data = Bytes::from(vec![7; 4096]);
    disk.write(0, data.clone(), Durability::Volatile).await.unwrap();
    store.lose_cache();
    running.device.unit([0; 8]).reset();
    link.shut.send_replace(true);
    // It goes by the first connection, like any that finds both idle, and is told of the reset. All others go by the
    // second, since they are shorter.
    let told = read(1 << 20, 1 << 20);
    while link.late.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let flush = tokio::spawn({
        let disk = Arc::clone(&disk);
        async move { disk.flush().await }
    });
    while store.flushes() == 0 {
        tokio::task::yield_now().await;
    }
    let stale = read(0, 4096);
    // The answers to both have come by the second connection when that to a later command has.
    read(2 << 20, 4096).await.unwrap();
    link.shut.send_replace(false);
    flush.await.unwrap().unwrap();
    assert!(store.durable(Span::new(0, 4096)) == data, "written, flushed, and gone");
    assert!(stale.await.unwrap() == data, "an older block was read");
    told.await.unwrap();
}

/// Nobody flushes a volume that has no cache, as it was said when it was attached.
#[tokio::test]
async fn cache_that_is_switched_on_while_attached_keeps_nothing_back() {
    for reset in [false, true] {
        let store = Arc::new(Faulty::new(SIZE, 512));
        let running = serve(Arc::clone(&store) as Arc<dyn Volume>).await;
        running.switch_cache(false).await;
        let disk = open(running.portal).await;
        assert!(!disk.shape().write_cache);
        // The unit's default is to have one.
        match reset {
            true => running.device.unit([0; 8]).reset(),
            false => running.switch_cache(true).await,
        }
        let data = Bytes::from(vec![7; 4096]);
        disk.write(0, data.clone(), Durability::Volatile).await.unwrap();
        assert!(
            store.durable(Span::new(0, 4096)) == data,
            "it was answered, and nobody will flush"
        );
        disk.write_zeroes(Span::new(0, 4096), Durability::Volatile, Space::Keep).await.unwrap();
        assert!(store.durable(Span::new(0, 4096)) == [0; 4096]);
        let before = store.flushes();
        disk.flush().await.unwrap();
        assert!(store.flushes() > before, "a flush is one");
        assert_eq!(disk.state(), State::Connected);
    }
}

/// A path that is taken out of use for a while is an outage (SPC-4, 5.16.2.4.4).
#[tokio::test]
async fn path_in_standby_is_waited_for() {
    let store = Arc::new(Faulty::new(SIZE, 512));
    let running = serve(Arc::clone(&store) as Arc<dyn Volume>).await;
    let disk = open(running.portal).await;
    for access in [AccessState::Standby, AccessState::Unavailable] {
        running.set_access(access).await;
        let write = tokio::spawn({
            let disk = Arc::clone(&disk);
            let data = Bytes::from(vec![7; 4096]);
            async move { disk.write(0, data, Durability::Volatile).await }
        });
        while !matches!(disk.state(), State::Reconnecting { attempts: 2.., .. }) {
            assert!(!write.is_finished(), "{access:?}: {:?}", write.await);
            tokio::task::yield_now().await;
        }
        running.set_access(AccessState::Optimized).await;
        write.await.unwrap().unwrap();
        disk.flush().await.unwrap();
        assert!(store.durable(Span::new(0, 4096)) == [7; 4096]);
    }
}

/// What a command is answered with in place of what its target says.
#[derive(Clone, Copy, Debug)]
enum Reply {
    Status(Status),
    /// CHECK CONDITION with this sense key, additional sense code and qualifier.
    Sense(Key, u8, u8),
}

/// A way to targets on which WRITE (16) commands are not carried out, and are answered by what the script holds.
struct Scripted {
    address: SocketAddr,
    script: Arc<Mutex<VecDeque<Reply>>>,
    /// Connections so far.
    connections: Arc<AtomicUsize>,
    /// No command reaches the target by the connections that there are, and later by none.
    mute: Arc<AtomicBool>,
    mute_later: Arc<AtomicBool>,
    /// No WRITE (16) reaches the target by any, and how many have not.
    swallows_writes: Arc<AtomicBool>,
    swallowed: Arc<AtomicUsize>,
}

impl Scripted {
    /// The first connection goes to the first target, all others to the last.
    async fn new(to: [SocketAddr; 2]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let way = Self {
            address,
            script: Arc::default(),
            connections: Arc::default(),
            mute: Arc::default(),
            mute_later: Arc::default(),
            swallows_writes: Arc::default(),
            swallowed: Arc::default(),
        };
        let (script, connections) = (Arc::clone(&way.script), Arc::clone(&way.connections));
        let (mute, mute_later) = (Arc::clone(&way.mute), Arc::clone(&way.mute_later));
        let writes = (Arc::clone(&way.swallows_writes), Arc::clone(&way.swallowed));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let number = connections.fetch_add(1, Ordering::SeqCst);
                let far = TcpStream::connect(to[number.min(1)]).await.unwrap();
                let muted = if number == 0 { &mute } else { &mute_later };
                let muted = (Arc::clone(muted), writes.clone());
                tokio::spawn(follow(near, far, Arc::clone(&script), muted));
            }
        });
        way
    }

    fn tell(&self, told: impl IntoIterator<Item = Reply>) {
        self.script.lock().unwrap().extend(told);
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn follow(
    near: TcpStream,
    far: TcpStream,
    script: Arc<Mutex<VecDeque<Reply>>>,
    (mute, (swallows_writes, swallowed)): (Arc<AtomicBool>, (Arc<AtomicBool>, Arc<AtomicUsize>)),
) {
    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
    let due = Mutex::new(VecDeque::new());
    let up = pass(from_near, to_far, |pdu| {
        if is_command(pdu) && mute.load(Ordering::SeqCst) {
            pdu.clear();
        } else if is_command(pdu) && pdu[CDB] == 0x8A && swallows_writes.load(Ordering::SeqCst) {
            pdu.clear();
            swallowed.fetch_add(1, Ordering::SeqCst);
        } else if is_command(pdu)
            && pdu[CDB] == 0x8A
            && let Some(told) = script.lock().unwrap().pop_front()
        {
            due.lock().unwrap().push_back(told);
            pdu[CDB] = UNKNOWN;
        }
    });
    let down = pass(from_far, to_near, |pdu| {
        if is_unknown_operation(pdu)
            && let Some(told) = due.lock().unwrap().pop_front()
        {
            match told {
                Reply::Status(status) => pdu[3] = status as u8,
                Reply::Sense(key, code, qualifier) => {
                    let sense = &mut pdu[BHS_LEN + 2..];
                    (sense[2], sense[12], sense[13]) = (key as u8, code, qualifier);
                }
            }
        }
    });
    tokio::select! { () = up => {}, () = down => {} }
}

/// What passes is an outage, however long it lasts: nothing fails, also behind a cache.
#[tokio::test]
async fn command_that_a_unit_cannot_run_now_is_run_later() {
    let store = Arc::new(Faulty::new(SIZE, 512));
    let running = serve(Arc::clone(&store) as Arc<dyn Volume>).await;
    let way = Scripted::new([running.portal; 2]).await;
    let disk = open(way.address).await;
    let data = Bytes::from(vec![7; 4096]);
    let busy = [Status::Busy, Status::TaskSetFull, Status::TaskAborted].map(Reply::Status);
    for told in [
        vec![Reply::Sense(Key::IllegalRequest, 0x25, 0); 3],
        vec![Reply::Sense(Key::NotReady, 0x08, 0); 3],
        vec![Reply::Sense(Key::UnitAttention, 0x2A, 0x09); 17],
        busy.into_iter().cycle().take(17).collect(),
    ] {
        let (before, first) = (way.connections(), told[0]);
        way.tell(told);
        disk.write(0, data.clone(), Durability::Volatile).await.unwrap();
        assert!(way.connections() > before, "{first:?}: there was an outage");
        disk.flush().await.unwrap();
        assert!(store.durable(Span::new(0, 4096)) == data, "{first:?}");
        store.lose_cache();
        disk.write(0, Bytes::from(vec![0; 4096]), Durability::Durable).await.unwrap();
    }
    assert_eq!(disk.state(), State::Connected);
}

/// Commands that were cleared may never be answered, and another volume may be there: that is looked at first.
#[tokio::test]
async fn unit_attention_that_may_concern_what_is_under_way_makes_the_connection_anew() {
    let running = serve(Arc::new(Memory::new(SIZE, 512))).await;
    let way = Scripted::new([running.portal; 2]).await;
    let disk = open(way.address).await;
    for (code, qualifier) in [(0x29, 7), (0x2F, 0), (0x2F, 2), (0x28, 0), (0x3F, 3), (0x3F, 0x0E)] {
        let before = way.connections();
        way.tell([Reply::Sense(Key::UnitAttention, code, qualifier)]);
        disk.write(0, vec![7; 4096].into(), Durability::Volatile).await.unwrap();
        assert_eq!(way.connections(), before + 1, "{code:02x}/{qualifier:02x}");
    }
}

#[tokio::test]
async fn unit_that_was_exchanged_in_a_session_is_not_written_to() {
    let running = serve(Arc::new(Memory::new(SIZE, 512))).await;
    let smaller = Arc::new(Faulty::new(SIZE / 2, 512));
    let other = serve(Arc::clone(&smaller) as Arc<dyn Volume>).await;
    let way = Scripted::new([running.portal, other.portal]).await;
    let disk = open(way.address).await;
    disk.write(4096, vec![7; 4096].into(), Durability::Volatile).await.unwrap();
    way.tell([Reply::Sense(Key::UnitAttention, 0x3F, 0x0E)]);
    let write = tokio::spawn({
        let disk = Arc::clone(&disk);
        async move { disk.write(0, vec![7; 4096].into(), Durability::Volatile).await }
    });
    while !matches!(disk.state(), State::Reconnecting { attempts: 2.., .. }) {
        assert!(!write.is_finished(), "{:?}", write.await);
        tokio::task::yield_now().await;
    }
    let why = disk.reason().unwrap();
    assert!(why.contains("it is not the volume that was connected before"), "{why}");
    assert!(*smaller.read(Span::new(0, 8192)).await.unwrap() == [0; 8192], "it was written to");
    disk.leave(Duration::ZERO);
    write.await.unwrap().unwrap_err();
}

/// CLEAR TASK SET of another initiator: what it ends is never answered (SAM-5, 5.3.1: TAS is zero).
#[tokio::test(flavor = "multi_thread")]
async fn write_that_another_initiator_has_cleared_is_carried_out() {
    let held = Arc::new(BlockedWrites::new(Memory::new(SIZE, 512)));
    let running = serve(Arc::clone(&held) as Arc<dyn Volume>).await;
    let timeouts = Timeouts { idle: Duration::from_millis(50), ..Timeouts::default() };
    let disk = open_with(running.portal, 1, timeouts).await;
    let data = Bytes::from(vec![7; 4096]);
    let write = tokio::spawn({
        let (disk, data) = (Arc::clone(&disk), data.clone());
        async move { disk.write(0, data, Durability::Volatile).await }
    });
    while held.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let portal = running.portal;
    let (taken, is_taken) = oneshot::channel();
    let cleared = tokio::task::spawn_blocking(move || clear_task_set(portal, taken));
    is_taken.await.unwrap();
    // The target answers that when what was under way has ended.
    held.let_through(1 << 20);
    assert_eq!(cleared.await.unwrap(), TaskResponse::COMPLETE);
    write.await.unwrap().unwrap();
    assert!(disk.read(Span::new(0, 4096)).await.unwrap() == data);
    disk.flush().await.unwrap();
}

/// Says when the target has taken the request, then how it was answered.
fn clear_task_set(portal: SocketAddr, taken: oneshot::Sender<()>) -> TaskResponse {
    let mut peer = Peer::log_in(portal, "iqn.2001-04.com.example:other", 3, NAME);
    let request = TaskManagementRequest {
        immediate: true,
        function: TaskFunction::CLEAR_TASK_SET,
        itt: 0x77,
        referenced_tag: u32::MAX,
        cmd_sn: peer.cmd_sn,
        ..TaskManagementRequest::default()
    };
    peer.send(request, Bytes::new());
    let (cmd_sn, ttt) = (peer.cmd_sn, u32::MAX);
    let ping = NopOut { immediate: true, itt: 0x78, ttt, cmd_sn, ..NopOut::default() };
    peer.send(ping, Bytes::new());
    let mut taken = Some(taken);
    loop {
        match peer.receive().unwrap().header {
            Header::NopIn(_) => drop(taken.take().map(|taken| taken.send(()))),
            Header::TaskManagementResponse(response) => return response.response,
            _ => {}
        }
    }
}

/// A target may lose a command, and a unit may hang while its target answers pings.
#[tokio::test]
async fn command_that_gets_no_answer_runs_again_on_the_next_link() {
    let running = serve(Arc::new(Memory::new(SIZE, 512))).await;
    let way = Scripted::new([running.portal; 2]).await;
    let disk = open_impatient(way.address).await;
    way.mute.store(true, Ordering::SeqCst);
    disk.write(0, vec![7; 4096].into(), Durability::Volatile).await.unwrap();
    assert!(disk.reason().unwrap().contains("have had no answer"), "{:?}", disk.reason());
    disk.flush().await.unwrap();
}

/// No connection is lost, and none helps.
#[tokio::test]
async fn leaving_a_silent_unit_has_an_end() {
    let running = serve(Arc::new(Memory::new(SIZE, 512))).await;
    let way = Scripted::new([running.portal; 2]).await;
    let disk = open_impatient(way.address).await;
    disk.write(0, vec![7; 4096].into(), Durability::Volatile).await.unwrap();
    way.mute.store(true, Ordering::SeqCst);
    way.mute_later.store(true, Ordering::SeqCst);
    disk.leave(Duration::from_millis(100));
    disk.flush().await.unwrap_err();
    assert!(disk.is_over());
}

/// Its commands took long before, so that each has long to be answered: not while somebody waits for the end.
#[tokio::test]
async fn leaving_a_unit_that_was_slow_takes_no_longer_than_leaving_others() {
    let running = serve(Arc::new(Memory::new(SIZE, 512))).await;
    let way = Scripted::new([running.portal; 2]).await;
    let (idle, stall) = (Duration::from_millis(50), Duration::from_millis(600));
    let slow = Timeouts { idle, stall, stall_times: 10_000, ..Timeouts::default() };
    let disk = open_with(way.address, 1, slow).await;
    disk.write(0, vec![7; 4096].into(), Durability::Volatile).await.unwrap();
    way.mute.store(true, Ordering::SeqCst);
    way.mute_later.store(true, Ordering::SeqCst);
    let flush = tokio::spawn({
        let disk = Arc::clone(&disk);
        async move { disk.flush().await }
    });
    disk.leave(Duration::from_millis(100));
    flush.await.unwrap().unwrap_err();
    assert!(disk.is_over());
}

/// The connection is made again, and its unit answers everything but the write.
#[tokio::test]
async fn disk_that_is_given_up_abandons_a_session_that_stands() {
    let running = serve(Arc::new(Memory::new(SIZE, 512))).await;
    let way = Scripted::new([running.portal; 2]).await;
    let disk = open_impatient(way.address).await;
    way.swallows_writes.store(true, Ordering::SeqCst);
    let writer = Arc::clone(&disk);
    let write =
        tokio::spawn(
            async move { writer.write(0, vec![7; 4096].into(), Durability::Volatile).await },
        );
    while way.swallowed.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    disk.leave(Duration::ZERO);
    write.await.unwrap().unwrap_err();
    let lost = disk.session().ping().await.unwrap_err();
    assert!(matches!(*lost, Loss::Abandoned), "it was waited for: {lost}");
}
