//! Links between sockets of this machine: UDP on loopback, Ethernet between the ends of a veth pair in a network namespace
//! of the test's own. That needs root, as the laboratory does.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::process::Command;
use std::task::Poll;
use std::thread;

use host::link::{
    Address, AsyncLink, Batch, Ecn, Ethernet, EthernetOptions, Link, Mac, OpenError, Udp,
};

/// IEEE 802 local experimental EtherType 1.
const TYPE: u16 = 0x88B5;

/// Runs `test` in a network namespace of its own with a veth pair of this MTU, whose ends are `near` and `far`.
fn with_veth<T: Send>(mtu: usize, test: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: it touches no memory; only this thread moves, which ends with the test.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "needs root");
            ip("link add near type veth peer name far");
            for end in ["lo", "near", "far"] {
                ip(&format!("link set {end} up"));
            }
            for end in ["near", "far"] {
                ip(&format!("link set {end} mtu {mtu}"));
            }
            test()
        });
        thread.join().unwrap()
    })
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn ethernet(interface: &str, options: EthernetOptions) -> Link {
    Ethernet::open(interface, TYPE, options).unwrap().into()
}

fn veth_ends() -> [Link; 2] {
    ["near", "far"].map(|end| ethernet(end, EthernetOptions::default()))
}

fn udp() -> Link {
    Udp::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().into()
}

/// A packet that tells its length and its number.
fn packet(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at) as u8).collect()
}

/// Takes packets until there are as many; those that come later are left.
fn receive(link: &mut Link, count: usize) -> Vec<(Address, Vec<u8>)> {
    let mut received = Vec::new();
    while received.len() < count {
        let each = &mut |from, _, packet: &mut [u8]| received.push((from, packet.to_vec()));
        link.recv_batch(each).unwrap();
        thread::yield_now();
    }
    received
}

fn send(link: &mut Link, to: Address, packets: &[Vec<u8>]) {
    let mut batch = Batch::default();
    for packet in packets {
        batch.push(to, Ecn::NotEct, |buffer| buffer.extend_from_slice(packet));
    }
    while let Err(error) = link.sender().send_batch(&mut batch) {
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
        thread::yield_now();
    }
    assert!(batch.is_empty());
}

/// Lengths that make segments of one piece, that end one, and that start another.
const LENGTHS: [usize; 12] = [1400, 1400, 1400, 200, 1400, 64, 64, 64, 65, 1, 1472, 1472];

fn exchange(mut near: Link, mut far: Link) {
    let packets: Vec<_> = (0..).zip(LENGTHS).map(|(number, len)| packet(number, len)).collect();
    send(&mut near, far.sender().local(), &packets);
    let received = receive(&mut far, packets.len());
    for ((from, bytes), sent) in received.iter().zip(&packets) {
        assert_eq!(bytes, sent);
        // An answer goes back the way that the packet has come.
        send(&mut far, *from, std::slice::from_ref(sent));
    }
    for ((_, bytes), sent) in receive(&mut near, packets.len()).iter().zip(&packets) {
        assert_eq!(bytes, sent);
    }
}

#[test]
fn udp_packets_arrive_as_they_were_sent() {
    exchange(udp(), udp());
}

/// Also of packets that the kernel sends, and hands over, as segments of one piece.
#[test]
fn codepoints_of_udp_packets_arrive() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let bind = || Link::from(Udp::bind(address.parse().unwrap()).unwrap());
        let (near, mut far) = (bind(), bind());
        let all = [Ecn::Ect0, Ecn::Ect0, Ecn::Ect0, Ecn::Ce, Ecn::Ce, Ecn::NotEct, Ecn::Ect1];
        let mut batch = Batch::default();
        for ecn in all {
            batch.push(far.sender().local(), ecn, |buffer| buffer.extend(packet(1, 1200)));
        }
        near.sender().send_batch(&mut batch).unwrap();
        let mut received = Vec::new();
        while received.len() < all.len() {
            far.recv_batch(&mut |_, ecn, _| received.push(ecn)).unwrap();
            thread::yield_now();
        }
        assert_eq!(received, all, "{address}");
    }
}

#[test]
fn ethernet_packets_arrive_as_they_were_sent() {
    with_veth(1500, || {
        let [near, far] = veth_ends();
        exchange(near, far);
    });
}

#[test]
fn ethernet_packets_of_jumbo_frames_arrive_whole() {
    with_veth(9000, || {
        let [mut near, mut far] = veth_ends();
        assert_eq!(near.sender().mtu(), 9000);
        let packets: Vec<_> = (0..300).map(|number| packet(number, 9000 - number)).collect();
        // Several turns of the ring.
        for _ in 0..20 {
            send(&mut near, far.sender().local(), &packets);
            let received = receive(&mut far, packets.len());
            let Address::Ethernet(mac) = near.sender().local() else {
                panic!("{:?}", near.sender().local())
            };
            assert!(received.iter().all(|(from, _)| *from == Address::Ethernet(mac)));
            assert!(received.iter().map(|(_, bytes)| bytes).eq(&packets));
        }
    });
}

#[test]
fn ethernet_broadcast_reaches_the_other_end() {
    with_veth(1500, || {
        let [mut near, mut far] = veth_ends();
        send(&mut near, Mac::BROADCAST.into(), &[packet(1, 100)]);
        assert_eq!(receive(&mut far, 1), [(near.sender().local(), packet(1, 100))]);
        let none = near.recv_batch(&mut |_, _, _| panic!("its own packet came back")).unwrap();
        assert_eq!(none, 0);
    });
}

#[test]
fn ethernet_packets_of_another_type_are_not_received() {
    with_veth(1500, || {
        let [mut near, mut far] = veth_ends();
        let mut other: Link =
            Ethernet::open("near", TYPE + 1, EthernetOptions::default()).unwrap().into();
        send(&mut other, far.sender().local(), &[packet(1, 100)]);
        send(&mut near, far.sender().local(), &[packet(2, 100)]);
        let received = receive(&mut far, 1);
        assert_eq!(received, [(near.sender().local(), packet(2, 100))]);
    });
}

#[test]
fn ethernet_packet_longer_than_the_mtu_is_counted_as_refused() {
    with_veth(1500, || {
        let [mut near, mut far] = veth_ends();
        send(&mut near, far.sender().local(), &[packet(1, 1501), packet(2, 1500)]);
        assert_eq!(receive(&mut far, 1)[0].1, packet(2, 1500));
        assert_eq!(near.losses().refused, 1);
    });
}

#[test]
fn ethernet_packets_beyond_the_ring_are_counted_as_overrun() {
    with_veth(1500, || {
        let mut near = ethernet("near", EthernetOptions::default());
        let mut far = ethernet("far", EthernetOptions { ring: 1, ..Default::default() });
        let packets: Vec<_> = (0..200).map(|number| packet(number, 1000)).collect();
        send(&mut near, far.sender().local(), &packets);
        // What veth hands over it hands over before the sender goes on, but for what its own thread still has.
        let mut received = receive(&mut far, 1).len();
        while (received as u64) + far.losses().overrun < 200 {
            received += far.recv_batch(&mut |_, _, _| ()).unwrap();
        }
        assert!(far.losses().overrun > 0, "{received}");
        send(&mut near, far.sender().local(), &[packet(7, 77)]);
        assert_eq!(receive(&mut far, 1)[0].1, packet(7, 77), "the ring goes on");
    });
}

#[test]
fn ethernet_interface_that_went_down_is_used_again_when_it_is_up() {
    with_veth(1500, || {
        let [mut near, mut far] = veth_ends();
        ip("link set near down");
        send(&mut near, far.sender().local(), &[packet(1, 100)]);
        assert_eq!(near.losses().refused, 1);
        near.recv_batch(&mut |_, _, _| panic!("nothing was sent")).unwrap();
        ip("link set near up");
        send(&mut near, far.sender().local(), &[packet(2, 100)]);
        assert_eq!(receive(&mut far, 1)[0].1, packet(2, 100));
    });
}

#[test]
fn ethernet_without_the_capability_says_what_is_missing() {
    with_veth(1500, || {
        let nobody = 65534;
        // SAFETY: it touches no memory; the system call itself, past the C library, concerns this thread alone.
        let status = unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) };
        assert_eq!(status, 0);
        let error = Ethernet::open("near", TYPE, EthernetOptions::default()).unwrap_err();
        assert!(matches!(error, OpenError::Permission(_)), "{error}");
        assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    });
}

#[test]
fn ethernet_on_what_is_none_is_refused() {
    with_veth(1500, || {
        let open = |name| Ethernet::open(name, TYPE, EthernetOptions::default()).unwrap_err();
        assert_eq!(open("nowhere").to_string(), "there is no network interface nowhere");
        assert_eq!(open("lo").to_string(), "lo is no Ethernet interface");
    });
}

#[tokio::test]
async fn task_is_woken_by_a_packet_and_sends_a_batch() {
    let [mut near, mut far] = [(); 2].map(|()| AsyncLink::new(udp()).unwrap());
    let to = far.sender().local();
    let receiving = tokio::spawn(async move {
        let mut received = Vec::new();
        while received.len() < 100 {
            let each = &mut |_, _, packet: &mut [u8]| received.push(packet.to_vec());
            poll_fn(|cx| far.poll_recv(cx, each)).await.unwrap();
        }
        received
    });
    tokio::task::yield_now().await;
    let mut batch = Batch::default();
    (0..100).for_each(|number| {
        batch.push(to, Ecn::NotEct, |buffer| buffer.extend(packet(number, 1200)))
    });
    poll_fn(|cx| near.poll_send(cx, &mut batch)).await.unwrap();
    let sent = (0..100).map(|number| packet(number, 1200));
    assert!(receiving.await.unwrap().into_iter().eq(sent));
    poll_fn(|cx| {
        assert!(near.poll_recv(cx, &mut |_, _, _| panic!("nothing was sent")).is_pending());
        Poll::Ready(())
    })
    .await;
}
