//! Connections to a cluster, and the pools that are used by them.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::api::{Api, Handle, api};
use super::{RbdError, c_string, check, text};
use crate::allocator;

/// How many seconds a cluster is waited for that does not answer.
const CONNECTED_WITHIN: &str = "30";

/// How long a client is refused that was blocklisted, by [`Client::blocklist`] or as its lock of an image was broken: what it
/// had under way must be over by then.
pub const BLOCKLISTED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// How to reach a cluster, and as whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// The configuration of the cluster; Ceph's own defaults if `None`.
    pub conf: Option<PathBuf>,
    /// The user, without `client.`; `admin` if `None`.
    pub user: Option<String>,
    /// His keyring, if not as the configuration says.
    pub keyring: Option<PathBuf>,
}

impl Access {
    /// The user, as Ceph calls him.
    #[must_use]
    pub fn user(&self) -> String {
        format!("client.{}", self.user.as_deref().unwrap_or("admin"))
    }
}

/// A pool, or a namespace in one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolSpec {
    /// Of which cluster.
    pub access: Access,
    /// The pool.
    pub pool: String,
    /// The namespace in it.
    pub namespace: Option<String>,
}

impl fmt::Display for PoolSpec {
    /// `POOL[/NAMESPACE]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pool)?;
        self.namespace.iter().try_for_each(|namespace| write!(f, "/{namespace}"))
    }
}

/// A connection to a cluster. Each has an address of its own, by which the cluster can be told to refuse it.
pub struct Client {
    api: &'static Api,
    rados: Handle,
}

// SAFETY: librados lets every thread use its handles (librados.h, "thread safe").
unsafe impl Send for Client {}
// SAFETY: the same of several at a time.
unsafe impl Sync for Client {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Connects. A request that has no answer fails after `patience`; it is waited for without end if `None`. It blocks.
    pub fn connect(access: &Access, patience: Option<Duration>) -> Result<Arc<Self>, RbdError> {
        let api = api().map_err(RbdError::Library)?;
        allocator::keep_large();
        let user = access.user();
        let name = c_string(&user)?;
        let mut rados = ptr::null_mut();
        // SAFETY: the strings end with zero and outlive the call; the cluster name may be null.
        let made =
            unsafe { (api.rados_create2)(&raw mut rados, c"ceph".as_ptr(), name.as_ptr(), 0) };
        check(made, || "cannot begin to use the cluster".to_owned())?;
        let client = Self { api, rados };
        client.configure(access)?;
        if let Some(patience) = patience {
            let seconds = patience.as_secs_f64().to_string();
            client.set("rados_osd_op_timeout", &seconds)?;
            client.set("rados_mon_op_timeout", &seconds)?;
        }
        // SAFETY: the handle is one that `rados_create2` made.
        let connected = unsafe { (api.rados_connect)(rados) };
        check(connected, || format!("cannot connect to the cluster as {user}"))?;
        Ok(Arc::new(client))
    }

    /// As Ceph's own tools do: the file, the environment, and what is said.
    fn configure(&self, access: &Access) -> Result<(), RbdError> {
        let conf = access.conf.as_ref().map(|path| c_string(&path.to_string_lossy()));
        let conf = conf.transpose()?;
        let path = conf.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: the path is null, for the usual places, or ends with zero.
        let read = unsafe { (self.api.rados_conf_read_file)(self.rados, path) };
        if read < 0 {
            return Err(RbdError::Configuration(io::Error::from_raw_os_error(-read)));
        }
        // SAFETY: null stands for CEPH_ARGS.
        let read = unsafe { (self.api.rados_conf_parse_env)(self.rados, ptr::null()) };
        check(read, || "cannot read CEPH_ARGS".to_owned())?;
        // A cache would keep what others must see, and what a write without flush has answered for; and a part of an object
        // that is discarded must read as zeroes.
        self.set("rbd_cache", "false")?;
        self.set("client_mount_timeout", CONNECTED_WITHIN)?;
        self.set("rbd_skip_partial_discard", "false")?;
        match &access.keyring {
            Some(keyring) => self.set("keyring", &keyring.to_string_lossy()),
            None => Ok(()),
        }
    }

    fn set(&self, option: &str, value: &str) -> Result<(), RbdError> {
        let (name, text) = (c_string(option)?, c_string(value)?);
        // SAFETY: both end with zero and are copied.
        let set = unsafe { (self.api.rados_conf_set)(self.rados, name.as_ptr(), text.as_ptr()) };
        check(set, || format!("cannot set {option}"))
    }

    pub(super) const fn api(&self) -> &'static Api {
        self.api
    }

    /// By which address the cluster knows it, and nobody else.
    pub fn address(&self) -> Result<String, RbdError> {
        let mut found: *mut c_char = ptr::null_mut();
        // SAFETY: the cluster is connected.
        let told = unsafe { (self.api.rados_getaddrs)(self.rados, &raw mut found) };
        check(told, || "cannot learn the address of this client".to_owned())?;
        // SAFETY: librados has written a string that ends with zero.
        let address = unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned();
        // SAFETY: it is what librados has allocated, and not used any more.
        unsafe { (self.api.rados_buffer_free)(found) };
        Ok(address)
    }

    /// Has the cluster refuse whatever comes from the client at this address. An OSD does so from the moment at which it has
    /// the map that says so; whoever must not be overtaken calls [`Client::see_latest_map`] before it uses the cluster.
    pub fn blocklist(&self, address: &str, time: Duration) -> Result<(), RbdError> {
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let name = c_string(address)?.into_raw();
        // SAFETY: the cluster is connected; the string ends with zero, outlives the call and is not changed by it.
        let added = unsafe { (self.api.rados_blocklist_add)(self.rados, name, seconds) };
        // SAFETY: it is the string that was given away above.
        drop(unsafe { std::ffi::CString::from_raw(name) });
        check(added, || format!("cannot blocklist the client at {address}"))
    }

    /// Returns once this client has the newest map of the cluster: an OSD that answers it after this has no older one.
    pub fn see_latest_map(&self) -> Result<(), RbdError> {
        // SAFETY: the cluster is connected.
        let seen = unsafe { (self.api.rados_wait_for_latest_osdmap)(self.rados) };
        check(seen, || "cannot learn the newest map of the cluster".to_owned())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: it is used by nobody after this: pools keep it. Of a cluster that was not connected it frees the handle.
        unsafe { (self.api.rados_shutdown)(self.rados) };
    }
}

/// A pool, or a namespace in one, as a client has it open.
pub(super) struct Pool {
    client: Arc<Client>,
    handle: Handle,
}

// SAFETY: librados lets every thread use its handles (librados.h, "thread safe").
unsafe impl Send for Pool {}
// SAFETY: the same of several at a time; what is set in it is set before others have it.
unsafe impl Sync for Pool {}

impl Pool {
    pub(super) fn open(client: &Arc<Client>, spec: &PoolSpec) -> Result<Self, RbdError> {
        let name = c_string(&spec.pool)?;
        let mut handle = ptr::null_mut();
        // SAFETY: the cluster is connected; the name ends with zero and outlives the call.
        let opened = unsafe {
            (client.api.rados_ioctx_create)(client.rados, name.as_ptr(), &raw mut handle)
        };
        check(opened, || format!("cannot open the pool {}", spec.pool))?;
        let pool = Self { client: Arc::clone(client), handle };
        if let Some(namespace) = &spec.namespace {
            let namespace = c_string(namespace)?;
            // SAFETY: the pool is open; the name ends with zero and is copied.
            unsafe { (client.api.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        }
        Ok(pool)
    }

    pub(super) const fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The name of the cluster that no other has, and the number of the pool.
    pub(super) fn place(&self) -> Result<String, RbdError> {
        let (api, rados) = (self.client.api, self.client.rados);
        let mut fsid = [0_u8; 64];
        // SAFETY: the buffer has the length that is told.
        let told = unsafe { (api.rados_cluster_fsid)(rados, fsid.as_mut_ptr().cast(), fsid.len()) };
        check(told, || "cannot learn the name of the cluster".to_owned())?;
        // SAFETY: the pool is open.
        let pool = unsafe { (api.rados_ioctx_get_id)(self.handle) };
        Ok(format!("{}/{pool}", text(&fsid)))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more: what is opened in it is closed before.
        unsafe { (self.client.api.rados_ioctx_destroy)(self.handle) };
    }
}
