use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::sync::Mutex;

use super::*;
use crate::client::ClientId;
use crate::scsi::reservation::{Class, Device, NexusId, Refused, Reservations};
use crate::scsi::transport::plain::{self, PLAIN};
use crate::scsi::{Cdb, DeviceType, Parsed, sense};

/// A unit with the reservations of our target, and the nexus that asks.
struct TestUnit<'a> {
    unit: &'a Mutex<Reservations>,
    nexus: NexusId,
    durable: bool,
    /// It knows PREEMPT AND ABORT.
    aborts: bool,
    /// What REGISTER with a service action key of zero is answered by, and whether it is carried out all the same.
    unregistered: Option<(Answer, bool)>,
    /// Commands answered before it is somebody else's turn.
    turns: Mutex<Option<u32>>,
    /// Commands that are carried out before one that is not.
    succeeds: Mutex<Option<u32>>,
    /// What it was told to do to registrations of others.
    preempted: Mutex<Vec<ReserveOutAction>>,
}

fn nexus(n: u8, target_port: u16) -> NexusId {
    NexusId { initiator: plain::port(n, 0), target_port, client: ClientId::Unauthenticated }
}

impl<'a> TestUnit<'a> {
    fn new(unit: &'a Mutex<Reservations>, n: u8) -> Self {
        Self {
            unit,
            nexus: nexus(n, 1),
            durable: true,
            aborts: true,
            unregistered: None,
            turns: Mutex::new(None),
            succeeds: Mutex::new(None),
            preempted: Mutex::default(),
        }
    }

    fn answer(&self, command: Command, data: &[u8]) -> Answer {
        if let Some((answer, carried_out)) = self.unregistered.clone()
            && command.cdb[0] == 0x5F
            && data[8..16] == [0; 8]
            && command.cdb[1] == ReserveOutAction::Register.code()
        {
            if carried_out {
                let inner = TestUnit { unregistered: None, ..TestUnit::new(self.unit, 0) };
                TestUnit { nexus: self.nexus.clone(), ..inner }.answer(command, data);
            }
            return answer;
        }
        let mut unit = self.unit.lock().unwrap();
        let device = Device {
            target_ports: &[1, 2],
            present: &[],
            durable: self.durable,
            transports: PLAIN,
        };
        let cdb = Parsed::of(&command.cdb, DeviceType::Disk).cdb.unwrap();
        if let Cdb::PersistentOut(out) = &cdb
            && matches!(out.action, ReserveOutAction::Preempt | ReserveOutAction::PreemptAndAbort)
        {
            self.preempted.lock().unwrap().push(out.action);
        }
        match cdb {
            Cdb::PersistentIn { action, .. } => {
                Answer::Good(unit.report(&self.nexus, action, &device))
            }
            Cdb::PersistentOut(out)
                if out.action == ReserveOutAction::PreemptAndAbort && !self.aborts =>
            {
                let field = sense::Additional { code: 0x24, qualifier: 0 };
                Answer::Check(Sense::new(sense::Key::IllegalRequest, field))
            }
            Cdb::PersistentOut(out) => match unit.prepare(&self.nexus, out, data, &device) {
                Ok(change) => {
                    unit.commit(&change, &[]);
                    Answer::Good(Vec::new())
                }
                Err(Refused::Conflict) => Answer::Conflict,
                Err(Refused::Sense(sense)) => Answer::Check(sense),
            },
            other => panic!("{other:?}"),
        }
    }

    fn may_write(&self) -> bool {
        self.unit.lock().unwrap().check(&self.nexus, Class::Writes).is_ok()
    }
}

impl Unit for TestUnit<'_> {
    type Error = ();

    async fn ask(&self, command: Command, data: Vec<u8>) -> Result<Answer, ()> {
        let left = *self.succeeds.lock().unwrap();
        *self.succeeds.lock().unwrap() = left.and_then(|left| left.checked_sub(1));
        let answer = match left {
            Some(0) => Answer::Check(INTERNAL),
            _ => self.answer(command, &data),
        };
        core::future::poll_fn(|_| match &mut *self.turns.lock().unwrap() {
            Some(0) => Poll::Pending,
            Some(turns) => {
                *turns -= 1;
                Poll::Ready(())
            }
            None => Poll::Ready(()),
        })
        .await;
        Ok(answer)
    }

    fn transports(&self) -> Transports {
        PLAIN
    }
}

fn poll<T>(future: core::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    poll(pin!(future)).expect("nothing to wait for")
}

fn nobody() -> Removals {
    Removals::Stale(Vec::new())
}

/// Who has it, as the second is told.
fn refusal(outcome: Result<OwnReservation, NotHeld<()>>) -> Registrants {
    match outcome {
        Err(NotHeld::By(by)) => by,
        other => panic!("{other:?}"),
    }
}

#[test]
fn second_writer_is_refused_and_told_who_holds_it() {
    let unit = Mutex::default();
    let (one, two) = (TestUnit::new(&unit, 1), TestUnit::new(&unit, 2));
    let hold = now(acquire(&one, 7, &nobody())).unwrap();
    assert!(hold.through_power_loss && hold.all_target_ports);
    let by = refusal(now(acquire(&two, 8, &nobody())));
    assert_eq!(by.0[0].initiator.as_deref(), Some("1"));
    assert!(by.0[0].holder && by.to_string().contains("initiator 1, key 0x0000000000000007"));
    assert!(one.may_write() && !two.may_write());
    assert_eq!(now(confirm(&one, &hold)).unwrap(), hold);
    now(release(&one, &hold)).unwrap();
    now(acquire(&two, 8, &nobody())).unwrap();
    assert!(!one.may_write());
}

const INTERNAL: Sense =
    Sense::new(sense::Key::HardwareError, sense::Additional::INTERNAL_TARGET_FAILURE);

/// Whether the key is gone counts, and not what the unit says of it.
#[test]
fn release_tells_whether_the_key_is_still_registered() {
    for (answer, carried_out) in [
        (Answer::Check(INTERNAL), false),
        (Answer::Check(INTERNAL), true),
        (Answer::Conflict, false),
        (Answer::Good(Vec::new()), false),
        (Answer::Good(Vec::new()), true),
    ] {
        let unit = Mutex::default();
        let one = TestUnit::new(&unit, 1);
        let hold = now(acquire(&one, 7, &nobody())).unwrap();
        let one = TestUnit { unregistered: Some((answer.clone(), carried_out)), ..one };
        let expected =
            if carried_out { Released::Gone } else { Released::Registered(answer.clone()) };
        assert_eq!(now(release(&one, &hold)), Ok(expected));
        // There is nothing to give back.
        *unit.lock().unwrap() = Reservations::default();
        assert_eq!(now(release(&one, &hold)), Ok(Released::Gone));
    }
}

#[test]
fn writer_that_gives_way_knows_whether_its_key_stayed() {
    for carried_out in [true, false] {
        let unit = Mutex::default();
        let (one, two) = (TestUnit::new(&unit, 1), TestUnit::new(&unit, 2));
        let removals = nobody();
        *one.turns.lock().unwrap() = Some(2);
        let one = TestUnit { unregistered: Some((Answer::Check(INTERNAL), carried_out)), ..one };
        let mut begun = pin!(acquire(&one, 7, &removals));
        assert!(poll(begun.as_mut()).is_none(), "it has registered");
        now(acquire(&two, 8, &Removals::Stale(vec![7]))).unwrap();
        // Registered anew beside the other: what a unit that ends no registrations leaves behind.
        let again = Parameters::keys(0, 7);
        let register = Command::persistent_reserve_out(ReserveOutAction::RegisterAndIgnore, 0, 24);
        TestUnit::new(&unit, 1).answer(register, &again.emit());
        *one.turns.lock().unwrap() = None;
        let why = poll(begun.as_mut()).unwrap().unwrap_err();
        assert!(matches!(why, NotHeld::By(_)), "{why:?}");
        assert_eq!(why.may_leave(7), !carried_out);
    }
}

/// Two begin at once; each pair of moments is tried. One gets it, and the other may not write afterwards.
#[test]
fn of_two_that_begin_at_once_one_gets_it() {
    for (first, second) in (0..8).flat_map(|first| (0..8).map(move |second| (first, second))) {
        let unit = Mutex::default();
        let (one, two) = (TestUnit::new(&unit, 1), TestUnit::new(&unit, 2));
        (*one.turns.lock().unwrap(), *two.turns.lock().unwrap()) = (Some(first), Some(second));
        let removals = nobody();
        let (mut a, mut b) = (pin!(acquire(&one, 7, &removals)), pin!(acquire(&two, 8, &removals)));
        let (mut left, mut right) = (poll(a.as_mut()), poll(b.as_mut()));
        (*one.turns.lock().unwrap(), *two.turns.lock().unwrap()) = (None, None);
        left = left.or_else(|| poll(a.as_mut()));
        right = right.or_else(|| poll(b.as_mut()));
        let held = [left.unwrap().is_ok(), right.unwrap().is_ok()];
        // Both may give way, but never do both get it.
        assert!(held != [true, true], "{first} {second}");
        assert!(!one.may_write() || held[0] || !held[1], "{first} {second}");
        assert!(!two.may_write() || held[1] || !held[0], "{first} {second}");
        if held == [false, false] {
            now(acquire(&one, 9, &removals)).expect("nothing is left behind");
        }
    }
}

#[test]
fn holder_that_was_taken_over_finds_out_even_when_the_other_has_gone() {
    let unit = Mutex::default();
    let (one, two) = (TestUnit::new(&unit, 1), TestUnit::new(&unit, 2));
    let first = now(acquire(&one, 7, &nobody())).unwrap();
    let second = now(acquire(&two, 8, &Removals::Everyone)).unwrap();
    assert!(!one.may_write());
    assert!(refusal(now(confirm(&one, &first))).0[0].holder);
    now(release(&two, &second)).unwrap();
    assert!(one.may_write(), "nothing stops it any more but what it asks first");
    assert_eq!(refusal(now(confirm(&one, &first))), Registrants::default());
}

/// A client that may only read registers itself with this key.
fn register_reader(unit: &Mutex<Reservations>, key: Key) {
    let client = ClientId::Account("reader".to_owned());
    let reader = NexusId { client, ..nexus(9, 1) };
    let device = Device { target_ports: &[1, 2], present: &[], durable: false, transports: PLAIN };
    let action = ReserveOutAction::RegisterAndIgnore;
    let out = crate::scsi::reservation::Out { action, scope: 0, kind: 0, length: 24 };
    let mut unit = unit.lock().unwrap();
    let list = Parameters::keys(0, key).emit();
    let change = unit.prepare_reader(&reader, out, &list, &device).unwrap();
    unit.commit(&change, &[]);
}

#[test]
fn registered_reader_keeps_no_writer_out() {
    let unit = Mutex::default();
    let [one, two] = [1, 2].map(|n| TestUnit { durable: false, ..TestUnit::new(&unit, n) });
    register_reader(&unit, 5);
    let hold = now(acquire(&one, 7, &nobody())).unwrap();
    // Nor is the log of a dead writer kept from being written.
    register_reader(&unit, 6);
    let hold = now(resume(&two, 8, hold.key, &[])).unwrap();
    assert_eq!(now(release(&two, &hold)), Ok(Released::Gone));
    assert!(now(registered(&one)).unwrap().is_empty());
}

/// A server without a state directory starts again, and one that may only read is back before the writer.
#[test]
fn registered_reader_fences_no_writer_after_a_loss_of_power() {
    let unit = Mutex::default();
    let one = TestUnit { durable: false, ..TestUnit::new(&unit, 1) };
    let hold = now(acquire(&one, 7, &nobody())).unwrap();
    *unit.lock().unwrap() = Reservations::default();
    register_reader(&unit, 5);
    let hold = now(confirm(&one, &hold)).unwrap();
    assert!(one.may_write());
    // Its key is nobody's that a writer could preempt: that would look as if the writer had been there until then.
    *unit.lock().unwrap() = Reservations::default();
    register_reader(&unit, 7);
    let two = TestUnit::new(&unit, 2);
    let preempt = Parameters::keys(8, hold.key).emit();
    two.answer(
        Command::persistent_reserve_out(ReserveOutAction::Register, 0, 24),
        &Parameters::keys(0, 8).emit(),
    );
    let command = Command::persistent_reserve_out(ReserveOutAction::PreemptAndAbort, 5, 24);
    assert_eq!(two.answer(command, &preempt), Answer::Conflict);
}

#[test]
fn stale_key_is_taken_over_and_no_other() {
    let unit = Mutex::default();
    let (one, two) = (TestUnit::new(&unit, 1), TestUnit::new(&unit, 2));
    now(acquire(&one, 7, &nobody())).unwrap();
    refusal(now(acquire(&two, 8, &Removals::Stale(vec![6]))));
    now(acquire(&two, 8, &Removals::Stale(vec![6, 7]))).unwrap();
    assert!(two.may_write() && !one.may_write());
}

#[test]
fn dead_writer_is_gone_on_for_while_its_reservation_stands() {
    let unit = Mutex::default();
    let [one, two, three] = [1, 2, 3].map(|n| TestUnit::new(&unit, n));
    now(acquire(&one, 7, &nobody())).unwrap();
    refusal(now(resume(&two, 8, 6, &[])));
    assert!(one.may_write() && !two.may_write());
    let hold = now(resume(&two, 8, 7, &[])).unwrap();
    assert!(hold.key == 7 && two.may_write() && !one.may_write());
    assert_eq!(now(confirm(&two, &hold)).unwrap(), hold);
    // The second has died too.
    let hold = now(resume(&three, 9, 7, &[])).unwrap();
    assert!(three.may_write() && !two.may_write());
    now(release(&three, &hold)).unwrap();
    assert_eq!(refusal(now(resume(&two, 10, 7, &[]))), Registrants::default());
    now(acquire(&two, 11, &nobody())).expect("nothing is left behind");
}

#[test]
fn dead_writer_is_not_gone_on_for_once_another_may_have_written() {
    let unit = Mutex::default();
    let [one, two, three] = [1, 2, 3].map(|n| TestUnit::new(&unit, n));
    now(acquire(&one, 7, &nobody())).unwrap();
    let other = now(acquire(&two, 8, &Removals::Everyone)).unwrap();
    assert_eq!(refusal(now(resume(&three, 9, 7, &[]))).0[0].key, 8);
    now(release(&two, &other)).unwrap();
    refusal(now(resume(&three, 9, 7, &[])));
    now(acquire(&one, 7, &nobody())).unwrap();
    let beside = Parameters::keys(0, 6);
    two.answer(Command::persistent_reserve_out(ReserveOutAction::Register, 0, 24), &beside.emit());
    assert!(two.may_write(), "who registers may write");
    refusal(now(resume(&three, 9, 7, &[])));
    assert!(!three.may_write());
}

/// Another takes the volume over between any two commands of the one who goes on for a dead writer, and is gone again.
#[test]
fn writer_that_comes_and_goes_meanwhile_is_noticed_by_who_goes_on() {
    let mut outcomes = Vec::new();
    for turns in 0.. {
        let unit = Mutex::default();
        let [one, two, three] = [1, 2, 3].map(|n| TestUnit::new(&unit, n));
        now(acquire(&one, 7, &nobody())).unwrap();
        *three.turns.lock().unwrap() = Some(turns);
        let mut resuming = pin!(resume(&three, 9, 7, &[]));
        if poll(resuming.as_mut()).is_some() {
            break;
        }
        let other = now(acquire(&two, 8, &Removals::Everyone)).unwrap();
        now(release(&two, &other)).unwrap();
        *three.turns.lock().unwrap() = None;
        outcomes.push(poll(resuming.as_mut()).unwrap().is_ok());
        let left = now(read_keys(&one)).unwrap().unwrap().keys;
        assert!(outcomes.last() == Some(&true) || left.is_empty(), "{turns}: {left:?}");
    }
    // The answer of the last command was given before.
    let last = outcomes.pop();
    assert!(last == Some(true) && outcomes.len() > 5, "{outcomes:?}");
    assert!(!outcomes.contains(&true), "{outcomes:?}");
}

/// Whoever continues for a dead writer dies too, after each of its commands, and so does the next, which is known to be
/// gone by then: the third can continue as long as nobody else came in between.
/// Whatever the unit refuses on the way: the reservation is there for the next.
#[test]
fn resume_that_is_refused_anywhere_can_be_resumed() {
    for succeeds in 0..8 {
        let unit = Mutex::default();
        let [one, two, three] = [1, 2, 3].map(|n| TestUnit::new(&unit, n));
        now(acquire(&one, 7, &nobody())).unwrap();
        *two.succeeds.lock().unwrap() = Some(succeeds);
        let refused = now(resume(&two, 8, 7, &[]));
        assert!(refused.is_ok() || succeeds < 7, "{succeeds}");
        assert!(refused.is_ok() || refused.unwrap_err().may_leave(8) || succeeds < 5);
        let hold =
            now(resume(&three, 9, 7, &[8])).unwrap_or_else(|why| panic!("{succeeds}: {why:?}"));
        assert!(hold.key == 7 && three.may_write() && !two.may_write(), "{succeeds}");
    }
}

#[test]
fn resume_that_is_cut_off_anywhere_can_be_resumed() {
    for (first, second) in (0..8).flat_map(|first| (0..8).map(move |second| (first, second))) {
        let unit = Mutex::default();
        let [one, two, three, four, five] = [1, 2, 3, 4, 5].map(|n| TestUnit::new(&unit, n));
        now(acquire(&one, 7, &nobody())).unwrap();
        for (dies, key, answers, stale) in [(&two, 8, first, &[][..]), (&three, 9, second, &[8])] {
            *dies.turns.lock().unwrap() = Some(answers);
            // One that gets all its answers dies as the one who writes.
            let _ = poll(pin!(resume(dies, key, 7, stale)));
        }
        let kept = unit.lock().unwrap().clone();
        let hold = now(resume(&four, 10, 7, &[8, 9])).unwrap();
        assert!(hold.key == 7 && four.may_write(), "{first}, {second}");
        assert!(![&one, &two, &three].iter().any(|dead| dead.may_write()), "{first}, {second}");
        let mut left = now(registered(&five)).unwrap();
        left.dedup();
        assert_eq!(left, [7], "{first}, {second}");
        // Another in between: with a registration, with the reservation, and with neither any more.
        for steps in 0..3 {
            *unit.lock().unwrap() = kept.clone();
            let beside = Parameters::keys(0, 6).emit();
            let register = Command::persistent_reserve_out(ReserveOutAction::Register, 0, 24);
            if steps == 0 {
                five.answer(register, &beside);
            } else {
                let other = now(acquire(&five, 6, &Removals::Everyone)).unwrap();
                assert!(steps == 1 || now(release(&five, &other)) == Ok(Released::Gone));
            }
            refusal(now(resume(&four, 10, 7, &[8, 9])));
            assert!(!four.may_write() || steps == 2, "{first}, {second}");
        }
    }
}

/// A server without a state directory starts again while nothing serves the mount.
#[test]
fn next_process_reserves_anew_what_a_loss_of_power_took_unless_another_was_there() {
    let before = Predecessor { key: 7, through_power_loss: false };
    fn new(unit: &Mutex<Reservations>, n: u8) -> TestUnit<'_> {
        TestUnit { durable: false, ..TestUnit::new(unit, n) }
    }
    for (first, second) in (0..9).flat_map(|first| (0..9).map(move |second| (first, second))) {
        let unit = Mutex::default();
        let [one, two, three, four, five] = [1, 2, 3, 4, 5].map(|n| new(&unit, n));
        now(acquire(&one, 7, &nobody())).unwrap();
        *unit.lock().unwrap() = Reservations::default();
        for (dies, key, answers, stale) in [(&two, 8, first, &[][..]), (&three, 9, second, &[8])] {
            *dies.turns.lock().unwrap() = Some(answers);
            let _ = poll(pin!(succeed(dies, key, &before, stale)));
        }
        let kept = unit.lock().unwrap().clone();
        let hold = now(succeed(&four, 10, &before, &[8, 9])).unwrap();
        assert!(hold.key == 7 && four.may_write(), "{first}, {second}");
        assert!(![&two, &three].iter().any(|dead| dead.may_write()), "{first}, {second}");
        // Another came, and is gone again.
        *unit.lock().unwrap() = kept;
        let other = now(acquire(&five, 6, &Removals::Everyone)).unwrap();
        assert_eq!(now(release(&five, &other)), Ok(Released::Gone));
        refusal(now(succeed(&four, 10, &before, &[8, 9])));
    }
}

#[test]
fn next_process_does_not_reserve_anew_what_the_unit_promised_to_keep() {
    let unit = Mutex::default();
    let [one, two] = [1, 2].map(|n| TestUnit::new(&unit, n));
    let hold = now(acquire(&one, 7, &nobody())).unwrap();
    assert!(hold.through_power_loss);
    let before = Predecessor { key: 7, through_power_loss: true };
    let kept = unit.lock().unwrap().clone();
    assert_eq!(now(succeed(&two, 8, &before, &[])).unwrap().key, 7, "it stands");
    *unit.lock().unwrap() = kept;
    *unit.lock().unwrap() = Reservations::default();
    refusal(now(succeed(&two, 8, &before, &[])));
}

#[test]
fn unit_that_cannot_abort_on_the_way_is_taken_over_all_the_same() {
    let unit = Mutex::default();
    let [one, two, three] =
        [1, 2, 3].map(|n| TestUnit { aborts: false, ..TestUnit::new(&unit, n) });
    assert!(!now(acquire(&one, 7, &nobody())).unwrap().leaves_tasks);
    let hold = now(acquire(&two, 8, &Removals::Everyone)).unwrap();
    assert!(hold.leaves_tasks && two.may_write() && !one.may_write());
    let hold = now(resume(&three, 9, 8, &[])).unwrap();
    assert!(hold.leaves_tasks && three.may_write() && !two.may_write());
}

/// What the other has under way would land behind what its successor writes.
#[test]
fn unit_that_can_abort_is_never_preempted_without_that() {
    let unit = Mutex::default();
    let [one, two, three] = [1, 2, 3].map(|n| TestUnit::new(&unit, n));
    now(acquire(&one, 7, &nobody())).unwrap();
    assert!(!now(acquire(&two, 8, &Removals::Everyone)).unwrap().leaves_tasks);
    assert!(!now(resume(&three, 9, 8, &[])).unwrap().leaves_tasks);
    for unit in [&two, &three] {
        assert_eq!(*unit.preempted.lock().unwrap(), [ReserveOutAction::PreemptAndAbort]);
    }
}

#[test]
fn reservation_of_all_registrants_is_taken_over_too() {
    let unit = Mutex::default();
    let (one, two) = (TestUnit::new(&unit, 1), TestUnit::new(&unit, 2));
    let mut list = Parameters::keys(0, 7);
    one.answer(Command::persistent_reserve_out(ReserveOutAction::Register, 0, 24), &list.emit());
    list = Parameters::keys(7, 0);
    let kind = Kind::WriteExclusiveAll.code();
    one.answer(Command::persistent_reserve_out(ReserveOutAction::Reserve, kind, 24), &list.emit());
    refusal(now(acquire(&two, 8, &nobody())));
    now(acquire(&two, 8, &Removals::Everyone)).unwrap();
    assert!(two.may_write() && !one.may_write());
}

#[test]
fn unit_that_forgets_is_reserved_anew_unless_somebody_registered_since() {
    let unit = Mutex::default();
    let volatile = |n| TestUnit { durable: false, ..TestUnit::new(&unit, n) };
    let (one, two) = (volatile(1), volatile(2));
    let hold = now(acquire(&one, 7, &nobody())).unwrap();
    assert!(!hold.through_power_loss);
    *unit.lock().unwrap() = Reservations::default();
    assert_eq!(now(confirm(&one, &hold)).unwrap().key, hold.key);
    assert!(!two.may_write());
    *unit.lock().unwrap() = Reservations::default();
    let other = now(acquire(&two, 8, &nobody())).unwrap();
    now(release(&two, &other)).unwrap();
    refusal(now(confirm(&one, &hold)));
}

/// Another comes and goes between any two commands of the one who asks whether it still has the volume.
#[test]
fn writer_that_comes_and_goes_meanwhile_is_noticed() {
    for (durable, turns) in
        [true, false].into_iter().flat_map(|kept| (0..6).map(move |at| (kept, at)))
    {
        let unit = Mutex::default();
        let unit_of = |n| TestUnit { durable, ..TestUnit::new(&unit, n) };
        let (one, two) = (unit_of(1), unit_of(2));
        let hold = now(acquire(&one, 7, &nobody())).unwrap();
        if !durable {
            *unit.lock().unwrap() = Reservations::default();
        }
        *one.turns.lock().unwrap() = Some(turns);
        let mut confirming = pin!(confirm(&one, &hold));
        if poll(confirming.as_mut()).is_some() {
            continue;
        }
        let other = now(acquire(&two, 8, &Removals::Everyone)).unwrap();
        now(release(&two, &other)).unwrap();
        *one.turns.lock().unwrap() = None;
        let held = poll(confirming.as_mut()).unwrap().is_ok();
        // The answer of the last command was given before: whoever took the volume then has the tasks aborted.
        assert!(!held || !unit.lock().unwrap().restrict(), "{durable} {turns}");
        assert!(!held || refusal(now(confirm(&one, &hold))) == Registrants::default());
    }
}

#[test]
fn unit_that_promised_to_remember_and_forgot_is_not_written_to() {
    let unit = Mutex::default();
    let one = TestUnit::new(&unit, 1);
    let hold = now(acquire(&one, 7, &nobody())).unwrap();
    *unit.lock().unwrap() = Reservations::default();
    refusal(now(confirm(&one, &hold)));
}

#[test]
fn session_by_another_portal_group_holds_it_too() {
    let unit = Mutex::default();
    let one = TestUnit::new(&unit, 1);
    let other_group = TestUnit { nexus: nexus(1, 2), ..TestUnit::new(&unit, 1) };
    let hold = now(acquire(&one, 7, &nobody())).unwrap();
    assert!(other_group.may_write(), "ALL_TG_PT");
    assert_eq!(now(confirm(&other_group, &hold)).unwrap(), hold);
    // A unit without ALL_TG_PT.
    *unit.lock().unwrap() = Reservations::default();
    let hold = OwnReservation { all_target_ports: false, ..hold };
    one.answer(
        Command::persistent_reserve_out(ReserveOutAction::Register, 0, 24),
        &hold.parameters().emit(),
    );
    now(settle(&one, hold)).unwrap();
    assert!(!other_group.may_write());
    assert_eq!(now(confirm(&other_group, &hold)).unwrap(), hold);
    assert!(other_group.may_write());
}

#[test]
fn data_of_any_kind_do_no_harm() {
    for length in 0..40 {
        let bytes: Vec<u8> = (0..length).map(|n: u8| n.wrapping_mul(37)).collect();
        let _ = (keys(&bytes).is_ok(), reservation(&bytes), full_status(&bytes, PLAIN));
    }
    assert!(full_status(&[0, 0, 0, 0, 0, 0, 0, 24, 1], PLAIN).is_err(), "cut short");
}
