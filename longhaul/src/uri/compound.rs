//! URIs of volumes that are made of others: `SCHEME:[ARGUMENT](URI,URI,...,OPTION=VALUE,...)`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use volume::layer::limit::Rates;

use super::{Uri, UriError};
use crate::size::Size;

/// The schemes of such volumes, for messages.
pub(super) const KNOWN: &str = "concat:(URI,...), stripe:SIZE(URI,URI,...), mirror:(URI,URI[,wait=TIME][,alone]), \
     overlay:(URI,over=FILE[,create]), limit:(URI[,rate=SIZE][,iops=NUMBER])";

/// The options without a value.
const ALONE: &str = "alone";
const CREATE: &str = "create";
const CHANGED: &str = "changed";

/// How deep they may be nested.
const DEPTH_MAX: usize = 8;

/// A volume that is made of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compound {
    /// How.
    pub kind: Kind,
    /// The others; of an overlay the base, and the file with what was changed.
    pub members: Vec<Uri>,
}

/// How a volume is made of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `concat:(URI,...)`: one behind the other.
    Concat,
    /// `stripe:SIZE(URI,URI,...)`: in turn so many bytes of each.
    Stripe(Size),
    /// `mirror:(URI,URI,wait=TIME,alone)`: the same on each.
    Mirror(MirrorUri),
    /// `overlay:(URI,over=FILE,create,changed)`: the first, which is not written to, with the changes in the second.
    Overlay {
        /// The second is made, and holds no changes yet.
        create: bool,
        /// The first may be another than it was when the second was made.
        changed: bool,
    },
    /// `limit:(URI,rate=SIZE,iops=NUMBER)`: one that is not asked for more.
    Limit(Rates),
}

/// What is said of a mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorUri {
    /// How long a member may take longer than another.
    pub wait: Option<Duration>,
    /// It is opened without a member that may hold what the others lack.
    pub alone: bool,
}

impl Kind {
    /// What a chain calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Concat => "concat",
            Self::Stripe(_) => "stripe",
            Self::Mirror(_) => "mirror",
            Self::Overlay { .. } => "overlay",
            Self::Limit(_) => "limit",
        }
    }
}

/// What stands in the parentheses: URIs, and options with their values.
struct Items<'a> {
    text: &'a str,
    members: Vec<Uri>,
    options: Vec<(String, String)>,
}

/// Where the URI of a compound volume at the start of `text` ends: what follows is of whoever names the volume.
#[must_use]
pub fn end_of(text: &str) -> Option<usize> {
    let (scheme, rest) = text.split_once(':')?;
    let open = rest.find('(')?;
    let is_argument = rest[..open].bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_argument || !is_compound(scheme) {
        return None;
    }
    let begin = scheme.len() + 1;
    let mut depth = 0_usize;
    for (at, byte) in rest.bytes().enumerate().skip(open) {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => return Some(begin + at + 1),
            b')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Reads a member of the volume `text`, which stands in so many others.
fn member(text: &str, item: &str, depth: usize) -> Result<Uri, UriError> {
    let member = Uri::read(item, depth + 1)?;
    if member.is_passed_through() {
        let why = format!(
            "{member} is passed through as it is, command by command, and has no blocks of ours: name it alone"
        );
        return Err(UriError::Compound(text.to_owned(), why));
    }
    Ok(member)
}

/// Whether volumes of this scheme are made of others.
pub(super) fn is_compound(scheme: &str) -> bool {
    matches!(scheme, "concat" | "stripe" | "mirror" | "overlay" | "limit")
}

/// Reads the URI `text`, which begins with a scheme of a compound volume.
pub(super) fn parse(text: &str, depth: usize) -> Result<Compound, UriError> {
    let wrong = |why: String| UriError::Compound(text.to_owned(), why);
    if depth >= DEPTH_MAX {
        return Err(wrong(format!("volumes are nested {DEPTH_MAX} deep at the most")));
    }
    if end_of(text) != Some(text.len()) {
        return Err(wrong("its members stand in parentheses, and nothing behind them".to_owned()));
    }
    let (scheme, rest) = text.split_once(':').unwrap_or_default();
    let (argument, list) = rest.split_once('(').unwrap_or_default();
    let list = list.strip_suffix(')').unwrap_or(list);
    let mut items = Items { text, members: Vec::new(), options: Vec::new() };
    for item in split(list) {
        match option(&item) {
            Some((key, value)) => items.options.push((key.to_owned(), value.to_owned())),
            None => items.members.push(member(text, &item, depth)?),
        }
    }
    match (scheme, argument) {
        ("stripe", "") => {
            Err(wrong("it wants the size of a stripe, such as stripe:64K(...)".to_owned()))
        }
        ("stripe", size) => items.stripe(size.parse()?),
        (_, argument) if !argument.is_empty() => {
            Err(wrong(format!("`{argument}` stands between the scheme and the parenthesis")))
        }
        ("concat", _) => items.finish(Kind::Concat, 1, usize::MAX),
        ("mirror", _) => items.mirror(),
        ("overlay", _) => items.overlay(),
        _ => items.limit(),
    }
}

/// The items of a list: commas part them, outside of parentheses. Two commas are one of a path.
fn split(list: &str) -> Vec<String> {
    let (mut items, mut item, mut depth) = (Vec::new(), String::new(), 0_usize);
    let mut rest = list.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 && rest.next_if_eq(&',').is_none() => {
                items.push(std::mem::take(&mut item));
                continue;
            }
            _ => {}
        }
        item.push(next);
    }
    items.push(item);
    items
}

/// Key and value, if an item is an option and no URI.
fn option(item: &str) -> Option<(&str, &str)> {
    if [ALONE, CREATE, CHANGED].contains(&item) {
        return Some((item, ""));
    }
    let (key, value) = item.split_once('=')?;
    (!key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase())).then_some((key, value))
}

/// Seconds, minutes or hours, a day at the most.
fn seconds(text: &str) -> Option<Duration> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let (number, unit) =
        units.iter().find_map(|(unit, length)| Some((text.strip_suffix(*unit)?, length)))?;
    let number: u64 =
        number.bytes().all(|byte| byte.is_ascii_digit()).then_some(number)?.parse().ok()?;
    let seconds = number.checked_mul(*unit)?;
    (1..=86_400).contains(&seconds).then_some(Duration::from_secs(seconds))
}

impl Items<'_> {
    fn wrong(&self, why: impl Into<String>) -> UriError {
        UriError::Compound(self.text.to_owned(), why.into())
    }

    /// The value of an option, which is not asked for again.
    fn take(&mut self, key: &str) -> Result<Option<String>, UriError> {
        let Some(at) = self.options.iter().position(|(given, _)| given == key) else {
            return Ok(None);
        };
        let (_, value) = self.options.remove(at);
        match self.options.iter().any(|(given, _)| given == key) {
            true => Err(self.wrong(format!("`{key}` is given twice"))),
            false => Ok(Some(value)),
        }
    }

    /// Whether an option without a value is given.
    fn take_flag(&mut self, key: &str) -> Result<bool, UriError> {
        match self.take(key)? {
            Some(value) if !value.is_empty() => Err(self.wrong(format!("{key} has no value"))),
            given => Ok(given.is_some()),
        }
    }

    fn finish(self, kind: Kind, least: usize, most: usize) -> Result<Compound, UriError> {
        if let Some((key, _)) = self.options.first() {
            return Err(self.wrong(format!("`{key}` is no option of {}", kind.name())));
        }
        let count = self.members.len();
        if count < least || count > most {
            let wanted = if least == most { "" } else { " or more" };
            return Err(self.wrong(format!("it has {count} members, and takes {least}{wanted}")));
        }
        Ok(Compound { kind, members: self.members })
    }

    fn stripe(self, chunk: Size) -> Result<Compound, UriError> {
        if chunk.0 == 0 || !chunk.0.is_multiple_of(512) {
            return Err(UriError::NoBlocks(chunk));
        }
        self.finish(Kind::Stripe(chunk), 2, usize::MAX)
    }

    fn mirror(mut self) -> Result<Compound, UriError> {
        let wait = self.take("wait")?;
        let wait = wait.map(|wait| {
            seconds(&wait).ok_or_else(|| self.wrong("wait is a time of 1s to 1d, such as 30s"))
        });
        let wait = wait.transpose()?;
        let alone = self.take_flag(ALONE)?;
        let kind = Kind::Mirror(MirrorUri { wait, alone });
        self.finish(kind, 2, usize::MAX)
    }

    fn overlay(mut self) -> Result<Compound, UriError> {
        let over = self.take("over")?.filter(|path| !path.is_empty());
        let over = over.ok_or_else(|| self.wrong("it wants over=FILE"))?;
        let create = self.take_flag(CREATE)?;
        let changed = self.take_flag(CHANGED)?;
        if create && changed {
            return Err(self.wrong("create makes it, so that nothing can have changed"));
        }
        let mut compound = self.finish(Kind::Overlay { create, changed }, 1, 1)?;
        compound.members.push(Uri::of_path(PathBuf::from(over), false));
        Ok(compound)
    }

    fn limit(mut self) -> Result<Compound, UriError> {
        let bytes = self.take("rate")?.map(|rate| rate.parse::<Size>()).transpose()?;
        let iops = self.take("iops")?;
        let requests = iops.as_deref().map(str::parse::<u64>).transpose();
        let requests = requests.map_err(|_| self.wrong("iops is a number of requests a second"))?;
        let rates = Rates { bytes: bytes.map(|size| size.0), requests };
        if rates == Rates::default() {
            return Err(self.wrong("it wants rate=SIZE, iops=NUMBER or both"));
        }
        if rates.bytes == Some(0) || rates.requests == Some(0) {
            return Err(self.wrong("nothing would get through"));
        }
        self.finish(Kind::Limit(rates), 1, 1)
    }
}

impl Compound {
    /// The same where the paths of files begin at the directory `base`.
    #[must_use]
    pub(super) fn resolved_in(self, base: &Path) -> Self {
        let members = self.members.into_iter().map(|member| member.resolved_in(base)).collect();
        Self { kind: self.kind, members }
    }

    /// Whether a member is never written to, whatever becomes of the whole.
    #[must_use]
    pub fn is_only_read(&self, member: usize) -> bool {
        matches!(self.kind, Kind::Overlay { .. }) && member == 0
    }
}

/// A member as it stands in a list.
struct Listed<'a>(&'a Uri);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut depth = 0_usize;
        for next in self.0.to_string().chars() {
            match next {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => f.write_str(",")?,
                _ => {}
            }
            write!(f, "{next}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Compound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.kind.name())?;
        if let Kind::Stripe(chunk) = self.kind {
            write!(f, "{chunk}")?;
        }
        let listed = |uri: &Uri| Listed(uri).to_string();
        let mut items: Vec<_> = self.members.iter().map(listed).collect();
        match self.kind {
            Kind::Concat | Kind::Stripe(_) => {}
            Kind::Mirror(MirrorUri { wait, alone }) => {
                items.extend(wait.map(|wait| format!("wait={}s", wait.as_secs())));
                items.extend(alone.then(|| ALONE.to_owned()));
            }
            Kind::Overlay { create, changed } => {
                if let Some(over) = items.last_mut() {
                    *over = over.replacen("file:", "over=", 1);
                }
                items.extend(create.then(|| CREATE.to_owned()));
                items.extend(changed.then(|| CHANGED.to_owned()));
            }
            Kind::Limit(Rates { bytes, requests }) => {
                items.extend(bytes.map(|bytes| format!("rate={}", Size(bytes))));
                items.extend(requests.map(|requests| format!("iops={requests}")));
            }
        }
        write!(f, "({})", items.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_value_is_read_back() {
        for text in [
            "concat:(file:a,device:/dev/sdb)",
            "stripe:64K(memory:1M,memory:1M,iscsi://server:3260/iqn.2026-11.dev.longhaul:b/0)",
            "mirror:(file:a,iscsi://server:3260/iqn.2026-11.dev.longhaul:b/0)",
            "mirror:(file:a,file:b,wait=90s,alone)",
            "overlay:(file:/srv/base.img,over=/srv/changes)",
            "overlay:(file:/srv/base.img,over=/srv/changes,create)",
            "overlay:(file:/srv/base.img,over=/srv/changes,changed)",
            "limit:(file:a,rate=100M,iops=5000)",
            "limit:(concat:(file:2,,5.img,file:b (1).img),iops=1)",
        ] {
            let uri = text.parse::<Uri>().unwrap();
            assert_eq!(uri.to_string(), text);
        }
    }

    #[test]
    fn comma_of_a_path_is_doubled_and_parentheses_are_balanced() {
        let uri: Uri = "concat:(file:a,,b,file:c(d,e))".parse().unwrap();
        let names: Vec<_> = uri.members().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["file:a,b", "file:c(d,e)"]);
    }

    #[test]
    fn end_of_compound_is_found_behind_its_parentheses() {
        for (text, end) in [
            ("concat:(file:a,file:b),size=1G", Some(22)),
            ("stripe:4K(concat:(file:a),file:b),read_only", Some(33)),
            ("file:a(b),read_only", None),
            ("concat:(file:a", None),
        ] {
            assert_eq!(end_of(text), end, "{text}");
        }
    }

    #[test]
    fn malformed_value_is_named() {
        for (text, why) in [
            ("limit:(scsi:/dev/sg0,iops=5)", "scsi:/dev/sg0 is passed through as it is"),
            (
                "mirror:(file:a,limit:(scsi:iscsi://h/iqn.x:a,iops=5))",
                "scsi:iscsi://h:3260/iqn.x:a/0",
            ),
            ("concat:file:a,file:b", "its members stand in parentheses"),
            ("concat:(file:a))", "nothing behind them"),
            ("concat:(file:a,b)", "`b` names no volume"),
            ("concat:()", "`` names no volume"),
            ("concat:64K(file:a)", "`64K` stands between"),
            ("concat:(file:a,over=b)", "`over` is no option of concat"),
            ("stripe:(file:a,file:b)", "the size of a stripe"),
            ("stripe:64K(file:a)", "it has 1 members, and takes 2 or more"),
            ("stripe:100(file:a,file:b)", "positive multiple of 512"),
            ("mirror:(file:a)", "it has 1 members, and takes 2 or more"),
            ("mirror:(file:a,file:b,wait=0s)", "wait is a time"),
            ("mirror:(file:a,file:b,alone=1)", "alone has no value"),
            ("overlay:(file:a)", "it wants over=FILE"),
            ("overlay:(file:a,over=b,over=c)", "`over` is given twice"),
            ("overlay:(file:a,over=b,create=1)", "create has no value"),
            (
                "overlay:(file:a,over=b,create,changed)",
                "create makes it, so that nothing can have changed",
            ),
            ("concat:(file:a,create)", "`create` is no option of concat"),
            ("overlay:(file:a,file:b,over=c)", "it has 2 members, and takes 1"),
            ("limit:(file:a)", "it wants rate=SIZE"),
            ("limit:(file:a,iops=x)", "iops is a number"),
            ("limit:(file:a,rate=0)", "nothing would get through"),
        ] {
            let error = text.parse::<Uri>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let deep = "concat:(".repeat(9) + "memory:1M" + &")".repeat(9);
        assert!(deep.parse::<Uri>().unwrap_err().to_string().contains("8 deep"));
    }
}
