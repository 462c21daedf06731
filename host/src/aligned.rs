//! Memory for direct requests (`O_DIRECT`), which the system takes only if it begins where a page does.

use bytes::Bytes;

/// The alignment, in bytes: no file system or device asks for more.
const PAGE: usize = 4096;

/// An empty buffer with room for `len` bytes that begin at a page, and how many bytes of it are before that page. Those are
/// filled.
pub(crate) fn with_capacity(len: usize) -> (Vec<u8>, usize) {
    // Large buffers of the program's allocator are aligned as they are.
    let bytes = Vec::with_capacity(len);
    if is_aligned(bytes.as_ptr()) {
        return (bytes, 0);
    }
    let mut bytes: Vec<u8> = Vec::with_capacity(len + PAGE);
    let before = bytes.as_ptr().align_offset(PAGE);
    bytes.resize(before, 0);
    (bytes, before)
}

/// The same data where direct requests take them: copied, if they are elsewhere.
pub(crate) fn aligned(data: Bytes) -> Bytes {
    if is_aligned(data.as_ptr()) {
        return data;
    }
    let (mut bytes, before) = with_capacity(data.len());
    bytes.extend_from_slice(&data);
    Bytes::from(bytes).slice(before..)
}

fn is_aligned(at: *const u8) -> bool {
    at.addr().is_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_begins_at_a_page_and_has_room() {
        for len in [0, 1, 512, PAGE, 100_000, 1 << 20] {
            let (bytes, before) = with_capacity(len);
            assert!(bytes.len() == before && before < PAGE && bytes.capacity() - before >= len);
            assert!((bytes.as_ptr().addr() + before).is_multiple_of(PAGE));
        }
    }

    #[test]
    fn data_are_copied_only_where_they_are_not_aligned() {
        let (mut page, before) = with_capacity(2 * PAGE);
        page.extend((0..2 * PAGE).map(|n| n as u8));
        let page = Bytes::from(page).slice(before..);
        assert_eq!(aligned(page.clone()).as_ptr(), page.as_ptr());
        for from in [1, 512, PAGE - 1] {
            let moved = aligned(page.slice(from..));
            assert!(is_aligned(moved.as_ptr()) && moved == page[from..], "{from}");
        }
    }
}
