//! The initiator's side: how one writer gets a volume for itself, finds out whether it still has it, and gives
//! it back. No I/O: whoever has a session carries the commands out.
//!
//! The reservation is Write Exclusive - Registrants Only. A writer registers a random key, which nobody else
//! uses, and stays registered only if its RESERVE succeeds. So of several writers that begin at once one gets
//! the volume, and the others are not left among those who may write.

mod succession;

use core::fmt;

pub use self::succession::{Predecessor, succeed};
use super::reservation::{Key, Kind, ReserveInAction, ReserveOutAction};
use crate::reader::{Reader, Truncated};
use crate::scsi::command::Command;
use crate::scsi::transport::Transports;
use crate::scsi::{Malformed, Sense};

/// The type of the reservation.
const KIND: Kind = Kind::WriteExclusiveRegistrants;

/// Room for the keys of over a thousand registrants.
const ALLOCATION: u16 = 8 << 10;

/// How a logical unit answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// GOOD, with this data.
    Good(Vec<u8>),
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Check(Sense),
}

/// A logical unit that commands can be sent to.
pub trait Unit: Sync {
    /// Why there is no answer.
    type Error: Send;

    /// Carries out a command with this data-out.
    fn ask(
        &self,
        command: Command,
        data: Vec<u8>,
    ) -> impl Future<Output = Result<Answer, Self::Error>> + Send;

    /// The protocols whose TransportIDs are known.
    fn transports(&self) -> Transports;
}

/// A reservation that is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnReservation {
    /// The key of this attachment.
    pub key: Key,
    /// The target keeps it through a loss of power (APTPL).
    pub through_power_loss: bool,
    /// It announces that it can, and has refused to.
    pub is_forgetful: bool,
    /// Commands of those whose registrations were removed may still run: the unit cannot abort them on the way.
    pub leaves_tasks: bool,
    /// It was registered with every target port (ALL_TG_PT).
    all_target_ports: bool,
}

/// What became of a registration that was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// The unit does not know its key any more.
    Gone,
    /// The unit still has it, and answered so.
    Registered(Answer),
}

/// Whose registrations are removed on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removals {
    /// Those with these keys, whose owners are known to be gone.
    Stale(Vec<Key>),
    /// All others.
    Everyone,
}

/// Somebody who is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// Its key.
    pub key: Key,
    /// The name of its initiator, where the unit tells.
    pub initiator: Option<String>,
    /// It holds the reservation.
    pub holder: bool,
}

/// Those who are registered, holders first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registrants(pub Vec<Registrant>);

impl fmt::Display for Registrants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else {
            return f.write_str("nobody that is registered now");
        };
        match &first.initiator {
            Some(name) => write!(f, "initiator {name}, key {:#018x}", first.key)?,
            None => write!(f, "the initiator with key {:#018x}", first.key)?,
        }
        match self.0.len() - 1 {
            0 => Ok(()),
            others => write!(f, ", and {others} more registered"),
        }
    }
}

/// Why a reservation is not ours.
#[derive(Debug)]
pub enum NotHeld<E> {
    /// The unit has no persistent reservations.
    Unsupported,
    /// It is another's.
    By(Registrants),
    /// It answered what cannot be: `what`, to which command.
    Answer(&'static str, Answer),
    /// It answered what cannot be, and our registration stayed when it was to be removed for that.
    Registered(&'static str, Answer),
    /// The same, and our registration was left, since with it the reservation that is to be continued would end.
    LeftRegistered(&'static str, Answer),
    /// Data that cannot be read.
    Malformed(&'static str),
    /// There was no answer.
    Unit(E),
}

impl<E> NotHeld<E> {
    /// Whether `key`, which was to be registered, may be registered all the same.
    pub fn may_leave(&self, key: Key) -> bool {
        match self {
            Self::Unsupported | Self::Answer(..) => false,
            Self::By(Registrants(found)) => found.iter().any(|registrant| registrant.key == key),
            Self::Registered(..)
            | Self::LeftRegistered(..)
            | Self::Malformed(_)
            | Self::Unit(_) => true,
        }
    }
}

/// Gets the reservation for `key`, which is random and new.
pub async fn acquire<U: Unit>(
    unit: &U,
    key: Key,
    removals: &Removals,
) -> Result<OwnReservation, NotHeld<U::Error>> {
    let Some(Keys { keys, .. }) = read_keys(unit).await? else { return Err(NotHeld::Unsupported) };
    let go = |key: &Key| match removals {
        Removals::Everyone => true,
        Removals::Stale(stale) => stale.contains(key),
    };
    // Whoever is registered may write, or is about to reserve.
    if !keys.iter().all(go) {
        return Err(NotHeld::By(registrants(unit, &keys).await?));
    }
    let mut hold = register(unit, key).await?;
    preempt(unit, &mut hold, keys).await?;
    settle(unit, hold).await
}

/// Continues for a writer that is gone, whose reservation has the key `of` and stands: so nobody else has written since,
/// unless he registered beside it. `key` is random and new. In the end the reservation has the key `of` again, so that
/// the next can continue where this one fails. `stale` are the keys under which others began the same for `of`, and are
/// gone: such a key holds the reservation only if it preempted `of` or another of them. Once it is ours no failure gives
/// it back.
pub async fn resume<U: Unit>(
    unit: &U,
    key: Key,
    of: Key,
    stale: &[Key],
) -> Result<OwnReservation, NotHeld<U::Error>> {
    let Some(Keys { keys, .. }) = read_keys(unit).await? else { return Err(NotHeld::Unsupported) };
    let known = |key: &Key| *key == of || stale.contains(key);
    let held = read_reservation(unit).await?;
    let holder = held.filter(|(key, kind)| known(key) && *kind == KIND.code()).map(|(key, _)| key);
    let Some(holder) = holder.filter(|_| keys.iter().all(known)) else {
        return Err(NotHeld::By(registrants(unit, &keys).await?));
    };
    let mut hold = register(unit, key).await?;
    match preempt_one(unit, &mut hold, holder).await? {
        // It was registered until now, which it would not be had anybody taken the volume over.
        Answer::Good(_) => {}
        Answer::Conflict => return lost(unit, &hold).await,
        answer => return give_up(unit, &hold, "PREEMPT AND ABORT", answer).await,
    }
    // Those that had registered and did not get further.
    for other in keys.into_iter().filter(|key| *key != holder) {
        match preempt_one(unit, &mut hold, other).await? {
            Answer::Good(_) | Answer::Conflict => {}
            answer => return Err(NotHeld::LeftRegistered("PREEMPT AND ABORT", answer)),
        }
    }
    take_key(unit, hold, of).await
}

/// The reservation is ours: gives it the key `of` in the place of the one that it has.
async fn take_key<U: Unit>(
    unit: &U,
    hold: OwnReservation,
    of: Key,
) -> Result<OwnReservation, NotHeld<U::Error>> {
    // A registrant may change its key, and a holder stays one (SPC-4, 5.13.7).
    let renamed = Parameters { key: hold.key, action_key: of, ..hold.parameters() };
    match ask(unit, ReserveOutAction::Register, renamed).await.map_err(NotHeld::Unit)? {
        Answer::Good(_) => {}
        Answer::Conflict => return lost(unit, &hold).await,
        answer => return Err(NotHeld::LeftRegistered("REGISTER", answer)),
    }
    let hold = OwnReservation { key: of, ..hold };
    match read_reservation(unit).await {
        Ok(Some((held, kind))) if held == of && kind == KIND.code() => Ok(hold),
        Ok(_) => lost(unit, &hold).await,
        Err(NotHeld::Answer(what, answer)) => Err(NotHeld::LeftRegistered(what, answer)),
        Err(why) => Err(why),
    }
}

/// The keys that are registered with a unit; none where it has no persistent reservations.
pub async fn registered<U: Unit>(unit: &U) -> Result<Vec<Key>, NotHeld<U::Error>> {
    Ok(read_keys(unit).await?.map(|found| found.keys).unwrap_or_default())
}

/// Finds out whether a reservation keeps us, who reserve nothing, from writing. That depends on its type and on who is
/// registered, so the unit itself is asked: who may not write may not SYNCHRONIZE CACHE either (SBC-3, 4.17).
pub async fn may_write<U: Unit>(unit: &U) -> Result<(), NotHeld<U::Error>> {
    let data = match look(unit, ReserveInAction::ReadReservation).await? {
        Answer::Good(data) => data,
        Answer::Check(sense) if is_unknown(&sense) => return Err(NotHeld::Unsupported),
        _ => return Ok(()),
    };
    if !matches!(reservation(&data), Ok(Some(_))) {
        return Ok(());
    }
    let asked = unit.ask(Command::synchronize_cache(), Vec::new()).await;
    if asked.map_err(NotHeld::Unit)? != Answer::Conflict {
        return Ok(());
    }
    let keys = read_keys(unit).await?.map(|keys| keys.keys).unwrap_or_default();
    Err(NotHeld::By(registrants(unit, &keys).await?))
}

/// Finds out, in a new session of the same initiator port, whether the reservation is still held. Until it
/// says so nothing may be written: a writer that took the volume over may have come and gone.
pub async fn confirm<U: Unit>(
    unit: &U,
    hold: &OwnReservation,
) -> Result<OwnReservation, NotHeld<U::Error>> {
    let Some(Keys { generation, keys }) = read_keys(unit).await? else {
        return Err(NotHeld::Unsupported);
    };
    let held = read_reservation(unit).await?;
    let ours = held == Some((hold.key, KIND.code()));
    if ours {
        return rejoin(unit, *hold).await;
    }
    // The unit lost its power, and with it what it never promised to keep; PRGENERATION zero says that nobody
    // has registered since (SPC-4, 6.15.2).
    if held.is_none() && keys.is_empty() && generation == 0 && !hold.through_power_loss {
        return begin_anew(unit, *hold).await;
    }
    // So it did before, and was cut off before it reserved.
    if held.is_none() && keys == [hold.key] && generation == 1 && !hold.through_power_loss {
        return settle(unit, *hold).await;
    }
    if keys.contains(&hold.key) {
        return lost(unit, hold).await;
    }
    Err(NotHeld::By(registrants(unit, &keys).await?))
}

/// Registers and reserves again on a unit that nobody has registered with since it lost its power.
async fn begin_anew<U: Unit>(
    unit: &U,
    hold: OwnReservation,
) -> Result<OwnReservation, NotHeld<U::Error>> {
    let hold = OwnReservation { all_target_ports: false, ..hold };
    match ask(unit, ReserveOutAction::Register, hold.parameters()).await.map_err(NotHeld::Unit)? {
        Answer::Good(_) => {}
        answer => return Err(NotHeld::Answer("REGISTER", answer)),
    }
    // A writer may have come and gone before that arrived; then ours is not the first registration.
    match read_keys(unit).await? {
        Some(Keys { generation: 1, .. }) => settle(unit, hold).await,
        _ => lost(unit, &hold).await,
    }
}

/// Gives it back. To unregister its holder ends the reservation (SPC-4, 5.13.11.2.3). Whether the key is gone is asked
/// of the unit: some refuse, and some fail and unregister all the same.
pub async fn release<U: Unit>(unit: &U, hold: &OwnReservation) -> Result<Released, U::Error> {
    let answer = unregister(unit, hold).await?;
    if !is_registered(unit, hold.key, &answer).await? {
        return Ok(Released::Gone);
    }
    // To tgt, for one, each session is another I_T nexus: the holder is one of ours that is gone.
    if let Err(NotHeld::Unit(why)) = end_earlier(unit, hold).await {
        return Err(why);
    }
    let stays = is_registered(unit, hold.key, &answer).await?;
    Ok(if stays { Released::Registered(answer) } else { Released::Gone })
}

/// Whether `key` is still known to a unit that gave this `answer` when it was to be removed.
async fn is_registered<U: Unit>(unit: &U, key: Key, answer: &Answer) -> Result<bool, U::Error> {
    match read_keys(unit).await {
        Ok(Some(found)) => Ok(found.keys.contains(&key)),
        Err(NotHeld::Unit(why)) => Err(why),
        Ok(None) | Err(_) => Ok(!matches!(answer, Answer::Good(_))),
    }
}

/// Removes what earlier I_T nexuses have left registered under this key, which nobody else uses.
async fn end_earlier<U: Unit>(unit: &U, hold: &OwnReservation) -> Result<(), NotHeld<U::Error>> {
    let left = read_keys(unit).await?.is_some_and(|found| found.keys.contains(&hold.key));
    if !left {
        return Ok(());
    }
    let mut last = register(unit, !hold.key).await?;
    let ended = preempt_one(unit, &mut last, hold.key).await;
    unregister(unit, &last).await.map_err(NotHeld::Unit)?;
    ended.map(drop)
}

async fn unregister<U: Unit>(unit: &U, hold: &OwnReservation) -> Result<Answer, U::Error> {
    // APTPL as before: the unit goes by what it was told last, by whoever.
    let out = Parameters { key: hold.key, action_key: 0, ..hold.parameters() };
    let answer = ask(unit, ReserveOutAction::Register, out).await?;
    if hold.all_target_ports && !matches!(answer, Answer::Good(_)) {
        let out = Parameters { all_target_ports: false, ..out };
        return ask(unit, ReserveOutAction::Register, out).await;
    }
    Ok(answer)
}

/// The reservation is ours; the I_T nexus of this session may be another, where it came by another portal group.
async fn rejoin<U: Unit>(
    unit: &U,
    hold: OwnReservation,
) -> Result<OwnReservation, NotHeld<U::Error>> {
    // A registrant that gives its own key again changes nothing; of any other it is refused.
    let again = Parameters { key: hold.key, ..hold.parameters() };
    match ask(unit, ReserveOutAction::Register, again).await.map_err(NotHeld::Unit)? {
        // It is ours, as was just read. A target that has nowhere to keep it may say so to each registration; were this
        // I_T nexus not registered, its first write would meet the conflict.
        Answer::Good(_) | Answer::Check(_) => return Ok(hold),
        Answer::Conflict => {}
    }
    let mine = Parameters { all_target_ports: false, ..hold.parameters() };
    match ask(unit, ReserveOutAction::Register, mine).await.map_err(NotHeld::Unit)? {
        Answer::Good(_) | Answer::Conflict => {}
        answer => return Err(NotHeld::Answer("REGISTER", answer)),
    }
    // Only looked at, and not reserved again: it may have been taken away since it was looked at first.
    match read_reservation(unit).await? {
        Some((key, kind)) if key == hold.key && kind == KIND.code() => Ok(hold),
        _ => lost(unit, &hold).await,
    }
}

/// Registers this I_T nexus, with as much as the unit can do.
async fn register<U: Unit>(unit: &U, key: Key) -> Result<OwnReservation, NotHeld<U::Error>> {
    let can = capabilities(unit).await?;
    let announced = can.power_loss;
    let mut tries = vec![can, Capabilities { power_loss: false, ..can }, Capabilities::default()];
    tries.dedup();
    let mut refused = Answer::Conflict;
    for can in tries {
        let hold = OwnReservation {
            key,
            through_power_loss: can.power_loss,
            is_forgetful: can.power_loss != announced,
            leaves_tasks: false,
            all_target_ports: can.all_target_ports,
        };
        match ask(unit, ReserveOutAction::Register, hold.parameters())
            .await
            .map_err(NotHeld::Unit)?
        {
            Answer::Good(_) => return Ok(hold),
            // Some announce APTPL and have nowhere to keep anything.
            answer @ Answer::Check(_) => refused = answer,
            Answer::Conflict => {
                // The Linux kernel's target fails a registration that it has nowhere to keep, and registers all the
                // same: then this one came with the wrong key, none.
                let registered = matches!(refused, Answer::Check(_))
                    && read_keys(unit).await?.is_some_and(|found| found.keys.contains(&key));
                if registered {
                    let hold = OwnReservation { through_power_loss: false, ..hold };
                    return Ok(OwnReservation { is_forgetful: announced, ..hold });
                }
                refused = Answer::Conflict;
                break;
            }
        }
    }
    Err(NotHeld::Answer("REGISTER", refused))
}

/// Removes the registrations of `removals`, the holder's first: then the reservation is ours.
async fn preempt<U: Unit>(
    unit: &U,
    hold: &mut OwnReservation,
    mut removals: Vec<Key>,
) -> Result<(), NotHeld<U::Error>> {
    if removals.is_empty() {
        return Ok(());
    }
    removals.sort_unstable();
    removals.dedup();
    if let Some((holder, kind)) = look_as_registrant(unit, hold).await? {
        // One of all registrants is taken from all at once by key zero (SPC-4, table 72).
        let everyone = Kind::from_code(kind).is_some_and(Kind::all_hold);
        removals.retain(|key| *key != holder);
        removals.insert(0, if everyone { 0 } else { holder });
    }
    for victim in removals {
        match preempt_one(unit, hold, victim).await? {
            // Gone meanwhile. Whether that leaves the reservation to us is asked for next.
            Answer::Good(_) | Answer::Conflict => {}
            answer => return give_up(unit, hold, "PREEMPT AND ABORT", answer).await,
        }
    }
    Ok(())
}

/// Removes the registration of a victim. tgt, for one, does not know how to abort what that has under way.
async fn preempt_one<U: Unit>(
    unit: &U,
    hold: &mut OwnReservation,
    victim: Key,
) -> Result<Answer, NotHeld<U::Error>> {
    let out = Parameters::keys(hold.key, victim);
    let answer = ask(unit, ReserveOutAction::PreemptAndAbort, out).await.map_err(NotHeld::Unit)?;
    if !matches!(&answer, Answer::Check(sense) if is_unknown(sense)) {
        return Ok(answer);
    }
    hold.leaves_tasks = true;
    ask(unit, ReserveOutAction::Preempt, out).await.map_err(NotHeld::Unit)
}

/// Reserves, and makes sure of it; whoever does not get it does not stay registered.
async fn settle<U: Unit>(
    unit: &U,
    hold: OwnReservation,
) -> Result<OwnReservation, NotHeld<U::Error>> {
    let out = Parameters::keys(hold.key, 0);
    match ask(unit, ReserveOutAction::Reserve, out).await.map_err(NotHeld::Unit)? {
        Answer::Good(_) | Answer::Conflict => {}
        answer => return give_up(unit, &hold, "RESERVE", answer).await,
    }
    if look_as_registrant(unit, &hold).await? == Some((hold.key, KIND.code())) {
        return Ok(hold);
    }
    lost(unit, &hold).await
}

/// Does not stay registered, and tells who is.
async fn lost<U: Unit, T>(unit: &U, hold: &OwnReservation) -> Result<T, NotHeld<U::Error>> {
    unregister(unit, hold).await.map_err(NotHeld::Unit)?;
    let keys = read_keys(unit).await?.map(|keys| keys.keys).unwrap_or_default();
    Err(NotHeld::By(registrants(unit, &keys).await?))
}

async fn give_up<U: Unit, T>(
    unit: &U,
    hold: &OwnReservation,
    what: &'static str,
    answer: Answer,
) -> Result<T, NotHeld<U::Error>> {
    let refused = unregister(unit, hold).await.map_err(NotHeld::Unit)?;
    Err(match is_registered(unit, hold.key, &refused).await.map_err(NotHeld::Unit)? {
        false => NotHeld::Answer(what, answer),
        true => NotHeld::Registered(what, answer),
    })
}

/// The parameter list of PERSISTENT RESERVE OUT (SPC-4, 6.16.3).
#[derive(Clone, Copy, Debug)]
struct Parameters {
    key: Key,
    action_key: Key,
    all_target_ports: bool,
    through_power_loss: bool,
}

impl Parameters {
    const fn keys(key: Key, action_key: Key) -> Self {
        Self { key, action_key, all_target_ports: false, through_power_loss: false }
    }

    fn emit(self) -> Vec<u8> {
        let flags = u8::from(self.all_target_ports) << 2 | u8::from(self.through_power_loss);
        let mut list = [self.key.to_be_bytes(), self.action_key.to_be_bytes()].concat();
        list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
        list
    }
}

impl OwnReservation {
    /// To register it where it is not.
    const fn parameters(&self) -> Parameters {
        Parameters {
            all_target_ports: self.all_target_ports,
            through_power_loss: self.through_power_loss,
            ..Parameters::keys(0, self.key)
        }
    }
}

fn ask<U: Unit>(
    unit: &U,
    action: ReserveOutAction,
    list: Parameters,
) -> impl Future<Output = Result<Answer, U::Error>> + Send {
    let list = list.emit();
    let kind = match action {
        ReserveOutAction::Register => 0,
        _ => KIND.code(),
    };
    unit.ask(Command::persistent_reserve_out(action, kind, list.len() as u32), list)
}

async fn look<U: Unit>(unit: &U, action: ReserveInAction) -> Result<Answer, NotHeld<U::Error>> {
    let command = Command::persistent_reserve_in(action, ALLOCATION);
    unit.ask(command, Vec::new()).await.map_err(NotHeld::Unit)
}

/// READ KEYS data.
struct Keys {
    generation: u32,
    keys: Vec<Key>,
}

/// `None` where the unit does not know the command. No reservation stops it (SPC-4, table 65).
async fn read_keys<U: Unit>(unit: &U) -> Result<Option<Keys>, NotHeld<U::Error>> {
    match look(unit, ReserveInAction::ReadKeys).await? {
        Answer::Good(data) => {
            let keys = keys(&data).map_err(|_| NotHeld::Malformed("READ KEYS data"))?;
            Ok(Some(keys))
        }
        Answer::Check(sense) if is_unknown(&sense) => Ok(None),
        answer @ Answer::Check(_) => Err(NotHeld::Answer("READ KEYS", answer)),
        // RESERVE (6) of another stops this too (SPC-2, table 10).
        Answer::Conflict => Err(NotHeld::By(Registrants::default())),
    }
}

/// The unit does not know the command, or may not. One that is not there says neither.
const fn is_unknown(sense: &Sense) -> bool {
    sense.is_unknown_command() || sense.is_unexplained_refusal()
}

/// The key of the holder and the type.
async fn read_reservation<U: Unit>(unit: &U) -> Result<Option<(Key, u8)>, NotHeld<U::Error>> {
    match look(unit, ReserveInAction::ReadReservation).await? {
        Answer::Good(data) => {
            reservation(&data).map_err(|_| NotHeld::Malformed("READ RESERVATION data"))
        }
        answer => Err(NotHeld::Answer("READ RESERVATION", answer)),
    }
}

/// The same for one who has registered, and does not stay so if it cannot be told.
async fn look_as_registrant<U: Unit>(
    unit: &U,
    hold: &OwnReservation,
) -> Result<Option<(Key, u8)>, NotHeld<U::Error>> {
    match read_reservation(unit).await {
        Err(NotHeld::Answer(what, answer)) => give_up(unit, hold, what, answer).await,
        outcome => outcome,
    }
}

/// What the unit can do, as far as it is of use here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Capabilities {
    power_loss: bool,
    all_target_ports: bool,
}

async fn capabilities<U: Unit>(unit: &U) -> Result<Capabilities, NotHeld<U::Error>> {
    let Answer::Good(data) = look(unit, ReserveInAction::ReportCapabilities).await? else {
        return Ok(Capabilities::default());
    };
    let flags = data.get(2).copied().unwrap_or_default();
    // PTPL_C and ATP_C (SPC-4, 6.15.4).
    Ok(Capabilities { power_loss: flags & 0x01 != 0, all_target_ports: flags & 0x04 != 0 })
}

/// Who is registered, for a message: by name where the unit knows READ FULL STATUS.
async fn registrants<U: Unit>(unit: &U, keys: &[Key]) -> Result<Registrants, NotHeld<U::Error>> {
    if let Answer::Good(data) = look(unit, ReserveInAction::ReadFullStatus).await?
        && let Ok(mut found) = full_status(&data, unit.transports())
        && !found.is_empty()
    {
        found.sort_by_key(|registrant| !registrant.holder);
        return Ok(Registrants(found));
    }
    let held = read_reservation(unit).await?.map(|(key, _)| key);
    let registrant =
        |key: &Key| Registrant { key: *key, initiator: None, holder: held == Some(*key) };
    let mut found: Vec<_> = keys.iter().map(registrant).collect();
    found.sort_by_key(|registrant| !registrant.holder);
    Ok(Registrants(found))
}

/// The header of all PERSISTENT RESERVE IN data but the capabilities: PRGENERATION, and what follows, which may
/// have been cut.
fn body<'a>(data: &'a [u8]) -> Result<(u32, Reader<'a>), Truncated> {
    let mut reader = Reader::new(data);
    let generation = reader.u32()?;
    let length = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
    Ok((generation, reader.up_to(length)))
}

fn keys(data: &[u8]) -> Result<Keys, Malformed> {
    let (generation, mut reader) = body(data)?;
    let mut keys = Vec::new();
    while let Ok(key) = reader.u64() {
        keys.push(key);
    }
    Ok(Keys { generation, keys })
}

fn reservation(data: &[u8]) -> Result<Option<(Key, u8)>, Malformed> {
    let (_, mut reader) = body(data)?;
    if reader.rest().is_empty() {
        return Ok(None);
    }
    let key = reader.u64()?;
    let [_, _, _, _, _, scope_and_type] = reader.array()?;
    Ok(Some((key, scope_and_type & 0x0F)))
}

fn full_status(data: &[u8], known: Transports) -> Result<Vec<Registrant>, Malformed> {
    let (_, mut reader) = body(data)?;
    let mut found = Vec::new();
    while !reader.rest().is_empty() {
        let key = reader.u64()?;
        let [_, _, _, _, flags, ..] = reader.array::<12>()?;
        let length = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
        let mut id = reader.up_to(length);
        let initiator = known.read(&mut id).ok().and_then(|id| known.device_of(&id));
        found.push(Registrant { key, initiator, holder: flags & 0x01 != 0 });
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
