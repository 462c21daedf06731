//! One place where an identity may be, and what it may hold by now.

use std::collections::VecDeque;

use volume::Span;

/// How many contents are kept in mind that were written and may not be durable.
const VERSIONS_MAX: usize = 16;

/// What a place may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// An identity.
    Uuid(String),
    /// None.
    None,
    /// Nobody has looked.
    Unknown,
}

impl Content {
    /// Whether it is this identity.
    pub(super) fn is(&self, identity: &str) -> bool {
        matches!(self, Self::Uuid(uuid) if uuid == identity)
    }
}

/// A place, with what changes that are not known to be durable may have made of it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) span: Span,
    /// In the order of the changes; first what was durable last.
    versions: VecDeque<Version>,
    /// Changes that are under way.
    running: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Version {
    content: Content,
    /// Of the change.
    number: u64,
    /// Nothing from before it is left once it is durable.
    replaces: bool,
    is_answered: bool,
}

impl Place {
    pub(super) fn new(span: Span, content: Content) -> Self {
        let first = Version { content, number: 0, replaces: true, is_answered: false };
        Self { span, versions: [first].into(), running: Vec::new() }
    }

    /// The identities it may hold.
    pub(super) fn uuids(&self) -> impl Iterator<Item = &str> {
        self.versions.iter().filter_map(|version| match &version.content {
            Content::Uuid(uuid) => Some(uuid.as_str()),
            Content::None | Content::Unknown => None,
        })
    }

    /// The identity it holds, if it can hold nothing else.
    pub(super) fn only(&self) -> Option<&str> {
        let first = self.uuids().next()?;
        self.versions.iter().all(|version| version.content.is(first)).then_some(first)
    }

    pub(super) fn may_hold(&self, found: &Content) -> bool {
        let mut contents = self.versions.iter().map(|version| &version.content);
        contents.any(|content| content == found || *content == Content::Unknown)
    }

    /// This was read there before any change.
    pub(super) fn seen(&mut self, content: &Content) {
        if let [first] = self.versions.make_contiguous()
            && first.content != *content
        {
            let is_none = *content == Content::None;
            first.content = if is_none { Content::None } else { Content::Unknown };
        }
    }

    /// A change is about to be made.
    pub(super) fn change(&mut self, content: Content, number: u64, replaces: bool) {
        // Which of two that are under way lands last is not known.
        let replaces = replaces && self.running.is_empty();
        self.running.push(number);
        let is_same = |last: &Version| last.content == content && (last.replaces || !replaces);
        if self.versions.back().is_some_and(is_same) {
            return;
        }
        // What it may hold later it need not hold twice.
        self.versions
            .retain(|version| version.content != content || (version.replaces && !replaces));
        if self.versions.len() == VERSIONS_MAX {
            self.versions.pop_front();
        }
        self.versions.push_back(Version { content, number, replaces, is_answered: false });
    }

    pub(super) fn answer(&mut self, number: u64) {
        for version in self.versions.iter_mut().filter(|version| version.number == number) {
            version.is_answered = true;
        }
    }

    /// A change is under way no more.
    pub(super) fn end(&mut self, number: u64) {
        self.running.retain(|running| *running != number);
    }

    /// The last change that was answered and has replaced what was before.
    pub(super) fn answered(&self) -> Option<u64> {
        let answered = |version: &&Version| version.is_answered && version.replaces;
        self.versions.iter().rfind(answered).map(|version| version.number)
    }

    /// That change is durable; says whether anything from before it is excluded now.
    pub(super) fn settle(&mut self, number: u64) -> bool {
        let is_it =
            |version: &Version| version.number == number && version.is_answered && version.replaces;
        match self.versions.iter().position(is_it) {
            Some(at) => self.versions.drain(..at).count() > 0,
            None => false,
        }
    }
}
