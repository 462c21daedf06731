//! The mode pages that optical drives have beside others.

use super::Switches;
use crate::reader::Reader;
use crate::scsi::Sense;

/// Write Parameters (MMC-6, 7.5).
pub(super) const WRITE_PARAMETERS: u8 = 0x05;
/// CD Audio Control and the capabilities of the drive, which older standards had and drivers still look at.
pub(super) const AUDIO: u8 = 0x0E;
pub(super) const CAPABILITIES: u8 = 0x2A;

/// Write Type: track at once, on a CD.
const TRACK_AT_ONCE: u8 = 0x01;
/// The session at once, behind a cue sheet.
const SESSION_AT_ONCE: u8 = 0x02;
/// BUFE: an underrun does no harm, which none could here.
const BUFFER_PROTECTED: u8 = 0x40;
/// LS_V: Link Size says something. It does not: there are no packets of a fixed size.
const LINK_SIZE_VALID: u8 = 0x20;
/// Multi-session: another session may follow.
const MULTI_SESSION: u8 = 0b11 << 6;
/// Copy: a generation of it, of no meaning for data.
const COPY: u8 = 0x10;
/// Track Mode: data, recorded uninterrupted.
const DATA_TRACK: u8 = 0x04;
/// Data Block Type: 2048 bytes of mode 1.
const MODE_1: u8 = 0x08;

/// The body of one of these pages.
pub(super) fn body(code: u8, switches: Switches) -> Option<Vec<u8>> {
    match code {
        WRITE_PARAMETERS => {
            let mut page = vec![0; 50];
            let sessions = if switches.multi_session { MULTI_SESSION } else { 0 };
            let kind = if switches.session_at_once { SESSION_AT_ONCE } else { TRACK_AT_ONCE };
            page[..3].copy_from_slice(&[kind, sessions | DATA_TRACK, MODE_1]);
            // Audio Pause Length: two seconds, as Red Book has it.
            page[12..14].copy_from_slice(&150_u16.to_be_bytes());
            Some(page)
        }
        AUDIO => {
            // IMMED, and both channels at full volume: there is nothing to play.
            let mut page = vec![0; 14];
            page[0] = 0x04;
            page[6..10].copy_from_slice(&[0x01, 0xFF, 0x02, 0xFF]);
            Some(page)
        }
        CAPABILITIES => Some(capabilities(switches.locked)),
        _ => None,
    }
}

/// The switches after MODE SELECT with the write parameters `new`, which begin at byte `at` of the list. Programs that burn
/// fill in fields that mean nothing with this write type; what would have the disc written otherwise is refused.
pub(super) fn select(at: u16, new: &[u8], current: Switches) -> Result<Switches, Sense> {
    let Ok([kind, track, block]) = Reader::new(new).array() else {
        return Err(Sense::invalid_parameter(at, None));
    };
    // Test Write among them: what is only tried is written all the same.
    let session_at_once = match kind & !(BUFFER_PROTECTED | LINK_SIZE_VALID) {
        TRACK_AT_ONCE => false,
        SESSION_AT_ONCE => true,
        _ => return Err(Sense::invalid_parameter(at, None)),
    };
    let (sessions, mode) = (track & MULTI_SESSION, track & !(MULTI_SESSION | COPY));
    // MMC-6, 7.5.4: of a session at once its cue sheet says what the tracks are.
    let is_other = !session_at_once && mode != DATA_TRACK;
    if is_other || !matches!(sessions, 0 | MULTI_SESSION) {
        return Err(Sense::invalid_parameter(at + 1, None));
    }
    if !session_at_once && block & 0x0F != MODE_1 {
        return Err(Sense::invalid_parameter(at + 2, None));
    }
    Ok(Switches { multi_session: sessions != 0, session_at_once, ..current })
}

/// The body of the page that MMC-3 had last (5.5.10): a tray that can be locked and ejects; CD-ROM, CD-R and DVD-ROM are
/// read, and CD-R is written.
fn capabilities(locked: bool) -> Vec<u8> {
    const READS_CD_R: u8 = 0x01;
    const READS_DVD_ROM: u8 = 0x08;
    const WRITES_CD_R: u8 = 0x01;
    const MULTI_SESSION: u8 = 0x40;
    const UNDERRUN_FREE: u8 = 0x80;
    const TRAY: u8 = 0x20;
    const EJECTS: u8 = 0x08;
    const LOCKED: u8 = 0x02;
    const LOCKS: u8 = 0x01;
    /// 40 times the 176 kB/s of audio: a number that drivers expect, of a drive that turns nothing.
    const SPEED: [u8; 2] = 7056u16.to_be_bytes();
    let mut page = vec![0; 20];
    page[0] = READS_DVD_ROM | READS_CD_R;
    page[1] = WRITES_CD_R;
    page[2] = MULTI_SESSION | UNDERRUN_FREE;
    page[4] = TRAY | EJECTS | LOCKS | if locked { LOCKED } else { 0 };
    for speed in [6, 12, 16, 18] {
        page[speed..speed + 2].copy_from_slice(&SPEED);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(kind: u8, track: u8, block: u8) -> Vec<u8> {
        let mut page = vec![0; 50];
        page[..3].copy_from_slice(&[kind, track, block]);
        page
    }

    #[test]
    fn write_parameters_choose_whether_another_session_follows() {
        let current = Switches::default();
        let multi = Switches { multi_session: true, ..current };
        let shown = |switches| body(WRITE_PARAMETERS, switches).unwrap();
        assert_eq!(shown(multi)[..3], [1, 0xC4, 8]);
        for (track, then) in [(0x04, current), (0xC4, multi), (0xD4, multi)] {
            for kind in [0x01, 0x41, 0x61] {
                assert_eq!(select(10, &page(kind, track, 8), current), Ok(then));
            }
        }
    }

    #[test]
    fn session_is_written_at_once_if_that_is_selected() {
        let at_once = Switches { session_at_once: true, ..Switches::default() };
        for (track, block) in [(4, 8), (0, 0)] {
            assert_eq!(select(10, &page(0x42, track, block), Switches::default()), Ok(at_once));
        }
        assert_eq!(body(WRITE_PARAMETERS, at_once).unwrap()[0], 2);
        assert_eq!(select(10, &page(0x01, 4, 8), at_once), Ok(Switches::default()));
    }

    #[test]
    fn disc_is_written_in_no_other_way() {
        let refused =
            |kind, track, block| select(10, &page(kind, track, block), Switches::default()).err();
        // Packets, raw, and tests.
        for kind in [0x00, 0x03, 0x11, 0x12] {
            assert_eq!(refused(kind, 4, 8), Some(Sense::invalid_parameter(10, None)));
        }
        // Audio, fixed packets, and half an answer to whether another session follows.
        for track in [0x00, 0x24, 0x44] {
            assert_eq!(refused(1, track, 8), Some(Sense::invalid_parameter(11, None)));
        }
        assert_eq!(refused(1, 4, 10), Some(Sense::invalid_parameter(12, None)));
    }
}
