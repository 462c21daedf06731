use serde_json::{Value, json};

use super::*;
use crate::luks::image::Image;
use crate::luks::{CipherArgs, CostArgs, library};
use crate::secret::Secret;
use crate::size::Size;

const VOLUME: u64 = 24 << 20;

/// A header as libcryptsetup makes it.
fn made() -> Vec<u8> {
    let cost = CostArgs {
        pbkdf_memory: Some(Size(32 << 10)),
        pbkdf_iterations: Some(4),
        ..CostArgs::default()
    };
    library::format(
        VOLUME,
        Some("label".into()),
        CipherArgs::default(),
        &Secret::new(b"one".to_vec()),
        &cost,
    )
    .unwrap()
}

/// Changes the JSON of one copy and makes its checksum right again, as a hostile store would.
fn forge(bytes: &mut [u8], at: usize, change: impl FnOnce(&mut Value)) {
    let copy = &mut bytes[at..at + (16 << 10)];
    let mut json = serde_json::from_slice(text_of(&copy[BINARY_SIZE..])).unwrap();
    change(&mut json);
    copy[BINARY_SIZE..].fill(0);
    let text = json.to_string();
    copy[BINARY_SIZE..BINARY_SIZE + text.len()].copy_from_slice(text.as_bytes());
    sign(copy);
}

fn sign(copy: &mut [u8]) {
    copy[CHECKSUM_AT..CHECKSUM_AT + 64].fill(0);
    let sum = Sha256::digest(&*copy);
    copy[CHECKSUM_AT..CHECKSUM_AT + 32].copy_from_slice(&sum);
}

fn vetted(change: impl Fn(&mut Value)) -> Result<Payload, HeaderError> {
    let mut bytes = made();
    for at in [0, 16 << 10] {
        forge(&mut bytes, at, &change);
    }
    Header::newest(&bytes).and_then(|(_, header)| header.validate(VOLUME))
}

#[test]
fn reads_what_libcryptsetup_wrote() {
    let (place, header) = Header::newest(&made()).unwrap();
    assert_eq!((place, header.size, header.label.as_str()), (Place::First, 16 << 10, "label"));
    assert_eq!((header.area(), header.uuid.len()), (16 << 20, 36));
    let payload = header.validate(VOLUME).unwrap();
    let span = Span::new(16 << 20, 8 << 20);
    assert_eq!(payload, Payload { span, first_tweak: 0, sector_size: 4096 });
    assert_eq!(header.slot_areas().collect::<Vec<_>>(), [Span::new(32 << 10, 258_048)]);
}

#[test]
fn checkpoint_has_a_place_only_where_cryptsetup_puts_no_slot() {
    let place = |change: fn(&mut Value)| {
        let mut bytes = made();
        for at in [0, 16 << 10] {
            forge(&mut bytes, at, change);
        }
        Header::newest(&bytes).unwrap().1.checkpoint(VOLUME)
    };
    assert_eq!(place(|_| {}), Some((16 << 20) - (64 << 10)));
    assert_eq!(
        place(|j| j["config"]["keyslots_size"] = json!("4161536")),
        None,
        "32 slots do not fit"
    );
    let last = |j: &mut Value| j["keyslots"]["0"]["area"]["offset"] = json!("16519168");
    assert_eq!(place(last), None, "a slot is there");
    let before = |j: &mut Value| j["keyslots"]["0"]["area"]["offset"] = json!("16453632");
    assert_eq!(place(before), Some((16 << 20) - (64 << 10)), "a slot ends where it begins");
    assert_eq!(place(|j| j["segments"]["1"] = j["segments"]["0"].clone()), None, "nobody uses it");
}

#[test]
fn forged_header_is_refused() {
    type Forgery = fn(&mut Value);
    let forgeries: [(Forgery, &str); 14] = [
        // Any pass-phrase would open this slot, with a volume key of the store's choice.
        (|j| j["keyslots"]["0"]["area"]["encryption"] = json!("cipher_null-ecb"), "key slot 0"),
        (|j| j["segments"]["0"]["encryption"] = json!("cipher_null-ecb"), "cipher_null"),
        (
            |j| j["segments"]["0"]["encryption"] = json!("serpent-xts-plain64"),
            "with serpent-xts-plain64;",
        ),
        (|j| j["keyslots"]["0"]["key_size"] = json!(48), "has 384 bits"),
        (|j| j["segments"]["0"]["type"] = json!("linear"), "linear"),
        (|j| j["segments"]["0"]["integrity"] = json!({"type": "hmac(sha256)"}), "integrity"),
        (|j| j["segments"]["1"] = j["segments"]["0"].clone(), "several"),
        (|j| j["segments"]["0"]["sector_size"] = json!(8192), "sectors of"),
        (|j| j["segments"]["0"]["offset"] = json!("4096"), "between the header"),
        (|j| j["segments"]["0"]["offset"] = json!("18446744073709551104"), "between the header"),
        (|j| j["segments"]["0"]["size"] = json!("17179869184"), "is cut off"),
        (|j| j["keyslots"]["0"]["area"]["offset"] = json!("0"), "outside the header"),
        (|j| j["config"]["keyslots_size"] = json!("1099511627776"), "outside the header"),
        (
            |j| j["config"]["requirements"] = json!({"mandatory": ["online-reencrypt-v2"]}),
            "online-reencrypt-v2",
        ),
    ];
    for (forgery, why) in forgeries {
        let refused = vetted(forgery).unwrap_err().to_string();
        assert!(refused.contains(why), "{why}: {refused}");
    }
    vetted(|_| ()).expect("the forger's tools make a good header");
}

#[test]
fn the_newer_copy_counts_and_a_damaged_one_does_not() {
    let mut bytes = made();
    let second = 16 << 10;
    bytes[second + 16 + 7] += 1;
    sign(&mut bytes[second..2 * second]);
    assert_eq!(Header::newest(&bytes).unwrap().0, Place::Second);
    bytes[second + 5000] ^= 1;
    assert_eq!(Header::newest(&bytes).unwrap().0, Place::First);
    bytes[5000] ^= 1;
    assert!(matches!(Header::newest(&bytes), Err(HeaderError::Damaged)));
}

#[test]
fn luks1_and_nothing_are_told_apart() {
    assert!(matches!(Header::newest(&[0; 32 << 10]), Err(HeaderError::Absent)));
    assert!(matches!(Header::newest(&[]), Err(HeaderError::Absent)));
    let mut luks1 = vec![0; 32 << 10];
    luks1[..8].copy_from_slice(b"LUKS\xba\xbe\0\x01");
    assert!(matches!(Header::newest(&luks1), Err(HeaderError::Luks1)));
}

#[test]
fn rubbish_never_panics() {
    let good = made();
    let copies = &good[..32 << 10];
    for at in (0..600).chain((BINARY_SIZE..BINARY_SIZE + 1200).step_by(3)) {
        for copy in [0, 16 << 10] {
            let mut bytes = copies.to_vec();
            bytes[copy + at] ^= 0x55;
            let _ = Header::newest(&bytes).and_then(|(_, header)| header.validate(VOLUME));
            // The same with a checksum that holds, so that the change is looked at.
            sign(&mut bytes[copy..copy + (16 << 10)]);
            let _ = Header::newest(&bytes).and_then(|(_, header)| header.validate(VOLUME));
        }
        let _ = Header::newest(&copies[..at]);
    }
}

/// Time, threads, and the digest that tells whether a slot gave the right key.
#[test]
fn cost_that_a_store_may_have_forged_is_not_paid() {
    type Forgery = fn(&mut Value);
    let forgeries: [(Forgery, &str); 3] = [
        (
            |json| {
                let kdf = &mut json["keyslots"]["0"]["kdf"];
                // The estimate is by the processors of this machine.
                (kdf["time"], kdf["cpus"]) = (json!(4_000_000_000_u32), json!(1));
            },
            "--key-time 34h",
        ),
        (|json| json["keyslots"]["0"]["kdf"]["cpus"] = json!(4096), "4096 threads"),
        (|json| json["digests"]["0"]["iterations"] = json!(u32::MAX), "--key-time 72m"),
    ];
    for (forgery, says) in forgeries {
        let mut bytes = made();
        for at in [0, 16 << 10] {
            forge(&mut bytes, at, forgery);
        }
        let image = Image::parse(bytes, VOLUME).unwrap();
        let tried = library::open(&image, VOLUME, &Secret::new(b"one".to_vec()));
        let Ok(library::UnlockResult::None(why)) = tried else { panic!("{says}: it was tried") };
        assert!(why.to_string().contains(says), "{why}");
        let slots = library::slots_opened(&image, VOLUME, &Secret::new(b"one".to_vec()), None);
        assert_eq!(slots.unwrap(), [0; 0], "{says}");
    }
}
