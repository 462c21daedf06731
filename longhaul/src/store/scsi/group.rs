//! Groups of changes, each durable before the next begins: many are on their way to a unit that keeps their order, one at a
//! time to others.

use bytes::Bytes;
use futures_util::stream;
use proto::scsi::command::Command;
use volume::{Durability, Span, complete_all};

use super::change::{Change, Group, within};
use super::session::Session;
use super::unit::{OrderedCommand, UnitError};
use super::volume::Link;

impl<S: Session> Link<S> {
    /// Carries out a group and makes it durable, behind those that were appended before.
    pub(super) async fn group(&self, group: &Group) -> Result<(), UnitError> {
        let Some(queued) = self.group_order.wait_for_turn(group.id).await else {
            // What is behind a gap belongs on the next session.
            self.session().abandon();
            return Err(UnitError::Lost(self.session().ended().await));
        };
        if self.group_order.is_carried_out(group.id) {
            let _ = queued.send(());
            return Ok(());
        }
        self.still_whole()?;
        if !self.keeps_order() {
            self.alone(group).await?;
            self.group_order.answered(group.id);
            // Nobody waits for it if this is the last.
            let _ = queued.send(());
            return Ok(());
        }
        let ended = self.unit().execute_in_order(self.commands(group), queued).await;
        if let Err(error) = ended {
            self.note(&error, Durability::Durable);
            if !matches!(error, UnitError::Lost(_)) {
                // The target ends it; nothing more is sent until that has come.
                self.session().abandon();
            }
            return Err(error);
        }
        self.session().settle().await.map_err(UnitError::Lost)?;
        self.still_whole()?;
        self.group_order.answered(group.id);
        Ok(())
    }

    /// These groups were not answered on an earlier session, in their order. Of the last the checkpoint of which is there all
    /// before were carried out, and it may have been itself.
    pub(super) fn resume<'a>(&self, groups: impl Iterator<Item = &'a Group>) {
        let Some(found) = &self.checkpoint else { return };
        let is_found =
            |group: &&Group| group.checkpoint.as_ref().is_some_and(|(_, written)| written == found);
        if let Some(group) = groups.filter(is_found).last() {
            self.group_order.begin_at(group.id);
        }
    }

    /// Whether several groups may be on their way.
    pub(super) fn keeps_order(&self) -> bool {
        self.session().keeps_order() && self.shape().fast_zeroes
    }

    /// The same while no other is on its way: two round trips, and each command is tried again as usual.
    async fn alone(&self, group: &Group) -> Result<(), UnitError> {
        let changes = group.changes.iter().map(|change| Box::pin(self.change(change)));
        complete_all(usize::MAX, stream::iter(changes), drop).await?;
        self.sync().await
    }

    /// The commands of a group. The last one is ordered and makes all durable: SYNCHRONIZE CACHE, or the only write.
    fn commands(&self, group: &Group) -> Vec<OrderedCommand> {
        if let [Change::Write { at, data, .. }] = &group.changes[..]
            && data.len() as u64 <= self.sizes().write
            && self.device().mode.fua
        {
            let span = Span::new(*at, data.len() as u64);
            let command = Command::write(self.blocks(span), self.shape().block_size, true);
            return vec![OrderedCommand { command, data: data.clone(), is_ordered: true }];
        }
        let commands = group.changes.iter().flat_map(|change| self.commands_of(change));
        let simple = |(command, data)| OrderedCommand { command, data, is_ordered: false };
        let mut commands: Vec<_> = commands.map(simple).collect();
        let flush = Command::synchronize_cache();
        commands.push(OrderedCommand { command: flush, data: Bytes::new(), is_ordered: true });
        commands
    }

    fn commands_of(&self, change: &Change) -> Vec<(Command, Bytes)> {
        let block = self.shape().block_size;
        match change {
            Change::Write { at, data, .. } => {
                let span = Span::new(*at, data.len() as u64);
                let write = |piece: Span| {
                    let command = Command::write(self.blocks(piece), block, false);
                    (command, data.slice(within(span, piece)))
                };
                span.pieces(self.sizes().write).map(write).collect()
            }
            Change::Zero { span, space, .. } => self.write_sames(*span, *space).collect(),
            Change::Discard(span) => self.discards(*span).collect(),
            Change::Group(group) => {
                group.changes.iter().flat_map(|change| self.commands_of(change)).collect()
            }
        }
    }
}
