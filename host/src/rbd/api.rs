//! The functions of librados and librbd, found when they are first wanted: the program starts without them.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// `rados_t`, `rados_ioctx_t`, `rados_write_op_t`, `rados_xattrs_iter_t`, `rbd_image_t` and `rbd_completion_t`.
pub(super) type Handle = *mut c_void;

/// `rbd_callback_t`
pub(super) type Finished = unsafe extern "C" fn(Handle, *mut c_void);

/// The callback of `rbd_diff_iterate2`: offset, length, whether there are data.
pub(super) type EachExtent = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// The callback of `rbd_update_watch`.
pub(super) type Updated = unsafe extern "C" fn(*mut c_void);

/// `rbd_image_watcher_t`
#[repr(C)]
pub(super) struct Watcher {
    pub(super) address: *mut c_char,
    pub(super) _id: i64,
    pub(super) _cookie: u64,
}

/// Declares the functions, each with the library that has it.
macro_rules! functions {
    ($($library:ident: $name:ident($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// As the headers of Ceph 16 declare them (`rados/librados.h`, `rbd/librbd.h`).
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl Api {
            fn find(rados: &Library, rbd: &Library) -> Result<Self, libloading::Error> {
                let libraries = Libraries { rados, rbd };
                Ok(Self {
                    // SAFETY: the type is that of the header. The library is never unloaded, so the pointer stays good.
                    $($name: *unsafe { libraries.$library.get(concat!(stringify!($name), "\0")) }?,)*
                })
            }
        }
    };
}

struct Libraries<'a> {
    rados: &'a Library,
    rbd: &'a Library,
}

functions! {
    rados: rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    rados: rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados: rados_conf_parse_env(Handle, *const c_char) -> c_int;
    rados: rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados: rados_connect(Handle) -> c_int;
    rados: rados_shutdown(Handle);
    rados: rados_cluster_fsid(Handle, *mut c_char, usize) -> c_int;
    rados: rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados: rados_ioctx_get_id(Handle) -> i64;
    rados: rados_ioctx_set_namespace(Handle, *const c_char);
    rados: rados_ioctx_destroy(Handle);
    rados: rados_getaddrs(Handle, *mut *mut c_char) -> c_int;
    rados: rados_buffer_free(*mut c_char);
    rados: rados_blocklist_add(Handle, *mut c_char, u32) -> c_int;
    rados: rados_wait_for_latest_osdmap(Handle) -> c_int;
    rados: rados_read(Handle, *const c_char, *mut c_char, usize, u64) -> c_int;
    rados: rados_getxattrs(Handle, *const c_char, *mut Handle) -> c_int;
    rados: rados_getxattrs_next(Handle, *mut *const c_char, *mut *const c_char, *mut usize) -> c_int;
    rados: rados_getxattrs_end(Handle);
    rados: rados_create_write_op() -> Handle;
    rados: rados_release_write_op(Handle);
    rados: rados_write_op_create(Handle, c_int, *const c_char);
    rados: rados_write_op_assert_exists(Handle);
    rados: rados_write_op_cmpext(Handle, *const c_char, usize, u64, *mut c_int);
    rados: rados_write_op_write_full(Handle, *const c_char, usize);
    rados: rados_write_op_setxattr(Handle, *const c_char, *const c_char, usize);
    rados: rados_write_op_operate(Handle, Handle, *const c_char, *mut libc::time_t, c_int) -> c_int;
    rbd: rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd: rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd: rbd_close(Handle) -> c_int;
    rbd: rbd_get_size(Handle, *mut u64) -> c_int;
    rbd: rbd_get_features(Handle, *mut u64) -> c_int;
    rbd: rbd_get_id(Handle, *mut c_char, usize) -> c_int;
    rbd: rbd_get_stripe_unit(Handle, *mut u64) -> c_int;
    rbd: rbd_lock_acquire(Handle, c_int) -> c_int;
    rbd: rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
    rbd: rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    rbd: rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    rbd: rbd_watchers_list(Handle, *mut Watcher, *mut usize) -> c_int;
    rbd: rbd_watchers_list_cleanup(*mut Watcher, usize);
    rbd: rbd_update_watch(Handle, *mut u64, Updated, *mut c_void) -> c_int;
    rbd: rbd_update_unwatch(Handle, u64) -> c_int;
    rbd: rbd_diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, EachExtent, *mut c_void) -> c_int;
    rbd: rbd_aio_create_completion(*mut c_void, Finished, *mut Handle) -> c_int;
    rbd: rbd_aio_get_return_value(Handle) -> isize;
    rbd: rbd_aio_release(Handle);
    rbd: rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    rbd: rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
    rbd: rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
    rbd: rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
    rbd: rbd_aio_flush(Handle, Handle) -> c_int;
}

/// Loads the libraries once, and for as long as the process lives: their threads do not end before.
pub(super) fn api() -> Result<&'static Api, String> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Api, String> {
    let open = |name: &str| {
        // SAFETY: what these libraries do when they are loaded and unloaded is what every program linked with them relies on.
        let opened = unsafe { Library::new(name) };
        opened.map_err(|why| why.to_string())
    };
    let (rados, rbd) = (open("librados.so.2")?, open("librbd.so.1")?);
    let api = Api::find(&rados, &rbd).map_err(|why| why.to_string())?;
    std::mem::forget((rados, rbd));
    Ok(api)
}
