//! The movements of cartridges that initiators ask for, on their way to the server, which does one at a time.

use std::borrow::Cow;
use std::sync::Arc;

use proto::scsi::elements::Inventory;
use proto::scsi::unit::changer::Movement;
use tokio::sync::{mpsc, oneshot};

use crate::chain::Chain;
use crate::config::Served;
use crate::store::library::Library;
use crate::target::lun::{MediaChanger, MoveError, Waiting};

/// How many movements may wait: an initiator whose queue is longer waits itself.
const WAITING_MAX: usize = 64;

/// A movement that an initiator asks for.
pub(super) struct MovementAsked {
    pub(super) changer: String,
    pub(super) movement: Movement,
    pub(super) answer: oneshot::Sender<Result<(), MoveError>>,
}

impl MovementAsked {
    /// It can be tried again.
    pub(super) fn refuse_busy(self) {
        // Who has asked may be gone.
        let _ = self.answer.send(Err(MoveError::Busy));
    }
}

/// The movements that initiators ask for.
pub(super) type Moved = mpsc::Receiver<MovementAsked>;

/// By which they ask for them.
#[derive(Clone)]
pub(super) struct Movements(mpsc::Sender<MovementAsked>);

/// Both ends.
pub(super) fn channel() -> (Movements, Moved) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (Movements(sender), receiver)
}

impl Movements {
    /// What moves the cartridges of the volume of this name, if it is a media changer.
    pub(super) fn changer(&self, name: &str, chain: &Chain) -> Option<Arc<dyn MediaChanger>> {
        let (library, movements) = (chain.library()?, self.clone());
        Some(Arc::new(ServedChanger { name: name.to_owned(), library, movements }))
    }
}

/// A media changer, as its unit sees it.
struct ServedChanger {
    name: String,
    library: Arc<Library>,
    movements: Movements,
}

impl MediaChanger for ServedChanger {
    fn inventory(&self) -> Inventory {
        self.library.inventory()
    }

    fn perform(&self, movement: Movement) -> Waiting<Result<(), MoveError>> {
        let (changer, Movements(movements)) = (self.name.clone(), self.movements.clone());
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let asked = MovementAsked { changer, movement, answer };
            // Nobody answers in a server that ends.
            movements.send(asked).await.map_err(|_| MoveError::Busy)?;
            answered.await.unwrap_or(Err(MoveError::Busy))
        })
    }
}

/// A volume with the cartridge that was in it when the server ended last, if it is a drive of a media changer. `chains` are
/// those of the first of `volumes`, the changer among them.
pub(super) fn with_last_cartridge<'a>(
    volume: &'a Served,
    volumes: &[Served],
    chains: &[Chain],
) -> Cow<'a, Served> {
    let cartridge = volume.drive_of().and_then(|(of, index)| {
        let at = volumes.iter().position(|volume| volume.name == of)?;
        chains.get(at)?.library()?.in_drive(index)
    });
    let loaded = cartridge.and_then(|path| volume.with_disc(Some(path)));
    loaded.map_or(Cow::Borrowed(volume), Cow::Owned)
}
