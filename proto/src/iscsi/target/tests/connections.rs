//! Several connections.

use crate::iscsi::header::{
    AsyncMessage, LoginResponse, LogoutResponse, NopIn, Reject, TaskManagementResponse,
};

use super::management::logout;
use super::*;

/// The connections of a session of three, the first among them.
const CIDS: [u16; 3] = [CID, 7, 9];

/// A session of several connections and the initiator's ends of them.
struct ThreeConnections {
    session: Session,
    decoders: [Decoder; 3],
    now: Time,
}

/// The first CmdSN.
const FIRST: u32 = u32::MAX;

fn sn(ahead: u32) -> u32 {
    FIRST.wrapping_add(ahead)
}

impl ThreeConnections {
    fn new() -> Self {
        Self::with(parameters(), Arc::new(Budget::new(1 << 20, 0)))
    }

    fn with(parameters: Parameters, budget: Arc<Budget>) -> Self {
        let mut session = Pair::within(parameters.clone(), false, budget, WINDOW).session;
        let mut decoders = CIDS.map(|_| decoder());
        for (at, cid) in CIDS.into_iter().enumerate().skip(1) {
            let joining = Joining { cid, stat_sn: 1000 * at as u32, parameters: &parameters };
            session.join(Time::ZERO, &joining, Pdu::bare(LoginResponse::default()));
            let response = received(&mut session, cid, &mut decoders[at]);
            assert!(matches!(response[..], [Pdu { header: Header::LoginResponse(_), .. }]));
        }
        Self { session, decoders, now: Time::ZERO }
    }

    fn send(&mut self, on: usize, header: impl Into<Header>, data: &[u8]) {
        let pdu = Pdu::with_data(header, Bytes::copy_from_slice(data));
        self.session.handle(self.now, CIDS[on], Frame::Pdu(pdu));
    }

    fn read(&mut self, on: usize, itt: u32, cmd_sn: u32) {
        let header = ScsiCommand { is_final: true, itt, cmd_sn, ..<_>::default() };
        self.send(on, header, &[]);
    }

    fn manage(&mut self, on: usize, function: TaskFunction, cmd_sn: u32, task: (u32, u32)) {
        let (referenced_tag, ref_cmd_sn) = task;
        let request = TaskManagementRequest {
            immediate: true,
            function,
            itt: 0x900,
            referenced_tag,
            cmd_sn,
            ref_cmd_sn,
            ..TaskManagementRequest::default()
        };
        self.send(on, request, &[]);
    }

    fn received(&mut self, on: usize) -> Vec<Pdu> {
        received(&mut self.session, CIDS[on], &mut self.decoders[on])
    }

    fn one<T: TryFrom<Header>>(&mut self, on: usize) -> T {
        let mut pdus = self.received(on);
        assert_eq!(pdus.len(), 1, "{pdus:?}");
        T::try_from(pdus.remove(0).header).ok().expect("another PDU")
    }

    /// The commands that are offered, each of which runs from now on.
    fn offered(&mut self) -> Vec<TaskId> {
        let mut tasks = Vec::new();
        while let Some(event) = self.session.poll_event() {
            let Event::Command(command) = event else { panic!("{event:?}") };
            self.session.want_data(command.task, 0);
            tasks.push(command.task);
        }
        tasks
    }

    fn reply(&mut self, task: TaskId) {
        let (data, sense) = (Pieces::new(), Bytes::new());
        self.session
            .complete(task, Reply { status: Status::Good, data, sense, residual: Residual::None });
    }

    fn expect_abort(&mut self, task: TaskId) {
        let event = self.session.poll_event();
        assert!(matches!(event, Some(Event::Abort(aborted)) if aborted == task), "{event:?}");
    }

    /// The initiator is to be told, by the unit, that commands on it ended (RFC 7143, 11.14.5).
    fn expect_cleared(&mut self) {
        let event = self.session.poll_event();
        assert!(
            matches!(event, Some(Event::CommandsCleared { lun }) if lun == [0; 8]),
            "{event:?}"
        );
    }

    /// Nothing is to be told, nor to be sent.
    fn is_quiet(&mut self) -> bool {
        self.session.poll_event().is_none() && self.session.unsent() == 0
    }
}

/// RFC 7143, 4.2.2.1 and 4.2.2.2: one order of commands, one of statuses on each connection; and a command
/// is answered where it came.
#[test]
fn commands_are_ordered_across_connections_and_answered_on_theirs() {
    let mut party = ThreeConnections::new();
    party.read(2, 12, sn(2));
    party.read(1, 11, sn(1));
    assert!(party.is_quiet());
    party.read(0, 10, sn(0));
    let tasks = party.offered();
    for task in tasks.into_iter().rev() {
        party.reply(task);
    }
    for (on, itt, stat_sn) in [(0, 10, 100), (1, 11, 1000), (2, 12, 2000)] {
        let answer: ScsiResponse = party.one(on);
        assert_eq!((answer.itt, answer.stat_sn, answer.exp_cmd_sn), (itt, stat_sn, sn(3)));
    }
}

/// RFC 7143, 4.2.5.1: R2Ts and data go by the connection of their command; and they do not wait for the
/// turn of the command.
#[test]
fn the_data_of_a_command_come_by_its_connection_before_its_turn() {
    let mut party = ThreeConnections::new();
    let write = |itt, cmd_sn| ScsiCommand {
        write: true,
        itt,
        expected_len: 8192,
        cmd_sn,
        ..<_>::default()
    };
    party.send(1, write(11, sn(1)), &[1; 1024]);
    let unsolicited =
        DataOut { is_final: true, itt: 11, ttt: NO_TAG, buffer_offset: 1024, ..<_>::default() };
    party.send(1, unsolicited, &[2; 3072]);
    assert!(party.is_quiet());
    party.read(0, 10, sn(0));
    let Some(Event::Command(_)) = party.session.poll_event() else { panic!() };
    let Some(Event::Command(command)) = party.session.poll_event() else { panic!() };
    assert_eq!(party.session.want_data(command.task, 8192), None);
    let r2t: R2t = party.one(1);
    assert_eq!((r2t.buffer_offset, r2t.desired_len), (4096, 4096));
    let solicited =
        DataOut { is_final: true, itt: 11, ttt: r2t.ttt, buffer_offset: 4096, ..<_>::default() };
    party.send(2, solicited, &[3; 4096]);
    assert_eq!(party.one::<Reject>(2).reason, RejectReason::PROTOCOL_ERROR);
    party.send(1, solicited, &[3; 4096]);
    let Some(Event::Execute { data, .. }) = party.session.poll_event() else { panic!() };
    assert_eq!(data.concat(), [vec![1; 1024], vec![2; 3072], vec![3; 4096]].concat());
}

/// What is wrong with a command is said when its turn has come, and what came with it holds nothing.
#[test]
fn a_fault_before_its_turn_waits_for_it() {
    let mut party = ThreeConnections::with(parameters(), Arc::new(Budget::new(4096, 0)));
    let write = |itt, cmd_sn| ScsiCommand {
        is_final: true,
        write: true,
        itt,
        expected_len: 4096,
        cmd_sn,
        ..<_>::default()
    };
    party.send(1, write(11, sn(1)), &[1; 4096]);
    party.send(2, write(12, sn(2)), &[1; 4096]);
    assert!(party.is_quiet());
    party.read(0, 10, sn(0));
    let first = party.offered();
    assert_eq!(first.len(), 2, "there is room for the data of one");
    let refused: ScsiResponse = party.one(2);
    assert_eq!((refused.itt, refused.status), (12, Status::TaskSetFull as u8));
}

/// Places in the window are of the session, and commands that came before their turn do not take two.
#[test]
fn the_window_is_shared() {
    let mut party = ThreeConnections::new();
    for itt in 1..WINDOW {
        party.read(1, itt, sn(itt));
    }
    party.read(2, WINDOW, sn(WINDOW));
    party.read(0, 0, sn(0));
    let tasks = party.offered();
    assert_eq!(tasks.len(), WINDOW as usize, "and one beyond the window, which is ignored");
    party.reply(tasks[0]);
    let answer: ScsiResponse = party.one(0);
    assert_eq!((answer.exp_cmd_sn, answer.max_cmd_sn), (sn(WINDOW), sn(WINDOW)));
}

/// RFC 7143, 11.14: reason 1 ends the tasks of one connection, and the response is the last on it.
#[test]
fn one_connection_logs_out_and_the_others_go_on() {
    let mut party = ThreeConnections::new();
    party.read(0, 10, sn(0));
    party.read(1, 11, sn(1));
    party.read(1, 13, sn(3));
    let tasks = party.offered();
    party.send(1, logout(LogoutReason::CLOSE_CONNECTION, CIDS[1]), &[]);
    party.expect_cleared();
    party.expect_abort(tasks[1]);
    assert!(party.is_quiet(), "its task runs");
    party.reply(tasks[1]);
    let response: LogoutResponse = party.one(1);
    assert_eq!(response.response, LogoutResponseCode::CLOSED);
    let closed = party.session.poll_event();
    assert!(matches!(closed, Some(Event::CloseConnection(cid)) if cid == CIDS[1]), "{closed:?}");
    party.read(1, 14, sn(2));
    assert!(party.is_quiet(), "nothing more is taken from it");
    party.session.remove(party.now, CIDS[1]);
    party.reply(tasks[0]);
    assert_eq!(party.one::<ScsiResponse>(0).itt, 10);
    // What it had sent before its turn counts as received.
    party.read(2, 12, sn(2));
    assert_eq!(party.offered().len(), 1);
    party.read(2, 15, sn(4));
    assert_eq!(party.offered().len(), 1);
}

#[test]
fn a_connection_can_be_logged_out_by_another() {
    let mut party = ThreeConnections::new();
    party.send(0, logout(LogoutReason::CLOSE_CONNECTION, CIDS[2]), &[]);
    assert_eq!(party.one::<LogoutResponse>(0).response, LogoutResponseCode::CLOSED);
    let closed = party.session.poll_event();
    assert!(matches!(closed, Some(Event::CloseConnection(cid)) if cid == CIDS[2]));
    party.session.remove(party.now, CIDS[2]);
    party.send(0, logout(LogoutReason::CLOSE_CONNECTION, CIDS[2]), &[]);
    assert_eq!(party.one::<LogoutResponse>(0).response, LogoutResponseCode::CID_NOT_FOUND);
    party.send(0, logout(LogoutReason::REMOVE_FOR_RECOVERY, CIDS[1]), &[]);
    let refused = LogoutResponseCode::RECOVERY_NOT_SUPPORTED;
    assert_eq!(party.one::<LogoutResponse>(0).response, refused);
}

/// The session ends with its last connection, in whatever order they log out.
#[test]
fn the_last_connection_to_log_out_ends_the_session() {
    let mut party = ThreeConnections::new();
    for on in [0, 2] {
        party.send(on, logout(LogoutReason::CLOSE_CONNECTION, CIDS[on]), &[]);
        assert!(matches!(party.session.poll_event(), Some(Event::CloseConnection(_))));
    }
    party.send(1, logout(LogoutReason::CLOSE_CONNECTION, CIDS[1]), &[]);
    assert!(matches!(party.session.poll_event(), Some(Event::Close(Ending::Logout))));
}

/// RFC 7143, 6.3.4: a new login with the number of a connection takes its place, when its tasks are dead.
#[test]
fn a_connection_is_reinstated_after_its_tasks_have_ended() {
    let mut party = ThreeConnections::new();
    party.read(1, 11, sn(0));
    let tasks = party.offered();
    party.manage(1, TaskFunction::ABORT_TASK, sn(1), (11, sn(0)));
    party.expect_abort(tasks[0]);
    party.session.replace_connection(party.now, CIDS[1], 5);
    assert!(!party.session.has_connection(CIDS[1]) && party.is_quiet());
    party.reply(tasks[0]);
    assert!(matches!(party.session.poll_event(), Some(Event::Cleared { ticket: 5 })));
    let parameters = parameters();
    let joining = Joining { cid: CIDS[1], stat_sn: 50, parameters: &parameters };
    party.session.join(party.now, &joining, Pdu::bare(LoginResponse::default()));
    party.decoders[1] = decoder();
    let pdus = party.received(1);
    assert_eq!(pdus.len(), 1, "nothing of what was before: {pdus:?}");
    party.read(1, 11, sn(1));
    let tasks = party.offered();
    party.reply(tasks[0]);
    assert_eq!(party.one::<ScsiResponse>(1).stat_sn, 50);
}

/// RFC 7143, 11.14 and 11.14.5: what is left undone when a connection takes the place of another, its unit
/// tells.
#[test]
fn a_reinstated_connection_is_told_of_its_tasks() {
    let mut party = ThreeConnections::new();
    party.read(1, 11, sn(0));
    let tasks = party.offered();
    party.session.replace_connection(party.now, CIDS[1], 5);
    party.expect_cleared();
    party.expect_abort(tasks[0]);
    party.session.replace_connection(party.now, CIDS[2], 6);
    assert!(matches!(party.session.poll_event(), Some(Event::Cleared { ticket: 6 })));
}

/// RFC 7143, 11.6.1: a task of another connection is aborted, whether it has come or not.
#[test]
fn an_abort_reaches_tasks_of_other_connections() {
    let mut party = ThreeConnections::new();
    party.read(1, 11, sn(0));
    party.read(2, 12, sn(2));
    let tasks = party.offered();
    party.manage(0, TaskFunction::ABORT_TASK, sn(3), (12, sn(2)));
    let answer: TaskManagementResponse = party.one(0);
    assert_eq!(answer.response, TaskResponse::COMPLETE, "it waited for its turn");
    // One that has not come counts as received.
    party.manage(0, TaskFunction::ABORT_TASK, sn(3), (13, sn(1)));
    let answer: TaskManagementResponse = party.one(0);
    assert_eq!((answer.response, answer.exp_cmd_sn), (TaskResponse::COMPLETE, sn(2)));
    party.read(2, 14, sn(3));
    assert_eq!(party.offered().len(), 1, "nothing is missing before it");
    party.read(1, 13, sn(1));
    assert!(party.is_quiet(), "what comes late is not carried out");
    party.manage(0, TaskFunction::ABORT_TASK, sn(4), (11, sn(0)));
    party.expect_abort(tasks[0]);
    assert!(party.is_quiet());
    party.reply(tasks[0]);
    assert_eq!(party.one::<TaskManagementResponse>(0).response, TaskResponse::COMPLETE);
    assert!(party.is_quiet(), "the task itself is not answered");
}

/// RFC 7143, 4.2.3.3: a reset waits for the commands that were sent before it by other connections, none of
/// which is carried out; what was sent after it is.
#[test]
fn a_unit_reset_waits_for_commands_on_their_way() {
    let mut party = ThreeConnections::new();
    party.read(2, 13, sn(2));
    party.manage(0, TaskFunction::LOGICAL_UNIT_RESET, sn(2), (NO_TAG, 0));
    let Some(Event::Manage { request, .. }) = party.session.poll_event() else { panic!() };
    party.session.managed(request, TaskResponse::COMPLETE);
    party.read(1, 11, sn(0));
    assert!(party.is_quiet(), "one more was sent before");
    party.read(1, 12, sn(1));
    assert_eq!(party.offered().len(), 1, "the one that was sent after");
    let answer: TaskManagementResponse = party.one(0);
    assert_eq!(answer.response, TaskResponse::COMPLETE);
    assert!(party.is_quiet());
}

/// RFC 7143, 4.2.3.3: a reset of the target does not wait for what has not come.
#[test]
fn a_target_reset_takes_what_has_not_come_for_received() {
    let mut party = ThreeConnections::new();
    party.read(1, 11, sn(1));
    party.manage(0, TaskFunction::TARGET_WARM_RESET, sn(2), (NO_TAG, 0));
    let Some(Event::Manage { request, .. }) = party.session.poll_event() else { panic!() };
    party.session.managed(request, TaskResponse::COMPLETE);
    assert_eq!(party.one::<TaskManagementResponse>(0).response, TaskResponse::COMPLETE);
    party.read(2, 10, sn(0));
    assert!(party.is_quiet());
    party.read(2, 12, sn(2));
    assert_eq!(party.offered().len(), 1);
}

/// Immediate commands are delivered as they come, whatever is missing before them (RFC 7143, 4.2.2.1).
#[test]
fn immediate_commands_wait_for_no_other_connection() {
    let mut party = ThreeConnections::new();
    let immediate =
        ScsiCommand { immediate: true, is_final: true, itt: 5, cmd_sn: sn(1), ..<_>::default() };
    party.send(1, immediate, &[]);
    assert_eq!(party.offered().len(), 1);
}

/// RFC 7143, 4.2.2.1: one immediate command of each connection is taken, whatever the others have under way.
#[test]
fn an_immediate_command_is_taken_from_each_connection() {
    let mut party = ThreeConnections::new();
    let immediate = |itt| {
        let cmd_sn = sn(0);
        ScsiCommand { immediate: true, is_final: true, itt, cmd_sn, ..<_>::default() }
    };
    let most = IMMEDIATE_MAX as u32;
    (0..=most).for_each(|itt| party.send(1, immediate(itt), &[]));
    assert_eq!(party.offered().len(), IMMEDIATE_MAX);
    let reason = party.one::<Reject>(1).reason;
    assert_eq!(reason, RejectReason::IMMEDIATE_COMMAND_REJECT);
    for on in [0, 2] {
        party.send(on, immediate(100 + on as u32), &[]);
        assert_eq!(party.offered().len(), 1);
        party.send(on, immediate(200), &[]);
        assert_eq!(party.one::<Reject>(on).reason, RejectReason::IMMEDIATE_COMMAND_REJECT);
    }
    assert!(party.is_quiet());
}

/// RFC 7143, 4.2.2.1: so is one task management function. What other sessions ask for does not count.
#[test]
fn a_task_management_function_is_taken_from_each_connection() {
    let mut party = ThreeConnections::new();
    party.read(0, 10, sn(0));
    let tasks = party.offered();
    party.session.clear(Some(0), 0);
    party.expect_abort(tasks[0]);
    (1..100).for_each(|ticket| party.session.clear(Some(0), ticket));
    let mut reset = |on| {
        party.manage(on, TaskFunction::LOGICAL_UNIT_RESET, sn(1), (NO_TAG, 0));
        matches!(party.session.poll_event(), Some(Event::Manage { .. }))
    };
    assert!((0..MANAGEMENT_MAX).all(|_| reset(1)));
    assert_eq!([1, 0, 0, 2, 2, 1].map(reset), [false, true, false, true, false, false]);
    let refused: TaskManagementResponse = party.one(0);
    assert_eq!(refused.response, TaskResponse::REJECTED);
}

/// Who replaces its connections over and over has no more under way for that.
#[test]
fn requests_of_connections_that_are_gone_count() {
    let mut party = ThreeConnections::new();
    let parameters = parameters();
    let mut taken = 0;
    for _ in 0..2 * MANAGEMENT_MAX {
        party.manage(1, TaskFunction::LOGICAL_UNIT_RESET, sn(1), (NO_TAG, 0));
        taken += usize::from(matches!(party.session.poll_event(), Some(Event::Manage { .. })));
        party.session.replace_connection(party.now, CIDS[1], 0);
        assert!(matches!(party.session.poll_event(), Some(Event::Cleared { .. })));
        let joining = Joining { cid: CIDS[1], stat_sn: 0, parameters: &parameters };
        party.session.join(party.now, &joining, Pdu::bare(LoginResponse::default()));
    }
    assert_eq!(taken, MANAGEMENT_MAX + CIDS.len());
}

/// Each connection is asked for a sign of life by itself, and one that gives none ends the session: level 0
/// recovers no connection alone (RFC 7143, 7.1.5).
#[test]
fn every_connection_has_to_live() {
    let mut party = ThreeConnections::new();
    party.now = party.session.deadline();
    party.session.heard(party.now, CIDS[0]);
    party.session.heard(party.now, CIDS[2]);
    party.session.handle_timeout(party.now);
    assert_eq!(party.one::<NopIn>(1).itt, NO_TAG);
    assert_eq!(party.session.unsent(), 0, "the others have just been heard of");
    // The ping is waited for twice as long as it takes to ask for a sign of life.
    for _ in 0..2 {
        assert!(party.session.poll_event().is_none());
        party.now = party.now + Duration::from_secs(15);
        party.session.heard(party.now, CIDS[0]);
        party.session.heard(party.now, CIDS[2]);
        party.session.handle_timeout(party.now);
    }
    assert!(matches!(party.session.poll_event(), Some(Event::Close(Ending::Silent))));
}

#[test]
fn all_connections_are_told_of_what_concerns_all() {
    let mut party = ThreeConnections::new();
    party.session.announce_drop();
    for on in 0..3 {
        assert_eq!(party.one::<AsyncMessage>(on).event, AsyncEvent::DROP_SESSION);
    }
}
