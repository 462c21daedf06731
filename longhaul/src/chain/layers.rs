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
            let settings = with.options.pipeline.filter(|_| beneath.abilities.probe.is_some());
            let Some(settings) = settings else { return Ok(None) };
            let settings = Settings { unsolicited: unsolicited(&beneath.abilities), ..settings };
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
