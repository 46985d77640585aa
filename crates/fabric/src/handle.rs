//! Operations in flight, as their owner holds them.

use crate::Result;
use crate::fabric::Fabric;
use crate::ops::{Key, Status};
use std::marker::PhantomData;

/// A send has ended; the buffer, if the operation owned it.
pub type Sent = Option<Vec<u8>>;
/// A receive has ended; its status and the buffer, if the operation owned it.
pub type Received = (Status, Option<Vec<u8>>);

/// How the end of an operation becomes a value.
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

    /// How an operation ends that never had a place in the table.
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
        fn from(ended: Ended) -> Self {
            match ended {
                Ended::Word(word) => word,
                Ended::Bytes(_) => 0,
                other => unreachable!("a one-sided operation ended as {other:?}"),
            }
        }
    }
}

/// An operation in flight: 16 bytes. Dropping it detaches: the operation goes on, its result is not
/// asked for. Wait, test, or `.await`.
#[derive(Debug)]
#[must_use = "an operation that nobody waits for ends whenever it likes"]
pub struct Handle<'f, T> {
    fabric: &'f Fabric,
    key: Key,
    kind: PhantomData<fn() -> T>,
}

const _: () = assert!(size_of::<Handle<'_, Sent>>() == 16);

/// No operation has this key: orders begin at 1.
const ENDED: Key = 0;

impl<'f, T: Outcome> Handle<'f, T> {
    pub(crate) fn new(fabric: &'f Fabric, key: Key) -> Self {
        Handle {
            fabric,
            key,
            kind: PhantomData,
        }
    }

    /// An operation that has ended already, without a place in the table.
    #[inline]
    pub fn ended(fabric: &'f Fabric) -> Self {
        Handle::new(fabric, ENDED)
    }

    /// Waits for the end. An operation whose deadline is over is given up.
    #[inline]
    pub fn wait(self) -> Result<T> {
        if self.key == ENDED {
            return Ok(sealed::From::from(sealed::AT_ONCE));
        }
        let ended = self.fabric.finish(self.key)?;
        Ok(sealed::From::from(ended))
    }

    /// Whether it has ended; makes some progress, and leaves the result for [`Handle::wait`].
    pub fn has_ended(&self) -> bool {
        if self.key == ENDED {
            return true;
        }
        self.fabric.progress();
        let ops = &mut self.fabric.core.borrow_mut().engine.ops;
        ops.get(self.key).is_none_or(|op| op.has_ended())
    }

    /// Whether it has ended, as far as is known: makes no progress, for whoever looks at many.
    pub fn is_over(&self) -> bool {
        let ops = &mut self.fabric.core.borrow_mut().engine.ops;
        self.key == ENDED || ops.get(self.key).is_none_or(|op| op.has_ended())
    }

    /// Whether it had ended when it was made: nothing is in flight.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.key == ENDED
    }

    /// The result, if it has ended; makes some progress.
    pub fn test(&mut self) -> Option<Result<T>> {
        if self.key == ENDED {
            return Some(Ok(sealed::From::from(sealed::AT_ONCE)));
        }
        self.fabric.progress();
        let ended = self.fabric.core.borrow_mut().engine.ops.take(self.key)?;
        Some(ended.map(sealed::From::from))
    }

    /// Gives the operation up. A receive that was not matched ends with [`Error::Cancelled`]; one that
    /// is being copied ends as soon as the other side is quiet. Wait for the handle to learn which.
    pub fn cancel(&mut self) {
        let core = &mut *self.fabric.core.borrow_mut();
        core.engine.give_up(self.key);
        core.engine.flush(&mut core.transport);
    }
}

/// Waits for all; the first error, after all have ended.
pub fn wait_all<'f, T: Outcome>(
    handles: impl IntoIterator<Item = Handle<'f, T>>,
) -> Result<Vec<T>> {
    let ended: Vec<_> = handles.into_iter().map(Handle::wait).collect();
    ended.into_iter().collect()
}

/// Whether all have ended; makes some progress.
pub fn test_all<T: Outcome>(handles: &[Handle<'_, T>]) -> bool {
    handles.iter().all(Handle::has_ended)
}

impl Handle<'_, u64> {
    /// Waits until the source of a put may be used again: the bytes of a put are copied when it starts, so
    /// that is so already. ([`Handle::wait`] waits until they are there.)
    pub fn wait_local(&self) {}
}

impl<T> Drop for Handle<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.key != ENDED {
            self.fabric.core.borrow_mut().engine.ops.detach(self.key);
        }
    }
}

impl<T: Outcome> std::future::Future for Handle<'_, T> {
    type Output = Result<T>;

    /// Makes progress itself and asks to be polled again: there is no hidden thread to wake it.
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
