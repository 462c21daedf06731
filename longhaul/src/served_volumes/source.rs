//! What volumes are served from, and by what it is known again.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file_id::FileId;
use super::{Found, absolute, device_name, is_same_place};
use crate::failure::Outcome;
use crate::uri::{Location, Uri};

/// What a volume is served from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Source {
    /// The path of the file or device; else the URI.
    pub(super) place: PathBuf,
    kind: Kind,
    /// Clients get the plain text of an encrypted volume: that is another volume than the ciphertext.
    decrypted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    /// Without times of birth a file is known by its path.
    File(Option<FileId>),
    /// By this name.
    Device(String),
    Upstream(Upstream),
    /// Files and devices of this machine, in order.
    Several(Vec<Self>),
}

impl Kind {
    /// That of a file or a device; `None` of what is not known again.
    fn local(uri: &Uri) -> Option<Self> {
        match uri.location() {
            Location::File(path) => Some(Self::File(Some(FileId::of(&path.metadata().ok()?)?))),
            Location::Device(path) => Some(Self::Device(device_name::of(path))),
            Location::Process(_)
            | Location::Drive(_)
            | Location::Tape(_)
            | Location::Changer(_)
            | Location::Passed(_)
            | Location::Unit(_)
            | Location::Served(_)
            | Location::Image(_)
            | Location::Several(_) => None,
        }
    }

    /// Whether it is the same file or device.
    fn is_local(&self, noted: &Self) -> bool {
        match (self, noted) {
            (Self::File(Some(here)), Self::File(Some(noted))) => here.resembles(*noted),
            (Self::Device(here), Self::Device(noted)) => here == noted,
            _ => false,
        }
    }
}

/// What the target of a volume says of its unit, and the LUKS UUID in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Upstream {
    pub(crate) vendor: String,
    pub(crate) product: String,
    pub(crate) serial: Option<String>,
    /// The identity of a volume of another Longhaul: a serial number can be given to any.
    #[serde(default)]
    pub(crate) volume: Option<String>,
    pub(crate) luks_uuid: Option<String>,
}

impl Upstream {
    /// That of an image of a Ceph cluster, which has a name that no other has.
    pub(crate) fn image(id: String) -> Self {
        let (vendor, product) = ("Ceph".to_owned(), "RBD".to_owned());
        Self { vendor, product, serial: Some(id), volume: None, luks_uuid: None }
    }

    /// That of a device that is passed through, which is asked for no more.
    pub(crate) fn passed(serial: Option<&str>) -> Self {
        let serial = serial.map(str::to_owned);
        let (vendor, product) = (String::new(), String::new());
        Self { vendor, product, serial, volume: None, luks_uuid: None }
    }

    /// A volume that was not encrypted may have been since, by its clients. An earlier release neither noted identities nor
    /// showed one.
    fn is(&self, noted: &Self) -> bool {
        let unit = |one: &Self| (one.vendor.clone(), one.product.clone(), one.serial.clone());
        let is_uuid = noted.luks_uuid.is_none() || noted.luks_uuid == self.luks_uuid;
        let is_volume = noted.volume.is_none() || noted.volume == self.volume;
        is_uuid && is_volume && unit(self) == unit(noted)
    }
}

impl Source {
    /// That of a volume that has just been opened; `None` if nothing of it outlives the process.
    pub(super) fn of(Found { volume, upstream, id, .. }: &Found) -> Outcome<Option<Self>> {
        let (place, kind) = match volume.uri.location() {
            // A drive is known by its name: discs and tapes come and go.
            Location::Process(_)
            | Location::Drive(_)
            | Location::Tape(_)
            | Location::Changer(_)
            | Location::Passed(_) => return Ok(None),
            Location::File(path) => (absolute(path)?, Kind::File(*id)),
            Location::Device(path) => (absolute(path)?, Kind::Device(device_name::of(path))),
            Location::Unit(_) | Location::Served(_) | Location::Image(_) => {
                let Some(upstream) = upstream.clone() else { return Ok(None) };
                (PathBuf::from(volume.uri.to_string()), Kind::Upstream(upstream))
            }
            Location::Several(_) => {
                let leaves = volume.uri.leaves();
                let kinds: Option<_> =
                    leaves.into_iter().map(|(leaf, _)| Kind::local(leaf)).collect();
                let Some(kinds) = kinds else { return Ok(None) };
                (PathBuf::from(volume.uri.to_string()), Kind::Several(kinds))
            }
        };
        Ok(Some(Self { place, kind, decrypted: volume.unlock.is_some() }))
    }

    /// Whether clients of `noted` find in it the volume that they know, as far as nobody has written to it.
    pub(super) fn is(&self, noted: &Self) -> bool {
        self.decrypted == noted.decrypted && self.is_store(noted)
    }

    /// Whether it has the bytes of `noted`.
    pub(super) fn is_store(&self, noted: &Self) -> bool {
        match (&self.kind, &noted.kind) {
            (Kind::File(here), Kind::File(_)) => noted.is_file(&self.place, *here),
            (Kind::Device(here), Kind::Device(noted)) => here == noted,
            (Kind::Several(here), Kind::Several(noted)) => {
                let mut pairs = here.iter().zip(noted);
                here.len() == noted.len() && pairs.all(|(here, noted)| here.is_local(noted))
            }
            (Kind::Upstream(here), Kind::Upstream(upstream)) => {
                self.place == noted.place && here.is(upstream)
            }
            _ => false,
        }
    }

    pub(super) const fn is_a_file(&self) -> bool {
        matches!(self.kind, Kind::File(_))
    }

    /// Whether it is the file that is at `path`, with this identity. Devices may have other numbers in each run of a
    /// machine.
    pub(super) fn is_file(&self, path: &Path, here: Option<FileId>) -> bool {
        let Kind::File(noted) = self.kind else { return false };
        let Some((noted, here)) = noted.zip(here) else {
            return is_same_place(&self.place, path);
        };
        let still_there = || {
            let there = self.place.metadata().ok().as_ref().and_then(FileId::of);
            there.is_some_and(|there| there.resembles(noted))
        };
        noted.resembles(here)
            && (noted.device == here.device || self.place == path || !still_there())
    }
}
