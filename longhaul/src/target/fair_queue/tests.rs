use super::*;

fn client(name: &str) -> Flow {
    Flow { client: ClientId::Account(name.to_owned()), name: None }
}

fn unit() -> Unit {
    ("t".into(), 0)
}

const fn request(bytes: u64) -> Request {
    Request { session: 1, bytes, priority: 0, in_order: false }
}

fn weight(weight: u32) -> Share {
    Share { weight: Some(weight), ..Share::default() }
}

/// Clients with these weights, each of which asks again as soon as one of its commands goes.
struct Backlog {
    queue: FairQueue,
    /// The bytes of the commands of each, and those that it was granted with how many commands.
    clients: Vec<(Flow, u64, u64, u64)>,
    owners: BTreeMap<u64, usize>,
    running: Vec<Grant>,
}

impl Backlog {
    fn of(shares: &[(Share, u64)]) -> Self {
        let mut backlog = Self {
            queue: FairQueue::default(),
            clients: Vec::new(),
            owners: BTreeMap::new(),
            running: Vec::new(),
        };
        for (number, (share, bytes)) in shares.iter().enumerate() {
            let flow = client(&number.to_string());
            backlog.queue.join(Duration::ZERO, flow.clone(), *share);
            backlog.clients.push((flow, *bytes, 0, 0));
            (0..64).for_each(|_| backlog.ask(Duration::ZERO, number));
        }
        backlog
    }

    fn ask(&mut self, now: Duration, number: usize) {
        let (flow, bytes, ..) = &self.clients[number];
        let ticket = self.queue.ask(now, flow, unit(), request(*bytes));
        self.owners.insert(ticket.number, number);
    }

    /// Everything that may go goes.
    fn grant(&mut self, now: Duration) {
        while let Some(grant) = self.queue.next(now, &unit()) {
            let number = self.owners.remove(&grant.number).unwrap();
            self.clients[number].2 += grant.bytes;
            self.clients[number].3 += 1;
            self.running.push(grant);
            self.ask(now, number);
        }
    }

    /// The unit carries out so many commands, the oldest first.
    fn carry_out(&mut self, count: usize) {
        self.grant(Duration::ZERO);
        for _ in 0..count {
            let Grant { unit, bytes, .. } = self.running.remove(0);
            self.queue.ended(&unit, bytes);
            self.grant(Duration::ZERO);
        }
    }

    fn commands(&self, number: usize) -> f64 {
        self.clients[number].3 as f64
    }
}

#[test]
fn clients_that_wait_get_parts_as_their_weights() {
    for (weights, bytes) in [([9, 1], 4096), ([9, 1], 256 << 10), ([2, 3], 512), ([100, 1], 0)] {
        let mut backlog = Backlog::of(&weights.map(|it| (weight(it), bytes)));
        backlog.carry_out(20_000);
        let ratio = backlog.commands(0) / backlog.commands(1);
        let wanted = f64::from(weights[0]) / f64::from(weights[1]);
        assert!((ratio / wanted - 1.0).abs() < 0.03, "{weights:?} of {bytes}: {ratio}");
    }
}

/// Each command costs its bytes and a fixed sum, so that many small ones are no way to more.
#[test]
fn commands_of_different_size_cost_what_they_move() {
    let (small, large) = (4096, 1 << 20);
    let mut backlog = Backlog::of(&[(weight(1), small), (weight(1), large)]);
    backlog.carry_out(20_000);
    let cost = |number: usize, bytes| backlog.commands(number) * (bytes + COMMAND_COST) as f64;
    let ratio = cost(0, small) / cost(1, large);
    assert!((ratio - 1.0).abs() < 0.03, "{ratio}");
}

#[test]
fn nobody_starves_whatever_the_weights() {
    let mut shares = vec![(weight(WEIGHT_MAX), 1 << 20); 8];
    shares.push((Share::default(), 1 << 20));
    let mut backlog = Backlog::of(&shares);
    backlog.carry_out(20_000);
    assert!(backlog.commands(8) >= 2.0, "{}", backlog.commands(8));
}

/// A client that was away has saved up nothing, and has lost nothing.
#[test]
fn client_that_comes_back_gets_its_part_and_no_more() {
    let mut backlog = Backlog::of(&[(weight(1), 4096)]);
    backlog.carry_out(10_000);
    let flow = client("1");
    backlog.queue.join(Duration::ZERO, flow.clone(), weight(1));
    backlog.clients.push((flow, 4096, 0, 0));
    (0..64).for_each(|_| backlog.ask(Duration::ZERO, 1));
    let before = backlog.commands(0);
    backlog.carry_out(1000);
    let (first, second) = (backlog.commands(0) - before, backlog.commands(1));
    assert!((first - second).abs() < 40.0, "{first} and {second}");
}

#[test]
fn client_alone_is_given_all_that_the_unit_carries_out() {
    let mut backlog = Backlog::of(&[(weight(1), 4096)]);
    backlog.grant(Duration::ZERO);
    assert_eq!(backlog.running.len(), DEPTH);
    backlog.carry_out(1);
    assert_eq!(backlog.running.len(), DEPTH);
    let mut large = Backlog::of(&[(weight(1), DEPTH_BYTES)]);
    large.grant(Duration::ZERO);
    assert_eq!(large.running.len(), 1, "one that is larger than all goes alone");
}

/// In which order commands go that wait while the unit is full, by their places.
fn order(requests: &[Request]) -> Vec<u64> {
    let (mut queue, flow) = (FairQueue::default(), client("a"));
    queue.join(Duration::ZERO, flow.clone(), Share::default());
    queue.ask(Duration::ZERO, &flow, unit(), request(DEPTH_BYTES));
    let mut ended = queue.next(Duration::ZERO, &unit());
    requests.iter().for_each(|request| drop(queue.ask(Duration::ZERO, &flow, unit(), *request)));
    let mut order = Vec::new();
    while let Some(Grant { unit: of, bytes, .. }) = ended {
        queue.ended(&of, bytes);
        ended = queue.next(Duration::ZERO, &unit());
        order.extend(ended.iter().map(|grant| grant.number));
    }
    order
}

#[test]
fn smallest_goes_first_and_above_it_the_highest_priority() {
    let sizes = [8192, 512, 4096].map(request);
    assert_eq!(order(&sizes), [2, 3, 1]);
    let urgent = Request { priority: 3, ..request(1 << 20) };
    assert_eq!(order(&[request(512), urgent, request(512)]), [2, 1, 3]);
}

#[test]
fn command_whose_order_matters_neither_passes_nor_is_passed() {
    let ordered = Request { in_order: true, ..request(1 << 20) };
    assert_eq!(order(&[request(8192), ordered, request(4096), request(512)]), [1, 2, 4, 3]);
}

#[test]
fn large_command_is_passed_by_small_ones_so_often_and_no_more() {
    let mut requests = vec![request(1 << 20)];
    requests.extend(vec![request(512); 40]);
    let order = order(&requests);
    let at = order.iter().position(|number| *number == 1).unwrap();
    assert!(at <= PASSED_MAX as usize + 1, "{at}");
}

#[test]
fn rate_lets_so_much_go_and_tells_when_more_may() {
    let second = Duration::from_secs(1);
    let share = Share { bytes: Some(1 << 20), ..Share::default() };
    let mut backlog = Backlog::of(&[(share, 64 << 10)]);
    let (mut now, mut deadlines) = (Duration::ZERO, 0);
    while now < second * 10 {
        backlog.grant(now);
        for Grant { unit, bytes, .. } in std::mem::take(&mut backlog.running) {
            backlog.queue.ended(&unit, bytes);
        }
        now = backlog.queue.deadline(now).expect("it waits for its rate");
        deadlines += 1;
    }
    let bytes = backlog.clients[0].2 as f64;
    assert!((bytes / f64::from(10 << 20) - 1.0).abs() < 0.02, "{bytes}");
    assert_eq!(deadlines, 160);
}

/// Who waits for its rate holds up nobody, and takes nothing from the weights of others.
#[test]
fn rate_of_one_is_no_matter_to_others() {
    let slow = Share { commands: Some(1), ..Share::default() };
    let mut backlog = Backlog::of(&[(slow, 4096), (weight(9), 4096), (weight(1), 4096)]);
    backlog.carry_out(10_000);
    let ratio = backlog.commands(1) / backlog.commands(2);
    assert!((ratio / 9.0 - 1.0).abs() < 0.03, "{ratio}");
    assert_eq!(backlog.commands(0), 1.0);
}

#[test]
fn rate_that_is_lifted_lets_go_what_waits() {
    let slow = Share { commands: Some(1), ..Share::default() };
    let mut backlog = Backlog::of(&[(slow, 4096)]);
    backlog.grant(Duration::ZERO);
    assert_eq!(backlog.running.len(), 1);
    backlog.queue.set_share(Duration::ZERO, &client("0"), Share::default());
    backlog.grant(Duration::ZERO);
    assert_eq!(backlog.running.len(), DEPTH);
    assert_eq!(backlog.queue.deadline(Duration::ZERO), None);
}

/// To log in anew is no way around what is owed, and nothing is kept of who owes nothing.
#[test]
fn debt_outlives_a_session_and_nothing_else_does() {
    let (mut queue, second) = (FairQueue::default(), Duration::from_secs(1));
    let slow = Share { bytes: Some(1 << 20), ..Share::default() };
    queue.join(Duration::ZERO, client("a"), slow);
    queue.ask(Duration::ZERO, &client("a"), unit(), request(8 << 20));
    let Grant { unit: of, bytes, .. } = queue.next(Duration::ZERO, &unit()).unwrap();
    queue.ended(&of, bytes);
    queue.leave(second, &client("a"));
    queue.join(second, client("a"), slow);
    queue.ask(second, &client("a"), unit(), request(512));
    assert_eq!(queue.next(second, &unit()), None);
    assert!(queue.next(second * 8, &unit()).is_some());
    queue.ended(&unit(), 512);
    queue.leave(second * 9, &client("a"));
    assert!(queue.accounts.is_empty() && queue.units.is_empty());
}

/// Whatever is asked for, taken back and ended, in whatever order: what goes was asked for and had not gone, no more
/// runs than the unit has room for, and when all is over nothing is kept.
#[test]
fn nothing_is_lost_nor_kept() {
    for seed in 0..200_u64 {
        let mut chance = seed;
        let mut below = |most: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (chance >> 33) % most
        };
        let (mut queue, mut now) = (FairQueue::default(), Duration::ZERO);
        let flows = [0, 1, 2].map(|number: u32| client(&number.to_string()));
        for flow in &flows {
            let rate = (below(3) == 0).then_some(1 + below(5000));
            let share = Share { weight: Some(1 + below(9) as u32), bytes: None, commands: rate };
            queue.join(now, flow.clone(), share);
        }
        let (mut asked, mut running) = (BTreeMap::new(), Vec::new());
        for step in 0..2000 {
            now += Duration::from_micros(below(200));
            match below(if step < 1000 { 4 } else { 2 }) {
                0 => {
                    let at = below(running.len().max(1) as u64) as usize;
                    if at < running.len() {
                        let Grant { unit, bytes, .. } = running.swap_remove(at);
                        queue.ended(&unit, bytes);
                    }
                }
                1 if below(4) == 0 => {
                    if let Some((_, ticket)) = asked.pop_first() {
                        queue.cancel(&ticket);
                    }
                }
                1 => {}
                _ => {
                    let flow = &flows[below(3) as usize];
                    let in_order = below(9) == 0;
                    let request = Request { in_order, ..request(below(1 << 20)) };
                    let ticket = queue.ask(now, flow, unit(), request);
                    asked.insert(ticket.number, ticket);
                }
            }
            while let Some(grant) = queue.next(now, &unit()) {
                assert!(asked.remove(&grant.number).is_some(), "seed {seed}");
                running.push(grant);
                assert!(running.len() <= DEPTH, "seed {seed}");
            }
        }
        while !asked.is_empty() || !running.is_empty() {
            running.drain(..).for_each(|grant| queue.ended(&grant.unit, grant.bytes));
            now = queue.deadline(now).unwrap_or(now);
            while let Some(grant) = queue.next(now, &unit()) {
                assert!(asked.remove(&grant.number).is_some(), "seed {seed}");
                running.push(grant);
            }
        }
        flows.iter().for_each(|flow| queue.leave(now + Duration::from_secs(9999), flow));
        assert!(queue.units.is_empty() && queue.accounts.is_empty(), "seed {seed}");
    }
}
