//! Signal handlers that a library installs when it is loaded, and the program does not want.

use std::mem::MaybeUninit;

const SIGNALS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The handlers of the process; put back when this is dropped.
pub(crate) struct Handlers([Option<libc::sigaction>; SIGNALS.len()]);

impl Handlers {
    /// Remembers the present handlers.
    pub(crate) fn of_now() -> Handlers {
        Handlers(SIGNALS.map(|signal| {
            let mut handler = MaybeUninit::uninit();
            // SAFETY: it only asks for the handler, which it writes whole if it succeeds.
            let asked = unsafe { libc::sigaction(signal, std::ptr::null(), handler.as_mut_ptr()) };
            // SAFETY: see above.
            (asked == 0).then(|| unsafe { handler.assume_init() })
        }))
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for (signal, handler) in SIGNALS.into_iter().zip(&self.0) {
            if let Some(handler) = handler {
                // SAFETY: the handler was this process's own before.
                unsafe { libc::sigaction(signal, handler, std::ptr::null_mut()) };
            }
        }
    }
}
