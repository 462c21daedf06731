//! Residuals: by how much a transfer missed what the initiator expected.

/// How far a transfer missed what was expected (RFC 7143, 11.4.5): less or more, and never both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// Not at all.
    #[default]
    None,
    /// That many bytes less.
    Under(u32),
    /// That many bytes more than there was room for.
    Over(u32),
}

impl Residual {
    /// `actual` bytes where `expected` were announced.
    #[must_use]
    pub const fn of(expected: u32, actual: u32) -> Self {
        match (expected.saturating_sub(actual), actual.saturating_sub(expected)) {
            (0, 0) => Self::None,
            (0, over) => Self::Over(over),
            (under, _) => Self::Under(under),
        }
    }

    /// The same of `missing` bytes; negative where there would have been more.
    #[must_use]
    pub const fn of_missing(missing: i32) -> Self {
        match missing {
            0 => Self::None,
            1.. => Self::Under(missing.unsigned_abs()),
            _ => Self::Over(missing.unsigned_abs()),
        }
    }

    /// That of an initiator that expected so much, where this is of the device behind and `moved` bytes were moved. What the
    /// device has beyond them counts only where the initiator has no room for more.
    #[must_use]
    pub const fn behind(self, expected: u32, moved: u32) -> Self {
        match self {
            Self::Over(more) if expected <= moved => {
                Self::Over((moved - expected).saturating_add(more))
            }
            _ => Self::of(expected, moved),
        }
    }

    /// How many bytes were less.
    #[must_use]
    pub const fn under(self) -> u32 {
        match self {
            Self::Under(bytes) => bytes,
            Self::None | Self::Over(_) => 0,
        }
    }

    /// How many bytes were more.
    #[must_use]
    pub const fn over(self) -> u32 {
        match self {
            Self::Over(bytes) => bytes,
            Self::None | Self::Under(_) => 0,
        }
    }

    /// How many bytes are missing; negative where there would have been more.
    #[must_use]
    pub fn missing(self) -> i64 {
        i64::from(self.under()) - i64::from(self.over())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn residuals_add_up(expected: u32, actual: u32) {
            let residual = Residual::of(expected, actual);
            prop_assert_eq!(i64::from(actual) + residual.missing(), i64::from(expected));
            prop_assert_eq!(residual == Residual::None, expected == actual);
        }

        #[test]
        fn missing_bytes_are_the_same_in_both_forms(missing: i32) {
            prop_assert_eq!(Residual::of_missing(missing).missing(), i64::from(missing));
        }
    }

    #[test]
    fn more_behind_counts_only_without_room() {
        for (expected, moved, told) in [
            (512, 512, Residual::Over(100)),
            (400, 512, Residual::Over(212)),
            (600, 512, Residual::Under(88)),
        ] {
            assert_eq!(Residual::Over(100).behind(expected, moved), told);
        }
        assert_eq!(Residual::Under(9).behind(512, 503), Residual::Under(9));
    }
}
