//! The record as an object of a Ceph cluster.
//!
//! The object holds the newest version and nothing else. It is replaced by one operation, which fails if what is there is not the
//! version before. What each gateway shows of itself is an attribute of the object, which leaves
//! the record as it is.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use host::rbd::{BLOCKLISTED_FOR, Client, Objects, PoolSpec, RbdError};
use proto::cluster::{GatewayName, RECORD_MAX, Record, Sign, Signs, UNITS_MAX, is_address};
use rustix::io::Errno;

use super::store::{Blocklist, MediaClient, RecordName, RecordStore};

/// The name of the object; that of a group of volumes has its name behind a dot.
const OBJECT: &str = "longhaul-cluster";

/// How the names of attributes begin that tell that a gateway has looked.
const SEEN: &str = "seen-";

/// How many bytes of it are another random number each time; the weight follows.
const MARK: usize = 8;

/// After how long a request fails that has no answer: nobody waits longer for it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);

/// How long an address of this gateway is shut out, to see whether it may do so.
const TRIED_FOR: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Rados {
    objects: Objects,
    object: String,
    pool: PoolSpec,
    /// The attribute that tells when this gateway has looked at the record last.
    seen: String,
}

impl Rados {
    /// A connection for the records of all groups.
    pub(super) fn connect(pool: &PoolSpec) -> Result<Arc<Client>, RbdError> {
        Client::connect(&pool.access, Some(ANSWERED_WITHIN))
    }

    /// The object of a record in `pool`, for this gateway.
    pub(super) fn open(
        client: &Arc<Client>,
        pool: &PoolSpec,
        gateway: &GatewayName,
        record: RecordName<'_>,
    ) -> Result<Self, RbdError> {
        let (seen, objects) = (format!("{SEEN}{gateway}"), Objects::open(client, pool)?);
        let object = match record {
            RecordName::Group(group) if group.is_default() => OBJECT.to_owned(),
            RecordName::Group(group) => format!("{OBJECT}.{group}"),
            RecordName::Membership => format!("{OBJECT}-groups"),
        };
        Ok(Self { objects, object, pool: pool.clone(), seen })
    }

    /// The record, for a gateway that has just started.
    pub(super) fn first_look(&self) -> Result<Option<Record>, RbdError> {
        self.read().map_err(|why| RbdError::Step { what: "cannot read the record".to_owned(), why })
    }

    /// Fails if this gateway may not write there, or not shut out another one: that must not come to light when it has to.
    pub(super) fn try_rights(&self, weight: u16) -> Result<(), RbdError> {
        match self.show_presence(weight) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                return Err(RbdError::Step { what: "cannot write to the record".to_owned(), why });
            }
            _ => {}
        }
        let address = Client::connect(&self.pool.access, None)?.address()?;
        self.objects.client().blocklist(&address, TRIED_FOR)
    }
}

/// What the error of a call means to the driver: the number tells what kind it is.
fn failed(why: RbdError) -> io::Error {
    let kind = match &why {
        RbdError::Step { why, .. } => why.kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, why)
}

impl RecordStore for Rados {
    fn read(&self) -> io::Result<Option<Record>> {
        let found = self.objects.read(&self.object, RECORD_MAX)?;
        found.map(|bytes| Record::decode(&bytes).map_err(io::Error::other)).transpose()
    }

    fn replace(&self, record: &Record) -> io::Result<bool> {
        let bytes = record.encode();
        if bytes.len() > RECORD_MAX || record.units.len() > UNITS_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if record.version == 1 {
            return self.objects.create(&self.object, &bytes);
        }
        self.objects.replace(&self.object, &Record::marks(record.version - 1), &bytes)
    }

    fn show_presence(&self, weight: u16) -> io::Result<()> {
        let mark = getrandom::u64().map_err(io::Error::other)?;
        let sign = [&mark.to_be_bytes()[..], &weight.to_be_bytes()].concat();
        self.objects.set_attribute(&self.object, &self.seen, &sign)
    }

    fn others_seen(&self) -> io::Result<Signs> {
        let mut signs = self.objects.attributes(&self.object)?;
        signs.remove(&self.seen);
        let sign = |(name, sign): (String, Vec<u8>)| {
            Some((name.strip_prefix(SEEN)?.parse().ok()?, parse_sign(sign)))
        };
        Ok(signs.into_iter().filter_map(sign).collect())
    }
}

/// A release without weights shows its mark alone.
fn parse_sign(mark: Vec<u8>) -> Sign {
    let weight = mark.get(MARK..).and_then(|weight| weight.try_into().ok());
    Sign { weight: weight.map_or(0, u16::from_be_bytes), mark }
}

impl Blocklist for Rados {
    fn connect(&self) -> io::Result<MediaClient> {
        // Its requests wait for the cluster however long that is away, as those of any image do.
        let client = Client::connect(&self.pool.access, None).map_err(failed)?;
        let address = client.address().map_err(failed)?;
        match is_address(&address) {
            true => Ok(MediaClient { address, client }),
            false => Err(io::Error::other(format!("{address:?} is no address of a client"))),
        }
    }

    /// Whoever shuts out an address writes the record next, so that the OSD that has the record knows.
    fn is_shut_out(&self, MediaClient { client, .. }: &MediaClient) -> bool {
        let looked = Objects::open(client, &self.pool).map_err(failed);
        let looked = looked.and_then(|objects| objects.attributes(&self.object));
        looked.is_err_and(|why| Errno::from_io_error(&why) == Some(Errno::SHUTDOWN))
    }

    fn shut_out(&self, address: &str) -> io::Result<()> {
        self.objects.client().blocklist(address, BLOCKLISTED_FOR).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sign_has_a_weight_unless_a_release_without_weights_made_it() {
        let mark = 7_u64.to_be_bytes();
        assert_eq!(parse_sign([&mark[..], &1000_u16.to_be_bytes()].concat()).weight, 1000);
        assert_eq!(parse_sign(mark.to_vec()), Sign { mark: mark.to_vec(), weight: 0 });
        assert_eq!(parse_sign([&mark[..], &[1; 40]].concat()).weight, 0);
    }
}
