//! Operations in flight, on their owner's side.

use crate::fabric::{Core, Fabric};
use crate::ops::{Key, NO_SCOPE, Status};
use crate::{Error, Result};
use samite_mem::Guard;
use std::marker::PhantomData;

/// The result of a send: the buffer, if the operation owned it.
pub type Sent = Option<Vec<u8>>;
/// The result of a receive: its status, and the buffer, if the operation owned it.
pub type Received = (Status, Option<Vec<u8>>);

/// How the end of an operation is converted to a value.
pub trait Outcome: Sized + sealed::From {}
impl<T: sealed::From> Outcome for T {}

#[expect(
    private_interfaces,
    reason = "sealed: nobody else implements or calls it"
)]
mod sealed {
    use crate::ops::{Outcome as Ended, Viewed};

    pub trait From: Sized {
        fn from(ended: Ended) -> Self;
    }

    /// The end of an operation that never had a slot in the table.
    pub(super) const AT_ONCE: Ended = Ended::Word(0);

    impl From for super::Sent {
        fn from(ended: Ended) -> Self {
            match ended {
                Ended::Sent(buffer) => buffer,
                Ended::Word(_) => None,
                other => unreachable!("a send ended as {other:?}"),
            }
        }
    }
    impl From for super::Received {
        fn from(ended: Ended) -> Self {
            match ended {
                Ended::Received(status, buffer) => (status, buffer),
                Ended::Viewed(status, Viewed::Copied(bytes)) => (status, Some(bytes)),
                other => unreachable!("a receive ended as {other:?}"),
            }
        }
    }
    impl From for Vec<u8> {
        fn from(ended: Ended) -> Self {
            match ended {
                Ended::Bytes(bytes) => bytes,
                other => unreachable!("a request ended as {other:?}"),
            }
        }
    }
    impl From for u64 {
        #[inline]
        fn from(ended: Ended) -> Self {
            match ended {
                Ended::Word(word) => word,
                Ended::Bytes(_) => 0,
                other => unreachable!("a one-sided operation ended as {other:?}"),
            }
        }
    }
}

/// An operation in flight: 16 bytes. Dropping it detaches: the operation continues, and its result
/// is discarded. Wait, test, or `.await`; in any thread.
///
/// `F` is the fabric, or in a [`Scope`](crate::Scope) a reference to it.
#[derive(Debug)]
pub struct Handle<T, F: AsRef<Fabric> = Fabric> {
    /// `None`: it had ended when this was created, and has no slot in the table.
    fabric: Option<F>,
    key: Key,
    kind: PhantomData<fn() -> T>,
}

const _: () = assert!(size_of::<Handle<Sent>>() == 16);

/// An operation that a [`Scope`](crate::Scope) has started. If it is dropped, the scope waits for
/// its end and returns its error; otherwise waiting for it or testing it returns the error.
pub type Scoped<'s, T> = Handle<T, &'s Fabric>;

impl<F: AsRef<Fabric>> Handle<u64, F> {
    /// Returns a one-sided operation that has ended already; its word is 0.
    #[inline]
    pub fn ended() -> Self {
        Handle::at_once()
    }
}

impl<T, F: AsRef<Fabric>> Handle<T, F> {
    pub(crate) fn new(fabric: F, key: Key) -> Self {
        Handle {
            fabric: Some(fabric),
            key,
            kind: PhantomData,
        }
    }

    /// Returns a send or a one-sided operation that has ended already.
    #[inline]
    pub(crate) fn at_once() -> Self {
        Handle {
            fabric: None,
            key: 0,
            kind: PhantomData,
        }
    }

    /// Lets the operation go on without its handle. A function of its own, so that only the check
    /// before it is inlined into callers.
    #[inline(never)]
    fn detach(&self) {
        if let Some(mut core) = self.core() {
            core.engine.ops.detach(self.key);
        }
    }

    /// Locks the core. `None` also in a fork without access to it: the operation is its parent's.
    #[inline(always)]
    fn core(&self) -> Option<Guard<'_, Core>> {
        self.fabric.as_ref()?.as_ref().0.core()
    }
}

impl<T: Outcome, F: AsRef<Fabric>> Handle<T, F> {
    /// Waits for the end. An operation that exceeds its deadline is given up.
    #[inline(always)]
    pub fn wait(self) -> Result<T> {
        // A mapped put ends here: this check is part of its cost.
        match self.fabric.is_none() {
            true => Ok(sealed::From::from(sealed::AT_ONCE)),
            false => self.wait_for_end(),
        }
    }

    #[inline(never)]
    fn wait_for_end(self) -> Result<T> {
        let ended = match &self.fabric {
            None => sealed::AT_ONCE,
            Some(fabric) => fabric.as_ref().finish(self.key)?,
        };
        Ok(sealed::From::from(ended))
    }

    /// Returns whether it has ended; makes some progress, and leaves the result for
    /// [`Handle::wait`].
    pub fn has_ended(&self) -> bool {
        if let Some(fabric) = &self.fabric {
            fabric.as_ref().progress();
        }
        self.is_over()
    }

    /// Returns whether it has ended, as far as is known: makes no progress, for callers that check
    /// many.
    pub fn is_over(&self) -> bool {
        let has_ended = |mut core: Guard<'_, Core>| {
            let op = core.engine.ops.get(self.key);
            op.is_none_or(|op| op.has_ended())
        };
        self.core().is_none_or(has_ended)
    }

    /// Returns whether it had ended when it was made: nothing is in flight.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.fabric.is_none()
    }

    /// Returns the result, if it has ended; makes some progress. The result is returned once; after
    /// that it is [`Error::Cancelled`], unless nothing was in flight ([`Handle::is_complete`]).
    pub fn test(&mut self) -> Option<Result<T>> {
        let Some(fabric) = &self.fabric else {
            return Some(Ok(sealed::From::from(sealed::AT_ONCE)));
        };
        fabric.as_ref().progress();
        let Some(mut core) = self.core() else {
            return Some(Err(Error::Forked));
        };
        let engine = &mut core.engine;
        if engine.ops.get(self.key).is_none() {
            return Some(Err(Error::Cancelled));
        }
        let ended = engine.take(self.key)?;
        Some(ended.map(sealed::From::from))
    }

    /// Gives the operation up. An unmatched receive ends with [`Error::Cancelled`]; one that is
    /// being copied ends as soon as the other side is quiet, and its message is consumed: its send
    /// ends with [`Error::NotReceived`], unless all of it had left. Wait for the handle to learn
    /// which. It may make progress, unless the thread is unwinding: a handler that panicked then
    /// would abort the process.
    pub fn cancel(&mut self) {
        let key = self.key;
        let Some(mut core) = self.core() else {
            return;
        };
        let op = core.engine.ops.get(key);
        if !op.is_none_or(|op| op.has_ended()) {
            core.engine.ops.belong(key, NO_SCOPE);
        }
        core.engine.give_up(key, Error::Cancelled);
        core.flush();
        // A send that had not left makes room for that of another thread.
        core.tell();
        // The peer answers each withdrawal, so a program that only cancels must take these answers,
        // too.
        if core.engine.must_poll() && !std::thread::panicking() {
            core.turn();
        }
    }
}

/// Waits for all operations; returns the first error, after all have ended.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let peer = fabric.me();
/// use samite_fabric::{Match, wait_all};
/// let sends: Result<Vec<_>, _> = (0..3).map(|tag| fabric.isend(peer, tag, vec![0; 8])).collect();
/// for tag in 0..3 {
///     fabric.recv_vec(Match::from(peer, tag))?;
/// }
/// let buffers = wait_all(sends?)?; // which the sends have returned
/// assert_eq!(buffers.len(), 3);
/// # Ok::<(), samite_fabric::Error>(())
/// ```
pub fn wait_all<T: Outcome, F: AsRef<Fabric>>(
    handles: impl IntoIterator<Item = Handle<T, F>>,
) -> Result<Vec<T>> {
    let ended: Vec<_> = handles.into_iter().map(Handle::wait).collect();
    ended.into_iter().collect()
}

/// Returns whether all have ended; makes some progress.
pub fn test_all<T: Outcome>(handles: &[Handle<T>]) -> bool {
    handles.iter().all(Handle::has_ended)
}

impl<T, F: AsRef<Fabric>> Drop for Handle<T, F> {
    #[inline(always)]
    fn drop(&mut self) {
        // A mapped put whose handle is dropped ends here, as in `wait`.
        if self.fabric.is_some() {
            self.detach();
        }
    }
}

impl<T: Outcome, F: AsRef<Fabric> + Unpin> std::future::Future for Handle<T, F> {
    type Output = Result<T>;

    /// Makes progress itself and asks to be polled again: no hidden thread would wake it.
    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        match self.test() {
            Some(result) => std::task::Poll::Ready(result),
            None => {
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            }
        }
    }
}
