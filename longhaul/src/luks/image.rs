//! The header of a volume in memory.

use std::sync::Arc;

use volume::{Span, Volume};

use super::header::{
    HEADER_SIZES, Header, HeaderError, Payload, Place, is_first_copy, is_second_copy,
};
use crate::failure::{Failure, OrFail, Outcome};

/// Where both copies of a header of the usual size end.
const USUAL_COPIES: u64 = 2 * HEADER_SIZES[0];

/// Where both copies of the largest header end.
const LARGEST_COPIES: u64 = 2 * HEADER_SIZES[8];

/// What was fetched of a header: both copies and the areas of the slots in use. The rest is left zero:
/// it means nothing, and it is most of 16 MiB that would have to cross the link.
pub(super) struct Image {
    /// From the start of the volume to the end of the header area.
    pub(super) bytes: Vec<u8>,
    /// The newest valid copy.
    pub(super) header: Header,
    /// Which copy that is.
    pub(super) place: Place,
    /// The other copy, if it is not valid.
    pub(super) damaged: Option<Place>,
    /// Where the data lie.
    pub(super) payload: Payload,
}

/// Why a header could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageError {
    /// The volume could not be read.
    #[error(transparent)]
    Volume(#[from] volume::Error),
    /// What was read is no header that can be used.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

impl Image {
    /// Fetches the header of `volume`.
    pub(super) async fn fetch(volume: &Arc<dyn Volume>) -> Result<Self, ImageError> {
        let size = volume.shape().size;
        let (mut bytes, header) = Self::copies(volume).await?;
        header.validate(size)?;
        // The header is vetted: all that follows is below 136 MiB and inside the volume.
        bytes.resize(header.area() as usize, 0);
        for area in header.slot_areas() {
            let material = read(volume, area).await?;
            bytes[area.at as usize..area.end() as usize].copy_from_slice(&material);
        }
        Ok(Self::parse(bytes, size)?)
    }

    /// The bytes of both copies, and the newest valid one. Nobody has vetted it.
    pub(super) async fn copies(volume: &Arc<dyn Volume>) -> Result<(Vec<u8>, Header), ImageError> {
        let size = volume.shape().size;
        let mut bytes = read(volume, Span::new(0, USUAL_COPIES.min(size))).await?;
        if let Err(HeaderError::Absent | HeaderError::Damaged) = Header::newest(&bytes) {
            // A larger header, or only its second copy is left; most volumes without a header are empty,
            // and megabytes of nothing are not worth their way over a link.
            if !is_first_copy(&bytes) && !has_second_copy(volume).await? {
                return Err(HeaderError::Absent.into());
            }
            bytes = read(volume, Span::new(0, LARGEST_COPIES.min(size))).await?;
        }
        let (_, header) = Header::newest(&bytes)?;
        Ok((bytes, header))
    }

    /// Understands a header that is in memory already.
    pub(super) fn parse(mut bytes: Vec<u8>, volume_size: u64) -> Result<Self, HeaderError> {
        let (place, header) = Header::newest(&bytes)?;
        let payload = header.validate(volume_size)?;
        let damaged = Header::damaged(&bytes);
        bytes.resize(header.area() as usize, 0);
        Ok(Self { bytes, header, place, damaged, payload })
    }

    /// The same, with zeroes where no slot is. libcryptsetup fills these places of a new header with noise, which would be most
    /// of 16 MiB that would have to cross the link; which slots there are stands in the header anyway.
    pub(super) fn without_noise(mut self) -> Self {
        let copies = Span::new(0, 2 * self.header.size);
        let mut used: Vec<Span> = std::iter::once(copies).chain(self.header.slot_areas()).collect();
        used.sort_by_key(|span| span.at);
        let mut at = 0;
        for span in used {
            self.bytes[at..(span.at as usize).max(at)].fill(0);
            at = at.max(span.end() as usize);
        }
        self.bytes[at..].fill(0);
        self
    }

    /// What this header became.
    pub(super) fn changed(bytes: Vec<u8>, volume_size: u64) -> Outcome<Self> {
        Self::parse(bytes, volume_size)
            .or_fail(|| "the new header is not as it should be; nothing was written".to_owned())
    }
}

impl ImageError {
    /// The failure as a person reads it.
    pub(super) fn into_failure(self) -> Failure {
        let what = "cannot read the LUKS2 header";
        if let Self::Volume(why) = self {
            return Failure::of_volume(what, why);
        }
        let failure = Failure::new(what);
        let hint = match &self {
            Self::Header(HeaderError::Absent) => {
                "if the volume was encrypted, its header is lost: `longhaul key restore` brings one back from a \
                 backup; `longhaul key init` makes a new one, of an empty volume"
            }
            Self::Header(HeaderError::Damaged) => {
                "`longhaul key restore` brings a header back from a backup"
            }
            Self::Header(HeaderError::Replaced(_)) => {
                "if that was made by mistake, `longhaul key restore --force` brings the header back from a \
                 backup; if it is wanted, use the volume with --raw --force"
            }
            Self::Header(HeaderError::CutOff { .. }) => {
                "what it had behind its end is lost, unless it is somewhere else: make it as long as it was before anything \
                 is written to it"
            }
            Self::Header(HeaderError::Luks1) => "`cryptsetup convert --type luks2` converts it",
            Self::Header(HeaderError::Cipher(name)) if name.contains("null") => {
                "that encrypts nothing: somebody may have replaced the header. Do not write to this volume before you know why"
            }
            Self::Header(HeaderError::Cipher(_) | HeaderError::KeySize(_)) => {
                "the kernel opens it: `cryptsetup open`, as a block device here; `cryptsetup reencrypt --cipher aes-xts-plain64 \
                 --key-size 512` changes it, after a backup"
            }
            Self::Header(HeaderError::SlotCipher(..)) => {
                "somebody may have replaced the header so that it opens with any pass-phrase: do not \
                 write to this volume before you know why"
            }
            Self::Header(_) | Self::Volume(_) => return failure.because(self),
        };
        failure.because(self).hint(hint)
    }
}

/// Whether there is a second copy of a header, in any of the places where one can be.
async fn has_second_copy(volume: &Arc<dyn Volume>) -> volume::Result<bool> {
    /// The largest block of a volume.
    const PIECE: u64 = 4096;
    let size = volume.shape().size;
    let places = HEADER_SIZES.iter().filter(|&&at| at + PIECE <= size);
    let starts = places.map(|&at| volume.read(Span::new(at, PIECE)));
    let starts = futures_util::future::join_all(starts).await;
    starts.into_iter().try_fold(false, |found, start| Ok(found || is_second_copy(&start?)))
}

/// Reads a piece of the header, which may be longer than one transfer.
pub(super) async fn read(volume: &Arc<dyn Volume>, span: Span) -> volume::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(span.len as usize);
    for piece in span.pieces(1 << 20) {
        bytes.extend_from_slice(&volume.read(piece).await?);
    }
    Ok(bytes)
}
