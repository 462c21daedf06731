//! What a link delivers, one thread at each end, without any reliability: `link_rate [ethernet|udp] MTU LENGTH [SECONDS]`,
//! on a veth pair in a network namespace of its own (needs root).

use std::env::args;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use host::link::{Batch, Ecn, Ethernet, EthernetOptions, Link, Udp};

const TYPE: u16 = 0x88B5;
const BATCH: usize = 64;
const ROUND_TRIPS: usize = 20_000;

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2");
    assert!(status.success(), "ip {arguments}");
}

fn netns() -> [std::fs::File; 2] {
    let mut spaces = [(); 2].map(|()| {
        // SAFETY: it touches no memory.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "needs root");
        ip("link set lo up");
        std::fs::File::open("/proc/thread-self/ns/net").expect("a namespace")
    });
    spaces.reverse();
    spaces
}

fn enter(space: &std::fs::File) {
    use std::os::fd::AsRawFd as _;
    // SAFETY: it touches no memory.
    assert_eq!(unsafe { libc::setns(space.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
}

fn main() {
    let arguments: Vec<_> = args().skip(1).collect();
    let number = |at: usize, default: usize| {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let is_udp = arguments.first().is_some_and(|kind| kind == "udp");
    let (mtu, len, seconds) = (number(1, 1500), number(2, 1500), number(3, 2));
    let [near, far] = netns();
    enter(&near);
    let pid = std::process::id();
    // The far end is named by a descriptor of this thread.
    use std::os::fd::AsRawFd as _;
    ip("link add near type veth peer name far");
    ip(&format!("link set near mtu {mtu}"));
    ip(&format!("link set far mtu {mtu}"));
    ip(&format!("link set far netns /proc/{pid}/fd/{}", far.as_raw_fd()));
    ip("address add 10.9.0.1/24 dev near");
    ip("link set near up");
    enter(&far);
    ip("address add 10.9.0.2/24 dev far");
    ip("link set far up");
    let open = |name: &str, address: [u8; 4]| -> Link {
        if is_udp {
            Udp::bind(SocketAddr::from((address, 5000))).expect("a socket").into()
        } else {
            let options = EthernetOptions { bypass_queue: true, ..Default::default() };
            Ethernet::open(name, TYPE, options).expect("a link").into()
        }
    };
    let mut receiver = open("far", [10, 9, 0, 2]);
    enter(&near);
    let mut sender = open("near", [10, 9, 0, 1]);
    flood(&mut sender, &mut receiver, len, Duration::from_secs(seconds as u64));
    ping(sender, receiver, len);
}

fn flood(sender: &mut Link, receiver: &mut Link, len: usize, time: Duration) {
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let to = receiver.sender().local();
    let sending = sender.sender();
    let (mut sent, mut waits) = (0_u64, 0_u64);
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut sum = 0_u64;
                let count = receiver
                    .recv_batch(&mut |_, _, packet| sum += u64::from(packet[0] == 7))
                    .expect("the link works");
                received.fetch_add(sum, Ordering::Relaxed);
                if count == 0 {
                    std::hint::spin_loop();
                }
            }
        });
        let mut batch = Batch::default();
        while start.elapsed() < time {
            (0..BATCH).for_each(|_| {
                batch.push(to, Ecn::NotEct, |buffer| buffer.resize(buffer.len() + len, 7))
            });
            while let Err(error) = sending.send_batch(&mut batch) {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                waits += 1;
            }
            sent += BATCH as u64;
        }
        stop.store(true, Ordering::Relaxed);
    });
    let seconds = start.elapsed().as_secs_f64();
    let received = received.load(Ordering::Relaxed);
    let rate = received as f64 / seconds;
    println!(
        "{len} B: {:.3} Mpps, {:.2} Gbit/s delivered; {:.1} % of {sent} lost, {waits} waits, {:?} {:?}",
        rate / 1e6,
        rate * len as f64 * 8.0 / 1e9,
        100.0 * (1.0 - received as f64 / sent as f64),
        sender.losses(),
        receiver.losses(),
    );
}

fn ping(mut near: Link, mut far: Link, len: usize) {
    let (to, stop) = (far.sender().local(), AtomicBool::new(false));
    let mut times = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut batch = Batch::default();
            while !stop.load(Ordering::Relaxed) {
                far.recv_batch(&mut |from, _, packet| {
                    if packet[0] == 8 {
                        batch.push(from, Ecn::NotEct, |buffer| buffer.extend_from_slice(packet));
                    }
                })
                .expect("the link works");
                let _ = far.sender().send_batch(&mut batch);
            }
        });
        let mut batch = Batch::default();
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            batch.push(to, Ecn::NotEct, |buffer| buffer.resize(buffer.len() + len, 8));
            while near.sender().send_batch(&mut batch).is_err() {}
            let mut count = 0;
            while count == 0 && start.elapsed() < Duration::from_millis(100) {
                count = near.recv_batch(&mut |_, _, _| ()).expect("the link works");
            }
            times.push(start.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
    });
    times.sort_unstable();
    println!(
        "round trip: median {:?}, 99 % {:?}",
        times[times.len() / 2],
        times[times.len() * 99 / 100]
    );
}
