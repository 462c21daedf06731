//! The device server of a disk, an optical drive, a tape drive or a media changer: a command block and the state of the unit go in, a [`Step`] comes out.
//! What needs no medium is answered here; what is wrong ends here; what is left says exactly which blocks
//! to touch and how.

pub mod changer;
mod changer_op;
mod management;
pub mod optical;
mod power;
mod step;
pub mod tape;
mod tape_op;
mod vital;

pub use step::{MediumOp, Step, UnitOp};

use optical::DiscType;
use optical::cue_sheet::behind_pregap;
use step::DONE;

use super::cdb::{Access, Cdb, Compare, Entry, Form, Parsed, RequiredRight, Requires, TapeCdb};
use super::elements::Layout;
use super::inquiry::{self, BlockLimits, Identity, Provisioning, Standard, page};
use super::mode::{Pages, Query, Switches};
use super::ports::{AccessState, Ports};
use super::readiness::Readiness;
use super::sanitize::{self, Method};
use super::sense::{Additional, Key};
use super::{Blocks, Capacity, DeviceType, Sense, copy, lun, provisioning, supported};

/// What the device server must know of the medium behind it. Lengths are in logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Medium {
    /// What it is in.
    pub device: DeviceType,
    /// Its size and blocks; no blocks if nothing is in an optical drive.
    pub capacity: Capacity,
    /// It can be taken out.
    pub removable: bool,
    /// It takes no writes.
    pub read_only: bool,
    /// What is on it is not written over.
    pub write_once: bool,
    /// Which disc that can be written it is, if it is one.
    pub recordable: Option<DiscType>,
    /// Completed writes may be volatile.
    pub write_cache: bool,
    /// It can give space back, best in units of that many blocks.
    pub unmap_granularity: Option<u32>,
    /// The most one command may carry.
    pub transfer_max: u32,
    /// The most that one write carries and that is written whole or not at all, whatever happens.
    pub atomic_max: u32,
    /// It has a key of its own, which can be destroyed.
    pub crypto_erase: bool,
}

impl Medium {
    /// The state of the unit while it has the medium: the tray of an optical drive may hold nothing.
    #[must_use]
    pub const fn readiness(&self) -> Readiness {
        match self.device {
            DeviceType::Optical if self.capacity.blocks == 0 => Readiness::TrayClosed,
            DeviceType::Tape if self.capacity.blocks == 0 => Readiness::NoMedium,
            _ => Readiness::Ready,
        }
    }

    /// The same when the medium has been taken out.
    #[must_use]
    pub const fn readiness_ejected(&self) -> Readiness {
        match self.device {
            DeviceType::Optical => Readiness::TrayOpen,
            _ => Readiness::NoMedium,
        }
    }
}

/// The device server.
#[derive(Clone, Debug)]
pub struct Unit {
    identity: Identity,
    medium: Medium,
    limits: BlockLimits,
    provisioning: Provisioning,
    pages: Pages,
    ports: Ports,
    /// Commands come from initiators that may only read.
    for_reader: bool,
    /// Commands come from an administrator of the server.
    for_administrator: bool,
}

/// The largest number of blocks COMPARE AND WRITE can count.
const COMPARE_AND_WRITE_MAX: u32 = u8::MAX as u32;

impl Unit {
    /// A device server for `medium`, which calls itself `identity` and has one port.
    #[must_use]
    pub fn new(identity: Identity, medium: Medium) -> Self {
        let Capacity { blocks, physical_exponent, reads_zeroes, .. } = medium.capacity;
        let can_unmap = medium.unmap_granularity.is_some();
        // TRANSFER LENGTH has 16 bits.
        let atomic_max = medium.atomic_max.min(medium.transfer_max).min(u16::MAX.into());
        let atomic_unit = atomic_unit(1 << physical_exponent, atomic_max);
        let limits = BlockLimits {
            compare_and_write_max: COMPARE_AND_WRITE_MAX.min(medium.transfer_max) as u8,
            transfer_granularity: 1 << physical_exponent,
            transfer_max: medium.transfer_max,
            // All ones: the number of blocks is not limited.
            unmap_blocks_max: if can_unmap { u32::MAX } else { 0 },
            unmap_descriptors_max: if can_unmap { provisioning::UNMAP_DESCRIPTORS_MAX } else { 0 },
            unmap_granularity: medium.unmap_granularity.unwrap_or(0),
            unmap_alignment: medium.unmap_granularity.map(|_| 0),
            // "All that follow" could be any number; who means so many blocks says so.
            write_same_non_zero: true,
            write_same_max: blocks.min(u32::MAX.into()),
            atomic_max,
            atomic_alignment: atomic_unit,
            atomic_granularity: atomic_unit,
            ..BlockLimits::default()
        };
        let provisioning = Provisioning {
            unmap: can_unmap,
            write_same_16: can_unmap,
            write_same_10: can_unmap,
            reads_zeroes: can_unmap && reads_zeroes,
            anchors: false,
            thin: can_unmap,
        };
        let readiness = medium.readiness();
        let defaults =
            Switches { write_cache: medium.write_cache, readiness, ..Switches::default() };
        let pages = Pages {
            device: medium.device,
            defaults,
            read_only: medium.read_only,
            write_once: medium.write_once,
            capacity: medium.capacity,
            elements: Layout::default(),
        };
        let (ports, for_reader, for_administrator) = (Ports::default(), false, false);
        Self { identity, medium, limits, provisioning, pages, ports, for_reader, for_administrator }
    }

    /// The same device server on another medium.
    #[must_use]
    pub fn on(&self, medium: Medium) -> Self {
        let &Self { for_reader, for_administrator, .. } = self;
        let (ports, new) = (self.ports.clone(), Self::new(self.identity.clone(), medium));
        let unit = Self { ports, for_reader, for_administrator, ..new };
        unit.with_elements(self.pages.elements)
    }

    /// The same device server with these elements, if it is one of a media changer.
    #[must_use]
    pub const fn with_elements(mut self, elements: Layout) -> Self {
        self.pages.elements = elements;
        self
    }

    /// The same device server on a medium that is told from all others by `volume`.
    #[must_use]
    pub fn known_as(mut self, volume: String) -> Self {
        self.identity.volume = volume;
        self
    }

    /// The same device server for initiators that may only read.
    #[must_use]
    pub fn for_reader(&self) -> Self {
        Self { for_reader: true, ..self.on(Medium { read_only: true, ..self.medium }) }
    }

    /// The same device server for an administrator of the server.
    #[must_use]
    pub fn for_administrator(&self) -> Self {
        Self { for_administrator: true, ..self.clone() }
    }

    /// Whether it is for initiators that may only read.
    #[must_use]
    pub const fn is_for_reader(&self) -> bool {
        self.for_reader
    }

    /// The same device server for commands that come by one of `ports`.
    #[must_use]
    pub fn by(&self, ports: Ports) -> Self {
        Self { ports, ..self.clone() }
    }

    /// Its ports, as seen by the one that commands come by.
    #[must_use]
    pub const fn ports(&self) -> &Ports {
        &self.ports
    }

    /// What it knows of the medium.
    #[must_use]
    pub const fn medium(&self) -> &Medium {
        &self.medium
    }

    /// The switches after power on or reset.
    #[must_use]
    pub const fn defaults(&self) -> Switches {
        self.pages.defaults
    }

    /// Who it is.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The bytes of a logical block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.medium.capacity.block_size
    }

    /// How many blocks there are.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.medium.capacity.blocks
    }

    /// How many bytes of data-out a command needs; zero for one that will be refused. It is bounded by
    /// the medium's `transfer_max`, twice that for COMPARE AND WRITE, and 64 KiB for parameter lists.
    #[must_use]
    pub fn data_out(&self, command: &Parsed, switches: Switches) -> u32 {
        let needed = command.cdb.ok().and_then(|cdb| self.needs(&cdb, switches));
        match needed {
            None | Some(0) => 0,
            Some(len) => self.plan(command, switches).map_or(0, |_| len),
        }
    }

    /// How many bytes of data-out the fields of a command ask for; `None` if 32 bits cannot say so.
    #[must_use]
    pub fn needs(&self, cdb: &Cdb, switches: Switches) -> Option<u32> {
        match *cdb {
            Cdb::Tape(TapeCdb::Write { fixed, count }) => {
                tape::Transfer::data_out(fixed, count, switches)
            }
            _ => cdb.data_out(self.block_size()),
        }
    }

    /// What a command asks for, or why it is refused.
    pub fn plan(&self, command: &Parsed, switches: Switches) -> Result<Step, Sense> {
        let cdb = self.admit(command, switches)?;
        match cdb {
            // The self-test finds nothing: what can fail is beneath, and tells when it is used.
            Cdb::TestUnitReady | Cdb::SendDiagnostic => Ok(DONE),
            Cdb::PreventAllow { prevent, persistent } => {
                Ok(self.prevent_allow(prevent, persistent))
            }
            Cdb::RequestSense { format, allocation } => {
                Ok(UnitOp::RequestSense { format, allocation }.into())
            }
            Cdb::Inquiry { vital, page, allocation } => self.inquiry(vital, page, allocation),
            Cdb::ReportLuns { select, allocation } => {
                Ok(UnitOp::ReportLuns { select, allocation }.into())
            }
            Cdb::ReportOpcodes { timeouts, options, opcode, action, allocation } => {
                let query = supported::Query { timeouts, options, opcode, action };
                supported::opcodes(query, |entry| self.offers(entry))
                    .map(|list| cut(list, allocation))
            }
            Cdb::ReportTaskManagement { extended, allocation } => functions(extended, allocation),
            Cdb::ReportPortGroups { extended, allocation } => {
                Ok(cut(self.ports.report(extended), allocation))
            }
            Cdb::LogSense { page, subpage, allocation } => log_sense(page, subpage, allocation),
            Cdb::ReportTimestamp { allocation } => Ok(report_timestamp(allocation)),
            Cdb::CopyStatus { id, allocation } => Ok(UnitOp::CopyStatus { id, allocation }.into()),
            Cdb::CopyParameters { allocation } => {
                Ok(cut(copy::operating_parameters(self.block_size()), allocation))
            }
            Cdb::ExtendedCopy { .. } => Ok(Step::Copy),
            Cdb::ModeSense { form, long, bare, control, page, subpage, allocation } => {
                let query = Query { form, long, bare, control, page, subpage };
                self.pages.sense(query, switches).map(|data| cut(data, allocation))
            }
            Cdb::ModeSelect { form, page_format, save, .. } => mode_select(form, page_format, save),
            Cdb::StartStop { immediate, condition, no_flush, load_eject, start } => {
                let wish = power::StartStopFields {
                    immediate,
                    condition,
                    flush: !no_flush,
                    load_eject,
                    start,
                };
                power::start_stop(wish, self.medium.removable, switches.readiness)
            }
            Cdb::PersistentIn { action, allocation } => {
                Ok(UnitOp::PersistentIn { action, allocation }.into())
            }
            Cdb::PersistentOut(out) => Ok(UnitOp::PersistentOut(out).into()),
            Cdb::Reserve => Ok(UnitOp::Reserve.into()),
            Cdb::Release => Ok(UnitOp::Release.into()),
            Cdb::ReadCapacity10 => Ok(Step::Reply(self.medium.capacity.emit_10())),
            Cdb::ReadCapacity16 { allocation } => {
                Ok(cut(self.medium.capacity.emit_16(), allocation))
            }
            Cdb::ReadDefects { form, list, allocation } => Ok(read_defects(form, list, allocation)),
            // SBC-3, 5.8: GOOD, not CONDITION MET, where the blocks are not all held in a cache
            // afterwards; there is none of this unit's own.
            Cdb::Prefetch(access) => self.within(access.blocks).map(|()| DONE),
            Cdb::Synchronize { access, immediate } => {
                self.within(access.blocks).map(|()| power::flush(immediate))
            }
            Cdb::Sanitize { method, immediate, unrestricted, length } => {
                self.can_sanitize(method, length)?;
                Ok(UnitOp::Sanitize { method, immediate, unrestricted }.into())
            }
            Cdb::SanitizeExit => Ok(UnitOp::SanitizeExit.into()),
            Cdb::Management(cdb) => management::plan(cdb, self.for_administrator),
            Cdb::Optical(cdb) => optical::plan(cdb, &self.drive(switches.readiness, None)),
            Cdb::Tape(cdb) => self.plan_tape(cdb, switches),
            Cdb::Changer(cdb) => changer::plan(cdb, self.pages.elements),
            Cdb::Read(_)
            | Cdb::Write(_)
            | Cdb::WriteVerify(..)
            | Cdb::Verify(..)
            | Cdb::WriteAtomic(_)
            | Cdb::WriteSame { .. }
            | Cdb::CompareAndWrite(_)
            | Cdb::OrWrite(_)
            | Cdb::Unmap { .. }
            | Cdb::GetLbaStatus { .. } => self.plan_medium(&cdb, switches).map(Step::Medium),
        }
    }

    fn plan_tape(&self, cdb: TapeCdb, switches: Switches) -> Result<Step, Sense> {
        let block_size = self.block_size();
        let capacity = self.blocks() * u64::from(block_size);
        tape::plan(cdb, switches, capacity, self.limits.transfer_max * block_size)
    }

    /// PREVENT ALLOW MEDIUM REMOVAL. The persistent forms of MMC-6, 6.14 are about a button, which no drive here has; of
    /// disks they are obsolete, and forbid it all the same.
    fn prevent_allow(&self, prevent: bool, persistent: bool) -> Step {
        match self.medium.device {
            _ if !self.medium.removable => DONE,
            DeviceType::Disk => UnitOp::Prevent(prevent || persistent).into(),
            _ => UnitOp::Prevent(prevent).into(),
        }
    }

    /// The fields of a command, unless the unit does not have it, does not take it now, or not from this client.
    fn admit(&self, command: &Parsed, switches: Switches) -> Result<Cdb, Sense> {
        let (cdb, traits) = (command.cdb?, command.traits);
        self.ports.own().access.check(traits.minimum_access)?;
        switches.readiness.check(traits.required_state)?;
        if self.for_reader {
            may_read_only(traits.required_right)?;
        }
        if traits.required_right == RequiredRight::Write {
            self.writable(switches)?;
        }
        Ok(cdb)
    }

    /// The commands that touch blocks.
    fn plan_medium(&self, cdb: &Cdb, switches: Switches) -> Result<MediumOp, Sense> {
        if matches!(self.medium.device, DeviceType::Tape | DeviceType::Changer) {
            // They may come from EXTENDED COPY, and would be those of a disk.
            return Err(Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE));
        }
        let durable = |access: Access| access.durable || self.write_through(switches);
        match *cdb {
            Cdb::Read(access) => self.transfer(access).map(MediumOp::Read),
            Cdb::Write(access) => {
                let behind = behind_pregap(self.medium.recordable, access.blocks);
                self.transfer(Access { blocks: behind, ..access })?;
                let blocks = access.blocks;
                Ok(MediumOp::Write { blocks, durable: durable(access) })
            }
            Cdb::WriteVerify(access, compare) => {
                self.transfer(access).map(|blocks| MediumOp::WriteVerify(blocks, compare))
            }
            Cdb::Verify(access, Compare::All) => {
                self.transfer(access).map(|blocks| MediumOp::Verify(blocks, Compare::All))
            }
            Cdb::Verify(access, compare) => {
                self.within(access.blocks).map(|()| MediumOp::Verify(access.blocks, compare))
            }
            Cdb::WriteAtomic(access) => {
                self.atomic(access)?;
                Ok(MediumOp::WriteAtomic { blocks: access.blocks, durable: durable(access) })
            }
            Cdb::WriteSame { access, unmap, no_data } => {
                let blocks = self.write_same(access, unmap)?;
                let durable = durable(access);
                Ok(MediumOp::WriteSame { blocks, release: unmap, no_data, durable })
            }
            Cdb::CompareAndWrite(access) => {
                self.within(access.blocks)?;
                if access.blocks.count > self.limits.compare_and_write_max.into() {
                    return Err(wrong_count(access));
                }
                Ok(MediumOp::CompareAndWrite { blocks: access.blocks, durable: durable(access) })
            }
            Cdb::OrWrite(access) => {
                let blocks = self.transfer(access)?;
                Ok(MediumOp::OrWrite { blocks, durable: durable(access) })
            }
            Cdb::Unmap { .. } if self.provisioning.unmap => Ok(MediumOp::Unmap),
            Cdb::GetLbaStatus { lba, allocation } => {
                self.within(Blocks { lba, count: 0 })?;
                Ok(MediumOp::LbaStatus { lba, allocation })
            }
            _ => Err(Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE)),
        }
    }

    fn can_sanitize(&self, method: Method, length: u32) -> Result<(), Sense> {
        match method {
            Method::Overwrite if !sanitize::is_list_length(length, self.block_size()) => {
                Err(Sense::invalid_cdb(7, None))
            }
            // An unknown service action.
            Method::BlockErase if !self.has(Requires::Provisioning) => {
                Err(Sense::invalid_cdb(1, Some(4)))
            }
            Method::CryptoErase if !self.has(Requires::Key) => Err(Sense::invalid_cdb(1, Some(4))),
            _ => Ok(()),
        }
    }

    const fn offers(&self, entry: &Entry) -> bool {
        entry.types.include(self.medium.device) && self.has(entry.requires)
    }

    const fn has(&self, ability: Requires) -> bool {
        match ability {
            Requires::Nothing => true,
            Requires::Provisioning => self.provisioning.unmap,
            Requires::Key => self.medium.crypto_erase,
            Requires::Administrator => self.for_administrator,
        }
    }

    fn inquiry(&self, vital: bool, code: u8, allocation: u32) -> Result<Step, Sense> {
        let body = match (vital, code) {
            (false, 0) => {
                let standard = Standard {
                    removable: self.medium.removable,
                    multi_port: self.ports.ids().len() > 1,
                    third_party_copy: self.medium.device == DeviceType::Disk,
                    command_set: self.medium.device.command_set(),
                    ..self.identity.standard(self.peripheral())
                };
                return Ok(cut(standard.emit(), allocation));
            }
            (true, code) if !self.vital_pages().contains(&code) => {
                return Err(Sense::invalid_cdb(2, None));
            }
            (true, page::SUPPORTED) => self.vital_pages().to_vec(),
            (true, page::SERIAL) => self.identity.serial_page(),
            (true, page::IDENTIFICATION) => self.identity.identification_page(self.ports.own().id),
            (true, page::EXTENDED) => inquiry::extended(self.medium.write_cache),
            (true, page::MODE_POLICY) => inquiry::MODE_POLICY.to_vec(),
            (true, page::PORTS) => self.identity.ports_page(self.ports.ids()),
            (true, page::THIRD_PARTY_COPY) => copy::page(self.block_size()),
            // SSC-4, 8.5.3: of sequential-access device capabilities WORM.
            (true, page::BLOCK_LIMITS) if self.medium.device == DeviceType::Tape => vec![0x01, 0],
            (true, page::BLOCK_LIMITS) => self.limits.emit(),
            (true, page::CHARACTERISTICS) => {
                inquiry::characteristics(self.provisioning.unmap, self.medium.crypto_erase)
            }
            (true, page::PROVISIONING) => self.provisioning.emit(),
            (true, page::VOLUME) => self.identity.volume_page(),
            _ => return Err(Sense::invalid_cdb(2, None)),
        };
        Ok(cut(inquiry::vital(self.peripheral(), code, &body), allocation))
    }

    /// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE.
    const fn peripheral(&self) -> u8 {
        match self.ports.own().access {
            AccessState::Unavailable => inquiry::UNREACHABLE | self.medium.device.code(),
            _ => self.medium.device.code(),
        }
    }

    const fn vital_pages(&self) -> &'static [u8] {
        vital::pages(self.medium.device)
    }

    /// With the cache switched off, every write is stable when it completes.
    const fn write_through(&self, switches: Switches) -> bool {
        self.medium.write_cache && !switches.write_cache
    }

    const fn writable(&self, switches: Switches) -> Result<(), Sense> {
        if self.medium.read_only {
            return Err(Sense::new(Key::DataProtect, Additional::WRITE_PROTECTED));
        }
        if switches.write_protect {
            return Err(Sense::new(Key::DataProtect, Additional::SOFTWARE_WRITE_PROTECTED));
        }
        Ok(())
    }

    /// A block address beyond the last is out of range even for a command of no blocks. The
    /// information is the first address that is.
    pub fn within(&self, Blocks { lba, count }: Blocks) -> Result<(), Sense> {
        let blocks = self.blocks();
        let inside = lba < blocks && u64::from(count) <= blocks - lba;
        if inside {
            return Ok(());
        }
        Err(Sense::illegal(Additional::LBA_OUT_OF_RANGE).with_information(lba.max(blocks)))
    }

    fn transfer(&self, access: Access) -> Result<Blocks, Sense> {
        self.within(access.blocks)?;
        if access.blocks.count > self.limits.transfer_max {
            return Err(wrong_count(access));
        }
        Ok(access.blocks)
    }

    /// Whether WRITE ATOMIC can be as the block limits page says (SBC-4, 5.48).
    fn atomic(&self, access: Access) -> Result<(), Sense> {
        let Blocks { lba, count } = access.blocks;
        self.within(access.blocks)?;
        if !lba.is_multiple_of(self.limits.atomic_alignment.max(1).into()) {
            return Err(Sense::invalid_cdb(2, None));
        }
        let whole = count.is_multiple_of(self.limits.atomic_granularity.max(1));
        if whole && count <= self.limits.atomic_max { Ok(()) } else { Err(wrong_count(access)) }
    }

    fn write_same(&self, access: Access, unmap: bool) -> Result<Blocks, Sense> {
        if unmap && !self.provisioning.unmap {
            return Err(Sense::invalid_cdb(1, Some(3)));
        }
        self.within(access.blocks)?;
        if access.blocks.count == 0 {
            return Err(wrong_count(access)); // WSNZ
        }
        Ok(access.blocks)
    }

    /// The blocks that an UNMAP parameter list names, all of them in range.
    pub fn unmap(&self, list: &[u8]) -> Result<Vec<Blocks>, Sense> {
        let mut ranges = provisioning::parse_unmap(list)?;
        // SBC-3, 5.28.2: a descriptor of no blocks is not an error.
        ranges.retain(|range| range.count != 0);
        ranges.iter().try_for_each(|range| self.within(*range))?;
        Ok(ranges)
    }

    /// The switches after a MODE SELECT parameter list.
    pub fn select(&self, form: Form, list: &[u8], current: Switches) -> Result<Switches, Sense> {
        self.pages.select(form, list, current)
    }
}

/// In which units a medium with physical blocks of so many logical ones takes atomic writes: in physical blocks, the
/// units that initiators should write in, and that Linux takes for its atomic writes where none is reported.
/// Zero for any number, where a physical block is one logical block, or more than can be written at once.
const fn atomic_unit(physical: u32, atomic_max: u32) -> u32 {
    if physical > 1 && physical <= atomic_max { physical } else { 0 }
}

/// What a logical unit number that nothing is behind answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbsentAnswer {
    /// GOOD, with these data.
    Reply(Vec<u8>),
    /// List the units of the target with [`luns`].
    ReportLuns {
        /// SELECT REPORT.
        select: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
}

/// What a logical unit number that nothing is behind answers (SPC-4, 6.6.1 and 6.6.2; SAM-5, 5.13.4): it
/// tells what it is not, and what there is instead.
pub fn absent(cdb: &Cdb, target: &str) -> Result<AbsentAnswer, Sense> {
    let (data, allocation) = match *cdb {
        Cdb::Inquiry { vital: false, page: 0, allocation } => {
            (Identity::new(target, 0).standard(inquiry::ABSENT).emit(), allocation)
        }
        Cdb::Inquiry { vital: true, page: page::SUPPORTED, allocation } => {
            (inquiry::vital(inquiry::ABSENT, page::SUPPORTED, &[page::SUPPORTED]), allocation)
        }
        Cdb::Inquiry { .. } => return Err(Sense::invalid_cdb(2, None)),
        Cdb::ReportLuns { select, allocation } => {
            return Ok(AbsentAnswer::ReportLuns { select, allocation });
        }
        Cdb::RequestSense { format, allocation } => (no_unit().emit(format), allocation),
        _ => return Err(no_unit()),
    };
    Ok(AbsentAnswer::Reply(truncate(data, allocation)))
}

const fn no_unit() -> Sense {
    Sense::illegal(Additional::LOGICAL_UNIT_NOT_SUPPORTED)
}

/// REPORT LUNS data for the units of a target; there are no well known ones.
pub fn luns(select: u8, allocation: u32, units: &[u16]) -> Result<Vec<u8>, Sense> {
    const ADDRESSED: u8 = 0x00;
    const WELL_KNOWN: u8 = 0x01;
    const ALL: u8 = 0x02;
    let list = match select {
        ADDRESSED | ALL => units,
        WELL_KNOWN => &[],
        _ => return Err(Sense::invalid_cdb(2, None)),
    };
    Ok(truncate(lun::emit_list(list), allocation))
}

/// SPC-4, 4.2.5.6: what exceeds the allocation length is dropped, and that is no error; lengths inside the
/// data do not change.
#[must_use]
pub fn truncate(mut data: Vec<u8>, allocation: u32) -> Vec<u8> {
    data.truncate(allocation as usize);
    data
}

fn cut(data: Vec<u8>, allocation: u32) -> Step {
    Step::Reply(truncate(data, allocation))
}

fn wrong_count(access: Access) -> Sense {
    Sense::invalid_cdb(access.count_at.into(), None)
}

/// Refuses what an initiator may not do that may only read.
fn may_read_only(right: RequiredRight) -> Result<(), Sense> {
    match right {
        RequiredRight::Read => Ok(()),
        RequiredRight::Write => Err(Sense::new(Key::DataProtect, Additional::WRITE_PROTECTED)),
        RequiredRight::Manage => Err(Sense::illegal(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS)),
    }
}

fn mode_select(form: Form, page_format: bool, save: bool) -> Result<Step, Sense> {
    match (page_format, save) {
        (false, _) => Err(Sense::invalid_cdb(1, Some(4))),
        (true, true) => Err(Sense::invalid_cdb(1, Some(0))),
        (true, false) => Ok(UnitOp::Select(form).into()),
    }
}

fn functions(extended: bool, allocation: u32) -> Result<Step, Sense> {
    Ok(cut(supported::task_management(extended), allocation))
}

fn report_timestamp(allocation: u32) -> Step {
    UnitOp::ReportTimestamp { allocation }.into()
}

fn log_sense(page: u8, subpage: u8, allocation: u32) -> Result<Step, Sense> {
    Ok(UnitOp::LogSense { page, subpage, allocation }.into())
}

/// An empty list of the kind that was asked for: the store beneath looks after its own defects.
fn read_defects(form: Form, list: u8, allocation: u32) -> Step {
    let length = if form == Form::Ten { 4 } else { 8 };
    let mut header = vec![0, list];
    header.resize(length, 0);
    cut(header, allocation)
}

#[cfg(test)]
mod tests;
