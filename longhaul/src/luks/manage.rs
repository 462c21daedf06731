//! What the `key` command does, over any volume.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use volume::{Durability, Space, Span, Volume};

use super::cipher_args::CipherArgs;
use super::cost::CostArgs;
use super::header::{CIPHER, HEADER_SIZES, Header, HeaderError, is_first_copy, is_second_copy};
use super::image::{Image, ImageError, read};
use super::library::{self, NEW_HEADER_SIZE, Opened};
use super::writeback::{self, Before};
use super::{Key, blocking, damage, header_recovery, narrowed, recorded_size};
use crate::data_spans::next_data;
use crate::durable::sync_directory_of;
use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::printable::Shown as _;
use crate::progress::Spinner;
use crate::secret::Secret;
use crate::signatures;

/// How much of a volume that has data is read at once, to see whether they are all zeroes.
const PIECE: u64 = 1 << 20;

/// The largest header there is: both copies and all slots.
const BACKUP_MAX: u64 = 2 * HEADER_SIZES[8] + (128 << 20);

/// How a volume is to be encrypted.
#[derive(Clone, Debug, Default)]
pub struct Init {
    /// A name for people.
    pub label: Option<String>,
    /// How its data are encrypted.
    pub cipher: CipherArgs,
    /// What the pass-phrase costs.
    pub cost: CostArgs,
    /// Encrypt it even if there is something on it.
    pub force: bool,
}

/// Makes a new header; all that was on the volume is lost. Answers the UUID.
pub async fn init(volume: Arc<dyn Volume>, key: impl Into<Key>, how: Init) -> Outcome<String> {
    let volume = narrowed(volume);
    let size = volume.shape().size;
    if size <= NEW_HEADER_SIZE {
        return Err(Failure::new(format!(
            "the volume has {size} bytes; the header alone takes {NEW_HEADER_SIZE}"
        )));
    }
    let found = look(&volume, how.force).await?;
    let secret = key.into().read().await?;
    // Somebody may have typed for minutes. Another volume may have come in its place, or another have used this one.
    if look(&volume, how.force).await? != found {
        return Err(Failure::new("the start of the volume has changed since it was looked at; nothing was written")
            .hint("somebody else writes to it, or another volume has come in its place: look, then try again"));
    }
    let spinner = Spinner::new("deriving a key from the pass-phrase");
    let image = blocking(move || {
        let bytes = library::format(size, how.label, how.cipher, &secret, &how.cost)?;
        recorded_size::record(&Image::changed(bytes, size)?, size).map(Image::without_noise)
    })
    .await?;
    drop(spinner);
    put(&volume, &image).await.map_err(|why| {
        why.hint(
            "the volume is not encrypted, or cannot be relied on to open; what was at its start is lost: once it can be written, \
             `longhaul key init --force` begins anew",
        )
    })?;
    Ok(image.header.uuid)
}

/// Refuses a volume that holds anything, as far as that can be seen; nothing is written.
pub async fn refuse_unless_blank(volume: Arc<dyn Volume>) -> Outcome {
    look(&narrowed(volume), false).await.map(drop)
}

/// Writes the first header of a volume.
async fn put(volume: &Arc<dyn Volume>, image: &Image) -> Outcome {
    let what = || "cannot clear the place of the header".to_owned();
    let place = Span::new(0, NEW_HEADER_SIZE);
    volume.write_zeroes(place, Durability::Volatile, Space::Keep).await.or_fail(what)?;
    volume.flush().await.or_fail(what)?;
    writeback::write(volume, Before::Zeroes, image).await
}

/// The start of the volume, whose use is refused unless that is allowed.
async fn look(volume: &Arc<dyn Volume>, force: bool) -> Outcome<Vec<u8>> {
    let start = Span::new(0, 2 * HEADER_SIZES[0]);
    let start = read(volume, start).await.or_fail(|| LOOK.to_owned())?;
    if !force {
        refuse_if_used(volume, &start).await?;
    }
    Ok(start)
}

const LOOK: &str = "cannot look at what is on the volume";

/// Looks at all that is cleared, and for what is known by its end.
async fn refuse_if_used(volume: &Arc<dyn Volume>, start: &[u8]) -> Outcome {
    let look = || LOOK.to_owned();
    let header = found_header(start);
    let found = match header.or(signatures::recognise(&**volume).await.or_fail(look)?) {
        Some(known) => known,
        None if is_zero(&**volume, NEW_HEADER_SIZE.min(volume.shape().size))
            .await
            .or_fail(look)? =>
        {
            return Ok(());
        }
        None => "data",
    };
    Err(Failure::new(format!("the volume is not empty: it holds {found}"))
        .hint("`longhaul key init --force` encrypts it all the same; everything on it is lost"))
}

/// The header that `start` begins with, or what is left of one.
fn found_header(start: &[u8]) -> Option<&'static str> {
    let second = start.get(HEADER_SIZES[0] as usize..).is_some_and(is_second_copy);
    match () {
        () if is_first_copy(start) => Some("a LUKS header"),
        () if second => Some("the second copy of a LUKS2 header"),
        () => None,
    }
}

/// Whether the first `len` bytes are zeroes. What the map calls so is not read.
async fn is_zero(volume: &dyn Volume, len: u64) -> volume::Result<bool> {
    let mut rest = Span::new(0, len);
    while let Some(data) = next_data(volume, rest).await? {
        let piece = Span::new(data.at, PIECE.min(data.len));
        if volume.read(piece).await?.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        rest = Span::new(piece.end(), len - piece.end());
    }
    Ok(true)
}

/// A header and the volume it is on.
struct HeaderOnVolume {
    volume: Arc<dyn Volume>,
    image: Arc<Image>,
}

impl HeaderOnVolume {
    async fn fetch(volume: Arc<dyn Volume>) -> Outcome<Self> {
        let volume = narrowed(volume);
        let image = Image::fetch(&volume).await.map_err(ImageError::into_failure)?;
        Ok(Self { volume, image: Arc::new(image) })
    }

    fn size(&self) -> u64 {
        self.volume.shape().size
    }

    /// Opens a slot with `key`. From then on the header is known to be the owner's, and what is wrong with it is
    /// put right.
    async fn open(&mut self, key: &Key) -> Outcome<(Opened, Secret)> {
        let opened = key.open(&self.image, self.size()).await?;
        self.image = header_recovery::finish(&self.volume, Arc::clone(&self.image), false).await?;
        Ok(opened)
    }

    /// The slots that `secret` opens, without `beside`.
    async fn slots_opened(&self, secret: &Secret, beside: Option<u32>) -> Outcome<Vec<u32>> {
        let _spinner = Spinner::new("trying the pass-phrase on the other key slots");
        let (image, size, secret) = (Arc::clone(&self.image), self.size(), secret.clone());
        blocking(move || library::slots_opened(&image, size, &secret, beside)).await
    }

    /// Tells of a pass-phrase that is about to be in two slots: who removes one of them has not removed it.
    async fn tell_of_two(&self, new: &Secret, beside: Option<u32>) -> Outcome {
        if let Some(slot) = self.slots_opened(new, beside).await?.first() {
            print_error(&format_args!(
                "longhaul: the new pass-phrase opens key slot {slot} already: it will be in two slots"
            ));
        }
        Ok(())
    }

    /// Tells of a pass-phrase that was in two slots: one of them is still there.
    async fn tell_of_remaining(&self, what: &str, secret: &Secret, beside: Option<u32>) -> Outcome {
        let slots = self.slots_opened(secret, beside).await?;
        if !slots.is_empty() {
            print_error(&format_args!("longhaul: {what} still opens {}", named(&slots)));
        }
        Ok(())
    }

    async fn add(&mut self, opened: Opened, new: Secret, cost: CostArgs) -> Outcome<u32> {
        let (image, size) = (Arc::clone(&self.image), self.size());
        let spinner = Spinner::new("deriving a key from the new pass-phrase");
        let (changed, slot) = blocking(move || {
            let (bytes, slot) = library::add(&image, size, &opened, &new, &cost)?;
            Ok((Image::changed(bytes, size)?, slot))
        })
        .await?;
        drop(spinner);
        self.bring_back(changed).await?;
        Ok(slot)
    }

    async fn destroy(&mut self, slot: u32) -> Outcome {
        let (image, size) = (Arc::clone(&self.image), self.size());
        let changed =
            blocking(move || Image::changed(library::destroy(&image, size, slot)?, size)).await?;
        self.bring_back(changed).await
    }

    async fn bring_back(&mut self, changed: Image) -> Outcome {
        writeback::write(&self.volume, Before::Changed(&self.image), &changed).await?;
        self.image = Arc::new(changed);
        Ok(())
    }
}

/// Adds a slot that `new` opens, and answers its number.
pub async fn add(
    volume: Arc<dyn Volume>,
    existing: impl Into<Key>,
    new: impl Into<Key>,
    cost: CostArgs,
) -> Outcome<u32> {
    let mut held = HeaderOnVolume::fetch(volume).await?;
    library::refuse_full(&held.image.header)?;
    let (opened, _) = held.open(&existing.into()).await?;
    let new = new.into().read().await?;
    held.tell_of_two(&new, None).await?;
    held.add(opened, new, cost).await
}

/// Replaces the slot that `old` opens by one that `new` opens: first the new one is there, then the
/// old one goes. Answers the number of the new one.
pub async fn change(
    volume: Arc<dyn Volume>,
    old: impl Into<Key>,
    new: impl Into<Key>,
    cost: CostArgs,
) -> Outcome<u32> {
    let mut held = HeaderOnVolume::fetch(volume).await?;
    library::refuse_full(&held.image.header)?;
    let (opened, replaced) = held.open(&old.into()).await?;
    let gone = opened.slot;
    let new = new.into().read().await?;
    held.tell_of_two(&new, Some(gone)).await?;
    let slot = held.add(opened, new, cost).await?;
    held.destroy(gone).await.map_err(|why| {
        why.within(&format!("key slot {slot} opens with the new pass-phrase, but removing the old key slot {gone} failed"))
    })?;
    held.tell_of_remaining("the old pass-phrase", &replaced, Some(slot)).await?;
    Ok(slot)
}

/// Wipes a slot: the one that `secret` opens, or `slot`, for which `secret` must open another one.
/// The last one goes only by `force`, for without a slot nobody ever opens the volume again.
pub async fn remove(
    volume: Arc<dyn Volume>,
    key: Option<Key>,
    slot: Option<u32>,
    force: bool,
) -> Outcome<u32> {
    let mut held = HeaderOnVolume::fetch(volume).await?;
    let mut removed = None;
    let gone = match (slot, key) {
        (None, None) => return Err(Failure::usage("name a slot, or a pass-phrase that opens one")),
        (None, Some(key)) => {
            let (opened, secret) = held.open(&key).await?;
            removed = Some(secret);
            opened.slot
        }
        (Some(slot), key) => {
            held.may_go(slot, key.as_ref()).await?;
            slot
        }
    };
    if !force {
        held.refuse_last(gone)?;
    }
    held.destroy(gone)
        .await
        .map_err(|why| why.within(&format!("removing key slot {gone} failed")))?;
    if let Some(secret) = removed {
        held.tell_of_remaining("the pass-phrase", &secret, None).await?;
    }
    Ok(gone)
}

/// What `key test` found.
#[derive(Debug, Serialize)]
pub struct Test {
    /// The slots that it opens: one, unless somebody has set it twice.
    pub slots: Vec<u32>,
}

/// Tries a pass-phrase or key file; one that opens nothing is a failure. Nothing is written.
pub async fn test(volume: Arc<dyn Volume>, key: impl Into<Key>) -> Outcome<Test> {
    let held = HeaderOnVolume::fetch(volume).await?;
    header_recovery::report(&held.image);
    recorded_size::report(&held.image.header, held.volume.shape().size);
    let (first, secret) = key.into().open(&held.image, held.size()).await?;
    let others = held.slots_opened(&secret, Some(first.slot)).await?;
    Ok(Test { slots: [vec![first.slot], others].concat() })
}

impl HeaderOnVolume {
    /// Refuses to remove the last slot that may open the volume.
    fn refuse_last(&self, gone: u32) -> Outcome {
        let damaged = damage::damaged_slots(&self.image);
        let mut others = self.image.header.volume_slots().map(|(slot, _)| slot);
        if others.any(|slot| slot != gone && !damaged.contains(&slot)) {
            return Ok(());
        }
        let what = match &damaged[..] {
            [] => "this is the last key slot: without it the data are lost".to_owned(),
            slots => {
                let are = if slots.len() == 1 { "is" } else { "are" };
                let slots = named(slots);
                format!(
                    "this is the last key slot that may open: {slots} {are} damaged; without it the data are lost"
                )
            }
        };
        Err(Failure::new(what).hint("add another one first; --force removes it all the same"))
    }

    /// Whoever names a slot must show that he is not locking himself out.
    async fn may_go(&mut self, slot: u32, key: Option<&Key>) -> Outcome {
        if !self.image.header.metadata.keyslots.contains_key(&slot) {
            return Err(Failure::new(format!("there is no key slot {slot}")));
        }
        let Some(key) = key else { return Ok(()) };
        if self.open(key).await?.0.slot == slot {
            return Err(Failure::new(format!("the pass-phrase given opens slot {slot} itself"))
                .hint("give one that will still open the volume, or --force without any"));
        }
        Ok(())
    }
}

/// What `key list` shows.
#[derive(Debug, Serialize)]
pub struct Slots {
    /// The identity of the volume.
    pub uuid: String,
    /// Its name for people.
    pub label: String,
    /// The cipher of the data.
    pub cipher: &'static str,
    /// Where the data start.
    pub offset: u64,
    /// How many bytes there are.
    pub size: u64,
    /// The size of a sector.
    pub sector_size: u32,
    /// Which copy of the header is damaged, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// The slots in use.
    pub slots: Vec<Slot>,
}

/// One slot.
#[derive(Debug, Serialize)]
pub struct Slot {
    /// Its number.
    pub slot: u32,
    /// The size of the volume key in bits.
    pub key_bits: u32,
    /// What it holds was overwritten: no pass-phrase opens it.
    pub damaged: bool,
    /// The key derivation function.
    pub kdf: Option<String>,
    /// Argon2: passes.
    pub time: Option<u32>,
    /// Argon2: KiB of memory.
    pub memory_kib: Option<u32>,
    /// Argon2: threads.
    pub threads: Option<u32>,
    /// PBKDF2: iterations.
    pub iterations: Option<u32>,
}

/// Reads what the header says of itself; no secret is needed.
pub async fn slots(volume: Arc<dyn Volume>) -> Outcome<Slots> {
    let held = HeaderOnVolume::fetch(volume).await?;
    recorded_size::report(&held.image.header, held.volume.shape().size);
    let Image { header, payload, .. } = &*held.image;
    let slots = header.metadata.keyslots.iter().map(|(&slot, keyslot)| {
        let kdf = keyslot.kdf.as_ref();
        Slot {
            slot,
            key_bits: keyslot.key_size.saturating_mul(8),
            damaged: header.is_damaged(slot, &held.image.bytes),
            kdf: kdf.map(|kdf| kdf.kind.clone()),
            time: kdf.and_then(|kdf| kdf.time),
            memory_kib: kdf.and_then(|kdf| kdf.memory),
            threads: kdf.and_then(|kdf| kdf.cpus),
            iterations: kdf.and_then(|kdf| kdf.iterations),
        }
    });
    Ok(Slots {
        uuid: header.uuid.clone(),
        label: header.label.clone(),
        cipher: CIPHER,
        offset: payload.span.at,
        size: payload.span.len,
        sector_size: payload.sector_size,
        damage: held.image.damaged.map(|place| format!("{place} of the header is damaged")),
        slots: slots.collect(),
    })
}

/// Writes a damaged copy of the header anew from the other one, which is whole; otherwise there is no header that can be read.
/// No secret is needed, since no key slot is touched.
pub async fn repair(volume: Arc<dyn Volume>) -> Outcome {
    let HeaderOnVolume { volume, image } = HeaderOnVolume::fetch(volume).await?;
    if image.damaged.is_some() {
        header_recovery::finish(&volume, image, false).await?;
    }
    Ok(())
}

/// Writes the header to a new file, from which [`restore`] and `cryptsetup luksHeaderRestore` bring it
/// back. Tells what of it is damaged.
pub async fn backup(volume: Arc<dyn Volume>, path: &Path) -> Outcome {
    let held = HeaderOnVolume::fetch(volume).await?;
    let what = || format!("cannot write the backup {}", path.shown());
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).or_fail(what)?;
    let written = file.write_all(&held.image.bytes).and_then(|()| file.sync_all());
    let written = written.and_then(|()| sync_directory_of(path));
    if written.is_err() {
        // Half a backup must not be taken for one.
        let _ = std::fs::remove_file(path);
    }
    written.or_fail(what)?;
    for damage in damage::damage(&held.image) {
        print_error(&format_args!("longhaul: {damage}, and the backup has it as it is"));
    }
    Ok(())
}

/// How a header is to be brought back.
#[derive(Clone, Debug, Default)]
pub struct Restore {
    /// Check first that this opens the backup.
    pub secret: Option<Secret>,
    /// Restore it even where the volume has no header that can be read, or one with key slots that the backup lacks.
    pub force: bool,
    /// Restore it even over the header of the volume with this UUID, whose data nobody can read any more after that.
    pub replace: Option<String>,
}

const RESTORE_AGAIN: &str = "the header on the volume may be incomplete; that of the backup is whole: once the volume can be \
    written, restore it again, with --force";

/// Replaces the header by the backup at `path`, and answers its UUID.
pub async fn restore(volume: Arc<dyn Volume>, path: &Path, how: Restore) -> Outcome<String> {
    let volume = narrowed(volume);
    let size = volume.shape().size;
    let backup = read_backup(path, size)?;
    let Restore { secret, force, replace } = how;
    let (backup, proven) = blocking(move || {
        library::check(&backup, size)?;
        let open = |secret: Secret| library::open(&backup, size, &secret)?.opened();
        let proven = secret.map(open).transpose()?.map(|opened| opened.slot);
        Ok((backup, proven))
    })
    .await?;
    let current = current(&volume, &backup, force, replace.as_deref()).await?;
    // What --replace gives up needs nothing of its header any more.
    let kept = replace.is_none();
    let compared = current.as_ref().filter(|_| kept);
    if let Some(current) = compared {
        compare_slots(&current.header, &backup.header, force)?;
    }
    damage::refuse_damaged(compared, &backup, proven, force)?;
    let discards = current.as_ref().map(|current| kept && current.header.passes_discards());
    let backup = with_discards(repaired(backup, size).await?, size, discards).await?;
    writeback::write(&volume, Before::Replaced(current.as_ref()), &backup)
        .await
        .map_err(|why| why.hint(RESTORE_AGAIN))?;
    Ok(backup.header.uuid)
}

/// Refuses to take pass-phrases away without being told to, and tells which slots come back: their pass-phrases may
/// have been removed because others know them.
fn compare_slots(current: &Header, backup: &Header, force: bool) -> Outcome {
    let (lost, revived) = (current.slots_without(backup), backup.slots_without(current));
    if !lost.is_empty() && !force {
        let back = if revived.is_empty() {
            String::new()
        } else {
            format!(", and what was in {} opens the volume again", named(&revived))
        };
        return Err(Failure::new("the header of the volume is whole, and the backup is older")
            .because(format!("{} of the volume would be lost{back}", named(&lost)))
            .hint(
                "`longhaul key backup` saves the header that is there now; --force restores the older one all the same",
            ));
    }
    if !revived.is_empty() {
        print_error(&format_args!(
            "longhaul: what was in {} when the backup was made opens the volume again",
            named(&revived)
        ));
    }
    Ok(())
}

fn named(slots: &[u32]) -> String {
    let numbers: Vec<_> = slots.iter().map(u32::to_string).collect();
    let what = if slots.len() == 1 { "key slot" } else { "key slots" };
    format!("{what} {}", numbers.join(", "))
}

/// The backup with two copies of the header that are whole and the same.
async fn repaired(backup: Image, size: u64) -> Outcome<Image> {
    if backup.damaged.is_none() && Header::superseded(&backup.bytes).is_none() {
        return Ok(backup);
    }
    blocking(move || Image::changed(library::settled(&backup, size, false)?, size)).await
}

/// The backup with the flag `allow-discards` if the header that it replaces has it (`discards`): without it, blocks that
/// were discarded since the backup was made would read as noise. Where no header tells, the owner must know.
async fn with_discards(backup: Image, size: u64, discards: Option<bool>) -> Outcome<Image> {
    if backup.header.passes_discards() {
        return Ok(backup);
    }
    match discards {
        Some(true) => {
            blocking(move || Image::changed(library::settled(&backup, size, true)?, size)).await
        }
        Some(false) => Ok(backup),
        None => {
            print_error(&format_args!(
                "longhaul: the backup was made before discards were allowed, if they ever were: if the volume has been used \
                 with --allow-discards since, give --allow-discards when it is opened next, or what was zeroed reads as noise"
            ));
            Ok(backup)
        }
    }
}

fn read_backup(path: &Path, volume_size: u64) -> Outcome<Image> {
    let what = || format!("cannot read the backup {}", path.shown());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).or_fail(what)?;
    file.take(BACKUP_MAX).read_to_end(&mut bytes).or_fail(what)?;
    let found = bytes.len() as u64;
    let image = Image::parse(bytes, volume_size)
        .or_fail(|| format!("{} does not hold a header for this volume", path.shown()))?;
    if found < image.header.area() {
        return Err(Failure::new(format!("the backup {} is cut short", path.shown())));
    }
    Ok(image)
}

/// The header that is to be replaced, if there is one and it may be.
async fn current(
    volume: &Arc<dyn Volume>,
    backup: &Image,
    force: bool,
    replace: Option<&str>,
) -> Outcome<Option<Image>> {
    match Image::fetch(volume).await {
        Ok(current) => {
            may_replace(&current, backup, replace)?;
            Ok(Some(current))
        }
        Err(ImageError::Header(why)) if force => {
            tracing::info!(%why, "replacing a header that cannot be read");
            Ok(None)
        }
        Err(ImageError::Header(
            why @ (HeaderError::Absent | HeaderError::Damaged | HeaderError::Replaced(_)),
        )) => {
            let area = backup.header.area();
            let found = signatures::recognise(&**volume)
                .await
                .or_fail(|| "cannot look at what is on the volume".to_owned())?;
            let lost = found.map_or_else(String::new, |found| format!(", which are of {found}"));
            Err(Failure::new("cannot tell whether this is the volume of the backup")
                .because(why)
                .hint(format!(
                    "if it is, --force restores the header; the first {area} bytes of what is there now are lost{lost}"
                )))
        }
        Err(other) => Err(other.into_failure()),
    }
}

/// Whether the data of a volume can be read under the header that is to replace its own, or are given up by its name.
fn may_replace(current: &Image, backup: &Image, replace: Option<&str>) -> Outcome {
    let (here, there) = (&current.header.uuid, &backup.header.uuid);
    if let Some(named) = replace.filter(|named| named != here) {
        return Err(Failure::usage(format!(
            "--replace names volume {named}, but this is volume {here}"
        )));
    }
    let what = if here != there {
        format!("the backup is of volume {there}, but this is volume {here}")
    } else if current.payload != backup.payload {
        format!("the backup says that the data of volume {here} lie elsewhere than its header does")
    } else if !current.header.has_key_of(&backup.header) {
        format!("the backup holds another key of volume {here} than its header does")
    } else {
        return Ok(());
    };
    if replace.is_some() {
        return Ok(());
    }
    Err(Failure::new(what)
        .because(format!("with it, nobody can read what is on volume {here} now"))
        .hint(format!(
            "is it the right volume, and the right backup? `longhaul key backup` saves the header of this one; --replace {here} \
             gives its data up, which --force does not"
        )))
}
