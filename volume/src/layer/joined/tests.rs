use std::sync::Arc;

use super::*;
use crate::check;
use crate::store::faulty::Faulty;
use crate::store::memory::Memory;

const MIB: u64 = 1 << 20;

fn member(name: &str, volume: impl Volume + 'static) -> Member {
    Member::new(name, Arc::new(volume))
}

fn memories(sizes: &[(u64, u32)]) -> Vec<Member> {
    sizes.iter().map(|&(size, block)| member("m", Memory::new(size, block))).collect()
}

#[tokio::test]
async fn joined_volumes_keep_the_contract() {
    let sizes = [(MIB, 512), (33 * MIB + 512, 512), (3 * MIB, 4096)];
    check::volume(5, Arc::new(Joined::concat(memories(&sizes)).unwrap())).await;
    for chunk in [4096, 64 << 10, MIB] {
        let joined = Joined::stripe(memories(&[(12 * MIB, 512), (13 * MIB, 4096)]), chunk);
        check::volume(6, Arc::new(joined.unwrap())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joined_volumes_keep_neighbours_apart() {
    check::neighbours(Arc::new(Joined::stripe(memories(&[(MIB, 512); 3]), 1024).unwrap())).await;
}

#[tokio::test]
async fn joined_volumes_tell_the_truth() {
    check::truth(512, async |disk| {
        let members = vec![member("disk", disk), member("memory", Memory::new(MIB, 512))];
        Arc::new(Joined::concat(members).unwrap()) as Arc<dyn Volume>
    })
    .await;
    check::truth(512, async |disk| {
        let members = vec![member("disk", disk), member("memory", Memory::new(12 * MIB, 512))];
        Arc::new(Joined::stripe(members, 64 << 10).unwrap()) as Arc<dyn Volume>
    })
    .await;
}

#[tokio::test]
async fn failure_on_one_member_stops_durable_changes_on_another() {
    let disk = Arc::new(Faulty::new(MIB, 512));
    let members =
        vec![member("memory", Memory::new(MIB, 512)), member("file:b", Arc::clone(&disk))];
    let joined = Joined::concat(members).unwrap();
    disk.fail(Verb::Write, Kind::Medium);
    let data = Bytes::from(vec![1; 1024]);
    let failed = joined.write(MIB - 512, data.clone(), Durability::Volatile).await.unwrap_err();
    assert_eq!((failed.kind, failed.span), (Kind::Medium, Some(Span::new(MIB - 512, 1024))));
    assert!(failed.source.unwrap().to_string().starts_with("file:b: "), "it names the member");
    joined.write(0, data.clone(), Durability::Volatile).await.unwrap();
    joined.write(0, data, Durability::Durable).await.unwrap_err();
    joined.flush().await.unwrap_err();
}

#[tokio::test]
async fn extents_of_joined_volumes_tell_data_from_holes() {
    let joined = Joined::stripe(memories(&[(8 * MIB, 512); 2]), 2 * MIB).unwrap();
    joined.write(2 * MIB, vec![1; 2 << 20].into(), Durability::Volatile).await.unwrap();
    let found = ExtentMap::extents(&joined, Span::new(0, 16 * MIB)).await.unwrap();
    let holes: Vec<_> = found.iter().map(|extent| (extent.span.at / MIB, extent.hole)).collect();
    assert_eq!(holes, [(0, true), (2, false), (4, true)]);
}

#[test]
fn members_that_cannot_be_joined_are_refused() {
    assert_eq!(Joined::concat(Vec::new()).err(), Some(JoinError::Count(0)));
    let stripe = |sizes: &[(u64, u32)], chunk| Joined::stripe(memories(sizes), chunk).err();
    let chunk = JoinError::Chunk { chunk: 2048, block_size: 4096 };
    assert_eq!(stripe(&[(MIB, 512), (MIB, 4096)], 2048), Some(chunk));
    assert_eq!(stripe(&[(MIB, 512), (4096, 512)], 8192), Some(JoinError::Small("m".to_owned())));
    let odd = Joined::concat(memories(&[(4096 + 512, 512), (4096, 4096)])).unwrap();
    assert_eq!((odd.shape().size, odd.shape().block_size), (8192, 4096));
}
