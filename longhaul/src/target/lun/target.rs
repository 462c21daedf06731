//! The SCSI target device: a name and the logical units behind it (SAM-5).

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use proto::scsi::ports::Ports;
use proto::scsi::rights::Access;
use proto::scsi::sense::{Additional, Format};
use proto::scsi::unit;
use proto::scsi::{DeviceType, Parsed, Residual, Sense, Sequence, Status, lun};
use volume::Volume;

use super::disk::{Administration, Disk, Options};
use super::fault::Fault;
use super::{Answer, Command, Initiator, LogicalUnit, Nexus, Response, Waiting};

/// A target device, or what one initiator sees of it. What units it has does not change while it lives, so
/// that finding one takes no lock.
pub struct TargetDevice {
    name: String,
    disks: BTreeMap<u16, Arc<Disk>>,
    /// The same, as the transport sees them.
    units: BTreeMap<u16, Arc<dyn LogicalUnit>>,
    absent: Arc<dyn LogicalUnit>,
}

impl TargetDevice {
    /// The target `name`, an iSCSI name, with a disk for each number. Numbers are below 16,384; a volume
    /// given one that is taken replaces the one before.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        disks: impl IntoIterator<Item = (u16, Arc<dyn Volume>, Options)>,
    ) -> Self {
        let name = name.into();
        let disk = |(number, volume, options)| {
            (number, Arc::new(Disk::new(volume, &name, number, options)))
        };
        let disks = disks.into_iter().map(disk).collect();
        Self::of(name, disks)
    }

    /// The same of disks that may have been part of a device before.
    #[must_use]
    pub fn with<'a>(
        name: impl Into<String>,
        disks: impl IntoIterator<Item = (u16, &'a Disk)>,
    ) -> Self {
        let disks = disks.into_iter().map(|(number, disk)| (number, Arc::new(disk.again())));
        Self::of(name.into(), disks.collect())
    }

    fn of(name: String, disks: BTreeMap<u16, Arc<Disk>>) -> Self {
        Disk::connect_peers(disks.values().map(AsRef::as_ref));
        let unit = |(number, disk): (&u16, &Arc<Disk>)| (*number, Arc::clone(disk) as _);
        let units = disks.iter().map(unit).collect();
        let absent = Arc::new(Absent { target: name.clone(), disks: disks.clone() });
        Self { name, disks, units, absent }
    }

    /// The same device for an initiator that may access its units so. The others are not there for it.
    #[must_use]
    pub fn masked(&self, access: impl Fn(u16) -> Option<Access>) -> Self {
        let disk = |(number, disk): (&u16, &Arc<Disk>)| {
            let disk = match access(*number)? {
                Access::Write => disk.again(),
                Access::Read => disk.for_readers(),
            };
            Some((*number, Arc::new(disk)))
        };
        Self::of(self.name.clone(), self.disks.iter().filter_map(disk).collect())
    }

    /// The same device for an initiator that may administer the server.
    #[must_use]
    pub fn for_administrator(&self, administration: &Arc<Administration>) -> Self {
        let disk = |(number, disk): (&u16, &Arc<Disk>)| {
            (*number, Arc::new(disk.for_administrator(administration)))
        };
        Self::of(self.name.clone(), self.disks.iter().map(disk).collect())
    }

    /// The same device for an initiator that comes by one of `ports`.
    #[must_use]
    pub fn by(&self, ports: &Ports) -> Self {
        let disk = |(number, disk): (&u16, &Arc<Disk>)| (*number, Arc::new(disk.by(ports.clone())));
        Self::of(self.name.clone(), self.disks.iter().map(disk).collect())
    }

    /// Whether nobody could tell `other` from this device: it has the same disks, with the same media, as large as here, and they
    /// are reached by the same ports.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let same = |number: &u16| {
            let (here, there) = (self.disks.get(number), other.disks.get(number));
            let is_medium = here.zip(there).is_some_and(|(here, there)| here.is_same_medium(there));
            is_medium && self.shares(other, *number)
        };
        let reached = self.disks.values().map(|disk| disk.ports());
        self.disks.keys().eq(other.disks.keys())
            && self.disks.keys().all(same)
            && self.sizes().eq(other.sizes())
            && reached.eq(other.disks.values().map(|disk| disk.ports()))
    }

    /// Whether unit `lun` of `other` is a view of the same disk as here.
    #[must_use]
    pub fn shares(&self, other: &Self, lun: u16) -> bool {
        match (self.disks.get(&lun), other.disks.get(&lun)) {
            (Some(here), Some(there)) => here.is_same(there),
            _ => false,
        }
    }

    /// The sizes of its units in bytes, by number.
    pub fn sizes(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.disks.iter().map(|(number, disk)| (*number, disk.size()))
    }

    /// Takes the place of `old` before a nexus, which is told by unit attentions what has changed.
    pub fn succeed(&self, old: &Self, nexus: Nexus, initiator: &Arc<dyn Initiator>) {
        let gone = old.disks.iter().filter(|(number, _)| !self.disks.contains_key(number));
        gone.for_each(|(_, disk)| disk.detach(nexus));
        let moved = !old.disks.keys().eq(self.disks.keys());
        for (number, disk) in &self.disks {
            let Some(before) = old.disks.get(number) else {
                disk.attach(nexus, Arc::clone(initiator));
                continue;
            };
            // Of another medium every nexus has been told.
            if before.size() != disk.size() && before.is_same_medium(disk) {
                disk.tell(nexus, Additional::CAPACITY_CHANGED);
            }
            if before.ports() != disk.ports() {
                // SPC-4, 5.16: every nexus is told, also by ports that are as they were.
                disk.tell(nexus, Additional::ACCESS_STATE_CHANGED);
            }
            if moved {
                // SPC-4, 6.33: every unit says so, until the list is read.
                disk.tell(nexus, Additional::REPORTED_LUNS_CHANGED);
            }
        }
    }

    /// Its iSCSI name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The numbers of its units.
    pub fn luns(&self) -> impl Iterator<Item = u16> + '_ {
        self.units.keys().copied()
    }

    /// The numbers of the units on which commands follow one another, and how.
    #[must_use]
    pub fn sequential(&self) -> BTreeMap<u16, Sequence> {
        let units = self.units.iter();
        units.filter_map(|(number, unit)| Some((*number, unit.sequence()?))).collect()
    }

    /// The unit an eight-byte LUN field addresses. Where there is none, it is one that says so.
    #[must_use]
    pub fn unit(&self, field: [u8; 8]) -> &Arc<dyn LogicalUnit> {
        lun::decode(field).and_then(|number| self.units.get(&number)).unwrap_or(&self.absent)
    }

    /// Whether a LUN field addresses a unit that is there; task management needs to know.
    #[must_use]
    pub fn has(&self, field: [u8; 8]) -> bool {
        lun::decode(field).is_some_and(|number| self.units.contains_key(&number))
    }

    /// The numbers of the units that its initiators may write to.
    pub fn writable(&self) -> impl Iterator<Item = u16> + '_ {
        self.disks.iter().filter(|(_, disk)| !disk.is_for_readers()).map(|(number, _)| *number)
    }

    /// A nexus came into being, with every unit.
    pub fn attach(&self, nexus: Nexus, initiator: &Arc<dyn Initiator>) {
        self.units.values().for_each(|unit| unit.attach(nexus, Arc::clone(initiator)));
    }

    /// A nexus is gone, with every unit.
    pub fn detach(&self, nexus: Nexus) {
        self.units.values().for_each(|unit| unit.detach(nexus));
    }
}

/// What answers for every number without a unit (SPC-4, 6.6.1; SAM-5, 5.13.4).
struct Absent {
    target: String,
    disks: BTreeMap<u16, Arc<Disk>>,
}

impl Absent {
    fn outcome(&self, nexus: Nexus, command: &Command) -> Result<Vec<u8>, Sense> {
        match unit::absent(&command.parsed.cdb?, &self.target)? {
            unit::AbsentAnswer::Reply(data) => Ok(data),
            unit::AbsentAnswer::ReportLuns { select, allocation } => {
                let luns: Vec<_> = self.disks.keys().copied().collect();
                let list = unit::luns(select, allocation, &luns)?;
                self.disks.values().for_each(|disk| disk.listed(nexus));
                Ok(list)
            }
        }
    }
}

impl LogicalUnit for Absent {
    fn sequence(&self) -> Option<Sequence> {
        None
    }

    /// Of those that it answers, commands mean the same to every device.
    fn device_type(&self) -> DeviceType {
        DeviceType::Disk
    }

    fn data_out_len(&self, _command: &Parsed) -> u32 {
        0
    }

    fn working_memory(&self, _command: &Parsed) -> u32 {
        0
    }

    fn execute(&self, nexus: Nexus, command: Command) -> Answer {
        let response = match self.outcome(nexus, &command) {
            Ok(data) => Response {
                status: Status::Good,
                data: vec![data.into()],
                sense: Bytes::new(),
                residual: Residual::None,
            },
            Err(sense) => Fault::from(sense).response(Format::Fixed),
        };
        Answer::of(ready(response))
    }

    fn attach(&self, _nexus: Nexus, _initiator: Arc<dyn Initiator>) {}

    fn detach(&self, _nexus: Nexus) {}

    fn reset(&self) {}

    fn end_copies(&self) -> Waiting<()> {
        Box::pin(ready(()))
    }

    fn tell(&self, _nexus: Nexus, _condition: Additional) {}

    fn tasks_cleared(&self, _by: Nexus) {}
}

#[cfg(test)]
mod tests {
    use super::super::test_initiator::TestInitiator;
    use super::*;
    use futures_util::FutureExt;
    use proto::scsi::sense::Key;
    use proto::scsi::{Blocks, Capacity, command};
    use volume::store::memory::Memory;

    fn target() -> TargetDevice {
        let disk = |number| {
            let volume: Arc<dyn Volume> = Arc::new(Memory::new(1 << 20, 512));
            (number, volume, Options::default())
        };
        TargetDevice::new("iqn.2026-11.dev.longhaul:t", [disk(300), disk(0)])
    }

    fn run(unit: &Arc<dyn LogicalUnit>, command: command::Command) -> Response {
        let command = Command {
            parsed: Parsed::of(&command.cdb, DeviceType::Disk),
            data: Vec::new(),
            announced: 0,
        };
        unit.execute(Nexus(1), command).now_or_never().unwrap()
    }

    #[test]
    fn units_are_found_by_either_form_of_their_number() {
        let target = target();
        assert_eq!(target.luns().collect::<Vec<_>>(), [0, 300]);
        assert!(target.has([0; 8]) && target.has([0x40, 0, 0, 0, 0, 0, 0, 0]));
        assert!(target.has(lun::encode(300)) && !target.has(lun::encode(1)));
        assert!(Arc::ptr_eq(target.unit([0; 8]), target.unit([0x40, 0, 0, 0, 0, 0, 0, 0])));
    }

    #[test]
    fn every_number_lists_the_units() {
        let target = target();
        for field in [lun::encode(0), lun::encode(300), lun::encode(7), [0xC1, 1, 0, 0, 0, 0, 0, 0]]
        {
            let response = run(target.unit(field), command::Command::report_luns(16));
            assert_eq!(command::luns(&response.data.concat()), Ok(vec![0, 300]));
        }
    }

    #[test]
    fn a_number_without_a_unit_says_so() {
        let target = target();
        let absent = target.unit(lun::encode(7));
        let response = run(absent, command::Command::test_unit_ready());
        assert_eq!(response.status, Status::CheckCondition);
        let expected = Sense::illegal(Additional::LOGICAL_UNIT_NOT_SUPPORTED);
        assert_eq!(Sense::parse(&response.sense), Some(expected));
        let inquiry = run(absent, command::Command::inquiry());
        let standard = command::Standard::parse(&inquiry.data.concat()).unwrap();
        assert_eq!((standard.qualifier(), standard.device_type()), (3, 0x1F));
    }

    fn sense(unit: &Arc<dyn LogicalUnit>, command: command::Command, data: Vec<Bytes>) -> Sense {
        let announced = data.iter().map(Bytes::len).sum::<usize>() as u32;
        let command =
            Command { parsed: Parsed::of(&command.cdb, DeviceType::Disk), data, announced };
        let response = unit.execute(Nexus(1), command).now_or_never().unwrap();
        Sense::parse(&response.sense).unwrap_or(Sense::new(Key::NoSense, Additional::NONE))
    }

    #[test]
    fn read_only_client_has_other_rights_to_the_same_disk() {
        let whole = target();
        let guarded = whole.masked(|_| Some(Access::Read));
        whole.attach(Nexus(1), &(TestInitiator::new(1) as Arc<dyn Initiator>));
        let (unit, guard) = (whole.unit([0; 8]), guarded.unit([0; 8]));
        let ready = command::Command::test_unit_ready;
        assert_eq!(sense(guard, ready(), vec![]).additional, Additional::POWER_ON_OR_RESET);
        assert_eq!(sense(unit, ready(), vec![]).key, Key::NoSense, "it has been told");
        let block = || vec![Bytes::from(vec![7; 512])];
        let blocks = Blocks { lba: 0, count: 1 };
        let write = || command::Command::write(blocks, 512, false);
        assert_eq!(sense(guard, write(), block()).key, Key::DataProtect);
        assert_eq!(sense(unit, write(), block()).key, Key::NoSense);
        let read = run(guard, command::Command::read(blocks, 512));
        assert_eq!(read.data.concat(), [7; 512]);
    }

    #[test]
    fn a_grown_disk_is_the_same_one_with_more_blocks() {
        let old = target();
        let volume: Arc<dyn Volume> = Arc::new(Memory::new(2 << 20, 512));
        let grown = |number, disk: &Arc<Disk>| match number {
            300 => disk.grown(Arc::clone(&volume)),
            _ => disk.again(),
        };
        let disks: Vec<_> = old.disks.iter().map(|(n, disk)| (*n, grown(*n, disk))).collect();
        let new = TargetDevice::with(old.name(), disks.iter().map(|(n, disk)| (*n, disk)));
        let blocks = |target: &TargetDevice, number| {
            let read = run(target.unit(lun::encode(number)), command::Command::read_capacity_16());
            Capacity::parse_16(&read.data.concat()).unwrap().blocks
        };
        assert_eq!((blocks(&old, 300), blocks(&new, 300), blocks(&new, 0)), (2048, 4096, 2048));
        assert_eq!(blocks(&new.masked(|_| Some(Access::Read)), 300), 4096);
        assert!(!new.is_like(&old) && new.shares(&old, 300) && new.is_like(&new));
    }

    /// What a nexus is told next by unit `number`.
    fn told(target: &TargetDevice, number: u16) -> Option<Additional> {
        let response = run(target.unit(lun::encode(number)), command::Command::test_unit_ready());
        Sense::parse(&response.sense).map(|sense| sense.additional)
    }

    #[test]
    fn a_nexus_sees_some_units_and_is_told_when_that_changes() {
        let whole = target();
        let guest: Arc<dyn Initiator> = TestInitiator::new(1);
        let one = whole.masked(|number| (number == 300).then_some(Access::Write));
        assert!(!one.has([0; 8]) && one.has(lun::encode(300)));
        one.attach(Nexus(1), &guest);
        assert_eq!(told(&one, 300), Some(Additional::POWER_ON_OR_RESET));
        assert_eq!(told(&one, 0), Some(Additional::LOGICAL_UNIT_NOT_SUPPORTED));
        whole.succeed(&one, Nexus(1), &guest);
        assert_eq!(told(&whole, 0), Some(Additional::POWER_ON_OR_RESET));
        assert_eq!(told(&whole, 300), Some(Additional::REPORTED_LUNS_CHANGED));
        assert_eq!(told(&whole, 300), None);
        let none = whole.masked(|_| None);
        none.succeed(&whole, Nexus(1), &guest);
        one.succeed(&whole, Nexus(1), &guest);
        let response = run(one.unit([0; 8]), command::Command::report_luns(16));
        assert_eq!(command::luns(&response.data.concat()), Ok(vec![300]));
        assert_eq!(told(&one, 300), None, "it has read the list");
    }

    #[tokio::test]
    async fn nothing_touches_a_disk_that_is_retired() {
        let target = target();
        let old = Arc::clone(target.unit([0; 8]));
        target.disks[&0].retire().await;
        let blocks = Blocks { lba: 0, count: 1 };
        let write =
            sense(&old, command::Command::write(blocks, 512, false), vec![vec![7; 512].into()]);
        assert_eq!(write.additional, Additional::LOGICAL_UNIT_NOT_SUPPORTED);
        assert_eq!(told(&target, 300), None, "the others stay");
    }

    #[test]
    fn a_nexus_is_known_to_every_unit() {
        let target = target();
        let guest: Arc<dyn Initiator> = TestInitiator::new(1);
        target.attach(Nexus(1), &guest);
        for number in [0, 300] {
            let unit = target.unit(lun::encode(number));
            let told = run(unit, command::Command::test_unit_ready());
            let sense = Sense::parse(&told.sense).unwrap();
            assert_eq!(sense.additional, Additional::POWER_ON_OR_RESET);
            assert_eq!(run(unit, command::Command::test_unit_ready()).status, Status::Good);
        }
    }
}
