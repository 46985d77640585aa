//! What UCX calls back, and what it has until then: messages, and the ends of connections. The
//! invariants are those of [`worker`](super).

use super::{EndpointId, HEADER_MAX, LONG, MESSAGE_MAX, SPARES};
use crate::ffi::{self, Endpoint, Status, Ucp};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;

/// What callbacks fill.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) inbox: RefCell<Inbox>,
    /// Buffers of messages that have left, of [`MESSAGE_MAX`] bytes. A new one for each message
    /// would cost a page fault for each 4 KiB.
    spares: RefCell<Vec<Vec<u8>>>,
    /// Who takes messages at once (W7), and its panic.
    pub(super) taker: Cell<Option<Taker>>,
    pub(super) panic: RefCell<Option<Box<dyn Any + Send>>>,
    /// Endpoints that are broken, and were not asked about yet.
    pub(super) broken: RefCell<Vec<EndpointId>>,
    /// The worker ends: what arrives is dropped.
    pub(super) is_ending: Cell<bool>,
}

/// Takes messages as they arrive; returns false to take no more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taker {
    take: *mut c_void,
    call: unsafe fn(*mut c_void, &[u8], &[u8]) -> bool,
}

impl Taker {
    pub(super) fn of<F: FnMut(&[u8], &[u8]) -> bool>(take: &mut F) -> Taker {
        /// Calls what the pointer leads to.
        ///
        /// # Safety
        /// It leads to an `F` that nobody else uses.
        unsafe fn call<F: FnMut(&[u8], &[u8]) -> bool>(
            take: *mut c_void,
            header: &[u8],
            body: &[u8],
        ) -> bool {
            // SAFETY: the caller's promise.
            unsafe { (*take.cast::<F>())(header, body) }
        }
        Taker {
            take: std::ptr::from_mut(take).cast(),
            call: call::<F>,
        }
    }
}

/// Messages that have arrived, one behind another.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) bytes: Vec<u8>,
    /// Where each begins, with the lengths of header and body.
    pub(super) messages: VecDeque<(usize, usize, usize)>,
    /// How many were taken out.
    pub(super) taken: u64,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) id: EndpointId,
    pub(super) shared: NonNull<Shared>,
    pub(super) endpoint: Cell<*mut Endpoint>,
    pub(super) under_way: Cell<u64>,
    /// Whether anything was sent.
    pub(super) is_used: Cell<bool>,
    /// What UCX has reported of the peer.
    pub(super) broken: Cell<Option<Status>>,
}

/// An endpoint that is being closed.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) end: NonNull<End>,
    /// `None`: UCX has closed it.
    pub(super) request: Option<*mut c_void>,
}

/// A message that UCX has.
pub(super) struct Message {
    pub(super) ucp: &'static Ucp,
    pub(super) end: NonNull<End>,
    pub(super) bytes: Vec<u8>,
    pub(super) cost: u64,
}

/// Moves a value to memory that [`free`] frees.
pub(super) fn leaked<T>(value: T) -> NonNull<T> {
    NonNull::from(Box::leak(Box::new(value)))
}

/// Frees what was [`leaked`].
///
/// # Safety
/// Nobody uses it any more.
pub(super) unsafe fn free<T>(leaked: NonNull<T>) {
    // SAFETY: it comes from a box.
    drop(unsafe { Box::from_raw(leaked.as_ptr()) });
}

impl Shared {
    /// Returns a buffer of at least this length.
    pub(super) fn buffer(&self, len: usize) -> Vec<u8> {
        match len < LONG {
            true => vec![0; len],
            false => {
                let spare = self.spares.borrow_mut().pop();
                spare.unwrap_or_else(|| vec![0; MESSAGE_MAX])
            }
        }
    }

    /// Takes the buffer of a message that has left.
    fn give_back(&self, buffer: Vec<u8>) {
        let mut spares = self.spares.borrow_mut();
        if buffer.len() == MESSAGE_MAX && spares.len() < SPARES {
            spares.push(buffer);
        }
    }
}

impl End {
    /// Remembers why nothing more can be sent.
    pub(super) fn breaks(&self, status: Status) {
        if self.broken.replace(Some(status)).is_none() {
            // SAFETY: W2.
            let shared = unsafe { self.shared.as_ref() };
            // Nobody asks any more while the worker ends.
            if !shared.is_ending.get() {
                shared.broken.borrow_mut().push(self.id);
            }
        }
    }
}

impl Message {
    /// It is no longer under way.
    pub(super) fn settled(mut self: Box<Message>) -> Box<Message> {
        // SAFETY: W4.
        let end = unsafe { self.end.as_ref() };
        end.under_way
            .set(end.under_way.get().saturating_sub(self.cost));
        // SAFETY: W2.
        unsafe { end.shared.as_ref() }.give_back(std::mem::take(&mut self.bytes));
        self
    }
}

/// A message has left, or never will.
pub(super) unsafe extern "C" fn sent(request: *mut c_void, status: Status, message: *mut c_void) {
    // SAFETY: W3.
    let message = unsafe { Box::from_raw(message.cast::<Message>()) }.settled();
    if status != ffi::OK {
        // SAFETY: W4.
        unsafe { message.end.as_ref() }.breaks(status);
    }
    // SAFETY: UCX allows it here, and does not use the request any more.
    unsafe { (message.ucp.ucp_request_free)(request) };
}

/// UCX has noticed that a peer is gone.
pub(super) unsafe extern "C" fn lost(end: *mut c_void, _: *mut Endpoint, status: Status) {
    // SAFETY: W4.
    let end = unsafe { &*end.cast_const().cast::<End>() };
    end.breaks(status);
}

/// A message has arrived.
pub(super) unsafe extern "C" fn arrived(
    shared: *mut c_void,
    header: *const c_void,
    header_len: usize,
    body: *mut c_void,
    len: usize,
    param: *const ffi::AmRecvParam,
) -> Status {
    // SAFETY: W2.
    let shared = unsafe { &*shared.cast_const().cast::<Shared>() };
    if shared.is_ending.get() {
        return ffi::OK;
    }
    let Ok(mut inbox) = shared.inbox.try_borrow_mut() else {
        return ffi::OK; // W2: this does not happen.
    };
    // SAFETY: F1; it is there during the callback.
    let is_here = unsafe { (*param).recv_attr } & ffi::AM_RECV_RNDV == 0;
    // Nobody but an honest worker sends, yet nothing is allocated by what it says.
    if !is_here || header_len > HEADER_MAX || header_len.saturating_add(len) > MESSAGE_MAX {
        return ffi::OK;
    }
    let of = |bytes: *const c_void, len: usize| -> &[u8] {
        match len {
            0 => &[],
            // SAFETY: UCX has these bytes during the callback.
            _ => unsafe { std::slice::from_raw_parts(bytes.cast(), len) },
        }
    };
    let (header, body) = (of(header, header_len), of(body.cast_const(), len));
    match shared.taker.get().filter(|_| inbox.messages.is_empty()) {
        Some(taker) => {
            inbox.taken += 1;
            drop(inbox);
            // SAFETY: W7.
            let take = || unsafe { (taker.call)(taker.take, header, body) };
            let taken = std::panic::catch_unwind(AssertUnwindSafe(take));
            if !matches!(taken, Ok(true)) {
                shared.taker.set(None);
            }
            *shared.panic.borrow_mut() = taken.err(); // W6
        }
        None => {
            let at = inbox.bytes.len();
            inbox.bytes.extend_from_slice(header);
            inbox.bytes.extend_from_slice(body);
            inbox.messages.push_back((at, header.len(), body.len()));
        }
    }
    ffi::OK
}
