//! LUN masking: which logical units of a target an initiator may use, and how.

use std::collections::BTreeMap;

/// What an initiator may do with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// What an initiator may do with the units of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Read and write all of them.
    All,
    /// This with these. No others are there for it.
    Units(BTreeMap<u16, Access>),
}

impl Rights {
    /// What it may do with unit `lun`.
    #[must_use]
    pub fn with(&self, lun: u16) -> Option<Access> {
        match self {
            Self::All => Some(Access::Write),
            Self::Units(units) => units.get(&lun).copied(),
        }
    }

    /// Those of an initiator that has both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (Self::Units(mut all), Self::Units(more)) = (self, other) else { return Self::All };
        for (lun, access) in more {
            let most = all.entry(lun).or_insert(access);
            *most = access.max(*most);
        }
        Self::Units(all)
    }

    /// These, unless they allow nothing.
    #[must_use]
    pub fn any(self) -> Option<Self> {
        let none = matches!(&self, Self::Units(units) if units.is_empty());
        (!none).then_some(self)
    }
}
