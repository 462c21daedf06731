//! Volumes that a reload took out, on their way out. That can take long: sessions have writes under way, and a volume of
//! another target may be out of reach. Nothing else waits for it.

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::Served;
use crate::failure::{Failure, OrFail as _, Outcome};

/// All that are being closed.
#[derive(Default)]
pub(super) struct Closings(Vec<Closing>);

/// What one reload took out.
struct Closing {
    volumes: Vec<Served>,
    task: JoinHandle<Outcome>,
}

impl Closings {
    /// Closes `volumes`, which is what `closing` does. What is returned tells how that ended.
    pub(super) fn begin(
        &mut self,
        volumes: Vec<Served>,
        closing: impl Future<Output = Outcome> + Send + 'static,
    ) -> oneshot::Receiver<Outcome> {
        let (tell, told) = oneshot::channel();
        let task = tokio::spawn(async move {
            let outcome = closing.await;
            if let Err(why) = &outcome {
                tracing::error!("a volume that was removed was not closed as it should be: {why}");
            }
            // Where nobody waits for that any more, the end of the server tells.
            tell.send(outcome).err().unwrap_or(Ok(()))
        });
        self.0.retain(|closing| !closing.task.is_finished());
        self.0.push(Closing { volumes, task });
        told
    }

    /// A volume cannot come back before it has gone.
    pub(super) fn refuse(&self, added: &[Served]) -> Outcome {
        let closing = self.0.iter().filter(|closing| !closing.task.is_finished());
        let closing: Vec<_> = closing.flat_map(|closing| &closing.volumes).collect();
        let is_same = |a: &Served, b: &Served| a.name == b.name || a.unit() == b.unit();
        match added.iter().find(|added| closing.iter().any(|closing| is_same(added, closing))) {
            Some(Served { name, .. }) => {
                Err(Failure::new(format!("volume {name} is still being closed"))
                    .because("a write to it, or a session that uses it, has not ended")
                    .hint("reload again when it has"))
            }
            None => Ok(()),
        }
    }

    /// Waits until all are closed.
    pub(super) async fn ended(self) -> Outcome {
        let mut outcome = Ok(());
        for Closing { task, .. } in self.0 {
            let closed = task.await.or_fail(|| "cannot close a volume that was removed".to_owned());
            let closed = closed.flatten();
            outcome = outcome.and(closed);
        }
        outcome
    }
}
