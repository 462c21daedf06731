use super::*;

const SETTINGS: Settings = Settings {
    patience: Some(Duration::from_secs(60)),
    first_wait: Duration::from_millis(100),
    longest_wait: Duration::from_secs(5),
    unflushed_max: Some(1000),
};

fn at(seconds: u64) -> Time {
    Time::from_origin(Duration::from_secs(seconds))
}

fn machine() -> Recovery<char> {
    Recovery::new(SETTINGS)
}

fn actions(machine: &mut Recovery<char>) -> Vec<Action<char>> {
    std::iter::from_fn(|| machine.poll()).collect()
}

/// Loses the link and gets the next one.
fn reconnect(machine: &mut Recovery<char>) {
    let link = machine.number;
    machine.lost(at(0), link, Duration::ZERO);
    assert_eq!(actions(machine), [Action::Connect]);
    machine.connected();
}

fn change(machine: &mut Recovery<char>, range: Range<u64>, change: char) -> (u64, Turn) {
    let weight = usize::try_from(range.end - range.start).unwrap();
    machine.submit(Kind::Change(change), range, weight)
}

/// A change that is answered.
fn changed(machine: &mut Recovery<char>, range: Range<u64>, name: char) {
    let (id, turn) = change(machine, range, name);
    let Turn::Run(link) = turn else { panic!("{turn:?}") };
    assert_eq!(machine.ended(at(0), id, link, End::Done), Turn::Answer);
}

#[test]
fn a_change_waits_for_an_earlier_one_to_the_same_bytes() {
    let mut machine = machine();
    let (first, _) = change(&mut machine, 0..8, 'a');
    assert_eq!(change(&mut machine, 8..16, 'b').1, Turn::Run(0));
    let (second, turn) = change(&mut machine, 7..9, 'c');
    assert_eq!(turn, Turn::Wait);
    assert_eq!(machine.submit(Kind::Read, 0..8, 0).1, Turn::Run(0), "a read waits for none");
    machine.ended(at(0), first, 0, End::Done);
    assert_eq!(actions(&mut machine), [], "it still waits for the other");
    machine.ended(at(0), first + 1, 0, End::Done);
    assert_eq!(actions(&mut machine), [Action::Run { id: second, link: 0 }]);
}

#[test]
fn what_was_not_answered_runs_again_before_what_overlaps_it() {
    let mut machine = machine();
    let (first, _) = change(&mut machine, 0..8, 'a');
    let (second, _) = change(&mut machine, 4..12, 'b');
    assert_eq!(machine.ended(at(0), first, 0, End::Lost), Turn::Wait);
    assert_eq!(actions(&mut machine), [Action::Connect]);
    let (flush, turn) = machine.submit(Kind::Flush, 0..0, 0);
    assert_eq!(turn, Turn::Wait, "the link is down");
    machine.connected();
    let run = |id| Action::Run { id, link: 1 };
    assert_eq!(actions(&mut machine), [run(first), run(flush)]);
    machine.ended(at(0), first, 1, End::Done);
    assert_eq!(actions(&mut machine), [run(second)]);
}

#[test]
fn what_was_answered_is_restored_in_order_before_anything_runs() {
    let mut machine = machine();
    changed(&mut machine, 0..8, 'a');
    changed(&mut machine, 16..24, 'b');
    changed(&mut machine, 4..12, 'c');
    reconnect(&mut machine);
    let restore = |seq, change| Action::Restore { seq, link: 1, change };
    assert_eq!(actions(&mut machine), [restore(0, 'a'), restore(1, 'b')]);
    let (read, turn) = machine.submit(Kind::Read, 32..40, 0);
    assert_eq!(turn, Turn::Wait);
    machine.restored(at(0), 1, 1, End::Done);
    assert_eq!(actions(&mut machine), [], "the third overlaps the first");
    machine.restored(at(0), 0, 1, End::Done);
    assert_eq!(actions(&mut machine), [restore(2, 'c')]);
    machine.restored(at(0), 2, 1, End::Done);
    assert_eq!(actions(&mut machine), [Action::Run { id: read, link: 1 }]);
    // They are not durable yet: another loss has them restored again.
    machine.ended(at(0), read, 1, End::Done);
    reconnect(&mut machine);
    assert_eq!(actions(&mut machine).len(), 2);
}

#[test]
fn a_restore_that_is_cut_short_begins_again() {
    let mut machine = machine();
    changed(&mut machine, 0..8, 'a');
    changed(&mut machine, 0..8, 'b');
    reconnect(&mut machine);
    machine.restored(at(0), 0, 1, End::Done);
    actions(&mut machine);
    machine.restored(at(0), 1, 1, End::Lost);
    assert!(machine.in_doubt());
    machine.wake(at(9));
    machine.connected();
    let restore = Action::Restore { seq: 0, link: 2, change: 'a' };
    assert_eq!(actions(&mut machine), [Action::Connect, restore]);
    // An answer from the link before says nothing of this one.
    machine.restored(at(9), 0, 1, End::Done);
    assert_eq!(actions(&mut machine), []);
}

#[test]
fn a_unit_without_a_cache_gets_nothing_twice() {
    let mut machine = Recovery::<char>::new(Settings { unflushed_max: None, ..SETTINGS });
    changed(&mut machine, 0..8, 'a');
    reconnect(&mut machine);
    assert_eq!(actions(&mut machine), []);
    assert_eq!(change(&mut machine, 0..8, 'b').1, Turn::Run(1));
}

#[test]
fn a_flush_covers_what_was_answered_before_it() {
    let mut machine = machine();
    changed(&mut machine, 0..8, 'a');
    let (flush, _) = machine.submit(Kind::Flush, 0..0, 0);
    changed(&mut machine, 8..16, 'b');
    machine.ended(at(0), flush, 0, End::Done);
    assert_eq!(machine.unflushed(), (1, 8));
    reconnect(&mut machine);
    assert_eq!(actions(&mut machine), [Action::Restore { seq: 1, link: 1, change: 'b' }]);
}

#[test]
fn an_answer_that_is_taken_late_does_not_count() {
    // The unit lost its cache between this answer and its being taken, and was given everything again
    // but this change.
    let mut machine = machine();
    let (id, _) = change(&mut machine, 0..8, 'a');
    let (flush, _) = machine.submit(Kind::Flush, 0..0, 0);
    let (read, _) = machine.submit(Kind::Read, 0..8, 0);
    reconnect(&mut machine);
    assert_eq!(machine.ended(at(0), id, 0, End::Done), Turn::Run(1));
    assert_eq!(machine.ended(at(0), flush, 0, End::Done), Turn::Run(1));
    assert_eq!(machine.ended(at(0), read, 0, End::Done), Turn::Answer);
}

#[test]
fn an_answer_taken_during_the_outage_counts_and_is_restored() {
    let mut machine = machine();
    let (id, _) = change(&mut machine, 0..8, 'a');
    machine.lost(at(0), 0, Duration::ZERO);
    assert_eq!(machine.ended(at(0), id, 0, End::Done), Turn::Answer);
    machine.connected();
    let restore = Action::Restore { seq: 0, link: 1, change: 'a' };
    assert_eq!(actions(&mut machine), [Action::Connect, restore]);
}

#[test]
fn what_is_kept_is_bounded_by_flushes() {
    let mut machine = machine();
    changed(&mut machine, 0..501, 'a');
    let flush = 2;
    assert_eq!(actions(&mut machine), [Action::Flush { id: flush, link: 0 }]);
    changed(&mut machine, 501..1100, 'b');
    assert_eq!(actions(&mut machine), [], "one flush at a time");
    let (held, turn) = change(&mut machine, 2000..2001, 'c');
    assert_eq!(turn, Turn::Wait, "the room is used up");
    machine.ended(at(0), flush, 0, End::Done);
    let next = Action::Flush { id: held + 1, link: 0 };
    assert_eq!(actions(&mut machine), [next, Action::Run { id: held, link: 0 }]);
    assert_eq!(machine.unflushed(), (1, 599));
    machine.ended(at(0), held + 1, 0, End::Failed);
    assert_eq!(actions(&mut machine), [Action::Over]);
    assert_eq!(machine.over(), Some(Over::NotFlushed));
}

#[test]
fn attempts_become_rarer_and_end_with_the_patience() {
    let mut machine = machine();
    machine.lost(at(0), 0, Duration::from_secs(2));
    let mut tried = Vec::new();
    while let Some(deadline) = machine.deadline() {
        machine.wake(deadline);
        if actions(&mut machine) == [Action::Connect] {
            tried.push(deadline.since_origin().as_millis());
            machine.failed(deadline, false, 0);
        }
    }
    // Not before the time the target asked for; then 0.1 s, twice that, ... five seconds.
    assert_eq!(tried[..6], [2000, 2100, 2300, 2700, 3500, 5100]);
    assert_eq!(tried[tried.len() - 1] - tried[tried.len() - 2], 5000);
    assert_eq!(machine.over(), Some(Over::GaveUp(Duration::from_secs(60))));
    assert_eq!(change(&mut machine, 0..1, 'a').1, Turn::Over);
}

#[test]
fn chance_shortens_a_wait_by_at_most_half() {
    let outage = Outage { since: at(0), attempts: 3 };
    for random in [0, 1, 500, 1023, u64::MAX] {
        let wait = outage.wait(&SETTINGS, random);
        assert!(
            wait > Duration::from_millis(200) && wait <= Duration::from_millis(400),
            "{wait:?}"
        );
    }
}

#[test]
fn a_link_that_carries_nothing_does_not_end_the_outage() {
    let mut machine = machine();
    let mut now = at(0);
    let (id, _) = change(&mut machine, 0..8, 'a');
    machine.ended(now, id, 0, End::Lost);
    let mut logins = 0;
    while machine.over().is_none() {
        // Every login succeeds, and the link is lost at once.
        for action in actions(&mut machine) {
            match action {
                Action::Connect => machine.connected(),
                Action::Run { id, link } => drop(machine.ended(now, id, link, End::Lost)),
                _ => {}
            }
            logins += u32::from(action == Action::Connect);
        }
        if let Some(deadline) = machine.deadline() {
            now = now.max(deadline);
            machine.wake(now);
        }
    }
    assert!((10..30).contains(&logins), "{logins}");
    assert_eq!(machine.over(), Some(Over::GaveUp(Duration::from_secs(60))));
}

#[test]
fn a_late_read_does_not_end_an_outage() {
    let mut machine = machine();
    let (read, _) = machine.submit(Kind::Read, 0..8, 0);
    machine.lost(at(0), 0, Duration::from_secs(1));
    assert_eq!(machine.ended(at(0), read, 0, End::Done), Turn::Answer);
    assert_eq!(machine.status(), Status::Reconnecting { since: at(0), attempts: 0 });
    machine.wake(at(1));
    assert_eq!(actions(&mut machine), [Action::Connect]);
}

#[test]
fn what_time_cannot_mend_ends_it_at_once() {
    let mut machine = machine();
    machine.lost(at(0), 0, Duration::ZERO);
    machine.failed(at(0), true, 0);
    assert_eq!(machine.over(), Some(Over::Refused));
    assert_eq!(actions(&mut machine), [Action::Over]);
}

#[test]
fn fenced_writer_restores_nothing() {
    let mut machine = machine();
    changed(&mut machine, 0..8, 'a');
    machine.lost(at(0), 0, Duration::ZERO);
    assert_eq!(actions(&mut machine), [Action::Connect]);
    machine.fenced();
    machine.connected();
    assert_eq!(actions(&mut machine), [Action::Over]);
    assert_eq!(machine.over(), Some(Over::Fenced));
    assert_eq!(change(&mut machine, 0..1, 'b').1, Turn::Over);
    assert_eq!(machine.unflushed(), (1, 8), "whoever gives up can still save it");
}

#[test]
fn who_leaves_does_not_wait_for_ever() {
    let mut machine = Recovery::<char>::new(Settings { patience: None, ..SETTINGS });
    machine.lost(at(0), 0, Duration::ZERO);
    assert_eq!(machine.deadline(), None, "an attempt is under way, and may take its time");
    machine.leave(at(1000), Duration::from_secs(10));
    assert_eq!(machine.deadline(), Some(at(1010)));
    machine.wake(at(1010));
    assert!(machine.over().is_some());
}

#[test]
fn a_request_that_nobody_waits_for_holds_nothing_up() {
    let mut machine = machine();
    let (first, _) = change(&mut machine, 0..8, 'a');
    let (second, _) = change(&mut machine, 0..8, 'b');
    let (third, _) = change(&mut machine, 0..8, 'c');
    machine.withdraw(second);
    machine.ended(at(0), first, 0, End::Failed);
    assert_eq!(actions(&mut machine), [Action::Run { id: third, link: 0 }]);
}
