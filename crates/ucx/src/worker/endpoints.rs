//! The endpoints of a worker: how they are opened, flushed and closed. The invariants are those of
//! [`worker`](super).

use super::callbacks::{Closing, End, free, leaked, lost};
use super::{EndpointId, Worker, ZEROES, check};
use crate::Error;
use crate::ffi::{self, Started};
use rustix::event::{PollFd, PollFlags};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{NonNull, null, null_mut};
use std::time::Instant;

impl Worker {
    /// Opens an endpoint to the worker with this address. UCX alone checks the address, so take
    /// addresses only from processes that you trust. Nothing is sent before the first message.
    ///
    /// # Errors
    /// [`Error::Failed`]: no network leads there, or the other worker has another version.
    pub fn connect(&mut self, address: &[u8]) -> Result<EndpointId, Error> {
        self.next += 1;
        let id = EndpointId(self.next);
        let end = leaked(End {
            id,
            shared: self.shared,
            endpoint: Cell::new(null_mut()),
            under_way: Cell::new(0),
            is_used: Cell::new(false),
            broken: Cell::new(None),
        });
        // UCX reads words of it, as far as it says itself: wrong lengths end among zeroes.
        let mut aligned = vec![0_u64; address.len().div_ceil(8) + ZEROES];
        for (word, bytes) in aligned.iter_mut().zip(address.chunks(8)) {
            let mut of_word = [0; 8];
            of_word[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(of_word);
        }
        let nobody = ffi::SockAddr {
            addr: null(),
            addrlen: 0,
        };
        let params = ffi::EpParams {
            field_mask: ffi::EP_REMOTE_ADDRESS | ffi::EP_ERR_MODE | ffi::EP_ERR_HANDLER,
            address: aligned.as_ptr().cast(),
            err_mode: ffi::ERR_MODE_PEER,
            err_handler: lost,
            err_arg: end.as_ptr().cast(),
            user_data: null_mut(),
            flags: 0,
            sockaddr: nobody,
            conn_request: null_mut(),
            name: null(),
            local_sockaddr: ffi::SockAddr {
                addr: null(),
                addrlen: 0,
            },
        };
        let mut endpoint = null_mut();
        // SAFETY: F1, W1, W4; the address is there during the call.
        let made = check("ucp_ep_create", unsafe {
            (self.ucp.ucp_ep_create)(self.worker, &params, &mut endpoint)
        });
        if let Err(error) = made {
            // SAFETY: W4: UCX has no endpoint that could report anything to it.
            unsafe { free(end) };
            return Err(error);
        }
        // SAFETY: W4.
        unsafe { end.as_ref() }.endpoint.set(endpoint);
        self.endpoints.push((id, end));
        Ok(id)
    }

    pub(super) fn end(&self, id: EndpointId) -> Option<NonNull<End>> {
        let place = self.endpoints.binary_search_by_key(&id, |(id, _)| *id);
        Some(self.endpoints[place.ok()?].1)
    }

    /// Returns whether UCX has noticed that the other worker is gone, or has lost a message to it.
    pub fn is_broken(&self, id: EndpointId) -> bool {
        // SAFETY: W4.
        let is_broken = |end: NonNull<End>| unsafe { end.as_ref() }.broken.get().is_some();
        self.end(id).is_none_or(is_broken)
    }

    /// Returns an endpoint that [has broken](Worker::is_broken) and was not returned before.
    pub fn next_broken(&mut self) -> Option<EndpointId> {
        self.shared().broken.borrow_mut().pop()
    }

    /// Closes an endpoint: what is under way on it may be lost.
    pub fn close(&mut self, id: EndpointId) {
        let place = self.endpoints.binary_search_by_key(&id, |(id, _)| *id);
        let Ok(place) = place else { return };
        let (_, end) = self.endpoints.remove(place);
        let param = ffi::RequestParam {
            op_attr_mask: ffi::OP_FLAGS,
            flags: ffi::CLOSE_FORCE,
            ..ffi::RequestParam::NONE
        };
        // SAFETY: W4.
        let endpoint = unsafe { end.as_ref() }.endpoint.get();
        // SAFETY: F1, W1; the endpoint is not used any more, and `end` stays (W4).
        let started = Started::of(unsafe { (self.ucp.ucp_ep_close_nbx)(endpoint, &param) });
        let request = match started {
            Started::UnderWay(request) => Some(request),
            _ => None,
        };
        self.closing.push(Closing { end, request });
    }

    /// Waits until the other workers have what was sent to them, or are gone. Closing by force
    /// would drop what UCX has accepted, and not yet given to the kernel.
    pub(super) fn flush(&mut self, until: Instant) {
        let ucp = self.ucp;
        let mut requests = Vec::new();
        for (_, end) in &self.endpoints {
            // SAFETY: W4.
            let end = unsafe { end.as_ref() };
            if !end.is_used.get() || end.broken.get().is_some() {
                continue;
            }
            // SAFETY: F1, W1, W4.
            let started =
                unsafe { (ucp.ucp_ep_flush_nbx)(end.endpoint.get(), &ffi::RequestParam::NONE) };
            if let Started::UnderWay(request) = Started::of(started) {
                requests.push(request);
            }
        }
        self.end_of(requests, until);
    }

    /// Waits until nothing is under way on any endpoint, also not on those that UCX has made by
    /// itself for workers that have just connected. Returns whether that is so. Nothing makes
    /// progress afterwards, so it stays so.
    pub(super) fn flush_all(&mut self, until: Instant) -> bool {
        // SAFETY: F1, W1.
        let started =
            unsafe { (self.ucp.ucp_worker_flush_nbx)(self.worker, &ffi::RequestParam::NONE) };
        match Started::of(started) {
            Started::UnderWay(request) => self.end_of(vec![request], until),
            Started::Done => true,
            Started::Failed(_) => false,
        }
    }

    /// Waits until requests have ended, and frees them. Returns whether all have.
    fn end_of(&mut self, mut requests: Vec<*mut c_void>, until: Instant) -> bool {
        let ucp = self.ucp;
        loop {
            requests.retain(|request| {
                // SAFETY: it was not freed yet.
                let status = unsafe { (ucp.ucp_request_check_status)(*request) };
                if status != ffi::IN_PROGRESS {
                    // SAFETY: it is complete, and is not used any more.
                    unsafe { (ucp.ucp_request_free)(*request) };
                }
                status == ffi::IN_PROGRESS
            });
            if requests.is_empty() || Instant::now() >= until {
                break;
            }
            self.progress_or_sleep();
        }
        let all = requests.is_empty();
        // UCX frees the others when they end.
        for request in requests {
            // SAFETY: it is not used any more.
            unsafe { (ucp.ucp_request_free)(request) };
        }
        all
    }

    /// Lets UCX work; sleeps a little if there is nothing to do.
    pub(super) fn progress_or_sleep(&mut self) {
        /// Not every end of a request makes the descriptor readable.
        const AT_MOST: rustix::event::Timespec = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 5_000_000,
        };
        if self.progress() || !self.arm() {
            return;
        }
        if let Ok(descriptor) = self.descriptor() {
            let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, Some(&AT_MOST));
        }
    }

    /// Frees the endpoints that UCX has closed.
    pub(super) fn bury(&mut self) {
        let ucp = self.ucp;
        self.closing.retain_mut(|closing| {
            if let Some(request) = closing.request {
                // SAFETY: it was not freed yet.
                if unsafe { (ucp.ucp_request_check_status)(request) } != ffi::IN_PROGRESS {
                    // SAFETY: it is complete, and is not used any more.
                    unsafe { (ucp.ucp_request_free)(request) };
                    closing.request = None;
                }
            }
            // SAFETY: W4.
            let is_under_way = unsafe { closing.end.as_ref() }.under_way.get() > 0;
            let is_needed = closing.request.is_some() || is_under_way;
            if !is_needed {
                // SAFETY: W4: UCX does not have it any more.
                unsafe { free(closing.end) };
            }
            is_needed
        });
    }
}
