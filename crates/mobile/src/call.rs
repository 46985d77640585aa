//! A call that is under way.

use crate::mobile::Mobile;
use crate::runtime::{coarse, locked, name};
use crate::{Error, Result};
use samite_fabric::rpc::Life;
use samite_fabric::upcall::Upcall;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A call that was sent, until its result is taken. Dropping it abandons the call, which goes on
/// where it is. It can be awaited; some thread has to make progress meanwhile. Its result is taken
/// once. Thread: any.
///
/// # Panics
/// If it is waited for or awaited after its result was taken.
#[derive(Debug)]
pub struct Call {
    mobile: Mobile,
    slot: u32,
    to: Life,
    entry: String,
    taken: bool,
    /// Once it was awaited: when it is late, on the coarse clock, and the deadline.
    late: Option<(Duration, Duration)>,
}

impl Call {
    pub(crate) fn new(mobile: Mobile, slot: u32, to: Life, entry: &str) -> Call {
        Call {
            mobile,
            slot,
            to,
            entry: entry.to_owned(),
            taken: false,
            late: None,
        }
    }

    /// Ends a call that was never sent.
    pub(crate) fn cancel(mut self) {
        self.taken = true;
        let waker = locked(&self.mobile.runtime().calls).cancel(self.slot);
        drop(waker); // Without the lock.
    }

    /// Returns the result, if the call has ended; makes progress. It is returned once: later calls
    /// return `None`.
    pub fn test(&mut self) -> Option<Result<Vec<u8>>> {
        self.mobile.fabric().progress();
        self.take()
    }

    #[inline]
    fn take(&mut self) -> Option<Result<Vec<u8>>> {
        if self.taken {
            return None;
        }
        let ended = locked(&self.mobile.runtime().calls).take(self.slot)?;
        self.taken = true;
        Some(ended.map_err(|failure| Error::Failed(Box::new(failure))))
    }

    fn is_not_taken(&self) {
        assert!(
            !self.taken,
            "the result of this call of `{}` was taken before: keep what `Call::test` or the first \
             poll has returned",
            self.entry
        );
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
        self.is_not_taken();
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
            Err(samite_fabric::Error::Timeout { .. }) => Err(self.late(deadline)),
            Err(error) => Err(error.into()),
        }
    }

    /// Names the units whose answers are missing: three of them, if there are many.
    fn late(&self, after: Duration) -> Error {
        const NAMED: usize = 3;
        let mut missing = locked(&self.mobile.runtime().calls).unanswered(self.slot);
        if missing.is_empty() {
            missing.push(self.to);
        }
        let named = missing.iter().take(NAMED);
        let mut names: Vec<String> = named
            .map(|life| name(self.mobile.fabric(), *life))
            .collect();
        if missing.len() > NAMED {
            names.push(format!("{} more", missing.len() - NAMED));
        }
        Error::Late {
            entry: self.entry.clone(),
            to: names.join(", "),
            after,
        }
    }
}

/// As [`Call::wait`]: with the deadline of the fabric, from the first poll on.
impl Future for Call {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.is_not_taken();
        if let Some(ended) = self.test() {
            return Poll::Ready(ended);
        }
        let now = coarse();
        let deadline = self.mobile.fabric().deadline();
        let late = self
            .late
            .get_or_insert((now.saturating_add(deadline), deadline));
        let (late_at, deadline) = *late;
        if late_at <= now {
            return Poll::Ready(Err(self.late(deadline)));
        }
        let (slot, waker) = (self.slot, context.waker().clone());
        // Without the lock: wakers are cloned and dropped by code of the program.
        let mobile = &self.mobile;
        let set = (mobile.runtime()).wake_at(mobile.fabric(), slot, waker, late_at);
        match set {
            Ok(_) => Poll::Pending,
            Err(_) => match self.take() {
                Some(ended) => Poll::Ready(ended), // It has ended since.
                None => unreachable!("only this `Call` takes its result"),
            },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Capsule, Function};
    use samite_fabric::{Config, Fabric, Identity};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::task::Waker;

    /// The result of a call is taken once, by `test` or by a poll. Who waits for it afterwards is
    /// told so, and does not wait for ever.
    #[test]
    fn a_result_is_taken_once() {
        let fabric = Fabric::alone(Identity::by_hand("once"), Config::default()).unwrap();
        let mobile = Mobile::new(&fabric).unwrap();
        mobile.define("once", Function::new(|context, _| context.reply(b"reply")));
        let code = Capsule::of_function("once", ["run"]).unwrap();
        let code = mobile.register(code).unwrap();
        let call = || mobile.call(0, &code, "run", &[]).unwrap();
        let context = &mut Context::from_waker(Waker::noop());
        let reply = || Ok(b"reply".to_vec());

        let mut tested = call();
        assert_eq!(tested.test(), Some(reply()));
        assert_eq!(tested.test(), None);
        let polled = catch_unwind(AssertUnwindSafe(|| pin!(&mut tested).poll(context)));
        assert!(polled.is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| tested.wait())).is_err());

        let mut polled = pin!(call());
        assert_eq!(polled.as_mut().poll(context), Poll::Ready(reply()));
        let again = catch_unwind(AssertUnwindSafe(|| polled.as_mut().poll(context)));
        assert!(again.is_err());
    }
}
