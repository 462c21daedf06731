//! What of a volume has to be read: what its map calls zeroes need not cross a link.

use volume::{Span, Volume};

/// The first part of `span` that may hold something else than zeroes.
pub(crate) async fn next_data(volume: &dyn Volume, span: Span) -> volume::Result<Option<Span>> {
    let mut at = span.at;
    while at < span.end() {
        let rest = Span::new(at, span.end() - at);
        let Some(map) = volume.extents() else { return Ok(Some(rest)) };
        let extents = map.extents(rest).await?;
        let Some(first) = extents.first() else { return Ok(Some(rest)) };
        let end = first.span.end().min(span.end());
        if !first.zero {
            return Ok(Some(Span::new(at, end - at)));
        }
        at = end;
    }
    Ok(None)
}

/// What `span` holds.
pub(crate) async fn read(volume: &dyn Volume, span: Span) -> volume::Result<Vec<u8>> {
    let mut bytes = vec![0; span.len as usize];
    let mut rest = span;
    while let Some(data) = next_data(volume, rest).await? {
        let there = (data.at - span.at) as usize..(data.end() - span.at) as usize;
        bytes[there].copy_from_slice(&volume.read(data).await?);
        rest = Span::new(data.end(), span.end() - data.end());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use volume::Durability;
    use volume::store::memory::Memory;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[tokio::test]
    async fn map_does_not_hide_data() {
        let volume = Memory::new(8 * MIB, 512);
        assert_eq!(next_data(&volume, Span::new(0, 8 * MIB)).await.unwrap(), None);
        volume.write(3 * MIB, vec![7; 512].into(), Durability::Volatile).await.unwrap();
        let data = next_data(&volume, Span::new(MIB, 6 * MIB)).await.unwrap().unwrap();
        assert!(data.at > MIB && data.at <= 3 * MIB && data.end() > 3 * MIB, "{data:?}");
        for span in [Span::new(0, 8 * MIB), Span::new(3 * MIB, 512), Span::new(5 * MIB, MIB)] {
            let expected = volume.read(span).await.unwrap();
            assert!(read(&volume, span).await.unwrap() == expected[..]);
        }
    }
}
