//! Which changes of its configuration a running server can follow.

use super::options::{
    SERVER, UNLOCK, UPSTREAM, UnlockOptions, UpstreamOptions, VOLUMES, VolumeOptions,
};
use super::{Config, Listen, Served};
use crate::credentials::{CHAP, ChapOptions, WEAK, WeakOptions};
use crate::option_table::{changed, option};

/// Options of a volume that may change while it is served.
const CHANGEABLE: [&str; 2] = [option(VOLUMES, "size").name, option(VOLUMES, "protection").name];

/// The options of a volume, as its table or the command line has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GivenOptions {
    pub(super) volume: VolumeOptions,
    pub(super) upstream: UpstreamOptions,
    pub(super) chap: ChapOptions,
    pub(super) weak: WeakOptions,
    pub(super) unlock: UnlockOptions,
}

impl Served {
    /// An option that `new`, a volume of the same name, has changed and that cannot change while it is served.
    #[must_use]
    pub fn fixed_change(&self, new: &Self) -> Option<&'static str> {
        let (old, new) = (&self.given, &new.given);
        let changed = changed(VOLUMES, &old.volume, &new.volume)
            .chain(changed(UPSTREAM, &old.upstream, &new.upstream))
            .chain(changed(CHAP, &old.chap, &new.chap))
            .chain(changed(WEAK, &old.weak, &new.weak))
            .chain(changed(UNLOCK, &old.unlock, &new.unlock));
        changed.into_iter().find(|name| !CHANGEABLE.contains(name))
    }
}

impl Config {
    /// An option of the server that `new` has changed and that cannot change while it runs.
    #[must_use]
    pub fn fixed_change(&self, new: &Self) -> Option<&'static str> {
        let name = |name| option(SERVER, name).name;
        let fixed = [
            (name("listen"), self.places().eq(new.places())),
            (name("protection"), self.protection == new.protection),
            (name("identity"), self.identity == new.identity),
            (name("site_key"), self.site_key == new.site_key),
            (name("compression"), self.compression == new.compression),
            (name("cipher"), self.ciphers == new.ciphers),
            (name("state"), self.state == new.state),
            (name("control"), self.control == new.control),
            (name("metrics"), self.metrics == new.metrics),
            ("[cluster]", self.cluster == new.cluster),
            ("log.format", self.log.format == new.log.format),
        ];
        fixed.into_iter().find(|(_, same)| !same).map(|(name, _)| name)
    }

    /// The places to listen without what may change there.
    fn places(&self) -> impl Iterator<Item = Listen> {
        self.listen.iter().map(|listen| Listen { access: None, ..listen.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn volume(options: &str) -> Served {
        let text = format!(
            "identity = \"id\"\n[volumes.a]\nuri = \"iscsi://192.0.2.1/iqn.2000-01.example:a\"\n{options}"
        );
        let (config, wrong) = Config::parse(&text, Path::new("/x/longhaul.toml"));
        assert!(wrong.is_empty(), "{wrong:?}");
        config.volumes.into_iter().next().unwrap()
    }

    /// Each row: what a volume gets, and the option that keeps it from being served so.
    #[test]
    fn every_option_of_a_volume_is_fixed_but_those_that_may_change() {
        let plain = volume("");
        for (options, fixed) in [
            ("", None),
            ("lun = 0\nread_only = false\ntarget = \"a\"", None),
            ("protection = \"none\"", None),
            ("protection = \"integrity\"", None),
            ("read_only = true", Some("read_only")),
            ("serial = \"1\"", Some("serial")),
            ("initiator = \"iqn.2000-01.example:b\"", Some("initiator")),
            ("chap_secret_file = \"b\"", Some("chap_secret_file")),
            ("chap_weak = true", Some("chap_weak")),
            ("key_file = \"b\"", Some("key_file")),
        ] {
            assert_eq!(plain.fixed_change(&volume(options)), fixed, "{options}");
        }
    }
}
