//! The header work that is left to libcryptsetup: making one, opening slots, adding and wiping them.
//! It works on a private file in memory, and on nothing else. Everything here blocks, for seconds when
//! Argon2 runs.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use libcryptsetup_rs::consts::flags::{CryptActivate, CryptVolumeKey};
use libcryptsetup_rs::consts::vals::{CryptLogLevel, EncryptionFormat};
use libcryptsetup_rs::{
    CryptDevice, CryptInit, CryptParamsLuks2, CryptParamsLuks2Ref, Either, LibcryptErr, TokenInput,
    c_logging_callback, set_log_callback,
};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use zeroize::Zeroizing;

use super::cipher_args::CipherArgs;
use super::cost::{self, CostArgs, CostLimit};
use super::header::{Header, Metadata};
use super::image::Image;
use super::token_kind;
use crate::failure::{Failure, OrFail, Outcome};
use crate::secret::{Secret, keep};
use crate::size::Size;

/// How many bytes of a volume a new header takes: cryptsetup's default for LUKS2.
pub(super) const NEW_HEADER_SIZE: u64 = 16 << 20;

/// The sector size of new volumes: the fewest tweaks per byte, and what file systems use.
const NEW_SECTOR_SIZE: u32 = 4096;

/// Makes a header with one slot for a volume of `volume_size` bytes.
pub(super) fn format(
    volume_size: u64,
    label: Option<String>,
    cipher: CipherArgs,
    secret: &Secret,
    cost: &CostArgs,
) -> Outcome<Vec<u8>> {
    let what = || "cannot make a LUKS2 header".to_owned();
    let pbkdf = cost.pbkdf()?;
    let params = CryptParamsLuks2 {
        pbkdf: Some(pbkdf),
        integrity: None,
        integrity_params: None,
        data_alignment: 0,
        data_device: None,
        sector_size: NEW_SECTOR_SIZE,
        label,
        subsystem: None,
    };
    on_file(vec![0; NEW_HEADER_SIZE as usize], volume_size, |device| {
        let mut params: CryptParamsLuks2Ref<'_> = (&params).try_into().or_fail(what)?;
        device.set_data_offset(NEW_HEADER_SIZE / 512).or_fail(what)?;
        device
            .context_handle()
            .format(
                EncryptionFormat::Luks2,
                ("aes", "xts-plain64"),
                None,
                Either::Right(cipher.key_size.bytes()),
                Some(&mut params),
            )
            .or_fail(what)?;
        let mut slots = device.keyslot_handle();
        let key_of_format = None;
        slots
            .add_by_key(None, key_of_format, secret.expose(), CryptVolumeKey::empty())
            .or_fail(what)
            .map(drop)
    })
    .map(|(bytes, ())| bytes)
}

/// The most bytes that are taken for a key, which has at most 64: a hostile size must not become an allocation.
const KEY_MAX: u32 = 512;

/// A volume key, and the slot that gave it.
pub(super) struct Opened {
    /// The number of the slot.
    pub(super) slot: u32,
    /// The volume key, wiped when dropped.
    pub(super) key: Zeroizing<Vec<u8>>,
}

/// The most slots that a header has (LUKS2_KEYSLOTS_MAX of cryptsetup).
const SLOTS_MAX: usize = 32;

/// Refuses what takes another slot where there is none left.
pub(super) fn refuse_full(header: &Header) -> Outcome {
    if header.metadata.keyslots.len() < SLOTS_MAX {
        return Ok(());
    }
    Err(Failure::new(format!("cannot add a key slot: all {SLOTS_MAX} are in use"))
        .hint("`longhaul key remove` frees one; `longhaul key list` shows them"))
}

/// What became of a secret.
pub(super) enum UnlockResult {
    /// It opened a slot.
    Opened(Opened),
    /// It opened none: a person may have mistyped it.
    None(Failure),
}

impl UnlockResult {
    /// The slot, for those who try once.
    pub(super) fn opened(self) -> Outcome<Opened> {
        match self {
            Self::Opened(opened) => Ok(opened),
            Self::None(why) => Err(why),
        }
    }
}

/// Opens the first slot that `secret` opens.
pub(super) fn open(image: &Image, volume_size: u64, secret: &Secret) -> Outcome<UnlockResult> {
    let order = slots_to_try(&image.header);
    let damaged = damaged(image, &order);
    let copy = image.bytes.clone();
    on_file(copy, volume_size, |device| {
        load(device)?;
        let (mut too_large, mut allowance) = (None, CostLimit::new());
        for slot in order {
            match open_slot(device, &image.header, slot, (secret, &mut allowance))? {
                Attempt::Opened(opened) => return Ok(UnlockResult::Opened(opened)),
                Attempt::Wrong => {}
                Attempt::TooLarge(refusal) => too_large = Some((slot, refusal)),
            }
        }
        Ok(UnlockResult::None(match too_large {
            None if !damaged.is_empty() => Failure::new(format!(
                "no key slot opens; key slot {damaged} is damaged: the pass-phrase or key file may be right"
            ))
            .hint("`longhaul key restore` brings the key slots back from a backup"),
            None => Failure::new("no key slot opens with this pass-phrase or key file"),
            Some((slot, (why, hint))) => Failure::new(format!(
                "no key slot opened; slot {slot} was not tried, for {why}"
            ))
            .hint(hint),
        }))
    })
    .map(|(_, opened)| opened)
}

/// The slots whose material was overwritten, as far as that is seen.
fn damaged(image: &Image, slots: &[u32]) -> String {
    let damaged = slots.iter().filter(|&&slot| image.header.is_damaged(slot, &image.bytes));
    damaged.map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Every slot but `beside` that `secret` opens.
pub(super) fn slots_opened(
    image: &Image,
    volume_size: u64,
    secret: &Secret,
    beside: Option<u32>,
) -> Outcome<Vec<u32>> {
    let mut slots = slots_to_try(&image.header);
    slots.retain(|slot| Some(*slot) != beside);
    on_file(image.bytes.clone(), volume_size, |device| {
        load(device)?;
        let (mut opened, mut allowance) = (Vec::new(), CostLimit::new());
        for slot in slots {
            let with = (secret, &mut allowance);
            if let Attempt::Opened(_) = open_slot(device, &image.header, slot, with)? {
                opened.push(slot);
            }
        }
        Ok(opened)
    })
    .map(|(_, opened)| opened)
}

/// The same of a volume key that an earlier process had: whether it is that of this header.
pub(super) fn verify(image: &Image, volume_size: u64, key: &[u8]) -> Outcome<bool> {
    on_file(image.bytes.clone(), volume_size, |device| {
        load(device)?;
        match device.volume_key_handle().verify(key) {
            Ok(()) => Ok(true),
            Err(why) if is(&why, rustix::io::Errno::PERM) => Ok(false),
            Err(why) => Err(Failure::new("cannot verify the volume key").because(why)),
        }
    })
    .map(|(_, is_its)| is_its)
}

enum Attempt {
    Opened(Opened),
    Wrong,
    /// Why, and what can be done.
    TooLarge((String, String)),
}

/// Slots in the order in which cryptsetup tries them; those with priority 0 only when named.
fn slots_to_try(header: &Header) -> Vec<u32> {
    let of = |wanted| header.volume_slots().filter(move |(_, slot)| slot.priority == wanted);
    of(2).chain(of(1)).map(|(number, _)| number).collect()
}

fn open_slot(
    device: &mut CryptDevice,
    header: &Header,
    slot: u32,
    (secret, allowance): (&Secret, &mut CostLimit),
) -> Outcome<Attempt> {
    let Some(keyslot) = header.metadata.keyslots.get(&slot) else { return Ok(Attempt::Wrong) };
    if let Some(refusal) = allowance.refusal(keyslot.kdf.as_ref(), header.digest_iterations()) {
        return Ok(Attempt::TooLarge(refusal));
    }
    let mut key = Zeroizing::new(vec![0; keyslot.key_size.min(KEY_MAX) as usize]);
    keep(&key);
    let opened = device.volume_key_handle().get(Some(slot), &mut key, Some(secret.expose()));
    match opened {
        Ok((slot, size)) => {
            key.truncate(size);
            Ok(Attempt::Opened(Opened { slot: slot as u32, key }))
        }
        Err(why) if is(&why, rustix::io::Errno::PERM) || is(&why, rustix::io::Errno::NOENT) => {
            Ok(Attempt::Wrong)
        }
        Err(why) if is(&why, rustix::io::Errno::NOMEM) => {
            let memory = keyslot.kdf.as_ref().and_then(|kdf| kdf.memory).map_or(0, u64::from);
            let memory = Size(memory << 10);
            let why = format!("it takes {memory} of memory, which the system did not give");
            let hint = "end other programs, or use a machine with more memory";
            Ok(Attempt::TooLarge((why, hint.to_owned())))
        }
        Err(why) => Err(Failure::new(format!("cannot open key slot {slot}")).because(why)),
    }
}

fn is(error: &LibcryptErr, errno: rustix::io::Errno) -> bool {
    matches!(error, LibcryptErr::IOError(why) if why.raw_os_error() == Some(errno.raw_os_error()))
}

/// The header with one more slot, which `new` opens.
pub(super) fn add(
    image: &Image,
    volume_size: u64,
    opened: &Opened,
    new: &Secret,
    cost: &CostArgs,
) -> Outcome<(Vec<u8>, u32)> {
    let pbkdf = cost.pbkdf()?;
    on_file(image.bytes.clone(), volume_size, |device| {
        load(device)?;
        let what = || "cannot add a key slot".to_owned();
        device.settings_handle().set_pbkdf_type(&pbkdf).or_fail(what)?;
        let mut slots = device.keyslot_handle();
        let key = Some(Either::Left(&opened.key[..]));
        slots.add_by_key(None, key, new.expose(), CryptVolumeKey::empty()).map_err(|why| {
            let full = is(&why, rustix::io::Errno::INVAL) || is(&why, rustix::io::Errno::NOSPC);
            let failure = Failure::new(what()).because(why);
            if full { failure.hint("all slots may be in use: remove one first") } else { failure }
        })
    })
}

/// The header without `slot`, whose material is wiped.
pub(super) fn destroy(image: &Image, volume_size: u64, slot: u32) -> Outcome<Vec<u8>> {
    on_file(image.bytes.clone(), volume_size, |device| {
        load(device)?;
        device.keyslot_handle().destroy(slot).or_fail(|| format!("cannot remove key slot {slot}"))
    })
    .map(|(bytes, ())| bytes)
}

/// The header with a new volume key, which only `secret` opens, at the cost of slot `like`: every other slot is
/// gone, and the tokens with them but for those of a writer and a journal. The new key comes with it.
pub(super) fn rekey(
    image: &Image,
    volume_size: u64,
    secret: &Secret,
    like: u32,
) -> Outcome<(Vec<u8>, Opened)> {
    let what = || "cannot make a new volume key".to_owned();
    let Metadata { keyslots, tokens, .. } = &image.header.metadata;
    let model =
        keyslots.get(&like).ok_or_else(|| Failure::new(format!("key slot {like} is gone")))?;
    let pbkdf = model.kdf.as_ref().and_then(cost::like);
    let pbkdf = pbkdf.map_or_else(|| CostArgs::default().pbkdf(), Ok)?;
    let mut key = Zeroizing::new(vec![0; model.key_size.min(KEY_MAX) as usize]);
    keep(&key);
    getrandom::fill(&mut key).or_fail(what)?;
    let (bytes, slot) = on_file(image.bytes.clone(), volume_size, |device| {
        load(device)?;
        device.settings_handle().set_pbkdf_type(&pbkdf).or_fail(what)?;
        let mut slots = device.keyslot_handle();
        let new = Some(Either::Left(&key[..]));
        let slot =
            slots.add_by_key(None, new, secret.expose(), CryptVolumeKey::SET).or_fail(what)?;
        for old in keyslots.keys() {
            slots.destroy(*old).or_fail(what)?;
        }
        // They open slots that are gone. Those of a writer and a journal open none.
        for (token, _) in tokens.iter().filter(|(_, token)| !token_kind::is_note(token)) {
            device.token_handle().json_set(TokenInput::RemoveToken(*token)).or_fail(what)?;
        }
        Ok(slot)
    })?;
    Ok((bytes, Opened { slot, key }))
}

/// The header with both its copies as the newest one is, and with the flag that discards are passed on if
/// that is wanted.
pub(super) fn settled(image: &Image, volume_size: u64, pass_discards: bool) -> Outcome<Vec<u8>> {
    let what = || "cannot set the flag allow-discards".to_owned();
    on_file(image.bytes.clone(), volume_size, |device| {
        load(device)?;
        if pass_discards && !image.header.passes_discards() {
            let mut flags = device.luks2_flag_handle::<CryptActivate>();
            let set = flags.persistent_flags_get().or_fail(what)?;
            flags.persistent_flags_set(set | CryptActivate::ALLOW_DISCARDS).or_fail(what)?;
        }
        Ok(())
    })
    .map(|(bytes, ())| bytes)
}

/// The header without the tokens of these numbers, and with another one.
pub(super) fn with_token(
    image: &Image,
    volume_size: u64,
    without: &[u32],
    new: Option<&impl Serialize>,
) -> Outcome<Vec<u8>> {
    let what = || "cannot change the tokens of the header".to_owned();
    let new = new.map(serde_json::to_value).transpose().or_fail(what)?;
    on_file(image.bytes.clone(), volume_size, |device| {
        load(device)?;
        let mut tokens = device.token_handle();
        for old in without {
            tokens.json_set(TokenInput::RemoveToken(*old)).or_fail(what)?;
        }
        new.iter()
            .try_for_each(|new| tokens.json_set(TokenInput::AddToken(new)).or_fail(what).map(drop))
    })
    .map(|(bytes, ())| bytes)
}

/// Loads a header, and with it has libcryptsetup check it and repair one damaged or older copy.
fn load(device: &mut CryptDevice) -> Outcome {
    device
        .context_handle()
        .load::<()>(Some(EncryptionFormat::Luks2), None)
        .or_fail(|| "libcryptsetup does not take the LUKS2 header".to_owned())
}

/// Has libcryptsetup check a header.
pub(super) fn check(image: &Image, volume_size: u64) -> Outcome {
    on_file(image.bytes.clone(), volume_size, load).map(drop)
}

c_logging_callback!(log, (), log_message);

/// Without it the library prints its warnings to the standard output, amid the data that a command writes there.
fn log_message(level: CryptLogLevel, message: &str, _: Option<&mut ()>) {
    tracing::debug!(?level, message, "libcryptsetup");
}

/// Lets `act` work on a file that holds `header` and looks as long as the volume, and answers what the
/// header became. The file is memory: no key material reaches a disk, and it is gone with the process.
fn on_file<T>(
    mut header: Vec<u8>,
    volume_size: u64,
    act: impl FnOnce(&mut CryptDevice) -> Outcome<T>,
) -> Outcome<(Vec<u8>, T)> {
    let what = || "cannot work on the header in memory".to_owned();
    let mut file = private_file(&header, volume_size).or_fail(what)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    set_log_callback::<()>(Some(log), None);
    let mut device = CryptInit::init(Path::new(&path)).or_fail(what)?;
    let answer = act(&mut device)?;
    drop(device);
    file.rewind().and_then(|()| file.read_exact(&mut header)).or_fail(what)?;
    Ok((header, answer))
}

fn private_file(header: &[u8], volume_size: u64) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"longhaul-luks2", MemfdFlags::CLOEXEC)?);
    file.write_all(header)?;
    // libcryptsetup aligns and checks against the size of the whole device; the rest is a hole.
    file.set_len(volume_size)?;
    Ok(file)
}
