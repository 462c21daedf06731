//! No failure is forgotten: what a volume over several others keeps of the first one, since a later request may go to
//! one that has lost nothing.

use std::sync::{Arc, OnceLock};

use crate::{Durability, Error, Kind, Result, Span, Verb};

/// The first failure that may have cost what was written before.
#[derive(Default)]
pub struct FirstLoss(OnceLock<Arc<str>>);

impl FirstLoss {
    /// Notes a failed change of this durability, if it may have cost more than itself.
    pub fn note(&self, error: &Error, durability: Durability) {
        if error.kind.loses(durability) {
            let mut text = error.to_string();
            let mut next = std::error::Error::source(error);
            while let Some(cause) = next {
                text = format!("{text}: {cause}");
                next = cause.source();
            }
            let _ = self.0.set(text.into());
        }
    }

    /// An error if something was lost.
    pub fn check(&self, verb: Verb, span: Option<Span>) -> Result<()> {
        match self.0.get() {
            Some(first) => Err(Error::new(Kind::Medium, verb, span).because(first.to_string())),
            None => Ok(()),
        }
    }

    /// Carries out a change, or a flush, which is one that is durable. It is not begun, nor called durable, once something
    /// was lost.
    pub async fn guard(
        &self,
        (verb, span, durability): (Verb, Option<Span>, Durability),
        change: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        if durability == Durability::Durable {
            self.check(verb, span)?;
        }
        match change.await {
            Err(error) => {
                self.note(&error, durability);
                Err(error)
            }
            Ok(()) if durability == Durability::Durable => self.check(verb, span),
            Ok(()) => Ok(()),
        }
    }
}
