//! The layers of chains, and the order in which they stand over a store.

use std::sync::Arc;

use volume::Gate;
use volume::layer::pipeline::Settings;
use volume::layer::read_only::ReadOnly;

use super::crypt::Crypt;
use super::layer::{Layer, With};
use super::unsolicited;
use crate::failure::Outcome;
use crate::pipelined::Pipelined;
use crate::store::abilities::{Abilities, BoxFuture, Opened, Worker};

/// Every layer there is, the lowest first. Each tells itself whether a chain has it.
pub(super) const LAYERS: [&dyn Layer; 3] = [&Crypt, &WriteBehind, &WriteProtected];

/// Keeps the link to a store full: it is there if the store is behind one.
struct WriteBehind;

impl Layer for WriteBehind {
    fn name(&self) -> &'static str {
        "pipeline"
    }

    fn open<'a>(
        &'a self,
        beneath: &'a Opened,
        with: &'a mut With<'_>,
    ) -> BoxFuture<'a, Outcome<Option<Opened>>> {
        Box::pin(async move {
            let settings = with.options.pipeline.zip(beneath.abilities.probe.as_ref());
            let Some((settings, probe)) = settings else { return Ok(None) };
            probe.expect_own_buffers();
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
            let abilities = Abilities { grow: None, ..beneath.abilities.clone() };
            Ok(Some(Opened { volume, worker, abilities }))
        })
    }
}

/// Refuses writes, over what could not be opened so.
struct WriteProtected;

impl Layer for WriteProtected {
    fn name(&self) -> &'static str {
        "read-only"
    }

    fn open<'a>(
        &'a self,
        beneath: &'a Opened,
        with: &'a mut With<'_>,
    ) -> BoxFuture<'a, Outcome<Option<Opened>>> {
        Box::pin(async move {
            let is_open = !beneath.volume.shape().read_only;
            Ok((with.options.read_only && is_open).then(|| {
                let volume = ReadOnly::new(Arc::clone(&beneath.volume));
                let volume = Arc::new(Gate::new("read-only", volume));
                let abilities = Abilities { grow: None, ..beneath.abilities.clone() };
                Opened { volume, worker: None, abilities }
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
    use crate::attachments::Place;
    use crate::net::tcp_tuning::Info;
    use crate::replay_log::Header;
    use crate::store::abilities::{Probe, TargetInfo};
    use crate::store::scsi::{Seen, State};

    /// The far end of a network, and whether it was told that each write has a buffer of its own.
    #[derive(Default)]
    struct FarEnd(AtomicBool);

    impl Probe for FarEnd {
        fn probe(&self) -> BoxFuture<'_, Result<TargetInfo, Box<dyn Error + Send + Sync>>> {
            Box::pin(async { Err("it tells nothing".into()) })
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
        fn seen(&self) -> Seen {
            unreachable!("it is opened once")
        }
        fn state_dir(&self) -> Option<PathBuf> {
            None
        }
        fn place(&self) -> Place {
            let (target, portal) = ("iqn.2026-11.dev.longhaul:a".to_owned(), "far".to_owned());
            Place { target, lun: 0, serial: None, portal, pin: None }
        }
        fn is_of(&self, _header: &Header) -> bool {
            false
        }
        fn expect_own_buffers(&self) {
            self.0.store(true, Ordering::Relaxed);
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
            let options = OpenOptions { pipeline, read_only, ..OpenOptions::default() };
            let store = Store::new("store", opened);
            let chain = assemble(&uri, store, options, &OnceLock::new()).await.unwrap();
            let names: Vec<_> = chain.layers().iter().map(|layer| layer.name).collect();
            assert_eq!(names, expected);
            let hand_on = chain.layers().iter().all(|layer| layer.abilities.contains(&"probe"));
            assert_eq!(hand_on, is_remote, "every layer hands it on");
            let own_buffers = far_end.0.load(Ordering::Relaxed);
            assert_eq!(own_buffers, expected.contains(&"pipeline"), "others hand on what they got");
            chain.close().await.unwrap();
        }
    }
}
