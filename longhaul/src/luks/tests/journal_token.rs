//! The token of a journal: who reads it, and what it leaves alone.

use super::super::journal_token::{JournalToken, journal_token, put_journal_token};
use super::*;

const ID: [u8; 16] = [0xAB; 16];

async fn found(volume: &Arc<dyn Volume>) -> Option<JournalToken> {
    journal_token(volume).await.unwrap()
}

#[tokio::test]
async fn token_of_a_journal_says_which_machine_and_how_much_until_it_is_taken_out() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    assert_eq!(found(&volume).await, None);
    let token = JournalToken::new(&ID, 7, 1 << 30);
    put_journal_token(&volume, Some(token.clone())).await.unwrap();
    let there = found(&volume).await.unwrap();
    assert_eq!(there, token);
    assert!(there.is_of(&ID) && !there.is_of(&[0; 16]) && there.has_key(7) && !there.has_key(8));
    let said = there.describe();
    for words in [&"ab".repeat(16), "since 2", "up to 1G", "host "] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // Whoever takes over has one of his own.
    put_journal_token(&volume, Some(JournalToken::new(&[1; 16], 8, 1 << 20))).await.unwrap();
    assert!(found(&volume).await.unwrap().is_of(&[1; 16]));
    assert!(opens(&volume, "one").await);
    put_journal_token(&volume, None).await.unwrap();
    assert_eq!(found(&volume).await, None);
    assert!(opens(&volume, "one").await);
}

#[tokio::test]
async fn volume_without_a_header_gets_no_token_of_a_journal() {
    let volume: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
    put_journal_token(&volume, Some(JournalToken::new(&ID, 7, 1))).await.unwrap();
    assert_eq!(found(&volume).await, None);
    assert!(start(&volume).await.iter().all(|byte| *byte == 0));
}

/// The older copy of a header says which slots are to be wiped.
#[tokio::test]
async fn header_of_which_a_change_was_cut_short_gets_no_token_of_a_journal() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let second = image::read(&volume, Span::new(16 << 10, 16 << 10)).await.unwrap();
    put_journal_token(&volume, Some(JournalToken::new(&ID, 7, 1))).await.unwrap();
    volume.write(16 << 10, second.into(), Durability::Volatile).await.unwrap();
    let before = start(&volume).await;
    put_journal_token(&volume, None).await.unwrap();
    assert!(start(&volume).await == before);
}
