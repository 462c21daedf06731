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
    use std::error;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    use proto::scsi::writer::Registrants;
    use volume::layer::journal::FlushPolicy;
    use volume::store::hooked::Hooked;
    use volume::store::memory::Memory;
    use volume::{Error, Kind, Span, Volume};

    use super::super::journal::{JournalOptions, JournalSource};
    use super::super::opening::open_over;
    use super::super::store::Store;
    use super::super::{Contents, OpenOptions, Unlock, assemble};
    use super::*;
    use crate::attachments::UnitAddress;
    use crate::failure::Outcome;
    use crate::luks::{self, Key};
    use crate::net::tcp_tuning::Info;
    use crate::replay_log::Header;
    use crate::store::abilities::{
        Abilities, BoxFuture, Close, OneWriter, Probe, TargetInfo, Token, UnitInquiry,
    };
    use crate::store::scsi::{
        Identity, MarkCheck, Predecessor, Seen, State, Unguarded, Watched, Writers,
    };

    /// The far end of a network; whether it was told that each write has a buffer of its own, to give a token back, to stay
    /// reserved, and whether its reservation was given back.
    #[derive(Default)]
    struct FarEnd {
        has_own_buffers: AtomicBool,
        is_token_given_back: AtomicBool,
        is_kept: AtomicBool,
        is_given_back: AtomicBool,
    }

    impl Probe for FarEnd {
        fn probe(&self) -> BoxFuture<'_, Result<TargetInfo, Box<dyn error::Error + Send + Sync>>> {
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
            self.has_own_buffers.store(true, Ordering::Relaxed);
        }
    }

    impl OneWriter for FarEnd {
        fn unguarded(&self) -> Option<Unguarded> {
            None
        }
        fn identify(&self, _identity: Identity) -> BoxFuture<'_, volume::Result<bool>> {
            Box::pin(async { Ok(true) })
        }
        fn keep_out_of_log(&self, _span: Span) {}
        fn watch(&self, _watched: Watched) {}
        fn mark(&self, _span: Span, _is_ours: MarkCheck) {}
        fn unmark(&self) {}
        fn reserved(&self) -> Option<u64> {
            Some(7)
        }
        fn keep_reserved(&self) {
            self.is_kept.store(true, Ordering::Relaxed);
        }
        fn for_successor(&self) -> Option<Predecessor> {
            None
        }
        fn guard_journal(&self, _path: &Path) -> io::Result<()> {
            Ok(())
        }
        fn journal_sent(&self, _path: &Path) -> io::Result<()> {
            Ok(())
        }
        fn is_quiet(&self) -> BoxFuture<'_, bool> {
            Box::pin(async { true })
        }
    }

    impl Close for FarEnd {
        fn let_go(&self) -> BoxFuture<'_, ()> {
            let is_kept = self.is_kept.load(Ordering::Relaxed);
            self.is_given_back.store(!is_kept, Ordering::Relaxed);
            Box::pin(async {})
        }
    }

    impl Token for FarEnd {
        fn give_back(&self) -> BoxFuture<'_, ()> {
            self.is_token_given_back.store(true, Ordering::Relaxed);
            Box::pin(async {})
        }
    }

    /// How one opens who goes on for a writer that is gone, over `volume` at the far end of a network; whether that stays reserved
    /// when it was let go of.
    async fn taken_over(
        volume: impl Volume + 'static,
        dir: &Path,
        contents: Contents,
    ) -> (Outcome, bool) {
        let uri = "memory:1M".parse().unwrap();
        let mut opened = Opened::plain(Arc::new(volume));
        let far_end = Arc::new(FarEnd::default());
        let probe = Some(Arc::clone(&far_end) as Arc<dyn Probe>);
        let writer = Some(Arc::clone(&far_end) as Arc<dyn OneWriter>);
        let close = Some(Arc::clone(&far_end) as Arc<dyn Close>);
        opened.abilities = Abilities { probe, writer, close, ..Abilities::default() };
        let source =
            JournalSource::Missing { path: dir.join("j"), size: 8 << 20, made: Arc::default() };
        let (flush, max_age, declined) = (FlushPolicy::Local, None, None);
        let journal = JournalOptions { source, declined, flush, max_age, outlasts_outages: true };
        let journal = matches!(contents, Contents::Unseen).then_some(journal);
        let writers = Writers::Succeed(Predecessor { key: 7, through_power_loss: true });
        let options = OpenOptions { journal, contents, writers, ..OpenOptions::default() };
        let opened = open_over(&uri, Store::new("store", opened), options).await;
        let outcome = match opened {
            Ok(chain) => {
                assert_eq!(chain.unit_serial().as_deref(), Some("1"));
                chain.discard().await;
                Ok(())
            }
            Err(why) => Err(why),
        };
        (outcome, !far_end.is_given_back.load(Ordering::Relaxed))
    }

    /// The link may break at any time: what a journal is labelled with was told before.
    #[tokio::test]
    async fn journal_is_opened_without_a_request_that_a_broken_connection_would_fail() {
        let dir = tempfile::tempdir().unwrap();
        let (opened, stays) =
            taken_over(Memory::new(1 << 20, 512), dir.path(), Contents::Unseen).await;
        opened.unwrap();
        assert!(dir.path().join("j").exists());
        assert!(stays, "it was not used, and the next one finds by it that nobody has written");
    }

    /// What the process that keeps a mount does about one: it starts another process, which needs the reservation.
    #[tokio::test]
    async fn opening_that_fails_by_its_connection_may_be_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let unlock = || {
            let (key, with) = (Key::of_volume(None), luks::Options::default());
            Contents::Plain(Unlock { key, with, erasable: false, demanded: false })
        };
        for (kind, is_fleeting) in
            [(Kind::Gone, true), (Kind::Busy, true), (Kind::Medium, false), (Kind::Peer, false)]
        {
            for contents in [Contents::Unseen, unlock()] {
                let failing = Hooked::new(Memory::new(1 << 20, 512), move |verb, span| {
                    Box::pin(async move { Err(Error::new(kind, verb, span)) })
                });
                let (opened, stays) = taken_over(failing, dir.path(), contents).await;
                let why = opened.unwrap_err();
                assert_eq!(why.is_fleeting(), is_fleeting, "{kind:?}: {why}");
                assert!(stays, "{kind:?}: {why}");
            }
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
            let own_buffers = far_end.has_own_buffers.load(Ordering::Relaxed);
            assert_eq!(own_buffers, expected.contains(&"pipeline"), "others hand on what they got");
            chain.release().await;
            assert_eq!(
                far_end.is_token_given_back.load(Ordering::Relaxed),
                is_remote,
                "its token is given back"
            );
        }
    }
}
