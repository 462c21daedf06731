//! What a unit of a server is, of whichever type, in words.

use std::fmt;

use bytes::Bytes;
use proto::scsi::capacity::Capacity;
use proto::scsi::command::Command;
use proto::scsi::command::changer::{ElementState, element_states};
use proto::scsi::command::tape::{BlockLimits, Position, TapeMode, is_write_once};
use proto::scsi::elements::ElementKind;
use proto::scsi::{DeviceType, Status};
use serde::Serialize;

use super::cd::{Contents, Disc};
use super::unit_type::{short_name, type_name};
use crate::printable::OneLine;
use crate::size::Size;
use crate::store::iscsi::UnitError;
use crate::store::scsi::RawUnit;
use crate::uri::Uri;

/// A unit, as it describes itself.
#[derive(Debug, Serialize)]
pub(super) struct UnitInfo {
    uri: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip)]
    code: u8,
    vendor: String,
    product: String,
    revision: String,
    serial: Option<String>,
    /// What is in it, or why that is not known.
    medium: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tape: Option<TapeInfo>,
    /// What is in it, of an optical drive.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    disc: Option<Disc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    elements: Vec<ElementInfo>,
}

/// A tape, and how its drive is set.
#[derive(Debug, Serialize)]
struct TapeInfo {
    write_protected: bool,
    write_once: bool,
    /// Blocks and file marks before the head.
    block: Option<u64>,
    file: Option<u64>,
    near_end: bool,
    /// 0 for blocks of any length.
    block_length: u32,
    block_min: Option<u32>,
    block_max: Option<u32>,
    density: u8,
    buffered: bool,
}

/// An element of a changer.
#[derive(Debug, Serialize)]
struct ElementInfo {
    #[serde(rename = "type")]
    kind: &'static str,
    address: u16,
    full: bool,
    barcode: Option<String>,
}

/// Asks a unit what it is and what is in it. What it does not tell is left out.
pub(super) async fn describe_unit(uri: &Uri, unit: &dyn RawUnit) -> UnitInfo {
    let standard = unit.standard();
    let code = standard.device_type();
    let mut info = UnitInfo {
        uri: uri.to_string(),
        kind: short_name(code),
        code,
        vendor: standard.vendor.clone(),
        product: standard.product.clone(),
        revision: standard.revision.clone(),
        serial: unit.serial().map(str::to_owned),
        medium: None,
        tape: None,
        disc: None,
        size: None,
        elements: Vec::new(),
    };
    let is = |device: DeviceType| code == device.code();
    if is(DeviceType::Changer) {
        info.elements = elements(unit).await;
        return info;
    }
    let ready = unit.ask(Command::test_unit_ready(), Bytes::new()).await;
    info.medium = Some(match &ready {
        Ok(_) => "loaded".to_owned(),
        Err(why) => why_not_ready(why),
    });
    if ready.is_ok() && is(DeviceType::Tape) {
        info.tape = tape(unit).await;
    }
    if ready.is_ok() && is(DeviceType::Optical) {
        info.disc = Contents::of_ready(uri, unit).await.ok().map(|contents| contents.disc);
    }
    let is_blank = info.disc.as_ref().is_some_and(Disc::is_blank);
    if ready.is_ok() && !is(DeviceType::Tape) && !is_blank {
        let answer = unit.ask(Command::read_capacity_10(), Bytes::new()).await.ok();
        let capacity = answer.and_then(|answer| Capacity::parse_10(&answer).ok().flatten());
        info.size = capacity.map(|capacity| capacity.blocks * u64::from(capacity.block_size));
    }
    info
}

fn why_not_ready(why: &UnitError) -> String {
    match why {
        UnitError::Sense(sense) if sense.additional.code == 0x3A => "none".to_owned(),
        UnitError::Status(Status::ReservationConflict) => {
            "not known: another initiator has reserved the unit".to_owned()
        }
        why => format!("not ready: {why}"),
    }
}

async fn tape(unit: &dyn RawUnit) -> Option<TapeInfo> {
    let (mode, configuration, limits, position) = tokio::join!(
        unit.ask(Command::tape_mode(), Bytes::new()),
        unit.ask(Command::medium_configuration(), Bytes::new()),
        unit.ask(Command::read_block_limits(), Bytes::new()),
        position(unit),
    );
    let mode = TapeMode::parse(&mode.ok()?).ok()?;
    let limits = limits.ok().and_then(|answer| BlockLimits::parse(&answer).ok());
    Some(TapeInfo {
        write_protected: mode.is_write_protected(),
        write_once: configuration.is_ok_and(|page| is_write_once(&page).unwrap_or_default()),
        block: position.map(|position| position.object),
        file: position.and_then(|position| position.file),
        near_end: position.is_some_and(|position| position.near_end),
        block_length: mode.block_length,
        block_min: limits.map(|limits| limits.least),
        block_max: limits.map(|limits| limits.most),
        density: mode.density,
        buffered: mode.is_buffered(),
    })
}

async fn position(unit: &dyn RawUnit) -> Option<Position> {
    if let Ok(answer) = unit.ask(Command::read_position(), Bytes::new()).await {
        return Position::parse_long(&answer).ok().flatten();
    }
    let answer = unit.ask(Command::read_position_short(), Bytes::new()).await.ok()?;
    Position::parse_short(&answer).ok().flatten()
}

async fn elements(unit: &dyn RawUnit) -> Vec<ElementInfo> {
    let answer = unit.ask(Command::read_element_status(), Bytes::new()).await;
    let found = answer.ok().and_then(|answer| element_states(&answer).ok()).unwrap_or_default();
    let named = found.into_iter().filter_map(|ElementState { code, address, is_full, tag }| {
        let kind = match ElementKind::ALL.into_iter().find(|kind| kind.code() == code)? {
            ElementKind::Transport => return None,
            ElementKind::Drive => "drive",
            ElementKind::ImportExport => "mail",
            ElementKind::Slot => "slot",
        };
        Some(ElementInfo { kind, address, full: is_full, barcode: tag })
    });
    named.collect()
}

impl UnitInfo {
    pub(super) const fn is_disk(&self) -> bool {
        self.code == DeviceType::Disk.code()
    }

    pub(super) const fn is_tape(&self) -> bool {
        self.code == DeviceType::Tape.code()
    }

    /// How to name it.
    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    /// What it is, as a sentence goes on.
    pub(super) fn kind(&self) -> String {
        type_name(self.code)
    }

    /// What it is and what is in it, on one line.
    pub(super) fn summary(&self) -> String {
        let kind = self.kind;
        if self.code == DeviceType::Changer.code() {
            return format!("{kind}, {}", self.places());
        }
        let once = self.tape.as_ref().is_some_and(|tape| tape.write_once);
        let once = if once { ", write once" } else { "" };
        let protected = self.tape.as_ref().is_some_and(|tape| tape.write_protected);
        let protected = if protected { ", write-protected" } else { "" };
        let size = self.size.map_or_else(String::new, |size| format!(" of {}", Size(size)));
        match self.medium.as_deref() {
            None => kind.to_owned(),
            Some("loaded") if self.is_tape() => {
                format!("{kind}, with a tape{once}{protected}")
            }
            Some("loaded") if self.code == DeviceType::Optical.code() => {
                format!("{kind}, with a disc{size}")
            }
            Some("loaded") => format!("{kind}{size}"),
            Some("none") => format!("{kind}, empty"),
            Some(why) => format!("{kind}, {}", OneLine(why)),
        }
    }

    fn places(&self) -> String {
        let counted = ["drive", "slot", "mail"].map(|kind| {
            let all = self.elements.iter().filter(|element| element.kind == kind);
            let full = all.clone().filter(|element| element.full).count();
            (kind, all.count(), full)
        });
        let counted = counted.iter().filter(|(_, all, _)| *all > 0);
        let places: Vec<_> =
            counted.map(|(kind, all, full)| format!("{kind}: {full} of {all} full")).collect();
        places.join(", ")
    }
}

impl fmt::Display for UnitInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uri, vendor, product, revision, .. } = self;
        writeln!(f, "{uri}")?;
        writeln!(f, "  type         {}", self.summary())?;
        writeln!(f, "  device       {}", OneLine(format_args!("{vendor} {product} {revision}")))?;
        if let Some(serial) = &self.serial {
            writeln!(f, "  serial       {}", OneLine(serial))?;
        }
        if let Some(tape) = &self.tape {
            tape.fmt(f)?;
        }
        if let Some(disc) = &self.disc {
            writeln!(f, "  disc         {disc}")?;
        }
        for ElementInfo { kind, address, full, barcode } in &self.elements {
            let tag =
                barcode.as_deref().map_or_else(String::new, |tag| format!(", {}", OneLine(tag)));
            let full = if *full { "full" } else { "empty" };
            writeln!(f, "  {kind:12} {address:#06x}, {full}{tag}")?;
        }
        Ok(())
    }
}

impl fmt::Display for TapeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(block) = self.block {
            let file = self.file.map_or_else(String::new, |file| format!(", file {file}"));
            let end = if self.near_end { ", near the end of the tape" } else { "" };
            writeln!(f, "  position     block {block}{file}{end}")?;
        }
        match (self.block_length, self.block_min, self.block_max) {
            (0, Some(min), Some(max)) => writeln!(f, "  blocks       {min} to {max} bytes")?,
            (0, ..) => writeln!(f, "  blocks       of any length")?,
            (length, ..) => writeln!(f, "  blocks       {length} bytes, or of any length")?,
        }
        writeln!(f, "  density      {:#04x}", self.density)?;
        writeln!(f, "  buffered     {}", if self.buffered { "yes" } else { "no" })
    }
}
