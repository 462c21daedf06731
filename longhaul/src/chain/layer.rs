//! What a layer of a chain is, and what is told of one that is open.

use std::sync::{Arc, OnceLock};

use serde::Serialize;

use super::OpenOptions;
use crate::failure::Outcome;
use crate::store::abilities::{BoxFuture, Opened, Token};
use crate::uri::Uri;

/// What layers are opened with.
pub(super) struct OpenContext<'a> {
    pub(super) uri: &'a Uri,
    pub(super) options: OpenOptions,
    /// The token in the volume, once there is one: it is given back if the opening is ended.
    pub(super) token: &'a OnceLock<Arc<dyn Token>>,
}

/// A layer that is being opened; `None` if the chain goes without it.
pub(super) type Opening<'a> = BoxFuture<'a, Outcome<Option<Opened>>>;

/// Something that a chain may have over its store.
pub(super) trait Layer: Sync {
    /// What the chain calls it.
    fn name(&self) -> &'static str;

    /// Stands over what is `beneath`; `None` if a chain that is opened `with` this goes without it. What `beneath` can
    /// do is handed on as far as it holds above this layer.
    fn open<'a>(&'a self, beneath: &'a Opened, with: &'a mut OpenContext<'_>) -> Opening<'a>;
}

/// One layer of an open chain, or its store.
#[derive(Clone, Debug, Serialize)]
pub struct LayerInfo {
    /// What it is called.
    pub name: &'static str,
    /// Its bytes.
    pub size: u64,
    /// The unit of its requests.
    pub block_size: u32,
    /// It may lose what was written and not flushed.
    pub write_cache: bool,
    /// Nothing is written to it.
    pub read_only: bool,
    /// What can be done with it beyond reading and writing.
    pub abilities: Vec<&'static str>,
}

impl LayerInfo {
    pub(super) fn new(name: &'static str, opened: &Opened) -> Self {
        let shape = opened.volume.shape();
        Self {
            name,
            size: shape.size,
            block_size: shape.block_size,
            write_cache: shape.write_cache,
            read_only: shape.read_only,
            abilities: opened.abilities.names(shape.read_only),
        }
    }
}
