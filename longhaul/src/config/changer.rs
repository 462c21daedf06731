//! Media changers: one volume of the configuration, which is the changer and its drives as units of one target.

use proto::iscsi::login::policy::UnitName;
use proto::scsi::elements::Layout;

use super::disk::{Drives, Mail, Slots};
use super::options::VolumeOptions;
use super::{Appearance, Served};
use crate::uri::Uri;

/// What a volume is of a media changer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangerRole {
    /// The changer, with these elements.
    Changer(Layout),
    /// A drive of it.
    Drive {
        /// The name of the changer.
        of: String,
        /// Its number.
        index: u16,
    },
}

/// What the volume is of a media changer by its URI and options; an error if they contradict each other.
pub(super) fn changer_role(uri: &Uri, said: &VolumeOptions) -> Result<Option<ChangerRole>, String> {
    let idle = [
        ("drives", said.drives.is_some()),
        ("slots", said.slots.is_some()),
        ("mail", said.mail.is_some()),
    ];
    let idle = idle.into_iter().find_map(|(name, given)| given.then_some(name));
    match (uri.is_changer(), idle) {
        (false, Some(name)) => {
            Err(format!("{name} is for media changers, not {uri}: leave it out"))
        }
        (false, None) => Ok(None),
        (true, _) => Ok(Some(ChangerRole::Changer(Layout {
            drives: said.drives.map_or(1, |Drives(drives)| drives),
            slots: said.slots.map_or(8, |Slots(slots)| slots),
            mail: said.mail.map_or(1, |Mail(mail)| mail),
        }))),
    }
}

impl Served {
    /// The drives of a media changer: units of the same target, numbered from the changer's own number on.
    fn drives(&self) -> impl Iterator<Item = Self> + '_ {
        let count = self.elements().map_or(0, |layout| layout.drives);
        (0..count).map(|index| self.drive(index))
    }

    fn drive(&self, index: u16) -> Self {
        let appearance =
            Appearance { vendor: self.appearance.vendor.clone(), ..Appearance::default() };
        Self {
            name: format!("{}-drive{index}", self.name),
            lun: self.lun.saturating_add(1).saturating_add(index),
            uri: Uri::tape_drive(),
            changer: Some(ChangerRole::Drive { of: self.name.clone(), index }),
            appearance,
            ..self.clone()
        }
    }

    /// Its elements, if it is a media changer.
    #[must_use]
    pub const fn elements(&self) -> Option<Layout> {
        match self.changer {
            Some(ChangerRole::Changer(layout)) => Some(layout),
            _ => None,
        }
    }

    /// The media changer that it is a drive of.
    #[must_use]
    pub fn drive_of(&self) -> Option<(&str, u16)> {
        match &self.changer {
            Some(ChangerRole::Drive { of, index }) => Some((of, *index)),
            _ => None,
        }
    }
}

/// The volumes, each media changer followed by its drives.
pub(crate) fn with_drives(volumes: Vec<Served>) -> Vec<Served> {
    let each = volumes.into_iter().flat_map(|volume| {
        let drives: Vec<_> = volume.drives().collect();
        std::iter::once(volume).chain(drives)
    });
    each.collect()
}

/// The units that a client may use who may use `units`: with a media changer its drives.
pub(crate) fn units_with_drives(units: &[UnitName], volumes: &[Served]) -> Vec<UnitName> {
    let mut all = units.to_vec();
    for volume in volumes {
        let changer = volumes
            .iter()
            .find(|changer| volume.drive_of().is_some_and(|(of, _)| changer.name == of));
        let is_granted = changer.is_some_and(|changer| units.contains(&changer.unit()));
        if is_granted && !all.contains(&volume.unit()) {
            all.push(volume.unit());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;
    use super::*;

    fn parsed(text: &str) -> (Config, Vec<String>) {
        let (config, wrong) = Config::parse(text, Path::new("/x/longhaul.toml"));
        (config, wrong.into_iter().map(|wrong| wrong.why).collect())
    }

    const LIBRARY: &str = "[volumes.lib]\nuri = \"changer:tapes\"\ndrives = 2\nvendor = \"ACME\"\nserial = \"1\"\nlun = 4\n";

    #[test]
    fn changer_is_followed_by_its_drives() {
        let (config, wrong) = parsed(LIBRARY);
        assert_eq!(wrong, [""; 0]);
        let units: Vec<_> = config.volumes.iter().map(|it| (&*it.name, it.lun)).collect();
        assert_eq!(units, [("lib", 4), ("lib-drive0", 5), ("lib-drive1", 6)]);
        let layout = Layout { drives: 2, slots: 8, mail: 1 };
        assert_eq!(config.volumes[0].changer, Some(ChangerRole::Changer(layout)));
        let drive = &config.volumes[2];
        assert_eq!((drive.drive_of(), drive.uri.to_string()), (Some(("lib", 1)), "tape:".into()));
        assert!(drive.appearance.serial.is_none() && drive.appearance.vendor.is_some());
        assert_eq!(drive.target, config.volumes[0].target);
        // As on the command line.
        let said = "lib=changer:tapes,drives=2,lun=4".parse::<Served>().unwrap();
        let named = with_drives(vec![said]);
        assert_eq!(named.iter().map(|it| it.lun).collect::<Vec<_>>(), [4, 5, 6]);
    }

    #[test]
    fn number_or_name_of_a_drive_that_is_taken_is_refused() {
        let other = |text: &str| {
            let volume = format!("[volumes.other]\nuri = \"memory:1M\"\n{text}\n");
            [parsed(&format!("{LIBRARY}{volume}")).1, parsed(&format!("{volume}{LIBRARY}")).1]
        };
        for wrong in other("target = \"lib\"\nlun = 6") {
            assert!(wrong.len() == 1 && wrong[0].contains("already"), "{wrong:?}");
        }
        assert_eq!(other("target = \"lib\"\nlun = 7"), [const { Vec::<String>::new() }; 2]);
        let same = "[volumes.lib-drive1]\nuri = \"memory:1M\"\n";
        for text in [format!("{LIBRARY}{same}"), format!("{same}{LIBRARY}")] {
            let (_, wrong) = parsed(&text);
            assert!(wrong.len() == 1 && wrong[0].contains("lib-drive1"), "{wrong:?}");
        }
        let (_, wrong) = parsed(&LIBRARY.replace("lun = 4", "lun = 16383"));
        assert!(wrong.len() == 2 && wrong[0].contains("up to 16383"), "{wrong:?}");
    }

    #[test]
    fn options_of_changers_are_theirs_alone() {
        for (text, why) in [
            ("a=file:x,drives=2", "drives is for media changers, not file:x"),
            ("a=tape:x,mail=0", "mail is for media changers"),
            ("a=changer:d,drives=0", "a media changer has from 1 to 32 drives, not 0"),
            ("a=changer:d,drives=33", "drives, not 33"),
            ("a=changer:d,slots=0", "from 1 to 4096 slots"),
            ("a=changer:d,mail=65", "from 0 to 64 import and export elements"),
            ("a=changer:d,size=1M", "changer:d has cartridges of any size"),
        ] {
            let said = text.parse::<Served>().unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn client_of_a_changer_may_use_its_drives() {
        let (config, _) = parsed(LIBRARY);
        let unit = |at: usize| config.volumes[at].unit();
        let all = units_with_drives(&[unit(0)], &config.volumes);
        assert_eq!(all, [unit(0), unit(1), unit(2)]);
        assert_eq!(units_with_drives(&[unit(2)], &config.volumes), [unit(2)]);
    }
}
