//! Target ports and their groups (SPC-4, 5.16): one port with all portals, in one group that is always active
//! and optimized.

/// The identifier of the only target port group.
pub const GROUP: u16 = 1;

/// The answer to REPORT TARGET PORT GROUPS (SPC-4, 6.37), in the long form if `extended`.
#[must_use]
pub fn report(port: u16, extended: bool) -> Vec<u8> {
    const ACTIVE_OPTIMIZED: u8 = 0x00;
    const AO_SUP: u8 = 0x01;
    const EXTENDED: u8 = 0x10;
    let mut data = if extended { vec![EXTENDED, 0, 0, 0] } else { Vec::new() };
    data.extend([ACTIVE_OPTIMIZED, AO_SUP]);
    data.extend(GROUP.to_be_bytes());
    data.extend([0, 0, 0, 1]); // No transition has happened; one port.
    data.extend([0, 0]);
    data.extend(port.to_be_bytes());
    let mut bytes = (data.len() as u32).to_be_bytes().to_vec();
    bytes.extend(data);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_form_has_its_header() {
        let short = report(7, false);
        assert_eq!(short, [0, 0, 0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 7]);
        let long = report(7, true);
        assert_eq!(long[..8], [0, 0, 0, 16, 0x10, 0, 0, 0]);
        assert_eq!(long[8..], short[4..]);
    }
}
