//! Residuals (RFC 7143, 11.4.5).

/// By how much a transfer missed what the initiator expected (RFC 7143, 11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Residual {
    /// O: there was more.
    pub(super) overflow: bool,
    /// U: there was less.
    pub(super) underflow: bool,
    pub(super) count: u32,
}

impl Residual {
    /// `actual` bytes where `expected` were announced.
    pub(super) const fn of(expected: u32, actual: u32) -> Self {
        Self {
            overflow: actual > expected,
            underflow: actual < expected,
            count: actual.abs_diff(expected),
        }
    }
}
