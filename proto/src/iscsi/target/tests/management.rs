//! Task management and logout.

use super::*;

/// RFC 7143, 11.5.1: the response comes when the task is dead, and the task's own never.
#[test]
fn an_abort_waits_for_what_runs() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 512);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    pair.manage(TaskFunction::ABORT_TASK, 1);
    assert!(pair.received().is_empty());
    pair.reply(task, 512);
    let answer: crate::iscsi::header::TaskManagementResponse = pair.one();
    assert_eq!((answer.response, answer.itt), (TaskResponse::COMPLETE, 0x900));
}

#[test]
fn an_aborted_write_drains() {
    let mut pair = Pair::new(parameters());
    pair.write(1, 4096, &[], false);
    let task = pair.command().task;
    pair.session.want_data(task, 4096);
    pair.manage(TaskFunction::ABORT_TASK, 1);
    let _: crate::iscsi::header::TaskManagementResponse = pair.one();
    pair.data_out(1, NO_TAG, 0, 0, &[0; 4096], true);
    assert!(pair.received().is_empty() && pair.session.poll_event().is_none());
}

/// RFC 7143, 11.5.1; RFC 7144, 6.3: a task management request is neither aborted nor asked about.
#[test]
fn a_request_is_not_aborted() {
    let mut pair = Pair::new(Parameters { protocol_level: 2, ..parameters() });
    pair.manage(TaskFunction::LOGICAL_UNIT_RESET, NO_TAG);
    let Some(Event::Manage { request, .. }) = pair.session.poll_event() else { panic!() };
    for function in [TaskFunction::ABORT_TASK, TaskFunction::QUERY_TASK] {
        pair.manage(function, 0x900);
        let answer: crate::iscsi::header::TaskManagementResponse = pair.one();
        assert_eq!(answer.response, TaskResponse::REJECTED, "{function:?}");
    }
    pair.session.managed(request, TaskResponse::COMPLETE);
    let answer: crate::iscsi::header::TaskManagementResponse = pair.one();
    assert_eq!(answer.response, TaskResponse::COMPLETE, "the reset itself");
}

/// RFC 7143, 11.6.1.
#[test]
fn aborting_what_is_not_there() {
    let mut pair = Pair::new(parameters());
    let mut request = TaskManagementRequest {
        immediate: true,
        function: TaskFunction::ABORT_TASK,
        itt: 9,
        referenced_tag: 5,
        cmd_sn: pair.cmd_sn,
        ref_cmd_sn: pair.cmd_sn.wrapping_sub(5),
        ..TaskManagementRequest::default()
    };
    pair.send(request, &[]);
    let answer: crate::iscsi::header::TaskManagementResponse = pair.one();
    assert_eq!(answer.response, TaskResponse::TASK_DOES_NOT_EXIST);
    // A command lost on its way counts as received, and the next one is not held up by it.
    request.ref_cmd_sn = pair.next_cmd_sn();
    request.cmd_sn = pair.cmd_sn;
    pair.send(request, &[]);
    let answer: crate::iscsi::header::TaskManagementResponse = pair.one();
    assert_eq!(answer.response, TaskResponse::COMPLETE);
    pair.read(6, 0);
    pair.command();
}

#[test]
fn a_unit_reset_ends_its_tasks_and_waits_for_the_front() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 0);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    pair.manage(TaskFunction::LOGICAL_UNIT_RESET, NO_TAG);
    pair.expect_abort(task);
    let Some(Event::Manage { request, lun, .. }) = pair.session.poll_event() else { panic!() };
    assert_eq!(lun, [0; 8]);
    pair.session.managed(request, TaskResponse::COMPLETE);
    assert!(pair.received().is_empty());
    pair.reply(task, 0);
    let _: crate::iscsi::header::TaskManagementResponse = pair.one();
}

#[test]
fn functions_that_are_refused() {
    let cases = [
        (TaskFunction::CLEAR_ACA, 1, TaskResponse::NOT_SUPPORTED),
        (TaskFunction::TASK_REASSIGN, 1, TaskResponse::REASSIGNMENT_NOT_SUPPORTED),
        (TaskFunction::QUERY_TASK, 1, TaskResponse::NOT_SUPPORTED),
        (TaskFunction::QUERY_TASK, 2, TaskResponse::SUCCEEDED),
        (TaskFunction::QUERY_TASK_SET, 2, TaskResponse::SUCCEEDED),
        (TaskFunction::QUERY_ASYNCHRONOUS_EVENT, 2, TaskResponse::COMPLETE),
        (TaskFunction(0x55), 2, TaskResponse::NOT_SUPPORTED),
    ];
    for (function, protocol_level, response) in cases {
        let mut pair = Pair::new(Parameters { protocol_level, ..parameters() });
        pair.read(1, 0);
        pair.manage(function, 1);
        let answer: crate::iscsi::header::TaskManagementResponse = pair.one();
        assert_eq!(answer.response, response, "{function:?} at level {protocol_level}");
    }
}

#[test]
fn another_session_clears_a_unit() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 0);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    pair.session.clear(Some(0), 42);
    pair.expect_abort(task);
    pair.session.clear(Some(0), 43);
    assert!(pair.session.poll_event().is_none(), "it is told once");
    pair.reply(task, 0);
    assert!(matches!(pair.session.poll_event(), Some(Event::Cleared { ticket: 42 })));
    assert!(matches!(pair.session.poll_event(), Some(Event::Cleared { ticket: 43 })));
    // RFC 7143, 11.4.11: the place in the window that is free again is told, and that once.
    let nop: crate::iscsi::header::NopIn = pair.one();
    assert_eq!((nop.itt, nop.ttt, nop.stat_sn), (NO_TAG, NO_TAG, 100));
    assert_eq!((nop.exp_cmd_sn, nop.max_cmd_sn), (0, WINDOW - 1));
}

pub(super) fn logout(reason: LogoutReason, cid: u16) -> LogoutRequest {
    LogoutRequest { immediate: true, reason, cid, itt: 8, ..LogoutRequest::default() }
}

#[test]
fn logouts() {
    use LogoutResponseCode as Code;
    let cases = [
        (LogoutReason::CLOSE_SESSION, 0, Code::CLOSED),
        (LogoutReason::CLOSE_CONNECTION, 3, Code::CLOSED),
        (LogoutReason::CLOSE_CONNECTION, 4, Code::CID_NOT_FOUND),
        (LogoutReason::REMOVE_FOR_RECOVERY, 3, Code::RECOVERY_NOT_SUPPORTED),
    ];
    for (reason, cid, code) in cases {
        let mut pair = Pair::new(parameters());
        pair.send(logout(reason, cid), &[]);
        assert_eq!(pair.one::<crate::iscsi::header::LogoutResponse>().response, code);
        let closed = matches!(pair.session.poll_event(), Some(Event::Close(Ending::Logout)));
        assert_eq!(closed, code == Code::CLOSED);
    }
}

/// RFC 7143, 11.14: the Logout Response is the last PDU of its connection.
#[test]
fn a_logout_waits_for_what_runs() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 512);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    pair.send(logout(LogoutReason::CLOSE_SESSION, 0), &[]);
    assert!(pair.received().is_empty());
    pair.reply(task, 512);
    pair.expect_abort(task);
    let _: crate::iscsi::header::LogoutResponse = pair.one();
    pair.read(2, 512);
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::Logout))));
    assert!(pair.session.poll_event().is_none() && pair.received().is_empty());
}

#[test]
fn a_logout_that_was_asked_for_becomes_overdue() {
    let mut pair = Pair::new(parameters());
    pair.session.request_logout(pair.now, Duration::from_secs(5));
    let message: crate::iscsi::header::AsyncMessage = pair.one();
    assert_eq!((message.event, message.parameter3), (AsyncEvent::LOGOUT_REQUEST, 5));
    pair.session.handle_timeout(pair.now + Duration::from_secs(5));
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::LogoutOverdue))));
}
