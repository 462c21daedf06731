//! How the program fails towards its user: what failed, on what, why, and what to do about it.

use std::error::Error as StdError;
use std::fmt;
use std::io::Write as _;

use volume::Blame;

use crate::printable::Printable;
use crate::stderr::Stderr;

/// The result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// A failure as a person reads it.
#[derive(Debug)]
pub struct Failure {
    what: String,
    why: Option<Box<dyn StdError + Send + Sync>>,
    hint: Option<String>,
    usage: bool,
    output_closed: bool,
    fleeting: bool,
}

impl Failure {
    /// `what` failed: say what was tried, on what.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: None,
            hint: None,
            usage: false,
            output_closed: false,
            fleeting: false,
        }
    }

    /// The request itself was wrong: exit code 2.
    pub fn usage(what: impl Into<String>) -> Self {
        Self { usage: true, ..Self::new(what) }
    }

    /// `what` failed by what a volume answered. A connection that is gone, and a unit that is busy, may be there when it is tried
    /// again: for how long that is worth while is decided there.
    #[must_use]
    pub fn of_volume(what: impl Into<String>, why: volume::Error) -> Self {
        let is_fleeting = why.kind.blame() == Blame::Circumstance;
        Self::new(what).because(why).fleeting_if(is_fleeting)
    }

    /// Nobody reads what the program prints.
    #[must_use]
    pub fn output_closed() -> Self {
        Self { output_closed: true, ..Self::new("nobody reads the output") }
    }

    /// Another process has told of it already.
    #[must_use]
    pub fn already_printed(usage: bool) -> Self {
        Self { usage, ..Self::output_closed() }
    }

    /// It may be over when it is tried again, and changes nothing by itself.
    #[must_use]
    pub const fn fleeting(mut self) -> Self {
        self.fleeting = true;
        self
    }

    /// The same where that is so of its cause.
    #[must_use]
    pub const fn fleeting_if(self, is_fleeting: bool) -> Self {
        if is_fleeting { self.fleeting() } else { self }
    }

    /// Whether it may be over when it is tried again.
    #[must_use]
    pub const fn is_fleeting(&self) -> bool {
        self.fleeting
    }

    /// Whether there is nobody to tell.
    #[must_use]
    pub const fn is_output_closed(&self) -> bool {
        self.output_closed
    }

    /// Whether what failed is said with this name.
    #[must_use]
    pub fn names(&self, part: &str) -> bool {
        self.what.contains(part)
    }

    /// The same failure, of `part`, unless it names that already.
    #[must_use]
    pub fn within_unless_named(self, part: &str) -> Self {
        if self.names(part) { self } else { self.within(part) }
    }

    /// The same failure, of one `part` among several.
    #[must_use]
    pub fn within(self, part: &str) -> Self {
        Self { what: format!("{part}: {}", self.what), ..self }
    }

    /// Why it failed.
    #[must_use]
    pub fn because(mut self, why: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A hint, unless it has one.
    #[must_use]
    pub fn hint_if_none(self, hint: &str) -> Self {
        if self.hint.is_none() { self.hint(hint) } else { self }
    }

    /// Something to know before the hint that it has.
    #[must_use]
    pub fn hint_first(self, known: &str) -> Self {
        let hint = match &self.hint {
            Some(hint) => format!("{known}\n  {hint}"),
            None => known.to_owned(),
        };
        self.hint(hint)
    }

    /// Another hint than it has; one without any stays so.
    #[must_use]
    pub fn hint_if_any(self, hint: &str) -> Self {
        match self.hint {
            Some(_) => self.hint(hint),
            None => self,
        }
    }

    /// Another hint, if it has one of these.
    #[must_use]
    pub fn hint_instead_of(self, those: &[&str], hint: &str) -> Self {
        match &self.hint {
            Some(found) if those.contains(&&**found) => self.hint(hint),
            _ => self,
        }
    }

    /// All of it on one line, for the log.
    #[must_use]
    pub fn on_one_line(&self) -> String {
        self.to_string().replace("\n  ", "; ")
    }

    /// 1 for what failed, 2 for wrong usage.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        if self.usage { 2 } else { 1 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let mut why = self.why.as_deref().map(|why| why as &dyn StdError);
        while let Some(cause) = why {
            write!(f, ": {cause}")?;
            why = cause.source();
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  {hint}")?;
        }
        Ok(())
    }
}

/// Says something on standard error. That nobody hears it, or that there is no room for it, must not end what
/// goes on.
pub fn print_error(what: &impl fmt::Display) {
    let _ = Stderr.write_all(format!("{}\n", Printable(what)).as_bytes());
}

/// Turns any error into a [`Failure`] that says what was being done.
pub trait OrFail<T> {
    /// `what` was being tried.
    fn or_fail(self, what: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> OrFail<T> for Result<T, E> {
    fn or_fail(self, what: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|why| Failure::new(what()).because(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_line_has_the_hint_behind_the_cause() {
        let failure = Failure::new("what").because("why").hint("one\n  two");
        assert_eq!(failure.on_one_line(), "what: why; one; two");
        assert_eq!(failure.to_string(), "what: why\n  one\n  two");
    }
}
