//! The SCSI target device: a name and the logical units behind it (SAM-5, 4.6).

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use proto::scsi::sense::{Additional, Format};
use proto::scsi::unit::{self, Step};
use proto::scsi::{Cdb, Sense, Status, lun};
use volume::Volume;

use super::disk::{Disk, Options};
use super::fault::Fault;
use super::{Answer, Command, Initiator, LogicalUnit, Nexus, Response};

/// A target device. What units it has does not change while it lives, so that finding one takes no lock.
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
        let disks: BTreeMap<_, _> = disks
            .into_iter()
            .map(|(number, volume, options)| (number, (volume, options)))
            .collect();
        let luns: Arc<[u16]> = disks.keys().copied().collect();
        let disk = |(number, (volume, options))| {
            let disk = Disk::new(volume, &name, number, Arc::clone(&luns), options);
            (number, Arc::new(disk))
        };
        let disks = disks.into_iter().map(disk).collect();
        let absent = Arc::new(Absent { target: name.clone(), luns });
        Self::of(name, disks, absent)
    }

    fn of(name: String, disks: BTreeMap<u16, Arc<Disk>>, absent: Arc<dyn LogicalUnit>) -> Self {
        Disk::introduce(disks.values().map(AsRef::as_ref));
        let unit = |(number, disk): (&u16, &Arc<Disk>)| (*number, Arc::clone(disk) as _);
        let units = disks.iter().map(unit).collect();
        Self { name, disks, units, absent }
    }

    /// The same device for an initiator that may only read it.
    #[must_use]
    pub fn guarded(&self) -> Self {
        self.face(|_, disk| Arc::new(disk.guarded()))
    }

    /// The same device with unit `lun` on a volume that has grown.
    #[must_use]
    pub fn grown(&self, lun: u16, volume: &Arc<dyn Volume>) -> Self {
        self.face(|number, disk| match number == lun {
            true => Arc::new(disk.grown(Arc::clone(volume))),
            false => Arc::new(disk.again()),
        })
    }

    /// Whether `other` is a face of the same device.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let mut disks = self.disks.iter();
        let same = |(number, disk): (&u16, &Arc<Disk>)| {
            other.disks.get(number).is_some_and(|other| disk.is_same(other))
        };
        self.disks.len() == other.disks.len() && disks.all(same)
    }

    fn face(&self, change: impl Fn(u16, &Arc<Disk>) -> Arc<Disk>) -> Self {
        let disks = self.disks.iter().map(|(number, disk)| (*number, change(*number, disk)));
        Self::of(self.name.clone(), disks.collect(), Arc::clone(&self.absent))
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

    /// A nexus came into being, with every unit.
    pub fn attach(&self, nexus: Nexus, initiator: &Arc<dyn Initiator>) {
        self.units.values().for_each(|unit| unit.attach(nexus, Arc::clone(initiator)));
    }

    /// A nexus is gone, with every unit.
    pub fn detach(&self, nexus: Nexus) {
        self.units.values().for_each(|unit| unit.detach(nexus));
    }

    /// A nexus has something to be told by every unit.
    pub fn tell(&self, nexus: Nexus, condition: Additional) {
        self.units.values().for_each(|unit| unit.tell(nexus, condition));
    }

    /// TARGET RESET: every unit falls back.
    pub fn reset(&self) {
        self.units.values().for_each(|unit| unit.reset());
    }
}

/// What answers for every number without a unit (SPC-4, 5.14; SAM-5, 5.13.4).
struct Absent {
    target: String,
    luns: Arc<[u16]>,
}

impl Absent {
    fn outcome(&self, command: &Command) -> Result<Vec<u8>, Sense> {
        let cdb = Cdb::parse(&command.cdb)?;
        match unit::absent(&cdb, &self.target)? {
            Step::Reply(data) => Ok(data),
            Step::ReportLuns { select, allocation } => unit::luns(select, allocation, &self.luns),
            // A unit that is not there plans nothing else.
            _ => Ok(Vec::new()),
        }
    }
}

impl LogicalUnit for Absent {
    fn data_out_len(&self, _cdb: &[u8; 16]) -> u32 {
        0
    }

    fn data_in_len(&self, _cdb: &[u8; 16]) -> u32 {
        0
    }

    fn execute(&self, _nexus: Nexus, command: Command) -> Answer {
        let response = match self.outcome(&command) {
            Ok(data) => {
                Response { status: Status::Good, data: vec![data.into()], sense: Bytes::new() }
            }
            Err(sense) => Fault::from(sense).response(Format::Fixed),
        };
        Answer::of(ready(response))
    }

    fn attach(&self, _nexus: Nexus, _initiator: Arc<dyn Initiator>) {}

    fn detach(&self, _nexus: Nexus) {}

    fn reset(&self) {}

    fn tell(&self, _nexus: Nexus, _condition: Additional) {}

    fn tasks_cleared(&self, _by: Nexus) {}
}

#[cfg(test)]
mod tests {
    use super::super::guest::Guest;
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
        let command = Command { cdb: command.cdb, data: Vec::new(), announced: 0 };
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
        let command = Command { cdb: command.cdb, data, announced };
        let response = unit.execute(Nexus(1), command).now_or_never().unwrap();
        Sense::parse(&response.sense).unwrap_or(Sense::new(Key::NoSense, Additional::NONE))
    }

    #[test]
    fn who_may_only_read_has_another_face_of_the_same_disk() {
        let whole = target();
        let guarded = whole.guarded();
        whole.attach(Nexus(1), &(Guest::new(1) as Arc<dyn Initiator>));
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
        let new = old.grown(300, &volume);
        let blocks = |target: &TargetDevice, number| {
            let read = run(target.unit(lun::encode(number)), command::Command::read_capacity_16());
            Capacity::parse_16(&read.data.concat()).unwrap().blocks
        };
        assert_eq!((blocks(&old, 300), blocks(&new, 300), blocks(&new, 0)), (2048, 4096, 2048));
        assert_eq!(blocks(&new.guarded(), 300), 4096);
    }

    #[test]
    fn a_nexus_is_known_to_every_unit() {
        let target = target();
        let guest: Arc<dyn Initiator> = Guest::new(1);
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
