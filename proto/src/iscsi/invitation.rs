//! An invitation as it is handed over: one line of text (docs/spec/sealed-iscsi.md, 7).

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::name::IscsiName;
use super::sealed::{INVITATION_LEN, InvitationSecret};
use crate::identity::{KEY_LEN, PublicKey};
use crate::reader::Reader;

/// What the line begins with.
pub const PREFIX: &str = "longhaul:";

/// The longest name of a client.
pub const NAME_MAX: usize = 48;

/// The most addresses.
pub const ADDRESSES_MAX: usize = 8;

/// The longest line that is read.
const TEXT_MAX: usize = 4096;

const VERSION: u8 = 1;

/// Bytes of the check that finds slips of the hand.
const CHECK_LEN: usize = 4;

/// All that a machine needs to become a client of a server, once.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// The name under which it will be listed.
    pub name: String,
    /// Where the server can be reached, as `HOST:PORT`.
    pub addresses: Vec<String>,
    /// The target.
    pub target: IscsiName,
    /// The unit of the target.
    pub lun: u16,
    /// The public key of the server.
    pub server: PublicKey,
    /// What shows that the invitation is there.
    pub secret: InvitationSecret,
}

/// Why a text is no invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvitationError {
    /// It begins otherwise.
    #[error("it does not begin with {PREFIX}")]
    Prefix,
    /// It is not base64, or its fields do not fill it.
    #[error("it is cut off, or has characters no invitation has")]
    Form,
    /// The check does not match.
    #[error("it has been mistyped or cut off: its check does not match")]
    Check,
    /// Of another version.
    #[error("it is of version {0}, which this release does not know")]
    Version(u8),
    /// A name that no client has.
    #[error(
        "the name of a client has 1 to {NAME_MAX} letters, digits, dots, hyphens and underscores, and begins with no dot \
         or hyphen"
    )]
    Name,
    /// None, too many, or one that is too long or no text.
    #[error("it has no address, or one that is none")]
    Addresses,
}

/// Checks the name of a client: it becomes one of tables, of files and of lines in logs.
pub fn check_name(name: &str) -> Result<(), InvitationError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_fit = (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_plain);
    match is_fit && !name.starts_with(['.', '-']) {
        true => Ok(()),
        false => Err(InvitationError::Name),
    }
}

fn check_addresses(addresses: &[String]) -> Result<(), InvitationError> {
    let is_fit = |address: &String| {
        (1..=usize::from(u8::MAX)).contains(&address.len())
            && address.chars().all(|c| c.is_ascii_graphic())
    };
    match (1..=ADDRESSES_MAX).contains(&addresses.len()) && addresses.iter().all(is_fit) {
        true => Ok(()),
        false => Err(InvitationError::Addresses),
    }
}

impl Invitation {
    /// The line. It holds the secret.
    pub fn to_text(&self) -> Result<Zeroizing<String>, InvitationError> {
        check_name(&self.name)?;
        check_addresses(&self.addresses)?;
        // Their full length at once, so that no part of a secret is left behind by growing.
        let mut bytes = Zeroizing::new(Vec::with_capacity(TEXT_MAX));
        bytes.push(VERSION);
        bytes.extend_from_slice(self.server.as_bytes());
        bytes.extend_from_slice(self.secret.expose());
        bytes.extend_from_slice(&self.lun.to_be_bytes());
        push(&mut bytes, self.target.as_str());
        push(&mut bytes, &self.name);
        bytes.push(self.addresses.len() as u8);
        self.addresses.iter().for_each(|address| push(&mut bytes, address));
        let check = check(&bytes);
        bytes.extend_from_slice(&check);
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + 2 * bytes.len()));
        text.push_str(PREFIX);
        BASE64.encode_string(bytes.as_slice(), &mut text);
        Ok(text)
    }
}

fn push(bytes: &mut Vec<u8>, text: &str) {
    // Those of names and addresses are bounded.
    bytes.push(text.len() as u8);
    bytes.extend_from_slice(text.as_bytes());
}

fn check(bytes: &[u8]) -> [u8; CHECK_LEN] {
    let digest = Sha256::new().chain_update(PREFIX).chain_update(bytes).finalize();
    std::array::from_fn(|i| digest[i])
}

impl FromStr for Invitation {
    type Err = InvitationError;

    fn from_str(text: &str) -> Result<Self, InvitationError> {
        let body = text.trim().strip_prefix(PREFIX).ok_or(InvitationError::Prefix)?;
        if body.len() > TEXT_MAX {
            return Err(InvitationError::Form);
        }
        let bytes = Zeroizing::new(BASE64.decode(body).map_err(|_| InvitationError::Form)?);
        let (fields, tail) = bytes.split_last_chunk::<CHECK_LEN>().ok_or(InvitationError::Form)?;
        if *tail != check(fields) {
            return Err(InvitationError::Check);
        }
        match fields.split_first() {
            Some((&VERSION, fields)) => read(fields),
            Some((&version, _)) => Err(InvitationError::Version(version)),
            None => Err(InvitationError::Form),
        }
    }
}

fn read(fields: &[u8]) -> Result<Invitation, InvitationError> {
    let mut reader = Reader::new(fields);
    let invitation = read_fields(&mut reader).ok_or(InvitationError::Form)?;
    check_name(&invitation.name)?;
    check_addresses(&invitation.addresses)?;
    // What a later release says besides would not be obeyed.
    if !reader.rest().is_empty() {
        return Err(InvitationError::Form);
    }
    Ok(invitation)
}

fn read_fields(reader: &mut Reader<'_>) -> Option<Invitation> {
    let server = PublicKey::from_bytes(reader.array::<KEY_LEN>().ok()?);
    let secret = InvitationSecret::from_bytes(&reader.array::<INVITATION_LEN>().ok()?);
    let lun = reader.u16().ok()?;
    let target = IscsiName::new(&string(reader)?).ok()?;
    let name = string(reader)?;
    let count = usize::from(reader.u8().ok()?);
    let addresses = (0..count).map(|_| string(reader)).collect::<Option<_>>()?;
    Some(Invitation { name, addresses, target, lun, server, secret })
}

fn string(reader: &mut Reader<'_>) -> Option<String> {
    let len = usize::from(reader.u8().ok()?);
    String::from_utf8(reader.take(len).ok()?.to_vec()).ok()
}

impl fmt::Display for Invitation {
    /// What may be known of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, target, lun, .. } = self;
        write!(f, "the invitation of {name} to unit {lun} of {target}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn invitation() -> Invitation {
        Invitation {
            name: "laptop".to_owned(),
            addresses: vec!["192.0.2.1:3260".to_owned(), "[2001:db8::1]:3260".to_owned()],
            target: IscsiName::new("iqn.2026-11.dev.longhaul:backup").unwrap(),
            lun: 258,
            server: PublicKey::from_bytes([7; KEY_LEN]),
            secret: InvitationSecret::from_bytes(&[9; INVITATION_LEN]),
        }
    }

    #[test]
    fn invitation_is_read_as_it_was_written() {
        let text = invitation().to_text().unwrap();
        assert!(text.len() < 200 && !text.contains(char::is_whitespace), "{}", text.len());
        let read: Invitation = format!(" {}\n", *text).parse().unwrap();
        assert_eq!(*read.to_text().unwrap(), *text);
        let Invitation { name, addresses, target, lun, server, secret } = read;
        let ours = invitation();
        assert_eq!((name, addresses), (ours.name, ours.addresses));
        assert_eq!((target, lun, server), (ours.target, ours.lun, ours.server));
        assert_eq!(secret.expose(), ours.secret.expose());
    }

    /// That of the specification, which was not written by this code.
    #[test]
    fn text_is_that_of_the_specification() {
        let vectors = include_str!("../../../docs/spec/vectors/sealed-iscsi.json");
        let vectors: serde_json::Value = serde_json::from_str(vectors).unwrap();
        let told = &vectors["invitation"];
        let text = |key: &str| told[key].as_str().unwrap();
        let read: Invitation = text("text").parse().unwrap();
        assert_eq!((&*read.name, read.target.as_str()), (text("name"), text("target")));
        assert_eq!(u64::from(read.lun), told["lun"].as_u64().unwrap());
        assert_eq!(read.server.to_string(), vectors["target"]["public_text"].as_str().unwrap());
        let secret: String =
            read.secret.expose().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(secret, text("secret"));
        let addresses = told["addresses"].as_array().unwrap();
        assert!(read.addresses.iter().eq(addresses.iter().map(|at| at.as_str().unwrap())));
        assert_eq!(read.to_text().unwrap().as_str(), text("text"));
    }

    #[test]
    fn secret_is_not_printed() {
        let secret = InvitationSecret::from_bytes(&[0xab; INVITATION_LEN]);
        let printed =
            format!("{:?} {:?}", secret, Invitation { secret: secret.clone(), ..invitation() });
        assert!(!printed.contains("171") && !printed.contains("ab, "), "{printed}");
    }

    #[test]
    fn slip_of_the_hand_is_found() {
        let text = invitation().to_text().unwrap();
        for at in PREFIX.len()..text.len() {
            let mut other = text.as_bytes().to_vec();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let read = std::str::from_utf8(&other).unwrap().parse::<Invitation>();
            assert!(read.is_err(), "character {at}");
            let cut = text[..at].parse::<Invitation>();
            assert!(cut.is_err(), "cut at {at}");
        }
    }

    #[test]
    fn unfit_fields_are_refused() {
        use InvitationError::{Addresses, Name};
        for name in ["", ".a", "-a", "a b", "a/b", "a\n", &"a".repeat(NAME_MAX + 1)] {
            let unfit = Invitation { name: name.to_owned(), ..invitation() };
            assert_eq!(unfit.to_text().err(), Some(Name), "{name}");
        }
        let many = vec!["a:1".to_owned(); ADDRESSES_MAX + 1];
        for addresses in [vec![], vec![String::new()], vec!["a b:1".to_owned()], many] {
            let unfit = Invitation { addresses, ..invitation() };
            assert_eq!(unfit.to_text().err(), Some(Addresses));
        }
        let of_version = |version| {
            let mut bytes = vec![version];
            bytes.extend(check(&bytes.clone()));
            format!("{PREFIX}{}", BASE64.encode(bytes)).parse::<Invitation>().unwrap_err()
        };
        assert_eq!(of_version(2), InvitationError::Version(2));
        assert_eq!(of_version(1), InvitationError::Form);
        assert_eq!("iscsi://a/b".parse::<Invitation>().unwrap_err(), InvitationError::Prefix);
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader_of_invitations(
            body in prop::collection::vec(any::<u8>(), 0..200), version in 0..3_u8,
        ) {
            // With a check that matches, so that the fields are read.
            let mut bytes = [&[version], &*body].concat();
            bytes.extend(check(&bytes.clone()));
            let text = format!("{PREFIX}{}", BASE64.encode(bytes));
            if let Ok(read) = text.parse::<Invitation>() {
                prop_assert_eq!(&*read.to_text().unwrap(), &text);
            }
        }
    }
}
