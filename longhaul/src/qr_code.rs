//! A text as a picture that cameras read (ISO/IEC 18004), in characters of a terminal.

use std::fmt;

use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode as Matrix};

/// A text as a QR code.
pub(crate) struct QrCode(Matrix);

impl QrCode {
    /// That of `text`; `None` if it is too long for one. A screen has no dirt on it, so that the least correction of errors
    /// gives the smallest picture.
    pub(crate) fn of(text: &str) -> Option<Self> {
        Matrix::with_error_correction_level(text, EcLevel::L).ok().map(Self)
    }
}

impl fmt::Display for QrCode {
    /// Dark modules are gaps in light ones: most terminals are dark.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(matrix) = self;
        let picture = matrix
            .render::<Dense1x2>()
            .dark_color(Dense1x2::Light)
            .light_color(Dense1x2::Dark)
            .build();
        f.write_str(&picture)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_fits_a_terminal() {
        let text = format!("longhaul:{}", "A".repeat(180));
        let picture = QrCode::of(&text).unwrap().to_string();
        let widest = picture.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 79, "{widest} columns");
        assert!(picture.lines().count() <= 40);
        assert!(picture.chars().all(|c| " █▀▄\n".contains(c)));
        assert!(QrCode::of(&"a".repeat(5000)).is_none());
    }
}
