//! Objects of a pool: read whole, and replaced if they are as they were.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::io;
use std::ptr;
use std::sync::Arc;

use super::api::{Api, Handle};
use super::client::Pool;
use super::{Client, PoolSpec, RbdError, c_string};

/// `LIBRADOS_CREATE_EXCLUSIVE`
const EXCLUSIVE: c_int = 1;

/// `LIBRADOS_OPERATION_FULL_TRY`: in a full cluster what takes no more space is done, and the rest fails.
const EVEN_IF_FULL: c_int = 64;

/// `MAX_ERRNO`: a comparison that fails answers with this and the place of the difference.
const DIFFERENT: c_int = -4095;

/// How much is read first of an object.
const FIRST_READ: usize = 64 << 10;

/// The attributes of an object.
pub type Attributes = BTreeMap<String, Vec<u8>>;

/// The objects of a pool, or of a namespace in one.
pub struct Objects(Pool);

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Objects").finish_non_exhaustive()
    }
}

impl Objects {
    /// Opens the pool by a connection.
    pub fn open(client: &Arc<Client>, spec: &PoolSpec) -> Result<Self, RbdError> {
        Pool::open(client, spec).map(Self)
    }

    /// The connection.
    #[must_use]
    pub fn client(&self) -> &Arc<Client> {
        self.0.client()
    }

    /// The bytes of an object, of which there are `most` at most; `None` without one.
    pub fn read(&self, object: &str, most: usize) -> io::Result<Option<Vec<u8>>> {
        let name = c_string(object).map_err(io::Error::other)?;
        let mut room = FIRST_READ;
        loop {
            let mut bytes = vec![0; room];
            // SAFETY: the pool is open; the name ends with zero; the buffer has the length that is told.
            let read = unsafe {
                (self.api().rados_read)(
                    self.0.handle(),
                    name.as_ptr(),
                    bytes.as_mut_ptr().cast(),
                    room,
                    0,
                )
            };
            match read {
                _ if read == -libc::ENOENT => return Ok(None),
                ..0 => return Err(io::Error::from_raw_os_error(-read)),
                // It may be longer. What is read at once is of one moment, so that it is read anew.
                _ if read.cast_unsigned() as usize == room && room <= most => room = most + 1,
                _ if read.cast_unsigned() as usize > most => {
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
                _ => {
                    bytes.truncate(read.cast_unsigned() as usize);
                    return Ok(Some(bytes));
                }
            }
        }
    }

    /// Makes an object of these bytes; `false` if there is one.
    pub fn create(&self, object: &str, bytes: &[u8]) -> io::Result<bool> {
        let operation = Operation::new(self.api());
        // SAFETY: the operation is new; the category may be null.
        unsafe {
            (operation.api.rados_write_op_create)(operation.handle, EXCLUSIVE, ptr::null());
        }
        operation.write_full(bytes);
        match operation.run(&self.0, object)? {
            Ok(()) => Ok(true),
            Err(code) if code == -libc::EEXIST => Ok(false),
            Err(code) => Err(io::Error::from_raw_os_error(-code)),
        }
    }

    /// Puts these bytes in the place of an object that has each of `expected` where it is said to be; `false` if it has not.
    /// The comparison and the change are one. After an error it may be changed or not, or come to be.
    pub fn replace(
        &self,
        object: &str,
        expected: &[(usize, Vec<u8>)],
        bytes: &[u8],
    ) -> io::Result<bool> {
        let operation = Operation::new(self.api());
        expected.iter().for_each(|(at, part)| operation.compare(*at, part));
        operation.write_full(bytes);
        match operation.run(&self.0, object)? {
            Ok(()) => Ok(true),
            Err(code) if code <= DIFFERENT || code == -libc::ENOENT => Ok(false),
            Err(code) => Err(io::Error::from_raw_os_error(-code)),
        }
    }

    /// Gives an object that is there an attribute.
    pub fn set_attribute(&self, object: &str, name: &str, value: &[u8]) -> io::Result<()> {
        let operation = Operation::new(self.api());
        let name = c_string(name).map_err(io::Error::other)?;
        // SAFETY: the operation is new.
        unsafe { (operation.api.rados_write_op_assert_exists)(operation.handle) };
        // SAFETY: the name ends with zero, the value has the length that is told, and both are copied.
        unsafe {
            (operation.api.rados_write_op_setxattr)(
                operation.handle,
                name.as_ptr(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
        operation.run(&self.0, object)?.map_err(|code| io::Error::from_raw_os_error(-code))
    }

    /// The attributes of an object; none without one.
    pub fn attributes(&self, object: &str) -> io::Result<Attributes> {
        let name = c_string(object).map_err(io::Error::other)?;
        let mut listed = ptr::null_mut();
        // SAFETY: the pool is open; the name ends with zero and outlives the call.
        let asked = unsafe {
            (self.api().rados_getxattrs)(self.0.handle(), name.as_ptr(), &raw mut listed)
        };
        match asked {
            _ if asked == -libc::ENOENT => Ok(Attributes::new()),
            ..0 => Err(io::Error::from_raw_os_error(-asked)),
            _ => AttributeList { api: self.api(), handle: listed }.read(),
        }
    }

    fn api(&self) -> &'static Api {
        self.0.client().api()
    }
}

/// What librados has listed.
struct AttributeList {
    api: &'static Api,
    handle: Handle,
}

impl AttributeList {
    fn read(self) -> io::Result<Attributes> {
        let mut found = Attributes::new();
        loop {
            let (mut name, mut value): (*const c_char, *const c_char) = (ptr::null(), ptr::null());
            let mut len = 0;
            // SAFETY: the list has not ended.
            let told = unsafe {
                (self.api.rados_getxattrs_next)(
                    self.handle,
                    &raw mut name,
                    &raw mut value,
                    &raw mut len,
                )
            };
            if told < 0 {
                return Err(io::Error::from_raw_os_error(-told));
            }
            if name.is_null() {
                return Ok(found);
            }
            // SAFETY: it is a string that ends with zero, and stays until the next call.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
            let value = match len {
                0 => Vec::new(),
                // SAFETY: there are as many bytes as are told, until the next call.
                _ => unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) }.to_vec(),
            };
            found.insert(name, value);
        }
    }
}

impl Drop for AttributeList {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        unsafe { (self.api.rados_getxattrs_end)(self.handle) };
    }
}

/// Changes of one object, which are made all or not at all.
struct Operation<'a> {
    api: &'static Api,
    handle: Handle,
    /// What librados reads from until the operation has ended.
    _bytes: std::marker::PhantomData<&'a [u8]>,
}

impl<'a> Operation<'a> {
    fn new(api: &'static Api) -> Self {
        // SAFETY: it takes nothing.
        let handle = unsafe { (api.rados_create_write_op)() };
        Self { api, handle, _bytes: std::marker::PhantomData }
    }

    fn compare(&self, at: usize, part: &'a [u8]) {
        let (from, len, at) = (part.as_ptr().cast(), part.len(), at as u64);
        // SAFETY: the bytes have the length that is told and outlive the operation; nobody wants the answer of this part.
        unsafe { (self.api.rados_write_op_cmpext)(self.handle, from, len, at, ptr::null_mut()) };
    }

    fn write_full(&self, bytes: &'a [u8]) {
        let (from, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the bytes have the length that is told and outlive the operation.
        unsafe { (self.api.rados_write_op_write_full)(self.handle, from, len) };
    }

    /// Does it, and waits. The inner error is what the cluster has answered.
    fn run(self, pool: &Pool, object: &str) -> io::Result<Result<(), c_int>> {
        let name: CString = c_string(object).map_err(io::Error::other)?;
        // SAFETY: the pool is open; the name ends with zero and outlives the call; the time may be null.
        let done = unsafe {
            (self.api.rados_write_op_operate)(
                self.handle,
                pool.handle(),
                name.as_ptr(),
                ptr::null_mut(),
                EVEN_IF_FULL,
            )
        };
        Ok(if done < 0 { Err(done) } else { Ok(()) })
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        // SAFETY: it has ended, or never begun, and is not used after this.
        unsafe { (self.api.rados_release_write_op)(self.handle) };
    }
}
