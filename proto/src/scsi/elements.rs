//! The elements of a media changer (SMC-3, 4.2), and which cartridge is in which.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::Sense;
use super::sense::Additional;

/// The most characters of a barcode: VOLUME IDENTIFICATION (SMC-3, 6.11.6).
pub(crate) const BARCODE_MAX: usize = 32;

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ElementKind {
    /// What moves cartridges. There is one.
    Transport,
    /// A tape drive.
    Drive,
    /// A place where cartridges come in and go out.
    ImportExport,
    /// A place where cartridges are kept.
    Slot,
}

impl ElementKind {
    /// In the order of their addresses.
    pub const ALL: [Self; 4] = [Self::Transport, Self::Drive, Self::ImportExport, Self::Slot];

    /// Those that cartridges can be in: the transport element keeps none.
    const PLACES: [Self; 3] = [Self::Drive, Self::ImportExport, Self::Slot];

    /// ELEMENT TYPE CODE.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Transport => 1,
            Self::Slot => 2,
            Self::ImportExport => 3,
            Self::Drive => 4,
        }
    }

    /// The address of the first one.
    #[must_use]
    pub const fn first(self) -> u16 {
        match self {
            Self::Transport => 0x0000,
            Self::Drive => 0x0100,
            Self::ImportExport => 0x0300,
            Self::Slot => 0x0400,
        }
    }

    /// What it is called, and the number of the first one: programs count drives from 0, and slots from 1.
    const fn name(self) -> (&'static str, u16) {
        match self {
            Self::Transport => ("transport", 0),
            Self::Drive => ("drive", 0),
            Self::ImportExport => ("mail", 1),
            Self::Slot => ("slot", 1),
        }
    }
}

/// An element of a changer, by its place among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// What it is.
    pub kind: ElementKind,
    /// How many of that kind are before it.
    pub index: u16,
}

impl Element {
    /// Drive `index`.
    #[must_use]
    pub const fn drive(index: u16) -> Self {
        Self { kind: ElementKind::Drive, index }
    }

    /// Its address.
    #[must_use]
    pub const fn address(self) -> u16 {
        self.kind.first() + self.index
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, first) = self.kind.name();
        write!(f, "{name}:{}", self.index + first)
    }
}

/// A text is not the name of an element.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no element: write drive:0, slot:1 or mail:1")]
pub struct NoElement(String);

impl FromStr for Element {
    type Err = NoElement;

    fn from_str(text: &str) -> Result<Self, NoElement> {
        let wrong = || NoElement(text.to_owned());
        let (name, number) = text.split_once(':').ok_or_else(wrong)?;
        let kind =
            ElementKind::PLACES.into_iter().find(|kind| kind.name().0 == name).ok_or_else(wrong)?;
        let number: u16 = number.parse().map_err(|_| wrong())?;
        let index = number.checked_sub(kind.name().1).ok_or_else(wrong)?;
        Ok(Self { kind, index })
    }
}

/// How many elements of each kind a changer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Tape drives.
    pub drives: u16,
    /// Slots.
    pub slots: u16,
    /// Import and export elements.
    pub mail: u16,
}

impl Layout {
    /// The most drives. Their addresses, and all others, are those of [`ElementKind::first`] and behind it.
    pub const DRIVES_MAX: u16 = 32;
    /// The most slots.
    pub const SLOTS_MAX: u16 = 4096;
    /// The most import and export elements.
    pub const MAIL_MAX: u16 = 64;

    /// How many of that kind there are.
    #[must_use]
    pub const fn count(self, kind: ElementKind) -> u16 {
        match kind {
            ElementKind::Transport => 1,
            ElementKind::Drive => self.drives,
            ElementKind::ImportExport => self.mail,
            ElementKind::Slot => self.slots,
        }
    }

    /// The elements of that kind.
    pub fn all(self, kind: ElementKind) -> impl Iterator<Item = Element> + Clone {
        (0..self.count(kind)).map(move |index| Element { kind, index })
    }

    /// Whether there is this element.
    #[must_use]
    pub const fn has(self, Element { kind, index }: Element) -> bool {
        index < self.count(kind)
    }

    /// The element at an address, if media can be there.
    pub fn place(self, address: u16) -> Result<Element, Sense> {
        let at = |kind: ElementKind| {
            let index = address.checked_sub(kind.first())?;
            Some(Element { kind, index }).filter(|element| self.has(*element))
        };
        let unknown = Sense::illegal(Additional::INVALID_ELEMENT_ADDRESS);
        ElementKind::PLACES.into_iter().find_map(at).ok_or(unknown)
    }
}

/// By what a cartridge is known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Barcode(String);

impl Barcode {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Barcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that no barcode can be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a barcode has 1 to {BARCODE_MAX} capital letters, digits and characters of `-_.+$%`, and begins with a letter or digit"
)]
pub struct NoBarcode;

impl FromStr for Barcode {
    type Err = NoBarcode;

    fn from_str(text: &str) -> Result<Self, NoBarcode> {
        let is_plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
        let is_fit = |c: char| is_plain(c) || "-_.+$%".contains(c);
        let fits = text.len() <= BARCODE_MAX && text.starts_with(is_plain);
        if fits && text.chars().all(is_fit) { Ok(Self(text.to_owned())) } else { Err(NoBarcode) }
    }
}

/// A cartridge in a changer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cartridge {
    /// By what it is known.
    pub barcode: Barcode,
    /// The slot from which it was moved last, if it ever was in one.
    pub source: Option<u16>,
    /// It was put into an import element by an operator, and has not been moved since.
    pub imported: bool,
}

/// Which cartridge is in which element. A cartridge is in one element, and an element has one at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    layout: Layout,
    full: BTreeMap<Element, Cartridge>,
}

impl Inventory {
    /// That of an empty changer.
    #[must_use]
    pub const fn empty(layout: Layout) -> Self {
        Self { layout, full: BTreeMap::new() }
    }

    /// The elements that there are.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// What is in an element.
    #[must_use]
    pub fn get(&self, element: Element) -> Option<&Cartridge> {
        self.full.get(&element)
    }

    /// The elements that are not empty, with what is in them.
    pub fn full(&self) -> impl Iterator<Item = (Element, &Cartridge)> {
        self.full.iter().map(|(element, cartridge)| (*element, cartridge))
    }

    /// Where a cartridge is.
    #[must_use]
    pub fn find(&self, barcode: &Barcode) -> Option<Element> {
        self.full().find(|(_, cartridge)| cartridge.barcode == *barcode).map(|(element, _)| element)
    }

    /// The first empty element of that kind.
    #[must_use]
    pub fn first_empty(&self, kind: ElementKind) -> Option<Element> {
        self.layout.all(kind).find(|element| !self.full.contains_key(element))
    }

    /// Puts a cartridge that is nowhere into an element that is there and empty; gives it back otherwise.
    pub fn put(&mut self, element: Element, cartridge: Cartridge) -> Result<(), Cartridge> {
        let is_free = self.layout.has(element) && !self.full.contains_key(&element);
        if !is_free || self.find(&cartridge.barcode).is_some() {
            return Err(cartridge);
        }
        self.full.insert(element, cartridge);
        Ok(())
    }

    /// Takes out what is in an element.
    pub fn take(&mut self, element: Element) -> Option<Cartridge> {
        self.full.remove(&element)
    }

    /// The same after MOVE MEDIUM (SMC-3, 6.6).
    pub fn moved(&self, source: Element, destination: Element) -> Result<Self, Sense> {
        let mut after = self.clone();
        let cartridge = after.lift(source)?;
        let full = Sense::illegal(Additional::DESTINATION_ELEMENT_FULL);
        if source == destination {
            return Err(full);
        }
        after.put(destination, cartridge).map_err(|_| full)?;
        Ok(after)
    }

    /// The same after EXCHANGE MEDIUM (SMC-3, 6.3): what is in `source` goes to `first`, and what is there to `second`,
    /// which may be the source.
    pub fn exchanged(
        &self,
        source: Element,
        first: Element,
        second: Element,
    ) -> Result<Self, Sense> {
        let mut after = self.clone();
        let full = Sense::illegal(Additional::DESTINATION_ELEMENT_FULL);
        let cartridge = after.lift(source)?;
        if source == first || first == second {
            return Err(full);
        }
        let other = after.lift(first)?;
        after.put(first, cartridge).map_err(|_| full)?;
        after.put(second, other).map_err(|_| full)?;
        Ok(after)
    }

    /// Takes a cartridge out of an element to put it into another one.
    fn lift(&mut self, source: Element) -> Result<Cartridge, Sense> {
        let empty = Sense::illegal(Additional::SOURCE_ELEMENT_EMPTY);
        let mut cartridge = self.take(source).ok_or(empty)?;
        cartridge.imported = false;
        if source.kind == ElementKind::Slot {
            cartridge.source = Some(source.index);
        }
        Ok(cartridge)
    }
}
