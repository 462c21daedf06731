//! Answers: Data-In, status, residuals (RFC 7143, 11.4 and 11.7).

use bytes::{BufMut, Bytes, BytesMut};

use super::Session;
use crate::iscsi::header::{
    DataIn, NO_TAG, ResponseCode, ScsiCommand, ScsiResponse, TaskAttribute,
};
use crate::iscsi::pdu::Pieces;
use crate::iscsi::target::task::{State, Task, TaskId};
use crate::iscsi::target::{Ending, Reply};
use crate::scsi::cdb::{Block, Kind, traits_of};
use crate::scsi::{DeviceType, Residual, Status, lun};

impl Session {
    /// A command ended. Says nothing to the initiator if the task was aborted meanwhile.
    pub fn complete(&mut self, id: TaskId, reply: Reply) {
        let Some(task) = self.tasks.remove(id) else { return };
        let is_failure = !matches!(reply.status, Status::Good | Status::ConditionMet);
        let stops = is_failure && self.stops_behind(&task.cdb);
        if stops {
            self.stop();
        }
        self.release(id, &task);
        if task.state == State::Aborted {
            self.on_task_dead(id);
        } else {
            self.respond(&task, reply);
        }
        if stops {
            self.end_stopped();
        }
    }

    /// In a session that stops at a failure nothing begins any more: something before it was not carried out.
    pub(super) const fn stop(&mut self) {
        if self.parameters.stops_at_failure {
            self.order.stop();
        }
    }

    /// Ends a session that has stopped, once there is nothing more to tell.
    pub(super) fn end_stopped(&mut self) {
        if self.order.is_stopped() {
            self.close(Ending::Stopped);
        }
    }

    /// Whether a command has no place in the order: a read of a session that stops at a failure, which would wait for the
    /// flush of each group before it, and each group for it. A read of a sequential unit begins where the command before
    /// it ends.
    pub(super) fn is_unordered(&self, command: &ScsiCommand) -> bool {
        let unit = lun::decode(command.lun.to_be_bytes());
        if unit.is_some_and(|unit| self.order.is_sequential(unit)) {
            return false;
        }
        let simple = [TaskAttribute::UNTAGGED, TaskAttribute::SIMPLE];
        let is_simple = simple.contains(&command.attribute);
        let traits = traits_of(&command.cdb, DeviceType::Disk);
        self.parameters.stops_at_failure && is_simple && traits.kind == Kind::Read
    }

    /// Whether nothing may be carried out any more if this command fails (docs/spec/ordered-writes.md). The key is for
    /// sessions with disks.
    pub(super) fn stops_behind(&self, cdb: &Block) -> bool {
        self.parameters.stops_at_failure && traits_of(cdb, DeviceType::Disk).changes_medium()
    }

    fn respond(&mut self, task: &Task, mut reply: Reply) {
        let expected = if task.read || task.write { task.expected } else { 0 };
        let offered = u32::try_from(reply.data.len()).unwrap_or(u32::MAX);
        let actual = offered.max(task.inbound.asked());
        // A transfer against the announced direction moved nothing.
        let moved = match (task.read, task.write) {
            (true, _) => offered,
            (false, true) => task.inbound.asked().saturating_sub(reply.residual.under()),
            (false, false) => actual,
        };
        let residual = reply.residual.behind(expected, moved);
        // Nothing beyond the expected length is ever returned (RFC 7143, 11.4.5.1).
        reply.data.truncate(if task.read { expected as usize } else { 0 });
        let collapse = reply.sense.is_empty() && !reply.data.is_empty();
        let status = collapse.then_some((reply.status as u8, residual));
        let data_sn = self.send_data_in(task, &mut reply.data, status);
        if !collapse {
            self.send_response(task, &reply, residual, data_sn);
        }
    }

    /// Data-In PDUs no longer than the initiator takes (RFC 7143, 13.12), in sequences no longer than
    /// MaxBurstLength, each ended by F (13.13). `status` rides on the last one. Gives their number.
    fn send_data_in(
        &mut self,
        task: &Task,
        data: &mut Pieces,
        status: Option<(u8, Residual)>,
    ) -> u32 {
        let (exp_cmd_sn, max_cmd_sn) = self.command_numbers();
        let max_burst = self.parameters.max_burst;
        let Some(connection) = self.connection(task.cid) else { return 0 };
        let (mut data_sn, mut offset, mut burst_left) = (0, 0, max_burst);
        while !data.is_empty() {
            let left = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let len = connection.segment_max.min(burst_left).min(left);
            burst_left -= len;
            let last = len == left;
            let is_final = last || burst_left == 0;
            if burst_left == 0 {
                burst_left = max_burst;
            }
            let status = status.filter(|_| last);
            let (code, residual) = status.unwrap_or_default();
            let header = DataIn {
                is_final,
                overflow: residual.over() > 0,
                underflow: residual.under() > 0,
                has_status: status.is_some(),
                status: code,
                itt: task.itt,
                ttt: NO_TAG,
                stat_sn: if status.is_some() { connection.use_stat_sn() } else { 0 },
                exp_cmd_sn,
                max_cmd_sn,
                data_sn,
                buffer_offset: offset,
                residual: residual.over().max(residual.under()),
                ..DataIn::default()
            };
            connection.outbox.push_from(header, data, len as usize);
            data_sn += 1;
            offset += len;
        }
        data_sn
    }

    fn send_response(&mut self, task: &Task, reply: &Reply, residual: Residual, data_sn: u32) {
        let sense = sense_segment(&reply.sense);
        self.send_status(task.cid, sense, |numbers| ScsiResponse {
            overflow: residual.over() > 0,
            underflow: residual.under() > 0,
            response: ResponseCode::COMPLETED,
            status: reply.status as u8,
            itt: task.itt,
            stat_sn: numbers.stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
            // RFC 7143, 11.4.8: Data-In PDUs only. RFC 3720 had R2Ts counted as well.
            exp_data_sn: data_sn,
            residual: residual.over().max(residual.under()),
            ..ScsiResponse::default()
        });
    }
}

/// Sense data behind their length (RFC 7143, 11.4.7).
fn sense_segment(sense: &Bytes) -> Bytes {
    if sense.is_empty() {
        return Bytes::new();
    }
    let mut segment = BytesMut::with_capacity(2 + sense.len());
    segment.put_u16(u16::try_from(sense.len()).unwrap_or(u16::MAX));
    segment.put_slice(sense);
    segment.freeze()
}
