//! The first failure that no caller was told of. It stays: from then on nothing is accepted and no flush
//! succeeds.

use std::sync::Arc;

use crate::{Error, Result, Span, Verb};

/// See the module.
#[derive(Default)]
pub(super) struct Failure {
    first: Option<Arc<Error>>,
    /// What was accepted and did not land.
    lost: Vec<Span>,
}

impl Failure {
    /// Keeps `error` if it is the first; gives the one that is kept.
    pub(super) fn keep(&mut self, error: Arc<Error>) -> Arc<Error> {
        Arc::clone(self.first.get_or_insert(error))
    }

    pub(super) fn lose(&mut self, spans: impl IntoIterator<Item = Span>) {
        self.lost.extend(spans);
    }

    pub(super) const fn get(&self) -> Option<&Arc<Error>> {
        self.first.as_ref()
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.first.is_some()
    }

    /// An error if a change or a flush has to fail.
    pub(super) fn check(&self, verb: Verb, span: impl Into<Option<Span>>) -> Result<()> {
        self.first.as_ref().map_or(Ok(()), |failure| Err(report(failure, verb, span)))
    }

    /// An error if a read has to fail, because what is beneath is not what was accepted.
    pub(super) fn check_read(&self, span: Span) -> Result<()> {
        match self.lost.iter().any(|lost| lost.overlaps(span)) {
            true => self.check(Verb::Read, span),
            false => Ok(()),
        }
    }
}

/// The failure that stays, as the error of one more request.
pub(in super::super) fn report(
    failure: &Arc<Error>,
    verb: Verb,
    span: impl Into<Option<Span>>,
) -> Error {
    Error::new(failure.kind, verb, span).because(Arc::clone(failure))
}
