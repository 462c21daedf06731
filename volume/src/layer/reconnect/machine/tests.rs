use std::collections::BTreeMap;

use super::*;

const SETTINGS: Settings = Settings {
    patience: Some(Duration::from_secs(60)),
    first_wait: Duration::from_millis(100),
    longest_wait: Duration::from_secs(5),
    unflushed_max: Some(1000),
    salvage: Salvage::Nothing,
};

/// The name of a change stands for each of its parts. A capital is a discard, a digit a group.
impl Replay for char {
    fn part(&self, _: &Range<u64>) -> Self {
        *self
    }

    fn replaces(&self) -> bool {
        !self.is_uppercase()
    }

    fn is_group(&self) -> bool {
        self.is_ascii_digit()
    }
}

impl Replay for (Range<u64>, u64) {
    fn part(&self, part: &Range<u64>) -> Self {
        (part.clone(), self.1)
    }

    fn replaces(&self) -> bool {
        true
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
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
    machine.connected(at(0));
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
fn unanswered_request_runs_again_before_those_that_overlap_it() {
    let mut machine = machine();
    let (first, _) = change(&mut machine, 0..8, 'a');
    let (second, _) = change(&mut machine, 4..12, 'b');
    assert_eq!(machine.ended(at(0), first, 0, End::Lost), Turn::Wait);
    assert_eq!(actions(&mut machine), [Action::Connect]);
    let (flush, turn) = machine.submit(Kind::Flush, 0..0, 0);
    assert_eq!(turn, Turn::Wait, "the link is down");
    machine.connected(at(0));
    let run = |id| Action::Run { id, link: 1 };
    assert_eq!(actions(&mut machine), [run(first), run(flush)]);
    machine.ended(at(0), first, 1, End::Done);
    assert_eq!(actions(&mut machine), [run(second)]);
}

#[test]
fn answered_changes_are_restored_in_order_before_anything_runs() {
    let mut machine = machine();
    changed(&mut machine, 0..8, 'a');
    changed(&mut machine, 16..24, 'b');
    changed(&mut machine, 4..12, 'C');
    reconnect(&mut machine);
    let restore = |seq, change| Action::Restore { seq, link: 1, change };
    assert_eq!(actions(&mut machine), [restore(0, 'a'), restore(1, 'b')]);
    let (read, turn) = machine.submit(Kind::Read, 32..40, 0);
    assert_eq!(turn, Turn::Wait);
    machine.restored(at(0), 1, 1, End::Done);
    assert_eq!(actions(&mut machine), [], "the third, a discard, overlaps the first");
    machine.restored(at(0), 0, 1, End::Done);
    assert_eq!(actions(&mut machine), [restore(2, 'C')]);
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
    changed(&mut machine, 4..12, 'b');
    reconnect(&mut machine);
    machine.restored(at(0), 0, 1, End::Done);
    actions(&mut machine);
    machine.restored(at(0), 1, 1, End::Lost);
    assert!(machine.in_doubt());
    machine.wake(at(9));
    machine.connected(at(0));
    let restore = |seq, change| Action::Restore { seq, link: 2, change };
    assert_eq!(actions(&mut machine), [Action::Connect, restore(0, 'a'), restore(1, 'b')]);
    // An answer from the link before says nothing of this one.
    machine.restored(at(9), 0, 1, End::Done);
    assert_eq!(actions(&mut machine), []);
}

/// A loss is found out by one after the other, while the next link is there already.
#[test]
fn group_runs_behind_those_before_it_on_the_same_link() {
    let mut machine = machine();
    let groups = ['1', '2', '3'].map(|name| change(&mut machine, 0..0, name));
    assert!(groups.iter().all(|(_, turn)| *turn == Turn::Run(0)));
    let [first, second, third] = groups.map(|(id, _)| id);
    assert_eq!(machine.ended(at(0), third, 0, End::Lost), Turn::Wait);
    machine.connected(at(0));
    assert_eq!(
        actions(&mut machine),
        [Action::Connect],
        "the first may be under way on the other link"
    );
    let (plain, turn) = change(&mut machine, 0..8, 'a');
    assert_eq!((plain, turn), (third + 1, Turn::Run(1)), "what is no group waits for none");
    assert_eq!(change(&mut machine, 0..0, '4').1, Turn::Wait);
    assert_eq!(machine.ended(at(0), second, 0, End::Done), Turn::Wait, "what it did may be lost");
    assert_eq!(machine.ended(at(0), first, 0, End::Lost), Turn::Run(1));
    let run = |id| Action::Run { id, link: 1 };
    assert_eq!(actions(&mut machine), [run(second), run(third), run(third + 2)]);
}

#[test]
fn nothing_runs_behind_a_group_that_has_failed() {
    let mut machine = machine();
    let [first, second] = ['1', '2'].map(|name| change(&mut machine, 0..0, name).0);
    assert_eq!(machine.ended(at(0), first, 0, End::Failed), Turn::Answer);
    assert_eq!(machine.over(), Some(Over::NotWritten));
    assert_eq!(machine.ended(at(0), second, 0, End::Lost), Turn::Over);
    assert_eq!(change(&mut machine, 0..0, '3').1, Turn::Over);
}

/// It is durable, and a later one may be too.
#[test]
fn answered_group_is_not_restored() {
    let mut machine = machine();
    changed(&mut machine, 0..0, '1');
    assert_eq!(machine.unflushed(), (0, 0));
    reconnect(&mut machine);
    assert_eq!(actions(&mut machine), []);
}

/// A later change may be durable already: were the older one put there first, whatever keeps the later one from
/// following would set a block back that a flush has told of.
#[test]
fn change_replaced_by_a_later_one_is_not_restored() {
    let mut machine = Recovery::<(Range<u64>, u64)>::new(SETTINGS);
    for (range, stamp) in [(0..16, 1), (4..8, 2), (12..20, 3), (24..32, 4), (24..32, 5)] {
        let weight = (range.end - range.start) as usize;
        let (id, _) = machine.submit(Kind::Change((range.clone(), stamp)), range, weight);
        machine.ended(at(0), id, 0, End::Done);
    }
    machine.lost(at(0), 0, Duration::ZERO);
    machine.connected(at(0));
    let mut restored = Vec::new();
    while let Some(action) = machine.poll() {
        if let Action::Restore { seq, link, change } = action {
            restored.push(change);
            machine.restored(at(0), seq, link, End::Done);
        }
    }
    restored.sort_by_key(|(range, _)| range.start);
    assert_eq!(restored, [(0..4, 1), (4..8, 2), (8..12, 1), (12..20, 3), (24..32, 5)]);
    assert_eq!(machine.submit(Kind::Read, 0..8, 0).1, Turn::Run(1));
}

#[test]
fn a_discard_replaces_nothing() {
    let mut machine = machine();
    changed(&mut machine, 0..8, 'a');
    changed(&mut machine, 0..8, 'B');
    reconnect(&mut machine);
    assert_eq!(actions(&mut machine), [Action::Restore { seq: 0, link: 1, change: 'a' }]);
    machine.restored(at(0), 0, 1, End::Done);
    assert_eq!(actions(&mut machine), [Action::Restore { seq: 1, link: 1, change: 'B' }]);
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
    assert_eq!(
        [0..8, 7..9, 16..17].map(|range| machine.is_unflushed(&range)),
        [false, true, false]
    );
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
    machine.connected(at(0));
    let restore = Action::Restore { seq: 0, link: 1, change: 'a' };
    assert_eq!(actions(&mut machine), [Action::Connect, restore]);
}

#[test]
fn unflushed_changes_are_bounded_by_flushes() {
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

/// Nobody waits for the flush that the machine asks for, so that only the machine can have it run again.
#[test]
fn unasked_flush_that_was_lost_is_asked_for_again() {
    for taken_late in [false, true] {
        let mut machine = machine();
        changed(&mut machine, 0..501, 'a');
        assert_eq!(actions(&mut machine), [Action::Flush { id: 2, link: 0 }]);
        reconnect(&mut machine);
        machine.restored(at(0), 0, 1, End::Done);
        assert_eq!(actions(&mut machine), [Action::Restore { seq: 0, link: 1, change: 'a' }]);
        // The next link is up when the end of the flush on the one before is noticed.
        let end = if taken_late { End::Done } else { End::Lost };
        assert_eq!(machine.ended(at(0), 2, 0, end), Turn::Wait);
        assert_eq!(actions(&mut machine), [Action::Flush { id: 2, link: 1 }]);
        assert_eq!(machine.ended(at(0), 2, 1, End::Done), Turn::Answer);
        assert_eq!(machine.unflushed(), (0, 0));
    }
}

#[test]
fn attempts_become_rarer_and_end_with_the_patience() {
    let mut machine = machine();
    machine.lost(at(0), 0, Duration::from_secs(2));
    let mut tried = Vec::new();
    while let Some(deadline) = machine.deadline() {
        machine.wake(deadline);
        if actions(&mut machine) == [Action::Connect] {
            tried.push(deadline.as_millis());
            machine.failed(deadline, Failure::NoSession, 0);
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
    let mut outage = Outage::new(at(0));
    outage.attempts = 3;
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
                Action::Connect => machine.connected(now),
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

/// A second without a link, ten minutes in which nothing is asked, and another short outage.
#[test]
fn time_in_which_a_link_stands_does_not_count() {
    for answered in [false, true] {
        let mut machine = machine();
        machine.lost(at(0), 0, Duration::ZERO);
        machine.connected(at(1));
        assert_eq!(machine.deadline(), None, "a link that stands is not given up");
        if answered {
            machine.answered(1);
        }
        assert!(machine.lost(at(600), 1, Duration::ZERO));
        assert_eq!(machine.over(), None, "this outage has just begun");
        let over_at = if answered { 660 } else { 659 };
        machine.wake(at(over_at - 1));
        assert_eq!(machine.over(), None);
        machine.wake(at(over_at));
        assert_eq!(machine.over(), Some(Over::GaveUp(Duration::from_secs(60))));
    }
}

#[test]
fn answers_of_an_earlier_link_do_not_prove_the_next() {
    let mut machine = machine();
    machine.lost(at(0), 0, Duration::ZERO);
    machine.connected(at(50));
    machine.answered(0);
    machine.lost(at(51), 1, Duration::ZERO);
    machine.wake(at(61));
    assert!(machine.over().is_some(), "61 s but one without a link that carried anything");
}

/// What is kept may take longer to be written again than an outage may last.
#[test]
fn restoring_is_no_waiting_as_long_as_it_gets_on() {
    let mut machine = machine();
    changed(&mut machine, 0..8, 'a');
    changed(&mut machine, 4..12, 'b');
    machine.lost(at(0), 0, Duration::ZERO);
    machine.connected(at(50));
    machine.restored(at(55), 0, 1, End::Done);
    machine.wake(at(114));
    assert_eq!(machine.over(), None, "the link stands, and half is written");
    // The next link gets no further.
    machine.lost(at(114), 1, Duration::ZERO);
    machine.connected(at(114));
    machine.restored(at(114), 0, 2, End::Done);
    machine.wake(at(115));
    assert_eq!(machine.over(), Some(Over::GaveUp(Duration::from_secs(60))));
}

/// The unit is busy just then.
#[test]
fn change_that_cannot_be_restored_now_is_restored_later() {
    let mut machine = machine();
    changed(&mut machine, 0..8, 'a');
    reconnect(&mut machine);
    actions(&mut machine);
    machine.restored(at(1), 0, 1, End::NotYet);
    assert_eq!(machine.over(), None);
    machine.wake(at(2));
    machine.connected(at(2));
    let restore = Action::Restore { seq: 0, link: 2, change: 'a' };
    assert_eq!(actions(&mut machine), [Action::Connect, restore]);
    machine.restored(at(3), 0, 2, End::NotYet);
    machine.wake(at(60));
    assert_eq!(machine.over(), Some(Over::GaveUp(Duration::from_secs(60))));
}

#[test]
fn link_on_which_all_was_restored_has_proved_to_work() {
    let mut machine = machine();
    changed(&mut machine, 0..8, 'a');
    machine.lost(at(0), 0, Duration::ZERO);
    machine.connected(at(50));
    machine.restored(at(51), 0, 1, End::Done);
    machine.lost(at(70), 1, Duration::ZERO);
    assert_eq!(machine.status(), Status::Reconnecting { since: at(70), attempts: 1 });
}

/// The unit is busy for one request for longer than is waited for, and carries out all others.
#[test]
fn request_that_cannot_be_carried_out_is_not_waited_for_for_ever() {
    let mut machine = machine();
    let (busy, turn) = change(&mut machine, 0..8, 'a');
    assert_eq!(turn, Turn::Run(0));
    let mut now = at(0);
    let mut attempts = 0;
    assert_eq!(machine.ended(now, busy, 0, End::NotYet), Turn::Wait);
    while machine.over().is_none() {
        let mut again = None;
        while let Some(action) = machine.poll() {
            match action {
                Action::Connect => machine.connected(now),
                Action::Run { id, link } => again = Some((id, link)),
                _ => {}
            }
        }
        if let Some((id, link)) = again {
            attempts += 1;
            assert!(machine.deadline().is_some(), "it is not carried out yet");
            let (read, _) = machine.submit(Kind::Read, 0..8, 0);
            machine.ended(now, read, link, End::Done);
            machine.answered(link);
            now += Duration::from_secs(1);
            machine.ended(now, id, link, End::NotYet);
        }
        if let Some(deadline) = machine.deadline() {
            now = now.max(deadline);
            machine.wake(now);
        }
    }
    assert!((8..40).contains(&attempts), "{attempts}: neither seldom nor in a tight loop");
    assert_eq!(machine.over(), Some(Over::NotCarriedOut(Duration::from_secs(60))));
    assert_eq!(now, at(60));
}

#[test]
fn outage_is_over_when_what_it_was_for_is_carried_out() {
    let mut machine = machine();
    let (stuck, _) = change(&mut machine, 0..8, 'a');
    let (read, _) = machine.submit(Kind::Read, 0..8, 0);
    machine.unanswered(0);
    machine.lost(at(0), 0, Duration::ZERO);
    for id in [stuck, read] {
        machine.ended(at(0), id, 0, End::Lost);
    }
    machine.connected(at(0));
    machine.ended(at(1), read, 1, End::Done);
    assert_eq!(machine.deadline(), Some(at(60)), "one of two");
    machine.ended(at(1), stuck, 1, End::Done);
    assert_eq!(machine.deadline(), None);
    machine.lost(at(100), 1, Duration::ZERO);
    assert_eq!(machine.status(), Status::Reconnecting { since: at(100), attempts: 1 });
}

/// Who is told to end while a request gets no answer ends in time.
#[test]
fn leaving_does_not_wait_for_an_unanswered_request() {
    let mut machine = Recovery::<char>::new(Settings { patience: None, ..SETTINGS });
    let (stuck, _) = machine.submit(Kind::Flush, 0..0, 0);
    machine.leave(at(5), Duration::from_secs(10));
    machine.unanswered(0);
    machine.lost(at(60), 0, Duration::ZERO);
    machine.ended(at(60), stuck, 0, End::Lost);
    machine.connected(at(60));
    machine.answered(1);
    assert_eq!(machine.deadline(), Some(at(70)));
    machine.wake(at(70));
    assert!(machine.over().is_some());
}

#[test]
fn request_that_nobody_waits_for_does_not_prolong_an_outage() {
    let mut machine = machine();
    let (read, _) = machine.submit(Kind::Read, 0..8, 0);
    machine.ended(at(0), read, 0, End::NotYet);
    machine.connected(at(0));
    machine.answered(1);
    assert_eq!(machine.deadline(), Some(at(60)));
    machine.withdraw(read);
    assert_eq!(machine.deadline(), None);
}

/// Each row: why an attempt failed, and whether that ends the volume.
#[test]
fn only_an_authenticated_reason_or_a_reservation_ends_the_volume() {
    for (failure, ends) in [
        (Failure::NoSession, false),
        (Failure::Unusable { secure: false }, false),
        (Failure::Unusable { secure: true }, true),
        (Failure::Reserved, true),
        (Failure::Local, true),
    ] {
        let mut machine = machine();
        machine.lost(at(0), 0, Duration::ZERO);
        assert_eq!(actions(&mut machine), [Action::Connect]);
        machine.failed(at(0), failure, 0);
        let (over, todo) = (machine.over(), actions(&mut machine));
        match ends {
            true => assert_eq!((over, &todo[..]), (Some(Over::Refused), &[Action::Over][..])),
            false => assert_eq!((over, &todo[..]), (None, &[][..]), "{failure:?}"),
        }
    }
}

#[test]
fn fenced_writer_restores_nothing() {
    let mut machine = machine();
    changed(&mut machine, 0..8, 'a');
    machine.lost(at(0), 0, Duration::ZERO);
    assert_eq!(actions(&mut machine), [Action::Connect]);
    machine.fenced();
    machine.connected(at(0));
    assert_eq!(actions(&mut machine), [Action::Over]);
    assert_eq!(machine.over(), Some(Over::Fenced));
    assert_eq!(change(&mut machine, 0..1, 'b').1, Turn::Over);
    assert_eq!(machine.unflushed(), (1, 8), "whoever gives up can still save it");
}

#[test]
fn leaving_has_an_end() {
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

fn behind() -> Recovery<char> {
    Recovery::new(Settings { salvage: Salvage::Submitted, ..SETTINGS })
}

fn saved(machine: &mut Recovery<char>) -> String {
    let saved = actions(machine).into_iter().filter_map(|action| match action {
        Action::Save(change) => Some(change),
        _ => None,
    });
    saved.collect()
}

#[test]
fn acknowledged_changes_are_saved_when_the_link_is_given_up() {
    let mut machine = behind();
    changed(&mut machine, 0..8, 'a');
    changed(&mut machine, 0..8, 'b');
    let (running, _) = change(&mut machine, 16..24, 'c');
    change(&mut machine, 4..12, 'd');
    machine.ended(at(0), running, 0, End::Lost);
    actions(&mut machine);
    machine.wake(at(60));
    assert!(matches!(machine.over(), Some(Over::GaveUp(_))));
    let last = change(&mut machine, 0..8, 'e');
    assert_eq!(last.1, Turn::Over);
    let expected = ['a', 'b', 'c', 'd'].map(Action::Save).into_iter();
    let expected: Vec<_> = expected.chain([Action::Over, Action::Save('e')]).collect();
    assert_eq!(actions(&mut machine), expected);
}

#[test]
fn flushed_changes_are_not_saved() {
    let mut machine = behind();
    changed(&mut machine, 0..8, 'a');
    let (flush, _) = machine.submit(Kind::Flush, 0..0, 0);
    machine.ended(at(0), flush, 0, End::Done);
    changed(&mut machine, 0..8, 'b');
    machine.close();
    assert_eq!(saved(&mut machine), "b");
}

#[test]
fn a_failed_write_is_saved_between_what_came_before_and_what_came_after() {
    let mut machine = behind();
    changed(&mut machine, 0..8, 'a');
    let (failing, _) = change(&mut machine, 0..8, 'b');
    let (waiting, turn) = change(&mut machine, 0..8, 'c');
    assert_eq!(turn, Turn::Wait);
    let (flush, _) = machine.submit(Kind::Flush, 0..0, 0);
    machine.ended(at(0), failing, 0, End::Failed);
    assert_eq!(machine.submit(Kind::Flush, 0..0, 0).1, Turn::Over, "no flush succeeds any more");
    // What was accepted is still carried out, and saved as well.
    changed(&mut machine, 16..24, 'd');
    let expected = ['a', 'b', 'c'].map(Action::Save).into_iter();
    let expected = expected.chain([Action::Run { id: waiting, link: 0 }, Action::Save('d')]);
    assert_eq!(actions(&mut machine), expected.collect::<Vec<_>>());
    // The flush under way says nothing of them, and nothing is saved twice.
    machine.ended(at(0), flush, 0, End::Done);
    machine.ended(at(0), waiting, 0, End::Done);
    machine.close();
    assert_eq!(saved(&mut machine), "");
    assert_eq!(machine.unflushed(), (3, 24), "they can still be written again for reads");
}

#[test]
fn changes_kept_after_a_failed_write_stay_bounded() {
    let mut machine = behind();
    let (failing, _) = change(&mut machine, 0..8, 'a');
    machine.ended(at(0), failing, 0, End::Failed);
    for _ in 0..126 {
        changed(&mut machine, 0..8, 'b');
    }
    assert_eq!(machine.unflushed(), (126, 1008));
    assert_eq!(machine.over(), Some(Over::NotWritten));
    assert_eq!(saved(&mut machine).len(), 127, "nothing of it is lost");
    assert_eq!(change(&mut machine, 0..8, 'c').1, Turn::Over);
    assert_eq!(saved(&mut machine), "c");
}

#[test]
fn a_failed_flush_has_all_saved_that_it_should_have_covered() {
    let mut machine = behind();
    changed(&mut machine, 0..8, 'a');
    let (flush, _) = machine.submit(Kind::Flush, 0..0, 0);
    let (other, _) = machine.submit(Kind::Flush, 0..0, 0);
    machine.ended(at(0), flush, 0, End::Failed);
    machine.ended(at(0), other, 0, End::Done);
    changed(&mut machine, 0..8, 'b');
    assert_eq!(saved(&mut machine), "ab");
}

#[test]
fn a_discard_that_fails_ends_nothing() {
    let mut machine = behind();
    let (discard, _) = change(&mut machine, 0..8, 'a');
    machine.ended(at(0), discard, 0, End::NotTaken);
    assert!(!machine.is_saving());
    assert_eq!(machine.submit(Kind::Flush, 0..0, 0).1, Turn::Run(0));
}

#[test]
fn failed_change_that_its_caller_was_told_of_is_not_saved() {
    let mut machine = Recovery::new(Settings { salvage: Salvage::Answered, ..SETTINGS });
    changed(&mut machine, 0..8, 'a');
    let (failing, _) = change(&mut machine, 0..8, 'b');
    machine.ended(at(0), failing, 0, End::Failed);
    assert!(!machine.is_saving());
    let (late, _) = change(&mut machine, 8..16, 'c');
    let (never, _) = change(&mut machine, 16..24, 'd');
    machine.close();
    assert_eq!(machine.ended(at(0), late, 0, End::Done), Turn::Answer);
    assert_eq!(machine.ended(at(0), never, 0, End::Lost), Turn::Over);
    change(&mut machine, 0..8, 'e');
    assert_eq!(saved(&mut machine), "ac");
}

/// Where something was written, and what.
type Stamped = (Range<u64>, u64);

/// A target that keeps of what was not flushed what it likes.
struct Unreliable {
    durable: Vec<u64>,
    versions: Vec<Vec<u64>>,
}

/// Writes that are acknowledged at once, some of which fail; flushes, outages, and an end at some time. Whatever the
/// target has kept: with what was saved on top it is what was written.
#[test]
fn saved_changes_repair_any_target() {
    const BLOCKS: u64 = 8;
    for seed in 0..10_000_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = move |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % most
        };
        let settings = Settings { unflushed_max: Some(20), ..SETTINGS };
        let settings = Settings { salvage: Salvage::Submitted, ..settings };
        let mut machine = Recovery::<Stamped>::new(settings);
        let mut target = Unreliable { durable: vec![0; 8], versions: vec![Vec::new(); 8] };
        let mut written = vec![0; BLOCKS as usize];
        // Requests in the hands of the target: a change, or a flush with what it will have made durable.
        let mut running: Vec<(u64, u64, Option<Stamped>)> = Vec::new();
        let mut kinds = BTreeMap::new();
        let mut failed = false;
        let mut save: Vec<Stamped> = Vec::new();
        for step in 1..=60_u64 {
            let now = Duration::from_millis(step);
            match below(12) {
                0..5 if !failed => {
                    let start = below(BLOCKS);
                    let range = start..start + 1 + below(BLOCKS - start);
                    written[range.start as usize..range.end as usize].fill(step);
                    let weight = (range.end - range.start) as usize;
                    let change = (range.clone(), step);
                    let (id, turn) = machine.submit(Kind::Change(change.clone()), range, weight);
                    kinds.insert(id, Some(change.clone()));
                    if let Turn::Run(link) = turn {
                        running.push((id, link, Some(change)));
                    }
                }
                5 if !failed => {
                    let (id, turn) = machine.submit(Kind::Flush, 0..0, 0);
                    kinds.insert(id, None);
                    if let Turn::Run(link) = turn {
                        running.push((id, link, None));
                    }
                }
                6..11 if !running.is_empty() => {
                    let (id, link, change) =
                        running.swap_remove(below(running.len() as u64) as usize);
                    let fails = below(30) == 0;
                    match &change {
                        Some((range, stamp)) => {
                            for block in range.clone() {
                                if !fails || below(2) == 0 {
                                    target.versions[block as usize].push(*stamp);
                                }
                            }
                        }
                        None if !fails => {
                            for (durable, versions) in
                                target.durable.iter_mut().zip(&mut target.versions)
                            {
                                *durable = versions.pop().unwrap_or(*durable);
                                versions.clear();
                            }
                        }
                        None => {}
                    }
                    failed |= fails;
                    let end = if fails { End::Failed } else { End::Done };
                    if let Turn::Run(link) = machine.ended(now, id, link, end) {
                        running.push((id, link, change));
                    }
                }
                11 if below(6) == 0 => {
                    let link = machine.number;
                    for (id, link, _) in running.drain(..) {
                        machine.ended(now, id, link, End::Lost);
                    }
                    machine.lost(now, link, Duration::ZERO);
                }
                _ => {}
            }
            while let Some(action) = machine.poll() {
                match action {
                    Action::Connect => machine.connected(now),
                    Action::Run { id, link } => running.push((id, link, kinds[&id].clone())),
                    Action::Flush { id, link } => running.push((id, link, None)),
                    Action::Restore { seq, link, change } => {
                        for block in change.0.clone() {
                            target.versions[block as usize].push(change.1);
                        }
                        machine.restored(now, seq, link, End::Done);
                    }
                    Action::Save(change) => save.push(change),
                    Action::Over => {}
                }
            }
        }
        machine.close();
        save.extend(std::iter::from_fn(|| machine.poll()).filter_map(|action| match action {
            Action::Save(change) => Some(change),
            _ => None,
        }));
        // A crash, and the file.
        let mut contents: Vec<u64> = (target.durable.iter().zip(&target.versions))
            .map(|(durable, versions)| {
                let choice = below(versions.len() as u64 + 1) as usize;
                versions.get(choice).copied().unwrap_or(*durable)
            })
            .collect();
        for (range, stamp) in save {
            contents[range.start as usize..range.end as usize].fill(stamp);
        }
        assert_eq!(contents, written, "seed {seed}");
    }
}
