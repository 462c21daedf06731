//! The task table of a session.

use super::Command;
use super::inbound::{Fault, Inbound};
use crate::iscsi::header::TaskAttribute;
use crate::scsi::cdb::Block;

/// Names a task between machine and front; never the same for two tasks of a session that could be
/// taken for each other, while initiators use their tags again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId {
    slot: u32,
    generation: u32,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its turn by CmdSN has not come; it may be at fault already.
    Ahead(Option<Fault>),
    /// The front has not said how much data it wants.
    Offered,
    /// Data are on their way.
    Collecting,
    /// The front has it.
    Running,
    /// It will be answered with this once the initiator has sent what it is still sending.
    Failing(Fault),
    /// The front has it, and nobody waits for the answer.
    Aborted,
}

/// A SCSI command under way.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) itt: u32,
    /// The connection it came by, which all that belongs to it goes by: its allegiance
    /// (RFC 7143, 4.2.5.1).
    pub(super) cid: u16,
    /// The unit, and the field that addressed it, which R2Ts carry back.
    pub(super) lun: Option<u16>,
    pub(super) lun_field: u64,
    pub(super) cmd_sn: u32,
    pub(super) immediate: bool,
    pub(super) read: bool,
    pub(super) write: bool,
    /// The expected data transfer length.
    pub(super) expected: u32,
    pub(super) cdb: Block,
    pub(super) attribute: TaskAttribute,
    /// It waits for no other command of the session, and none waits for it.
    pub(super) is_unordered: bool,
    pub(super) inbound: Inbound,
    pub(super) state: State,
}

impl Task {
    /// The command, as the front sees it.
    pub(super) const fn command(&self, task: TaskId) -> Command {
        Command {
            task,
            lun: self.lun_field.to_be_bytes(),
            cdb: self.cdb,
            attribute: self.attribute,
            announced: if self.write { self.expected } else { 0 },
            room: if self.read { self.expected } else { 0 },
        }
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    task: Option<Task>,
}

/// The tasks of a session, found by either name.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Initiator task tags of tasks that are not aborted, and their slots: short enough that a scan is
    /// faster than a map.
    tags: Vec<(u32, u32)>,
    immediate: usize,
    ahead: usize,
    unordered: usize,
}

impl Tasks {
    pub(super) fn insert(&mut self, task: Task) -> TaskId {
        self.immediate += usize::from(task.immediate);
        self.ahead += usize::from(matches!(task.state, State::Ahead(_)));
        self.unordered += usize::from(task.is_unordered && !matches!(task.state, State::Ahead(_)));
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        self.tags.push((task.itt, slot));
        let entry = &mut self.slots[slot as usize];
        entry.task = Some(task);
        TaskId { slot, generation: entry.generation }
    }

    pub(super) fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.task.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// The task an initiator names, unless it is aborted.
    pub(super) fn find(&self, itt: u32) -> Option<TaskId> {
        let &(_, slot) = self.tags.iter().find(|(tag, _)| *tag == itt)?;
        Some(TaskId { slot, generation: self.slots.get(slot as usize)?.generation })
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        self.get(id)?;
        self.forget_tag(id);
        let slot = self.slots.get_mut(id.slot as usize)?;
        let task = slot.task.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        self.immediate -= usize::from(task.immediate);
        self.ahead -= usize::from(matches!(task.state, State::Ahead(_)));
        self.unordered -= usize::from(task.is_unordered && !matches!(task.state, State::Ahead(_)));
        Some(task)
    }

    /// The turn of a task has come; gives its fault. `None` if it is gone.
    pub(super) fn end_ahead(&mut self, id: TaskId) -> Option<Option<Fault>> {
        let task = self.get(id)?;
        let State::Ahead(fault) = task.state else { return None };
        task.state = fault.map_or(State::Offered, State::Failing);
        let is_unordered = task.is_unordered;
        self.ahead -= 1;
        self.unordered += usize::from(is_unordered);
        Some(fault)
    }

    /// The initiator may use the tag again.
    pub(super) fn forget_tag(&mut self, id: TaskId) {
        if let Some(at) = self.tags.iter().position(|(_, slot)| *slot == id.slot) {
            self.tags.swap_remove(at);
        }
    }

    /// The tasks `chosen` picks, aborted ones among them.
    pub(super) fn select(&self, chosen: impl Fn(&Task) -> bool) -> Vec<TaskId> {
        let ids = self.slots.iter().zip(0u32..).filter_map(|(entry, slot)| {
            let task = entry.task.as_ref().filter(|task| chosen(task));
            task.map(|_| TaskId { slot, generation: entry.generation })
        });
        ids.collect()
    }

    /// Whether `is_so` of any task.
    pub(super) fn any(&self, is_so: impl Fn(&Task) -> bool) -> bool {
        self.slots.iter().filter_map(|slot| slot.task.as_ref()).any(is_so)
    }

    /// All tasks.
    pub(super) const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Tasks whose turn has come.
    pub(super) const fn turned(&self) -> usize {
        self.len() - self.ahead
    }

    /// Those of them that have a place in the order of the session.
    pub(super) const fn ordered(&self) -> usize {
        self.turned() - self.unordered
    }

    /// Tasks that came by the window and have left it.
    pub(super) const fn in_order(&self) -> usize {
        self.turned() - self.immediate
    }

    /// Tasks that came beside it.
    pub(super) const fn immediate(&self) -> usize {
        self.immediate
    }

    /// Whether one of them came by this connection.
    pub(super) fn has_immediate(&self, cid: u16) -> bool {
        let mut tasks = self.slots.iter().filter_map(|slot| slot.task.as_ref());
        tasks.any(|task| task.immediate && task.cid == cid)
    }
}
