//! The C interface of UCP 1.13, as far as it is used, loaded at run time.
//!
//! # Invariants
//! F1 The declarations below are those of `ucp/api/ucp.h` 1.13. Later versions of the same major
//!    version extend the structures at their ends, and look only at the fields that a mask names;
//!    [`Ucp::load`] accepts no other major version, and none before 1.13.
//! F2 The library stays loaded until the process ends: it has threads' variables and exit handlers.
//! F3 An `ucs_status_t` is any `i32`: no enumeration of Rust is made from it.
#![allow(non_camel_case_types, reason = "the names of UCX")]

use crate::Error;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;

pub(crate) type Status = i32;
/// Major, minor, release.
pub(crate) type Version = (u32, u32, u32);
pub(crate) const OK: Status = 0;
pub(crate) const IN_PROGRESS: Status = 1;
pub(crate) const NO_RESOURCE: Status = -2;
pub(crate) const NO_MEMORY: Status = -4;
pub(crate) const BUSY: Status = -15;
/// Pointers above this, as numbers, are statuses.
const LAST: isize = -100;

macro_rules! opaque {
    ($($name:ident)*) => { $(pub(crate) enum $name {})* };
}
opaque!(Context Config Worker Endpoint Address);

pub(crate) const FEATURE_WAKEUP: u64 = 1 << 4;
pub(crate) const FEATURE_AM: u64 = 1 << 6;
pub(crate) const PARAM_FEATURES: u64 = 1;
pub(crate) const PARAM_NAME: u64 = 1 << 8;

#[repr(C)]
pub(crate) struct Params {
    pub(crate) field_mask: u64,
    pub(crate) features: u64,
    pub(crate) request_size: usize,
    pub(crate) request_init: *const c_void,
    pub(crate) request_cleanup: *const c_void,
    pub(crate) tag_sender_mask: u64,
    pub(crate) mt_workers_shared: c_int,
    pub(crate) estimated_num_eps: usize,
    pub(crate) estimated_num_ppn: usize,
    pub(crate) name: *const c_char,
}

pub(crate) const WORKER_THREAD_MODE: u64 = 1;
pub(crate) const THREAD_SERIALIZED: c_int = 1;

#[repr(C)]
pub(crate) struct WorkerParams {
    pub(crate) field_mask: u64,
    pub(crate) thread_mode: c_int,
    pub(crate) cpu_mask: [u64; 16],
    pub(crate) events: c_uint,
    pub(crate) user_data: *mut c_void,
    pub(crate) event_fd: c_int,
    pub(crate) flags: u64,
    pub(crate) name: *const c_char,
    pub(crate) am_alignment: usize,
    pub(crate) client_id: u64,
}

pub(crate) const AM_ID: u64 = 1;
pub(crate) const AM_FLAGS: u64 = 1 << 1;
pub(crate) const AM_CB: u64 = 1 << 2;
pub(crate) const AM_ARG: u64 = 1 << 3;
pub(crate) const AM_WHOLE_MSG: u32 = 1;

pub(crate) type AmCallback = unsafe extern "C" fn(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const AmRecvParam,
) -> Status;

#[repr(C)]
pub(crate) struct AmHandlerParam {
    pub(crate) field_mask: u64,
    pub(crate) id: c_uint,
    pub(crate) flags: u32,
    pub(crate) cb: AmCallback,
    pub(crate) arg: *mut c_void,
}

/// The data are not here: they come by rendezvous.
pub(crate) const AM_RECV_RNDV: u64 = 1 << 17;

#[repr(C)]
pub(crate) struct AmRecvParam {
    pub(crate) recv_attr: u64,
    pub(crate) reply_ep: *mut Endpoint,
}

pub(crate) const EP_REMOTE_ADDRESS: u64 = 1;
pub(crate) const EP_ERR_MODE: u64 = 1 << 1;
pub(crate) const EP_ERR_HANDLER: u64 = 1 << 2;
pub(crate) const ERR_MODE_PEER: c_int = 1;

pub(crate) type ErrCallback =
    unsafe extern "C" fn(arg: *mut c_void, ep: *mut Endpoint, status: Status);

#[repr(C)]
pub(crate) struct SockAddr {
    pub(crate) addr: *const c_void,
    pub(crate) addrlen: u32,
}

#[repr(C)]
pub(crate) struct EpParams {
    pub(crate) field_mask: u64,
    pub(crate) address: *const Address,
    pub(crate) err_mode: c_int,
    pub(crate) err_handler: ErrCallback,
    pub(crate) err_arg: *mut c_void,
    pub(crate) user_data: *mut c_void,
    pub(crate) flags: c_uint,
    pub(crate) sockaddr: SockAddr,
    pub(crate) conn_request: *mut c_void,
    pub(crate) name: *const c_char,
    pub(crate) local_sockaddr: SockAddr,
}

pub(crate) const OP_CALLBACK: u32 = 1 << 1;
pub(crate) const OP_USER_DATA: u32 = 1 << 2;
pub(crate) const OP_FLAGS: u32 = 1 << 4;
pub(crate) const AM_SEND_EAGER: u32 = 1 << 1;
pub(crate) const CLOSE_FORCE: u32 = 1;

pub(crate) type SendCallback =
    unsafe extern "C" fn(request: *mut c_void, status: Status, user_data: *mut c_void);

#[repr(C)]
pub(crate) struct RequestParam {
    pub(crate) op_attr_mask: u32,
    pub(crate) flags: u32,
    pub(crate) request: *mut c_void,
    pub(crate) cb: Option<SendCallback>,
    pub(crate) datatype: u64,
    pub(crate) user_data: *mut c_void,
    pub(crate) reply_buffer: *mut c_void,
    pub(crate) memory_type: c_int,
    pub(crate) recv_info: *mut c_void,
    pub(crate) memh: *mut c_void,
}

impl RequestParam {
    pub(crate) const NONE: RequestParam = RequestParam {
        op_attr_mask: 0,
        flags: 0,
        request: std::ptr::null_mut(),
        cb: None,
        datatype: 0,
        user_data: std::ptr::null_mut(),
        reply_buffer: std::ptr::null_mut(),
        memory_type: 0,
        recv_info: std::ptr::null_mut(),
        memh: std::ptr::null_mut(),
    };
}

// The layouts of the header, for processors of 64 bits.
const _: () = {
    assert!(size_of::<Params>() == 80);
    assert!(size_of::<WorkerParams>() == 200);
    assert!(size_of::<AmHandlerParam>() == 32);
    assert!(size_of::<EpParams>() == 104);
    assert!(size_of::<RequestParam>() == 72);
};

/// What a call returned that completes at once, fails, or goes on.
pub(crate) enum Started {
    Done,
    Failed(Status),
    /// The request, to be freed after its callback.
    UnderWay(*mut c_void),
}

impl Started {
    pub(crate) fn of(pointer: *mut c_void) -> Started {
        match pointer as isize {
            0 => Started::Done,
            status @ LAST..0 => Started::Failed(status as Status),
            _ => Started::UnderWay(pointer),
        }
    }
}

/// Declares functions of UCP as fields of [`Ucp`].
macro_rules! ucp {
    ($(fn $name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// UCP.
        pub(crate) struct Ucp {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            _library: ManuallyDrop<Library>,
        }

        impl Ucp {
            fn of(library: Library) -> Result<Ucp, String> {
                Ok(Ucp {
                    $($name: {
                        // SAFETY: F1.
                        let symbol = unsafe { library.get(stringify!($name)) };
                        *symbol.map_err(|_| concat!("it has no ", stringify!($name)))?
                    },)*
                    _library: ManuallyDrop::new(library),
                })
            }
        }
    };
}

ucp! {
    fn ucp_get_version(*mut c_uint, *mut c_uint, *mut c_uint);
    fn ucp_config_read(*const c_char, *const c_char, *mut *mut Config) -> Status;
    fn ucp_config_modify(*mut Config, *const c_char, *const c_char) -> Status;
    fn ucp_config_release(*mut Config);
    fn ucp_init_version(c_uint, c_uint, *const Params, *const Config, *mut *mut Context) -> Status;
    fn ucp_cleanup(*mut Context);
    fn ucp_worker_create(*mut Context, *const WorkerParams, *mut *mut Worker) -> Status;
    fn ucp_worker_destroy(*mut Worker);
    fn ucp_worker_get_address(*mut Worker, *mut *mut Address, *mut usize) -> Status;
    fn ucp_worker_release_address(*mut Worker, *mut Address);
    fn ucp_worker_set_am_recv_handler(*mut Worker, *const AmHandlerParam) -> Status;
    fn ucp_worker_progress(*mut Worker) -> c_uint;
    fn ucp_worker_get_efd(*mut Worker, *mut c_int) -> Status;
    fn ucp_worker_arm(*mut Worker) -> Status;
    fn ucp_ep_create(*mut Worker, *const EpParams, *mut *mut Endpoint) -> Status;
    fn ucp_worker_flush_nbx(*mut Worker, *const RequestParam) -> *mut c_void;
    fn ucp_ep_flush_nbx(*mut Endpoint, *const RequestParam) -> *mut c_void;
    fn ucp_ep_close_nbx(*mut Endpoint, *const RequestParam) -> *mut c_void;
    fn ucp_am_send_nbx(
        *mut Endpoint, c_uint, *const c_void, usize, *const c_void, usize, *const RequestParam,
    ) -> *mut c_void;
    fn ucp_request_free(*mut c_void);
    fn ucp_request_check_status(*mut c_void) -> Status;
}

/// Names of the library.
const NAMES: [&str; 1] = ["libucp.so.0"];

impl Ucp {
    /// Loads the library.
    pub(crate) fn load() -> Result<(Ucp, Version), Error> {
        let mut why = String::new();
        for name in NAMES {
            // SAFETY: the library's constructors read the environment, measure the machine and
            // install signal handlers, which the caller puts back ([`crate::signals`]).
            match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => {
                    let ucp = Ucp::of(library).map_err(Error::Missing)?;
                    let (mut major, mut minor, mut release) = (0, 0, 0);
                    // SAFETY: F1; it writes three numbers.
                    unsafe { (ucp.ucp_get_version)(&mut major, &mut minor, &mut release) };
                    if major != 1 || minor < 13 {
                        return Err(Error::Missing(format!(
                            "UCX {major}.{minor} is here, and 1.13 or a later 1.x is needed"
                        )));
                    }
                    return Ok((ucp, (major, minor, release)));
                }
                Err(error) => why = error.to_string(),
            }
        }
        Err(Error::Missing(why))
    }
}

/// Returns the text of a status, from the numbers of `ucs/type/status.h`.
pub(crate) fn text_of(status: Status) -> &'static str {
    match status {
        -2 => "no resource",
        -3 => "input/output error",
        -4 => "out of memory",
        -5 => "invalid parameter",
        -6 => "the destination is unreachable",
        -7 => "invalid address",
        -8 => "not implemented",
        -9 => "message truncated",
        -12 => "no such element",
        -13 => "connecting to some endpoints failed",
        -14 => "no such device",
        -15 => "busy",
        -16 => "canceled",
        -20 => "timed out",
        -22 => "unsupported operation",
        -23 => "rejected by the peer",
        -24 => "not connected",
        -25 => "connection reset by the peer",
        -80 => "endpoint timeout",
        _ => "an error of UCX",
    }
}
