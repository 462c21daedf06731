//! Media changers: cartridges are moved as initiators and operators ask for it, by exchanging what is in the drives and noting
//! what is where. One movement is done at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::scsi::elements::{Barcode, Element, ElementKind, Inventory};
use proto::scsi::sense::Additional;
use proto::scsi::unit::changer::Movement;

use super::live::Live;
use super::media::NotExchanged;
use super::movements::MovementAsked;
use crate::chain;
use crate::command::media::{CartridgeSelector, Changer, ChangerAction, ElementContent};
use crate::command::options::blocking;
use crate::config::Served;
use crate::failure::{Failure, Outcome};
use crate::store::library::{CartridgeFile, Library, LibraryError};
use crate::target::lun::{ElementsChanged, ExchangeError, MoveError};

/// Why a medium changer refuses a movement.
fn refusal(why: Additional, source: Element, to: Element) -> String {
    match why {
        Additional::DESTINATION_ELEMENT_FULL => format!("there is a cartridge in {to} already"),
        Additional::SOURCE_ELEMENT_EMPTY => format!("{source} is empty"),
        why => why.to_string(),
    }
}

/// What an operator is told.
enum NotMoved {
    /// It cannot be done, as an initiator is told too.
    Error(MoveError),
    /// It could not be done.
    Failed(MoveError, Failure),
}

impl Live {
    /// Does what an initiator asks for.
    pub(super) async fn carry_out(&mut self, asked: MovementAsked) {
        let MovementAsked { changer, movement, answer } = asked;
        let done = self.move_media(&changer, movement, false).await.map_err(|why| match why {
            NotMoved::Error(why) => why,
            NotMoved::Failed(error, why) => {
                tracing::warn!(
                    volume = changer,
                    "a cartridge cannot be moved: {}",
                    why.on_one_line()
                );
                error
            }
        });
        // Who has asked may be gone.
        let _ = answer.send(done);
    }

    async fn move_media(
        &mut self,
        changer: &str,
        movement: Movement,
        force: bool,
    ) -> Result<(), NotMoved> {
        let gone = NotMoved::Error(MoveError::Busy);
        let library = self.library(changer).ok_or(gone)?;
        let before = library.inventory();
        let after = movement.apply(&before);
        let after = after.map_err(|sense| NotMoved::Error(MoveError::Refused(sense)))?;
        let drives = self.changed_drives(changer, &before, &after);
        if !force && drives.iter().any(|(_, name)| self.is_locked(name)) {
            return Err(NotMoved::Error(MoveError::LOCKED));
        }
        let done = self.rearrange(&library, (&drives, &before), &after, force).await;
        match done {
            Ok(()) => tracing::info!(volume = changer, %movement, "cartridges moved"),
            Err(_) => self.put_back(&library, &drives, &before).await,
        }
        done
    }

    /// Exchanges what is in the drives, and notes what is where: a process that begins after a crash finds what was noted
    /// last, whatever was in the drives of this one.
    async fn rearrange(
        &mut self,
        library: &Arc<Library>,
        (drives, before): (&[(u16, String)], &Inventory),
        after: &Inventory,
        force: bool,
    ) -> Result<(), NotMoved> {
        for (index, name) in drives {
            if before.get(Element::drive(*index)).is_some() {
                self.exchange(name, None, force).await.map_err(|why| not_moved(name, why))?;
            }
        }
        for (index, name) in drives {
            if let Some(path) = path_in(library, after, *index) {
                let loaded = self.exchange(name, Some(path), force).await;
                loaded.map_err(|why| not_moved(name, why))?;
            }
        }
        let after = after.clone();
        let noted = note(
            library,
            move |library| library.rearrange(after),
            "cannot move a cartridge".to_owned(),
        );
        noted.await.map_err(|why| NotMoved::Failed(MoveError::UNNOTED, why))
    }

    /// What is in the drives is what it was before.
    async fn put_back(&mut self, library: &Library, drives: &[(u16, String)], before: &Inventory) {
        let is_right = |live: &Self, name: &str, path: &Option<PathBuf>| {
            let is = live.open_volumes.get(name).map(|volume| volume.chain.uri().clone());
            let Some(is) = is else { return true };
            is.with_disc(path.clone()).is_some_and(|wanted| wanted == is)
        };
        let wanted: Vec<_> =
            drives.iter().map(|(index, name)| (name, path_in(library, before, *index))).collect();
        // Empty first: a cartridge may have been in another drive.
        for (name, path) in &wanted {
            if !is_right(self, name, path)
                && let Err(why) = self.exchange(name, None, true).await
            {
                tracing::error!(volume = %name, "{}", why.explain(name).on_one_line());
            }
        }
        for (name, path) in wanted {
            if !is_right(self, name, &path)
                && let Err(why) = self.exchange(name, path, true).await
            {
                tracing::error!(volume = %name, "{}", why.explain(name).on_one_line());
            }
        }
    }

    /// The drives in which something else is afterwards, with their names.
    fn changed_drives(
        &self,
        changer: &str,
        before: &Inventory,
        after: &Inventory,
    ) -> Vec<(u16, String)> {
        let in_drive = |inventory: &Inventory, index| {
            inventory.get(Element::drive(index)).map(|cartridge| cartridge.barcode.clone())
        };
        let drives = self.volumes().iter().filter_map(|volume| {
            let (of, index) = volume.drive_of()?;
            let changes = in_drive(before, index) != in_drive(after, index);
            (of == changer && changes).then(|| (index, volume.name.clone()))
        });
        drives.collect()
    }

    fn is_locked(&self, name: &str) -> bool {
        self.open_volumes.get(name).is_some_and(|volume| volume.disk.is_locked())
    }

    fn library(&self, changer: &str) -> Option<Arc<Library>> {
        self.open_volumes.get(changer)?.chain.library()
    }

    /// The media changers, in the order of the configuration.
    pub(super) fn changers(&self) -> Vec<Changer> {
        let changer = |volume: &Served| {
            let inventory = self.library(&volume.name)?.inventory();
            let kinds = [ElementKind::Drive, ElementKind::Slot, ElementKind::ImportExport];
            let elements = kinds.into_iter().flat_map(|kind| inventory.layout().all(kind));
            let content = |element: Element| ElementContent {
                element: element.to_string(),
                cartridge: inventory.get(element).map(|it| it.barcode.to_string()),
            };
            let elements = elements.map(content).collect();
            Some(Changer { name: volume.name.clone(), elements })
        };
        self.volumes().iter().filter_map(changer).collect()
    }

    /// A drive of a media changer takes cartridges from that alone, and gives them back to it.
    pub(super) fn refuse_drive_of_changer(&self, name: &str, loads: bool) -> Outcome {
        let Some((of, drive)) = self.changer_of(name) else { return Ok(()) };
        let inventory = self.library(&of).map(|library| library.inventory());
        let full = inventory.as_ref().filter(|inventory| inventory.get(drive).is_some());
        let failure = Failure::new(format!("{name} is a drive of the media changer {of}"));
        Err(match (full, loads) {
            (Some(_), _) => failure.hint(self.how_to_empty(name)),
            (None, false) => failure.because("there is no cartridge in it"),
            (None, true) => {
                let slots = inventory.iter().flat_map(Inventory::full).map(|(at, _)| at);
                let from = slots.into_iter().find(|at| at.kind == ElementKind::Slot);
                let from = from.map_or_else(|| "slot:N".to_owned(), |at| at.to_string());
                failure.hint(format!("`longhaul media move {of} {from} {drive}` loads a cartridge"))
            }
        })
    }

    /// How what is in a drive is taken out.
    pub(super) fn how_to_empty(&self, name: &str) -> String {
        match self.changer_of(name) {
            Some((of, drive)) => {
                let inventory = self.library(&of).map(|library| library.inventory());
                let kinds = [ElementKind::Slot, ElementKind::ImportExport];
                let free = |inventory: Inventory| {
                    kinds.into_iter().find_map(|kind| inventory.first_empty(kind))
                };
                let to = inventory.and_then(free);
                let to = to.map_or_else(|| "slot:N".to_owned(), |to| to.to_string());
                format!("`longhaul media move {of} {drive} {to}` takes it out")
            }
            None => format!("`longhaul media eject {name}` takes it out"),
        }
    }

    fn changer_of(&self, name: &str) -> Option<(String, Element)> {
        let volume = self.volumes().iter().find(|volume| volume.name == name)?;
        let (of, index) = volume.drive_of()?;
        Some((of.to_owned(), Element::drive(index)))
    }

    /// The media changer that counts this file among its cartridges, which no other drive may have.
    pub(super) async fn changer_with(&self, file: &Path) -> Option<String> {
        let names = self.volumes().iter().map(|volume| volume.name.clone());
        let changers: Vec<_> =
            names.filter_map(|name| Some((self.library(&name)?.files(), name))).collect();
        let file = file.to_owned();
        let looked = tokio::task::spawn_blocking(move || {
            let file = file.canonicalize().ok()?;
            let is_it = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == file);
            let its = changers.into_iter().find(|(files, _)| files.iter().any(is_it));
            its.map(|(_, name)| name)
        });
        looked.await.ok()?
    }

    /// Does what an operator asks for.
    pub(super) async fn operate(
        &mut self,
        changer: &str,
        action: ChangerAction,
        force: bool,
    ) -> Outcome<String> {
        let library = self.library(changer).ok_or_else(|| self.no_changer(changer))?;
        let (said, how) = match action {
            ChangerAction::Move { from, to } => {
                let said = self.move_by_hand(changer, &library, (&from, to), force).await?;
                (said, ElementsChanged::Moved)
            }
            ChangerAction::Import { barcode, size, worm } => {
                self.refuse_prevented(changer, force)?;
                let said = import(changer, &library, barcode, (size, worm)).await?;
                (said, ElementsChanged::ImportedOrExported)
            }
            ChangerAction::Export { from } => {
                self.refuse_prevented(changer, force)?;
                (export(changer, &library, &from).await?, ElementsChanged::ImportedOrExported)
            }
        };
        if let Some(volume) = self.open_volumes.get(changer) {
            volume.disk.elements_changed(how);
        }
        Ok(said)
    }

    async fn move_by_hand(
        &mut self,
        changer: &str,
        library: &Arc<Library>,
        (from, to): (&CartridgeSelector, Element),
        force: bool,
    ) -> Outcome<String> {
        let source = find(changer, library, from)?;
        let movement = Movement::Move { source, destination: to };
        let what = || format!("cannot move what is in {source} of {changer} to {to}");
        let layout = library.inventory().layout();
        if let Some(element) = [source, to].into_iter().find(|element| !layout.has(*element)) {
            return Err(Failure::usage(what()).because(format!("there is no {element}")));
        }
        self.move_media(changer, movement, force).await.map_err(|why| match why {
            NotMoved::Failed(_, why) => why,
            NotMoved::Error(MoveError::LOCKED) => Failure::new(what())
                .because("an initiator has locked the drive")
                .hint("unload it there; or use --force"),
            NotMoved::Error(MoveError::Refused(sense)) => {
                Failure::new(what()).because(refusal(sense.additional, source, to))
            }
            NotMoved::Error(MoveError::Busy) => Failure::new(what()),
        })?;
        Ok(format!("what was in {source} of {changer} is in {to}"))
    }

    /// An initiator may forbid that cartridges come in or go out.
    fn refuse_prevented(&self, changer: &str, force: bool) -> Outcome {
        if force || !self.is_locked(changer) {
            return Ok(());
        }
        Err(Failure::new(format!("the import and export elements of {changer} stay as they are"))
            .because("an initiator has locked them")
            .hint("allow it there; or use --force"))
    }

    fn no_changer(&self, name: &str) -> Failure {
        let changers = self.volumes().iter().filter(|volume| volume.elements().is_some());
        let changers: Vec<_> = changers.map(|volume| &*volume.name).collect();
        let known = match &changers[..] {
            [] => "it has none; a volume changer:DIR is one".to_owned(),
            changers => format!("it has {}", changers.join(", ")),
        };
        Failure::new(format!("the server has no media changer `{name}`: {known}"))
    }
}

/// The element that is meant.
fn find(changer: &str, library: &Library, target: &CartridgeSelector) -> Outcome<Element> {
    match target {
        CartridgeSelector::Element(element) => Ok(*element),
        CartridgeSelector::Cartridge(barcode) => library.inventory().find(barcode).ok_or_else(|| {
            Failure::new(format!("there is no cartridge {barcode} in {changer}"))
                .hint(format!("`longhaul media list` shows what is in it; `longhaul media import {changer} {barcode}` takes one in"))
        }),
    }
}

async fn import(
    changer: &str,
    library: &Arc<Library>,
    barcode: Barcode,
    (size, worm): (Option<u64>, bool),
) -> Outcome<String> {
    let what = format!("cannot import {barcode} into {changer}");
    let of = barcode.clone();
    let found = note(library, move |library| library.find_or_make(&of, size), what.clone());
    let CartridgeFile { path, is_made } = found.await?;
    let checked = match worm {
        true => chain::make_tape_write_once(&path).await,
        false => chain::check_tape(&path).await,
    };
    if let Err(why) = checked {
        if is_made {
            // What was made for this import alone.
            let _ = tokio::fs::remove_file(&path).await;
        }
        return Err(why.within(&what));
    }
    let of = barcode.clone();
    let imported = note(library, move |library| library.import(&of, path), what).await?;
    let once = if worm { ", and is written once" } else { "" };
    Ok(format!("{barcode} is in {imported} of {changer}{once}"))
}

async fn export(
    changer: &str,
    library: &Arc<Library>,
    from: &CartridgeSelector,
) -> Outcome<String> {
    let element = find(changer, library, from)?;
    if element.kind != ElementKind::ImportExport {
        return Err(Failure::new(format!("cannot export what is in {element} of {changer}"))
            .because("cartridges go out by an import and export element")
            .hint(format!("move it there: `longhaul media move {changer} {element} mail:1`")));
    }
    let what = format!("cannot export what is in {element} of {changer}");
    match note(library, move |library| library.export(element), what).await? {
        Some(barcode) => {
            Ok(format!("{barcode} is not in {changer} any more; its file is as it was"))
        }
        None => Err(Failure::new(format!("there is nothing in {element} of {changer}"))),
    }
}

/// Changes what is noted, which waits for the disk, beside the sessions.
async fn note<T: Send + 'static>(
    library: &Arc<Library>,
    change: impl FnOnce(&Library) -> Result<T, LibraryError> + Send + 'static,
    what: String,
) -> Outcome<T> {
    let library = Arc::clone(library);
    blocking(move || change(&library).map_err(|why| chain::changer::explain(what, why))).await
}

fn path_in(library: &Library, inventory: &Inventory, index: u16) -> Option<PathBuf> {
    library.file(&inventory.get(Element::drive(index))?.barcode)
}

/// What an initiator is told, and the log.
fn not_moved(name: &str, why: NotExchanged) -> NotMoved {
    let error = match &why {
        NotExchanged::Unusable(_) | NotExchanged::Stays(ExchangeError::Unreadable(_)) => {
            MoveError::UNUSABLE
        }
        NotExchanged::Stays(ExchangeError::Locked) => MoveError::LOCKED,
        NotExchanged::Stays(ExchangeError::Unstable(_)) => MoveError::UNSTABLE,
        NotExchanged::Stays(ExchangeError::Busy(_)) => MoveError::Busy,
    };
    NotMoved::Failed(error, why.explain(name))
}
