//! The token of the one who writes: who gets it, who does not, and what a crash leaves.

use std::time::{Duration, Instant};

use volume::Verb;
use volume::store::hooked::Hooked;

use super::super::erase::Erasable;
use super::super::token_kind::is_one;
use super::super::writer_token::{Claim, WriterToken};
use super::*;

/// Longer than any test lasts.
const FOR_EVER: Duration = Duration::from_secs(86_400);

fn claim(key: u64) -> Claim {
    Claim { key, written_within: FOR_EVER, ..Claim::default() }
}

/// Does not wait for anybody.
fn at_once(key: u64) -> Claim {
    Claim { key, ..Claim::default() }
}

async fn take(volume: &Arc<dyn Volume>, claim: Claim) -> Outcome<Arc<WriterToken>> {
    let mut encrypted = recognise(volume.clone()).await?.expect("it is encrypted");
    let token = encrypted.claim(claim).expect("its header can be used");
    encrypted.open(&secret("one").into(), Options::default()).await?;
    Ok(token)
}

/// Whether the volume has this token, as whoever holds it looks.
async fn has(volume: &Arc<dyn Volume>, token: &WriterToken) -> Result<(), String> {
    token.find(&image::read(volume, token.span()).await.unwrap())
}

async fn tokens(volume: &Arc<dyn Volume>) -> usize {
    let header = Image::fetch(volume).await.unwrap().header;
    header.metadata.tokens.values().filter(|token| is_one(token)).count()
}

#[tokio::test]
async fn token_refuses_others_and_is_replaced_where_it_may_be() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let first = take(&volume, at_once(7)).await.unwrap();
    has(&volume, &first).await.unwrap();
    let known = Claim { others: vec![(7, "process 1".to_owned())], ..at_once(8) };
    let refused = take(&volume, known).await.err().unwrap().to_string();
    for words in ["another writer", "attached and not ended", "0x0000000000000007 (process 1)"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    has(&volume, &first).await.expect("who is refused writes nothing");
    let wrong = recognise(volume.clone()).await.unwrap().unwrap().check(&at_once(8));
    assert!(wrong.is_err());
    let second = take(&volume, Claim { gone: vec![6, 7], ..at_once(8) }).await.unwrap();
    let why = has(&volume, &first).await.unwrap_err();
    assert!(why.contains("held by host") && why.contains("0x0000000000000008"), "{why}");
    let third = take(&volume, Claim { take_over: true, ..at_once(9) }).await.unwrap();
    has(&volume, &second).await.unwrap_err();
    second.give_back(false).await.unwrap();
    has(&volume, &third).await.expect("that of another is left alone");
    third.give_back(true).await.unwrap();
    let refused = take(&volume, at_once(8)).await.err().unwrap().to_string();
    assert!(refused.contains("ended with writes in a replay log"), "{refused}");
    third.give_back(false).await.unwrap();
    assert_eq!(tokens(&volume).await, 0);
}

#[tokio::test]
async fn wrong_secret_leaves_no_token() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let before = start(&volume).await;
    let mut encrypted = recognise(volume.clone()).await.unwrap().unwrap();
    encrypted.claim(at_once(7)).unwrap();
    assert!(encrypted.open(&secret("two").into(), Options::default()).await.is_err());
    assert!(start(&volume).await == before);
}

#[tokio::test]
async fn token_that_cannot_be_read_is_another_writers() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let first = take(&volume, at_once(7)).await.unwrap();
    let image = Image::fetch(&volume).await.unwrap();
    let strange = serde_json::json!({"type": "longhaul-writer", "keyslots": [], "key": 7});
    let bytes = library::with_token(&image, SIZE, &[], Some(&strange)).unwrap();
    let changed = Image::changed(bytes, SIZE).unwrap();
    writeback::write(&volume, writeback::Before::Changed(&image), &changed).await.unwrap();
    assert!(has(&volume, &first).await.unwrap_err().contains("cannot be read"));
    assert!(take(&volume, at_once(8)).await.is_err());
    let taken = take(&volume, Claim { take_over: true, ..at_once(8) }).await.unwrap();
    has(&volume, &taken).await.unwrap();
}

/// The key of the data changes, and with it every slot and what opens slots.
#[tokio::test]
async fn token_outlives_the_destruction_of_the_key() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let mut encrypted = recognise(volume.clone()).await.unwrap().unwrap();
    let token = encrypted.claim(at_once(7)).unwrap();
    let key = secret("one").into();
    let open = Erasable::open(encrypted, &key, Options::default()).await.unwrap();
    volume::CryptoErase::crypto_erase(&open).await.unwrap();
    has(&volume, &token).await.unwrap();
    token.give_back(false).await.unwrap();
    assert_eq!(tokens(&volume).await, 0);
    assert!(opens(&volume, "one").await);
}

/// The power goes after each write and flush while a token is put there, and taken out.
#[tokio::test]
async fn header_opens_whenever_a_change_of_its_token_is_cut_short() {
    let before: Arc<dyn Volume> = Arc::new(Faulty::new(SIZE - (7 << 20), 512));
    encrypted_volume(before.clone()).await;
    let start = image::read(&before, Span::new(0, before.shape().size)).await.unwrap();
    let mut cut = 0;
    loop {
        let disk = Arc::new(Faulty::holding(start.clone(), 512));
        disk.cut_after(cut);
        let volume: Arc<dyn Volume> = disk.clone();
        let changed = async { take(&volume, at_once(7)).await?.give_back(false).await };
        let finished = changed.await.is_ok();
        for seed in 0..2 {
            let found: Arc<dyn Volume> = Arc::new(disk.crash(seed));
            assert!(opens(&found, "one").await, "cut after {cut}, seed {seed}");
            assert!(!finished || tokens(&found).await == 0);
        }
        if finished {
            break;
        }
        cut += 1;
    }
    assert!(cut > 4, "it was never cut in the middle");
}

/// `store` by a way on which writes take until the gate is open, and on which nothing else changes it.
fn gated(store: Arc<dyn Volume>, open: tokio::sync::watch::Receiver<bool>) -> Arc<dyn Volume> {
    Arc::new(Hooked::new(store, move |verb, span| {
        let mut open = open.clone();
        Box::pin(async move {
            match verb {
                Verb::Write => drop(open.wait_for(|open| *open).await.unwrap()),
                Verb::WriteZeroes => {
                    return Err(volume::Error::new(Kind::Unsupported, verb, span));
                }
                _ => {}
            }
            Ok(())
        })
    }))
}

/// Both have seen no token. The slow one writes when the other believes that it has the volume: that one has to find
/// out before the slow one begins.
#[tokio::test]
async fn slow_claim_waits_until_the_one_it_overtook_has_noticed() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let (gate, open) = tokio::sync::watch::channel(false);
    let way = gated(volume.clone(), open);
    let slow = Claim { written_within: Duration::ZERO, noticed_within: FOR_EVER, ..claim(7) };
    let claiming = tokio::spawn(async move { take(&way, slow).await.map(drop) });
    // It has read the header when it is as far as to write.
    while gate.receiver_count() < 2 {
        tokio::task::yield_now().await;
    }
    let quick = take(&volume, at_once(8)).await.unwrap();
    has(&volume, &quick).await.unwrap();
    gate.send(true).unwrap();
    let last = Instant::now() + Duration::from_secs(60);
    while has(&volume, &quick).await.is_ok() {
        assert!(Instant::now() < last, "the slow one never writes");
        tokio::task::yield_now().await;
    }
    assert!(!claiming.is_finished(), "it waits");
    claiming.abort();
}
