//! How the fields of a header lie in its bytes.

use super::BHS_LEN;
use super::codes::{
    AsyncEvent, LogoutReason, LogoutResponseCode, RejectReason, ResponseCode, SnackType,
    TaskAttribute, TaskFunction, TaskResponse,
};

/// A field inside one byte.
pub(super) trait Bits {
    fn from_bits(bits: u8) -> Self;
    fn into_bits(self) -> u8;
}

impl Bits for bool {
    fn from_bits(bits: u8) -> Self {
        bits != 0
    }

    fn into_bits(self) -> u8 {
        u8::from(self)
    }
}

impl Bits for u8 {
    fn from_bits(bits: u8) -> Self {
        bits
    }

    fn into_bits(self) -> u8 {
        self
    }
}

/// A field of whole bytes, big-endian. Offsets are constants of the tables, checked by their tests.
pub(super) trait Word: Sized {
    fn read(bhs: &[u8; BHS_LEN], at: usize) -> Self;
    fn write(self, bhs: &mut [u8; BHS_LEN], at: usize);
}

impl<const N: usize> Word for [u8; N] {
    fn read(bhs: &[u8; BHS_LEN], at: usize) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&bhs[at..at + N]);
        bytes
    }

    fn write(self, bhs: &mut [u8; BHS_LEN], at: usize) {
        bhs[at..at + N].copy_from_slice(&self);
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Word for $type {
            fn read(bhs: &[u8; BHS_LEN], at: usize) -> Self {
                Self::from_be_bytes(Word::read(bhs, at))
            }

            fn write(self, bhs: &mut [u8; BHS_LEN], at: usize) {
                self.to_be_bytes().write(bhs, at);
            }
        }
    )*};
}
integers!(u8, u16, u32, u64);

macro_rules! codes {
    ($($type:ident),*) => {$(
        impl Bits for $type {
            fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            fn into_bits(self) -> u8 {
                self.0
            }
        }

        impl Word for $type {
            fn read(bhs: &[u8; BHS_LEN], at: usize) -> Self {
                Self(Word::read(bhs, at))
            }

            fn write(self, bhs: &mut [u8; BHS_LEN], at: usize) {
                self.0.write(bhs, at);
            }
        }
    )*};
}
codes!(
    AsyncEvent,
    LogoutReason,
    LogoutResponseCode,
    RejectReason,
    ResponseCode,
    SnackType,
    TaskAttribute,
    TaskFunction,
    TaskResponse
);
