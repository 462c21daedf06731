//! The token in the header that records how large the volume was. LUKS2 takes whatever is behind the header for the
//! whole volume, so that one which was cut off would open without a word.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use volume::Volume;

use super::header::Header;
use super::image::Image;
use super::writeback::{self, Before};
use super::{blocking, library};
use crate::failure::Outcome;
use crate::size::Size;

/// The type of the token.
const KIND: &str = "longhaul-size";

/// The token, as it stands in the header. Numbers of 64 bits are strings there.
#[derive(Deserialize, Serialize)]
struct Body {
    #[serde(rename = "type")]
    kind: String,
    /// None: the token opens nothing.
    keyslots: Vec<String>,
    /// Bytes of the volume, with its header.
    size: String,
}

/// The tokens that record a size; a size that cannot be read is none.
fn recorded(header: &Header) -> impl Iterator<Item = (u32, Option<u64>)> {
    let tokens = header.metadata.tokens.iter();
    let tokens = tokens.filter_map(|(number, token)| {
        Some((*number, serde_json::from_value::<Body>(token.clone()).ok()?))
    });
    let tokens = tokens.filter(|(_, token)| token.kind == KIND);
    tokens.map(|(number, token)| (number, token.size.parse().ok()))
}

/// How large the volume was, if it is smaller now.
pub(super) fn size_before_cut(header: &Header, size: u64) -> Option<u64> {
    recorded(header).filter_map(|(_, recorded)| recorded).filter(|was| *was > size).max()
}

/// What there is to be said of a volume of this size that was larger.
pub(super) fn cut(header: &Header, size: u64) -> Option<String> {
    let was = size_before_cut(header, size)?;
    Some(format!(
        "the encrypted volume is {} long, and was {}: its end is missing",
        Size(size),
        Size(was)
    ))
}

/// Tells a person that the volume of this size was larger.
pub(super) fn report(header: &Header, size: u64) {
    let Some(cut) = cut(header, size) else { return };
    tracing::warn!(
        uuid = header.uuid,
        "{cut}. Bring it back before anything repairs what is \
         on it; if it was made smaller on purpose, `cryptsetup token remove` on its token {KIND} ends this warning"
    );
}

/// `image` with the size of its volume recorded.
pub(super) fn record(image: &Image, size: u64) -> Outcome<Image> {
    let old: Vec<u32> = recorded(&image.header).map(|(number, _)| number).collect();
    let (kind, keyslots, bytes) = (KIND.to_owned(), Vec::new(), size.to_string());
    let token = Body { kind, keyslots, size: bytes };
    Image::changed(library::with_token(image, size, &old, Some(&token))?, size)
}

/// Records that the volume has grown. A header that records no size, as that of another program, is left alone.
///
/// A slot must have opened before.
pub(super) async fn follow(store: &Arc<dyn Volume>, image: Arc<Image>) -> Outcome<Arc<Image>> {
    let size = store.shape().size;
    let known = recorded(&image.header).filter_map(|(_, recorded)| recorded).max();
    if store.shape().read_only || known.is_none_or(|known| known >= size) {
        return Ok(image);
    }
    let (image, new) = blocking(move || record(&image, size).map(|new| (image, new))).await?;
    writeback::write(store, Before::Changed(&image), &new).await?;
    Ok(Arc::new(new))
}

#[cfg(test)]
mod tests {
    use volume::store::memory::Memory;

    use super::super::tests::{encrypted_volume, opens, secret};
    use super::super::{Options, open};
    use super::*;

    const SIZE: u64 = 24 << 20;

    /// The start of `volume` on a volume of another size.
    async fn moved(volume: &Arc<dyn Volume>, size: u64) -> Arc<dyn Volume> {
        let start =
            super::super::image::read(volume, volume::Span::new(0, 16 << 20)).await.unwrap();
        let other: Arc<dyn Volume> = Arc::new(Memory::new(size, 512));
        other.write(0, start.into(), volume::Durability::Durable).await.unwrap();
        other
    }

    async fn before_cut(volume: &Arc<dyn Volume>) -> Option<u64> {
        let image = Image::fetch(volume).await.ok().unwrap();
        size_before_cut(&image.header, volume.shape().size)
    }

    #[tokio::test]
    async fn volume_that_was_cut_off_is_known_by_its_header() {
        let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
        assert_eq!(before_cut(&volume).await, None);
        let cut = moved(&volume, SIZE - 4096).await;
        assert_eq!(before_cut(&cut).await, Some(SIZE));
        // It opens, and opening it does not make the size it has the right one.
        assert!(opens(&cut, "one").await);
        assert_eq!(before_cut(&cut).await, Some(SIZE));
    }

    #[tokio::test]
    async fn growth_is_recorded_when_the_volume_is_opened_to_be_written() {
        let volume =
            moved(&encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await, 2 * SIZE).await;
        assert!(!opens(&volume, "wrong").await);
        assert_eq!(before_cut(&moved(&volume, SIZE).await).await, None, "no slot had opened");
        open(Arc::clone(&volume), secret("one"), Options::default()).await.unwrap();
        assert_eq!(before_cut(&volume).await, None);
        assert_eq!(before_cut(&moved(&volume, SIZE).await).await, Some(2 * SIZE));
        assert!(opens(&volume, "one").await);
    }
}
