//! The layers of chains, and the order in which they stand over a store.

use std::sync::Arc;

use volume::Gate;
use volume::layer::pipeline::Settings;
use volume::layer::read_only::ReadOnly;

use super::crypt::Crypt;
use super::journal::Journal;
use super::layer::{Layer, OpenContext, Opening};
use super::unsolicited;
use crate::pipelined::Pipelined;
use crate::store::abilities::{Opened, Worker};

/// Every layer there is, the lowest first. Each tells itself whether a chain has it.
pub(super) const LAYERS: [&dyn Layer; 4] = [&Journal, &Crypt, &WriteBehind, &WriteProtected];

/// Keeps the link to a store full: it is there if the store is behind one.
struct WriteBehind;

impl Layer for WriteBehind {
    fn name(&self) -> &'static str {
        "pipeline"
    }

    fn open<'a>(&'a self, beneath: &'a Opened, with: &'a mut OpenContext<'_>) -> Opening<'a> {
        Box::pin(async move {
            let is_remote = beneath.abilities.probe.is_some() || beneath.abilities.is_partly_remote;
            let Some(settings) = with.options.pipeline.filter(|_| is_remote) else {
                return Ok(None);
            };
            if let Some(probe) = &beneath.abilities.probe {
                probe.expect_own_buffers();
            }
            let mut settings =
                Settings { unsolicited: unsolicited(&beneath.abilities), ..settings };
            // Beside a writer what was read ahead may be old when it is asked for.
            if with.options.read_only
                && let Some(store) = &beneath.abilities.probe
                && store.writer().await.is_some()
            {
                settings.read_ahead = Some(0);
            }
            let name = with.uri.to_string();
            let pipelined = Pipelined::new(name, Arc::clone(&beneath.volume), settings);
            let volume = pipelined.volume();
            let worker: Option<Box<dyn Worker>> = Some(Box::new(pipelined));
            Ok(Some(Opened { worker, ..beneath.layer(volume) }))
        })
    }
}

/// Refuses writes, over what could not be opened so.
struct WriteProtected;

impl Layer for WriteProtected {
    fn name(&self) -> &'static str {
        "read-only"
    }

    fn open<'a>(&'a self, beneath: &'a Opened, with: &'a mut OpenContext<'_>) -> Opening<'a> {
        Box::pin(async move {
            let is_open = !beneath.volume.shape().read_only;
            Ok((with.options.read_only && is_open).then(|| {
                let volume = ReadOnly::new(Arc::clone(&beneath.volume));
                beneath.layer(Arc::new(Gate::new("read-only", volume)))
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    use proto::scsi::writer::Registrants;
    use volume::store::memory::Memory;

    use super::super::store::Store;
    use super::super::{OpenOptions, assemble};
    use super::*;
    use crate::attachments::UnitAddress;
    use crate::net::tcp_tuning::Info;
    use crate::replay_log::Header;
    use crate::store::abilities::{BoxFuture, Probe, TargetInfo, Token, UnitInquiry};
    use crate::store::scsi::{Seen, State};

    /// The far end of a network; whether it was told that each write has a buffer of its own, and to give a token back.
    #[derive(Default)]
    struct FarEnd(AtomicBool, AtomicBool);

    impl Probe for FarEnd {
        fn probe(&self) -> BoxFuture<'_, Result<TargetInfo, Box<dyn Error + Send + Sync>>> {
            Box::pin(async { Err("it tells nothing".into()) })
        }
        fn inquiry(&self) -> UnitInquiry {
            UnitInquiry { serial: Some("1".to_owned()), ..UnitInquiry::default() }
        }
        fn path(&self) -> BoxFuture<'_, Option<Info>> {
            Box::pin(async { None })
        }
        fn writer(&self) -> BoxFuture<'_, Option<Registrants>> {
            Box::pin(async { None })
        }
        fn unsolicited(&self) -> u64 {
            u64::MAX
        }
        fn state(&self) -> State {
            State::Connected
        }
        fn reason(&self) -> Option<String> {
            None
        }
        fn not_offered(&self) -> u64 {
            0
        }
        fn seen(&self) -> Seen {
            unreachable!("it is opened once")
        }
        fn state_dir(&self) -> Option<PathBuf> {
            None
        }
        fn place(&self) -> UnitAddress {
            let (target, portal) = ("iqn.2026-11.dev.longhaul:a".to_owned(), "far".to_owned());
            UnitAddress { target, lun: 0, serial: None, portal, pin: None }
        }
        fn is_of(&self, _header: &Header) -> bool {
            false
        }
        fn expect_own_buffers(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    impl Token for FarEnd {
        fn give_back(&self) -> BoxFuture<'_, ()> {
            self.1.store(true, Ordering::Relaxed);
            Box::pin(async {})
        }
    }

    #[tokio::test]
    async fn pipeline_follows_from_the_store_and_the_options_and_not_from_the_uri() {
        let uri = "memory:1M".parse().unwrap();
        let pipeline = Some(Settings::default());
        for (is_remote, pipeline, read_only, expected) in [
            (false, pipeline, false, &["store"][..]),
            (true, pipeline, false, &["store", "pipeline"]),
            (true, None, false, &["store"]),
            (true, pipeline, true, &["store", "pipeline", "read-only"]),
        ] {
            let mut opened = Opened::plain(Arc::new(Memory::new(1 << 20, 512)));
            let far_end = Arc::new(FarEnd::default());
            let probe = || Arc::clone(&far_end) as Arc<dyn Probe>;
            opened.abilities.probe = is_remote.then(probe);
            opened.abilities.token = Some(Arc::clone(&far_end) as Arc<dyn Token>);
            let options = OpenOptions { pipeline, read_only, ..OpenOptions::default() };
            let store = Store::new("store", opened);
            let mut workers = Vec::new();
            let chain =
                assemble(&uri, store, options, &OnceLock::new(), &mut workers).await.unwrap();
            let names: Vec<_> = chain.layers().iter().map(|layer| layer.name).collect();
            assert_eq!(names, expected);
            let hand_on =
                |ability| chain.layers().iter().all(|layer| layer.abilities.contains(&ability));
            assert_eq!(hand_on("probe"), is_remote, "every layer hands it on");
            assert!(hand_on("name its writer"), "every layer hands it on");
            let own_buffers = far_end.0.load(Ordering::Relaxed);
            assert_eq!(own_buffers, expected.contains(&"pipeline"), "others hand on what they got");
            chain.release().await;
            assert_eq!(far_end.1.load(Ordering::Relaxed), is_remote, "its token is given back");
        }
    }
}
