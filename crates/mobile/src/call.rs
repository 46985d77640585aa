//! A call that is under way.

use crate::mobile::Mobile;
use crate::runtime::{locked, name};
use crate::{Error, Result};
use samite_fabric::rpc::Life;
use samite_fabric::upcall::Upcall;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A call that was sent, until its result is taken. Dropping it abandons the call, which goes on
/// where it is. It can be awaited; some thread has to make progress meanwhile. Thread: any.
#[derive(Debug)]
pub struct Call {
    mobile: Mobile,
    slot: u32,
    to: Life,
    entry: String,
    taken: bool,
}

impl Call {
    pub(crate) fn new(mobile: Mobile, slot: u32, to: Life, entry: &str) -> Call {
        Call {
            mobile,
            slot,
            to,
            entry: entry.to_owned(),
            taken: false,
        }
    }

    /// Ends a call that was never sent.
    pub(crate) fn cancel(mut self) {
        self.taken = true;
        let waker = locked(&self.mobile.runtime().calls).cancel(self.slot);
        drop(waker); // Without the lock.
    }

    /// Returns the result, if the call has ended; makes progress. It is returned once.
    pub fn test(&mut self) -> Option<Result<Vec<u8>>> {
        self.mobile.fabric().progress();
        self.take()
    }

    #[inline]
    fn take(&mut self) -> Option<Result<Vec<u8>>> {
        let ended = locked(&self.mobile.runtime().calls).take(self.slot)?;
        self.taken = true;
        Some(ended.map_err(|failure| Error::Failed(Box::new(failure))))
    }

    /// Waits for the result, with the deadline of the fabric.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Late`].
    #[inline]
    pub fn wait(self) -> Result<Vec<u8>> {
        let deadline = self.mobile.fabric().deadline();
        self.wait_within(deadline)
    }

    /// As [`Call::wait`], with a deadline of its own.
    ///
    /// # Errors
    /// As [`Call::wait`].
    pub fn wait_within(mut self, deadline: Duration) -> Result<Vec<u8>> {
        let mobile = self.mobile.clone();
        // Calls of this unit to itself, and what was missed while another thread worked.
        mobile.runtime().work(mobile.fabric());
        let what = "the reply of a call";
        let step = || self.take();
        let ended = mobile
            .fabric()
            .wait_stepping_within(deadline, what, &[], step, || false);
        match ended {
            Ok(ended) => ended,
            Err(samite_fabric::Error::Timeout { .. }) => Err(Error::Late {
                entry: self.entry.clone(),
                to: name(mobile.fabric(), self.to),
                after: deadline,
            }),
            Err(error) => Err(error.into()),
        }
    }
}

impl Future for Call {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(ended) = self.test() {
                return Poll::Ready(ended);
            }
            let (slot, waker) = (self.slot, context.waker().clone());
            // Without the lock: wakers are cloned and dropped by code of the program.
            let set = locked(&self.mobile.runtime().calls).wake(slot, waker);
            if set.is_ok() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.taken {
            let waker = locked(&self.mobile.runtime().calls).forget(self.slot);
            drop(waker); // Without the lock.
        }
    }
}
