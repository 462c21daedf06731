//! A text as a picture that cameras read (ISO/IEC 18004), in characters of a terminal.

use std::fmt::{self, Write as _};

use qrcode::render::unicode::Dense1x2;
use qrcode::{Color, EcLevel, QrCode as Matrix};
use zeroize::Zeroizing;

/// A text as a QR code.
pub(crate) struct QrCode(Matrix);

impl QrCode {
    /// That of `text`; `None` if it is too long for one. A screen has no dirt on it, so that the least correction of errors
    /// gives the smallest picture.
    pub(crate) fn of(text: &str) -> Option<Self> {
        Matrix::with_error_correction_level(text, EcLevel::L).ok().map(Self)
    }

    /// It in characters for paper, where what is printed is dark.
    pub(crate) fn on_paper(&self) -> Zeroizing<String> {
        let picture = self.0.render::<Dense1x2>();
        Zeroizing::new(picture.build() + "\n")
    }

    /// How many modules it is wide, without the room around it.
    pub(crate) fn width(&self) -> usize {
        self.0.width()
    }

    /// Its dark modules as squares of a path of SVG.
    pub(crate) fn path(&self) -> Zeroizing<String> {
        let mut path = Zeroizing::new(String::new());
        for (place, colour) in self.0.to_colors().into_iter().enumerate() {
            if colour == Color::Dark {
                let (x, y) = (place % self.width(), place / self.width());
                let _ = write!(path, "M{x} {y}h1v1h-1z");
            }
        }
        path
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

    #[test]
    fn path_has_a_square_for_each_dark_module() {
        let code = QrCode::of("abandon ability able").unwrap();
        let path = code.path();
        let dark = code.0.to_colors().into_iter().filter(|colour| *colour == Color::Dark).count();
        assert_eq!(path.matches('M').count(), dark);
        // The finder in the corner (ISO/IEC 18004, 6.3.3).
        assert!((0..7).all(|x| path.contains(&format!("M{x} 0h"))) && !path.contains("M7 0h"));
        assert!(code.on_paper().contains('█'));
    }
}
