//! The worker: one for each process.
//!
//! # Invariants
//! W1 UCX is called for a worker by one thread at a time: every call needs `&mut Worker`, or a
//!    `&Worker` that is not shared (`Worker` is not `Sync`).
//! W2 `shared` comes from a box, and is freed after the worker is destroyed: callbacks of UCX find
//!    it. They run inside of calls of UCX only, when no reference to its content is held, and use
//!    cells. The box itself is not kept, for a box may not move while others have its address.
//! W3 Header and body of a message belong to a [`Message`] that UCX has by its address, until the
//!    callback, or the return of `ucp_am_send_nbx` without a request, gives it back.
//! W4 An endpoint's [`End`] comes from a box, as `shared` does, and lives until UCX has closed it
//!    and nothing is under way on it.
//! W5 A fork has the memory of the worker, but neither its sockets nor its threads: its user does
//!    not call it there, and its copy is leaked.
//! W6 Callbacks do not unwind: they allocate and copy, where an allocation that fails aborts, and
//!    call the taker of messages, whose panic goes on when UCX has returned.
//! W7 The taker of messages is set while UCX makes progress only: it lives, and nobody else uses
//!    it. It cannot call the worker, which is borrowed meanwhile.
//!
//! # Files
//! `mod` (the worker, and its messages) · `endpoints` (opened and closed) · `callbacks` (what
//! UCX calls, and what it has until then)

mod callbacks;
mod endpoints;

use self::callbacks::{Closing, End, Message, Shared, Taker, arrived, free, leaked, sent};
use crate::Error;
use crate::ffi::{self, Address, Context, Started, Status, Ucp, Version};
use crate::signals::Handlers;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::ffi::CString;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest message, header and body together, in bytes.
pub const MESSAGE_MAX: usize = 128 << 10;
/// Longest header in bytes: every network of UCX takes it.
const HEADER_MAX: usize = 1024;
/// Messages from this length on have buffers that are used again.
const LONG: usize = 4 << 10;
/// The most buffers that wait to be used again: 2 MiB.
const SPARES: usize = 16;
/// The limit for messages that must always find room, in bytes under way on an endpoint: lower
/// limits of other messages leave that room free.
pub const LIMIT: u64 = 1 << 20;
/// What a message takes besides its bytes.
const ENTRY: u64 = 128;
/// Words of zeroes behind an address: more than an address of UCX has.
const ZEROES: usize = 1024;
/// The only kind of active message that is sent.
const KIND: u32 = 1;
/// How long the end of a worker waits until the others have what was sent to them, and until its
/// endpoints are closed.
const LINGER: Duration = Duration::from_secs(1);
const CLOSING: Duration = Duration::from_secs(1);

/// Which networks are used; what is `None` is chosen by UCX, or by `UCX_TLS` and `UCX_NET_DEVICES`
/// of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The transports, as in `UCX_TLS`: `tcp`, for example.
    pub transports: Option<String>,
    /// The devices, as in `UCX_NET_DEVICES`: `eth0`, for example.
    pub devices: Option<String>,
}

/// An endpoint of a [`Worker`]: its connection to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(u64);

/// Whether a message was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Accepted.
    Done,
    /// Too much is under way, or memory is short: make progress and try again.
    Full,
    /// The other worker is gone, or the endpoint was closed.
    Broken,
}

/// A worker of UCX, with its inbox; see the crate's documentation.
#[derive(Debug)]
pub struct Worker {
    ucp: &'static Ucp,
    version: Version,
    context: *mut Context,
    worker: *mut ffi::Worker,
    shared: NonNull<Shared>,
    address: Vec<u8>,
    endpoints: Vec<(EndpointId, NonNull<End>)>,
    closing: Vec<Closing>,
    next: u64,
    process: rustix::process::Pid,
}

// SAFETY: UCX was asked to be called by any thread, one at a time (THREAD_SERIALIZED, W1).
unsafe impl Send for Worker {}

impl std::fmt::Debug for Ucp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ucp")
    }
}

/// Loads UCX, once in a process.
fn library() -> Result<(&'static Ucp, Version), Error> {
    static LOADED: OnceLock<Result<(Ucp, Version), Error>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let _restored = Handlers::of_now();
        Ucp::load()
    });
    match loaded {
        Ok((ucp, version)) => Ok((ucp, *version)),
        Err(error) => Err(error.clone()),
    }
}

/// Returns whether UCX can be loaded here.
pub fn is_here() -> bool {
    library().is_ok()
}

fn check(call: &'static str, status: Status) -> Result<(), Error> {
    let why = ffi::text_of(status);
    match status {
        ffi::OK => Ok(()),
        _ => Err(Error::Failed { call, why }),
    }
}

impl Worker {
    /// Creates a worker. It takes 10 to 50 ms.
    ///
    /// # Errors
    /// [`Error::Missing`]; [`Error::Failed`]: the settings fit no network of this machine.
    pub fn new(settings: &Settings) -> Result<Worker, Error> {
        let (ucp, version) = library()?;
        let mut config = null_mut();
        // SAFETY: F1; it writes the pointer if it succeeds.
        check("ucp_config_read", unsafe {
            (ucp.ucp_config_read)(null(), null(), &mut config)
        })?;
        let set = [
            (c"TLS", &settings.transports),
            (c"NET_DEVICES", &settings.devices),
        ];
        let mut modified = Ok(());
        for (name, value) in set {
            let Some(value) = value
                .as_ref()
                .and_then(|text| CString::new(text.as_str()).ok())
            else {
                continue;
            };
            // SAFETY: F1; the texts are copied.
            let status = unsafe { (ucp.ucp_config_modify)(config, name.as_ptr(), value.as_ptr()) };
            modified = modified.and(check("ucp_config_modify", status));
        }
        let params = ffi::Params {
            field_mask: ffi::PARAM_FEATURES | ffi::PARAM_NAME,
            features: ffi::FEATURE_AM | ffi::FEATURE_WAKEUP,
            request_size: 0,
            request_init: null(),
            request_cleanup: null(),
            tag_sender_mask: 0,
            mt_workers_shared: 0,
            estimated_num_eps: 0,
            estimated_num_ppn: 0,
            name: c"samite".as_ptr(),
        };
        let mut context = null_mut();
        let made = modified.and_then(|()| {
            // SAFETY: F1; what it points to outlives the call.
            check("ucp_init", unsafe {
                (ucp.ucp_init_version)(1, 13, &params, config, &mut context)
            })
        });
        // SAFETY: it was read above, and is not used any more.
        unsafe { (ucp.ucp_config_release)(config) };
        made?;
        let params = ffi::WorkerParams {
            field_mask: ffi::WORKER_THREAD_MODE,
            thread_mode: ffi::THREAD_SERIALIZED,
            cpu_mask: [0; 16],
            events: 0,
            user_data: null_mut(),
            event_fd: 0,
            flags: 0,
            name: null(),
            am_alignment: 0,
            client_id: 0,
        };
        let mut worker = null_mut();
        // SAFETY: F1; the context was made above.
        let made = check("ucp_worker_create", unsafe {
            (ucp.ucp_worker_create)(context, &params, &mut worker)
        });
        if let Err(error) = made {
            // SAFETY: it has no worker.
            unsafe { (ucp.ucp_cleanup)(context) };
            return Err(error);
        }
        let mut worker = Worker {
            ucp,
            version,
            context,
            worker,
            shared: leaked(Shared::default()),
            address: Vec::new(),
            endpoints: Vec::new(),
            closing: Vec::new(),
            next: 0,
            process: rustix::process::getpid(),
        };
        worker.listen()?;
        worker.read_address()?;
        Ok(worker)
    }

    fn listen(&mut self) -> Result<(), Error> {
        let params = ffi::AmHandlerParam {
            field_mask: ffi::AM_ID | ffi::AM_FLAGS | ffi::AM_CB | ffi::AM_ARG,
            id: KIND,
            flags: ffi::AM_WHOLE_MSG,
            cb: arrived,
            arg: self.shared.as_ptr().cast(),
        };
        // SAFETY: F1, W2.
        check("ucp_worker_set_am_recv_handler", unsafe {
            (self.ucp.ucp_worker_set_am_recv_handler)(self.worker, &params)
        })
    }

    fn read_address(&mut self) -> Result<(), Error> {
        let (mut address, mut len) = (null_mut::<Address>(), 0);
        // SAFETY: F1; it writes both if it succeeds.
        check("ucp_worker_get_address", unsafe {
            (self.ucp.ucp_worker_get_address)(self.worker, &mut address, &mut len)
        })?;
        // SAFETY: UCX has returned these bytes, which are there until they are released.
        self.address = unsafe { std::slice::from_raw_parts(address.cast(), len) }.to_vec();
        // SAFETY: it is not used any more.
        unsafe { (self.ucp.ucp_worker_release_address)(self.worker, address) };
        Ok(())
    }

    /// Returns the version of UCX: major, minor, release.
    pub fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    /// Returns the address by which other workers [connect](Worker::connect): some hundred bytes.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// Returns a descriptor that becomes readable when something may have arrived, after
    /// [`Worker::arm`].
    ///
    /// # Errors
    /// [`Error::Failed`]; also if no descriptor is left.
    pub fn descriptor(&self) -> Result<OwnedFd, Error> {
        let mut fd = -1;
        // SAFETY: F1; it writes the descriptor if it succeeds.
        check("ucp_worker_get_efd", unsafe {
            (self.ucp.ucp_worker_get_efd)(self.worker, &mut fd)
        })?;
        // SAFETY: the worker has it open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fd.try_clone_to_owned().map_err(|_| Error::Failed {
            call: "dup",
            why: "no descriptor is left",
        })
    }

    /// Prepares the descriptor for a sleep; returns false if there is something to do before.
    pub fn arm(&mut self) -> bool {
        if self.waiting() > 0 || !self.shared().broken.borrow().is_empty() {
            return false;
        }
        // SAFETY: W1.
        let armed = unsafe { (self.ucp.ucp_worker_arm)(self.worker) };
        armed != ffi::BUSY
    }

    fn shared(&self) -> &Shared {
        // SAFETY: W2.
        unsafe { self.shared.as_ref() }
    }

    /// Sends a message of a header of at most 1 KiB and a body, which `write` fills: at most
    /// [`MESSAGE_MAX`] bytes together. `limit`: if more bytes
    /// than this are under way on the endpoint, the message is not accepted ([`Sent::Full`]).
    ///
    /// # Panics
    /// The header or the message is too long.
    pub fn send(
        &mut self,
        id: EndpointId,
        limit: u64,
        header: &[&[u8]],
        body: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Sent {
        let header_len: usize = header.iter().map(|part| part.len()).sum();
        let len = header_len + body;
        assert!(
            header_len <= HEADER_MAX && len <= MESSAGE_MAX,
            "{len} bytes"
        );
        let ucp = self.ucp;
        let Some(at) = self.end(id).filter(|_| !self.is_broken(id)) else {
            return Sent::Broken;
        };
        // SAFETY: W4.
        let end = unsafe { at.as_ref() };
        let cost = len as u64 + ENTRY;
        if end.under_way.get() > limit {
            return Sent::Full;
        }
        let mut bytes = self.shared().buffer(len);
        let mut filled = 0;
        for part in header {
            bytes[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        }
        write(&mut bytes[header_len..len]);
        let message = Box::new(Message {
            ucp,
            end: at,
            bytes,
            cost,
        });
        end.under_way.set(end.under_way.get() + cost);
        end.is_used.set(true);
        let (header, body) = message.bytes[..len].split_at(header_len);
        let (header, body) = (
            (header.as_ptr().cast(), header.len()),
            (body.as_ptr().cast(), body.len()),
        );
        let endpoint = end.endpoint.get();
        let message = Box::into_raw(message);
        let param = ffi::RequestParam {
            op_attr_mask: ffi::OP_CALLBACK | ffi::OP_USER_DATA | ffi::OP_FLAGS,
            flags: ffi::AM_SEND_EAGER,
            cb: Some(sent),
            user_data: message.cast(),
            ..ffi::RequestParam::NONE
        };
        // SAFETY: F1, W1, W3, W4.
        let started = Started::of(unsafe {
            (ucp.ucp_am_send_nbx)(endpoint, KIND, header.0, header.1, body.0, body.1, &param)
        });
        if let Started::UnderWay(_) = started {
            return Sent::Done;
        }
        // SAFETY: W3: no callback follows.
        drop(unsafe { Box::from_raw(message) }.settled());
        match started {
            Started::Failed(ffi::NO_RESOURCE | ffi::NO_MEMORY) => Sent::Full,
            Started::Failed(status) => {
                end.breaks(status);
                Sent::Broken
            }
            _ => Sent::Done,
        }
    }

    /// Lets UCX work, and passes what arrives to `take`, its header and its body, as long as
    /// nothing waits in the inbox and `take` returns true; what arrives then waits there. Returns
    /// whether UCX did anything.
    pub fn progress_into<F: FnMut(&[u8], &[u8]) -> bool>(&mut self, take: &mut F) -> bool {
        let shared = self.shared;
        // SAFETY: W2.
        unsafe { shared.as_ref() }.taker.set(Some(Taker::of(take)));
        let did = self.progress();
        // SAFETY: W2.
        let shared = unsafe { shared.as_ref() };
        shared.taker.set(None); // W7
        if let Some(panic) = shared.panic.take() {
            std::panic::resume_unwind(panic);
        }
        did
    }

    /// Lets UCX work; returns whether it did anything.
    pub fn progress(&mut self) -> bool {
        // SAFETY: W1, W2.
        let did = unsafe { (self.ucp.ucp_worker_progress)(self.worker) };
        if !self.closing.is_empty() {
            self.bury();
        }
        did > 0
    }

    /// Passes the next message that has arrived to `take`: its header and its body. Returns `None`
    /// if there is none.
    pub fn next<R>(&mut self, take: impl FnOnce(&[u8], &[u8]) -> R) -> Option<R> {
        // Out of the cell: a panic of `take` loses this message only.
        let (bytes, (at, header, body)) = {
            let mut inbox = self.shared().inbox.borrow_mut();
            let first = inbox.messages.pop_front()?;
            inbox.taken += 1;
            (std::mem::take(&mut inbox.bytes), first)
        };
        let message = &bytes[at..at + header + body];
        let (header, body) = message.split_at(header);
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(header, body)));
        let mut inbox = self.shared().inbox.borrow_mut();
        inbox.bytes = bytes;
        if inbox.messages.is_empty() {
            inbox.bytes.clear();
        }
        drop(inbox);
        Some(taken.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// Returns how many messages wait.
    pub fn waiting(&self) -> usize {
        self.shared().inbox.borrow().messages.len()
    }

    /// Returns how many messages were taken so far, by [`Worker::next`] or
    /// [`Worker::progress_into`].
    pub fn taken(&self) -> u64 {
        self.shared().inbox.borrow().taken
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.process != rustix::process::getpid() {
            return; // W5: `shared` and all ends stay.
        }
        self.shared().is_ending.set(true);
        self.shared().broken.borrow_mut().clear();
        while self.next(|_, _| ()).is_some() {}
        self.flush(Instant::now() + LINGER);
        let ids: Vec<EndpointId> = self.endpoints.iter().map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.close(id));
        let until = Instant::now() + CLOSING;
        while !self.closing.is_empty() && Instant::now() < until {
            self.progress_or_sleep();
        }
        // A worker that has just connected here may not have its answer yet. UCX 1.13 ends the
        // process if its own endpoints are destroyed before such an answer has left.
        if !self.closing.is_empty() || !self.flush_all(Instant::now() + CLOSING) {
            return; // It may not be destroyed, so what it has stays, too (W2, W4).
        }
        // SAFETY: W1, W2; no endpoint is left, and no callback follows.
        unsafe {
            (self.ucp.ucp_worker_destroy)(self.worker);
            (self.ucp.ucp_cleanup)(self.context);
            free(self.shared);
        }
    }
}
