//! The cartridges of a media changer: a directory with a file for each, named by its barcode, and a file that says which is
//! where.
//!
//! That file is replaced as a whole whenever a cartridge is somewhere else, so that at every moment, also after a crash, each
//! cartridge is in one place. What is in a drive is lost with the process that has it open, and put in again by the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use proto::scsi::elements::{
    Barcode, Cartridge, Element, ElementKind, Inventory, Layout, NoBarcode, NoElement,
};
use serde::{Deserialize, Serialize};

use crate::durable::sync_directory_of;
use crate::printable::Shown as _;
use crate::regular_file::read_regular;
use crate::state::replace;

/// Which cartridge is where.
const PLACES: &str = ".longhaul-places.json";

/// Whoever uses the directory has locked this file.
const LOCK: &str = ".longhaul-lock";

/// What the name of a file may have behind the barcode.
const SUFFIX: &str = ".tape";

/// The version of the file with the places.
const VERSION: u32 = 1;

/// The cartridges of a media changer, of which nobody else moves one.
#[derive(Debug)]
pub struct Library {
    directory: PathBuf,
    contents: Mutex<Contents>,
    _lock: File,
}

/// What is where.
#[derive(Clone, Debug)]
struct Contents {
    inventory: Inventory,
    /// The cartridges that were exported: they are in the directory, and not in the changer.
    outside: BTreeSet<Barcode>,
    files: BTreeMap<Barcode, PathBuf>,
}

/// The file of a cartridge.
#[derive(Debug)]
pub struct CartridgeFile {
    /// Where it is.
    pub path: PathBuf,
    /// There was none before.
    pub is_made: bool,
}

/// Why a directory cannot be a media changer, or a cartridge not come in or go out.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum LibraryError {
    #[error("cannot read the directory {}", .0.shown())]
    Directory(PathBuf, #[source] io::Error),
    #[error("another process uses {}", .0.shown())]
    InUse(PathBuf),
    #[error("{} is no file: a media changer has the files of tapes alone", .0.shown())]
    NotAFile(PathBuf),
    #[error("the name of {} is no barcode", .0.shown())]
    Name(PathBuf, #[source] NoBarcode),
    #[error("{} and {} are two cartridges with the barcode {}", .0.shown(), .1.shown(), .2)]
    SameBarcode(PathBuf, PathBuf, Barcode),
    #[error("{} and {} are the same file", .0.shown(), .1.shown())]
    SameFile(PathBuf, PathBuf),
    #[error("there are {0} cartridges without a place, and {1} free slots")]
    NoSlot(usize, usize),
    #[error("cannot use {}, which says what is where", .0.shown())]
    Places(PathBuf, #[source] PlacesError),
    #[error("cannot note in {} what is where", .0.shown())]
    Unnoted(PathBuf, #[source] io::Error),
    #[error("cannot make {}", .0.shown())]
    Unmade(PathBuf, #[source] io::Error),
    #[error("there is no file {}", .0.shown())]
    NoFile(PathBuf),
    #[error("cartridge {0} is in {1}")]
    Inside(Barcode, Element),
    #[error("it has no free import and export element")]
    NoImportExport,
}

/// Why the file with the places cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum PlacesError {
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    #[error("it is damaged")]
    Damaged(#[from] serde_json::Error),
    #[error("it has version {0}, and this release knows {VERSION}")]
    Version(u32),
    #[error(transparent)]
    Barcode(#[from] NoBarcode),
    #[error(transparent)]
    Element(#[from] NoElement),
    #[error("it has two cartridges in {0}")]
    Twice(Element),
}

/// The file with the places.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Places {
    version: u32,
    cartridges: BTreeMap<String, NotedPlace>,
}

/// Where a cartridge is.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct NotedPlace {
    /// The element; none if it was exported.
    place: Option<String>,
    /// The slot that it was in last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// An operator has put it there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    imported: bool,
}

impl Library {
    /// The cartridges in `directory`, those that are new in the first free slots.
    pub fn open(directory: &Path, layout: Layout) -> Result<Self, LibraryError> {
        let unreadable = |why| LibraryError::Directory(directory.to_owned(), why);
        let lock = directory.join(LOCK);
        // It is read first: whether it is there is told by what cannot be read.
        fs::read_dir(directory).map_err(unreadable)?;
        let file = File::options().create(true).append(true).open(&lock).map_err(unreadable)?;
        file.try_lock().map_err(|why| match why {
            TryLockError::WouldBlock => LibraryError::InUse(directory.to_owned()),
            TryLockError::Error(why) => unreadable(why),
        })?;
        let contents = Contents::survey(directory, layout)?;
        let library = Self {
            directory: directory.to_owned(),
            contents: Mutex::new(contents.clone()),
            _lock: file,
        };
        library.note(contents)?;
        Ok(library)
    }

    /// What a process would find that opened it now, without changing anything.
    pub fn look(directory: &Path, layout: Layout) -> Result<(), LibraryError> {
        Contents::survey(directory, layout).map(drop)
    }

    /// What is where.
    pub fn inventory(&self) -> Inventory {
        self.contents().inventory.clone()
    }

    /// The files of the cartridges that are in the changer.
    pub fn files(&self) -> Vec<PathBuf> {
        let contents = self.contents();
        let inside = contents.inventory.full();
        let path = |cartridge: &Cartridge| contents.files.get(&cartridge.barcode).cloned();
        inside.filter_map(|(_, cartridge)| path(cartridge)).collect()
    }

    /// The file of a cartridge.
    pub fn file(&self, barcode: &Barcode) -> Option<PathBuf> {
        self.contents().files.get(barcode).cloned()
    }

    /// The file of the cartridge in a drive.
    pub fn in_drive(&self, index: u16) -> Option<PathBuf> {
        let contents = self.contents();
        let cartridge = contents.inventory.get(Element::drive(index))?;
        contents.files.get(&cartridge.barcode).cloned()
    }

    /// Notes that this is where now: when it returns it is so for ever, and if it fails nothing has changed.
    pub fn rearrange(&self, inventory: Inventory) -> Result<(), LibraryError> {
        let contents = Contents { inventory, ..self.contents().clone() };
        self.note(contents)
    }

    /// The file of a cartridge that could be imported, which is made with `size` if there is none.
    pub fn find_or_make(
        &self,
        barcode: &Barcode,
        size: Option<u64>,
    ) -> Result<CartridgeFile, LibraryError> {
        self.contents().import_element(barcode)?;
        match (files(&self.directory)?.remove(barcode), size) {
            (Some(path), _) => Ok(CartridgeFile { path, is_made: false }),
            (None, Some(size)) => {
                self.make(barcode, size).map(|path| CartridgeFile { path, is_made: true })
            }
            (None, None) => Err(LibraryError::NoFile(self.directory.join(barcode.as_str()))),
        }
    }

    /// Puts a cartridge with this file into a free import element.
    pub fn import(&self, barcode: &Barcode, path: PathBuf) -> Result<Element, LibraryError> {
        let mut contents = self.contents().clone();
        let element = contents.import_element(barcode)?;
        contents.outside.remove(barcode);
        contents.files.insert(barcode.clone(), path);
        let cartridge = Cartridge { barcode: barcode.clone(), source: None, imported: true };
        let _ = contents.inventory.put(element, cartridge);
        self.note(contents)?;
        Ok(element)
    }

    /// Takes out what is in an export element; its file stays in the directory.
    pub fn export(&self, element: Element) -> Result<Option<Barcode>, LibraryError> {
        let mut contents = self.contents().clone();
        let Some(cartridge) = contents.inventory.take(element) else { return Ok(None) };
        contents.outside.insert(cartridge.barcode.clone());
        self.note(contents)?;
        Ok(Some(cartridge.barcode))
    }

    /// An empty tape.
    fn make(&self, barcode: &Barcode, size: u64) -> Result<PathBuf, LibraryError> {
        let path = self.directory.join(barcode.as_str());
        let made = File::create_new(&path)
            .and_then(|file| file.set_len(size).and_then(|()| file.sync_all()))
            .and_then(|()| sync_directory_of(&path));
        made.map_err(|why| LibraryError::Unmade(path.clone(), why))?;
        Ok(path)
    }

    /// Notes what is where, for this process and for the next one.
    fn note(&self, contents: Contents) -> Result<(), LibraryError> {
        let path = self.directory.join(PLACES);
        let text = contents.places();
        let unchanged = read_regular(&path).is_ok_and(|before| before == text);
        if !unchanged {
            replace(&path, &text).map_err(|why| LibraryError::Unnoted(path, why))?;
        }
        *self.contents() = contents;
        Ok(())
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    /// Where a cartridge from outside would come in.
    fn import_element(&self, barcode: &Barcode) -> Result<Element, LibraryError> {
        match self.inventory.find(barcode) {
            Some(at) => Err(LibraryError::Inside(barcode.clone(), at)),
            None => self
                .inventory
                .first_empty(ElementKind::ImportExport)
                .ok_or(LibraryError::NoImportExport),
        }
    }

    /// What is in a directory: where it was noted, or in a free slot.
    fn survey(directory: &Path, layout: Layout) -> Result<Self, LibraryError> {
        let files = files(directory)?;
        let path = directory.join(PLACES);
        let noted = read_places(&path).map_err(|why| LibraryError::Places(path.clone(), why))?;
        let mut contents =
            Self { inventory: Inventory::empty(layout), outside: BTreeSet::new(), files };
        let (mut unplaced, mut taken) = (Vec::new(), BTreeSet::new());
        for (barcode, (place, cartridge)) in noted {
            if let Some(element) = place.filter(|element| !taken.insert(*element)) {
                return Err(LibraryError::Places(path, PlacesError::Twice(element)));
            }
            if !contents.files.contains_key(&barcode) {
                tracing::warn!(%barcode, directory = %directory.shown(), "the file of a cartridge is gone");
                continue;
            }
            match place {
                None => drop(contents.outside.insert(barcode)),
                // Where there are fewer elements than before it has no place any more.
                Some(element) => unplaced.extend(contents.inventory.put(element, cartridge).err()),
            }
        }
        let is_new = |barcode: &&Barcode| {
            contents.inventory.find(barcode).is_none()
                && !contents.outside.contains(*barcode)
                && unplaced.iter().all(|known| known.barcode != **barcode)
        };
        let new = contents.files.keys().filter(is_new).cloned();
        let new = new.map(|barcode| Cartridge { barcode, source: None, imported: false });
        let new: Vec<_> = new.collect();
        unplaced.extend(new);
        contents.place(unplaced)?;
        Ok(contents)
    }

    /// Puts cartridges into free slots.
    fn place(&mut self, unplaced: Vec<Cartridge>) -> Result<(), LibraryError> {
        let slots = self.inventory.layout().all(ElementKind::Slot);
        let free: Vec<_> = slots.filter(|slot| self.inventory.get(*slot).is_none()).collect();
        if unplaced.len() > free.len() {
            return Err(LibraryError::NoSlot(unplaced.len(), free.len()));
        }
        for (slot, cartridge) in free.into_iter().zip(unplaced) {
            let _ = self.inventory.put(slot, cartridge);
        }
        Ok(())
    }

    /// The bytes of the file with the places.
    fn places(&self) -> Vec<u8> {
        let slot = |index| Element { kind: ElementKind::Slot, index }.to_string();
        let inside = self.inventory.full().map(|(element, cartridge)| {
            let (from, imported) = (cartridge.source.map(slot), cartridge.imported);
            let place = NotedPlace { place: Some(element.to_string()), from, imported };
            (cartridge.barcode.to_string(), place)
        });
        let outside = self.outside.iter().map(|barcode| {
            (barcode.to_string(), NotedPlace { place: None, from: None, imported: false })
        });
        let places = Places { version: VERSION, cartridges: inside.chain(outside).collect() };
        let mut text = serde_json::to_vec_pretty(&places).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// Where each cartridge was noted, and as what; `None` for one outside.
type Noted = BTreeMap<Barcode, (Option<Element>, Cartridge)>;

fn read_places(path: &Path) -> Result<Noted, PlacesError> {
    let text = match read_regular(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Noted::new()),
        text => text?,
    };
    let Places { version, cartridges } = serde_json::from_slice(&text)?;
    if version != VERSION {
        return Err(PlacesError::Version(version));
    }
    let read = |(barcode, noted): (String, NotedPlace)| {
        let barcode: Barcode = barcode.parse()?;
        let place = noted.place.map(|place| place.parse::<Element>()).transpose()?;
        let from = noted.from.map(|from| from.parse::<Element>()).transpose()?;
        let source = from.map(|slot| slot.index);
        let cartridge = Cartridge { barcode: barcode.clone(), source, imported: noted.imported };
        Ok((barcode, (place, cartridge)))
    };
    cartridges.into_iter().map(read).collect()
}

/// The files of cartridges in a directory. Hidden files and directories are none.
fn files(directory: &Path) -> Result<BTreeMap<Barcode, PathBuf>, LibraryError> {
    let unreadable = |why| LibraryError::Directory(directory.to_owned(), why);
    let (mut files, mut inodes) = (BTreeMap::new(), BTreeMap::new());
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let path = directory.join(&name);
        let name = name.to_string_lossy();
        let found = path.metadata().map_err(unreadable)?;
        if name.starts_with('.') || found.is_dir() {
            continue;
        }
        if !found.is_file() {
            return Err(LibraryError::NotAFile(path));
        }
        let barcode = name.strip_suffix(SUFFIX).unwrap_or(&name).parse::<Barcode>();
        let barcode = barcode.map_err(|why| LibraryError::Name(path.clone(), why))?;
        if let Some(other) = inodes.insert((found.dev(), found.ino()), path.clone()) {
            return Err(LibraryError::SameFile(other, path));
        }
        if let Some(other) = files.insert(barcode.clone(), path.clone()) {
            return Err(LibraryError::SameBarcode(other, path, barcode));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
