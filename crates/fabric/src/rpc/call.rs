//! The client: sends a request, resends it if refused, and waits for its response.

use super::{Life, ServiceId};
use crate::engine::Engine;
use crate::fabric::Fabric;
use crate::ops::{Key, Outcome, Work};
use crate::{Error, Result, Whom};
use std::cell::Cell;
use std::time::Duration;

/// How long [`Call::wait_yielding`] yields its processor before it waits as usual.
const YIELDING: Duration = Duration::from_micros(200);

/// The pauses before a refused request is resent: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A request that was sent, until its response is taken. Dropping it abandons the call. Thread:
/// any.
#[derive(Debug)]
pub struct Call {
    fabric: Fabric,
    service: ServiceId,
    to: Life,
    key: Key,
    /// The request, for resending.
    bytes: Vec<u8>,
}

/// What became of a request.
enum Fate {
    Ended(Result<Vec<u8>>),
    Refused,
}

impl Fabric {
    /// Sends a request to a service of one incarnation of a peer; `make` is given the request's id
    /// and returns its bytes. An empty request only asks whether the peer serves: no server sees
    /// it, and its response is empty. Waits up to `deadline` for room to send. Completion: local.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::Timeout`], [`Error::TooLong`].
    pub fn call(
        &self,
        service: ServiceId,
        to: Life,
        deadline: Duration,
        make: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<Call> {
        let key = {
            let ops = &mut self.0.lock()?.engine.ops;
            ops.add(Some(to.peer), "a response", Work::Reply)
        };
        let mut call = Call {
            fabric: self.clone(),
            service,
            to,
            key,
            bytes: Vec::new(),
        };
        call.bytes = make(key); // If it panics, the call ends.
        call.send(deadline)?;
        Ok(call)
    }

    /// Sends a note to a service of one incarnation of a peer; there is no response. Completion:
    /// local.
    ///
    /// # Errors
    /// As [`Fabric::call`].
    pub fn note(
        &self,
        service: ServiceId,
        to: Life,
        deadline: Duration,
        bytes: &[u8],
    ) -> Result<()> {
        self.post_to_service(service, to, deadline, 0, bytes)
    }
}

impl Call {
    /// Returns the number of the request, with which the server responds.
    pub fn id(&self) -> u64 {
        self.key
    }

    /// Returns the response, if it has arrived; makes no progress. It is returned once.
    pub fn take(&mut self) -> Option<Result<Vec<u8>>> {
        match fate_in(&self.fabric, self.key)? {
            Fate::Ended(result) => Some(result),
            Fate::Refused => None,
        }
    }

    /// Waits for the response. `what` is named in the error. After a timeout it can be waited for
    /// again.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::Timeout`]; [`Error::NoHandler`] if the peer did not serve
    /// during this time.
    pub fn wait(&mut self, deadline: Duration, what: &'static str) -> Result<Vec<u8>> {
        let (fabric, key) = (self.fabric.clone(), self.key);
        let whom = Whom::Peer(self.to.peer);
        self.wait_by(deadline, what, |left| {
            fabric.wait_within(left, what, whom, |engine| fate(engine, key))
        })
    }

    /// As [`Call::wait`], but yields the processor at first, and does not spin: for a server that
    /// has no processor of its own, as the services of an agent. If the units of a job fill the
    /// machine, a unit that spins keeps it from answering.
    ///
    /// # Errors
    /// As [`Call::wait`].
    pub fn wait_yielding(&mut self, deadline: Duration, what: &'static str) -> Result<Vec<u8>> {
        let begin = self.fabric.now();
        loop {
            self.fabric.progress();
            if let Some(answer) = self.take() {
                return answer;
            }
            if self.fabric.now().saturating_sub(begin) >= YIELDING.min(deadline) {
                return self.wait(deadline, what);
            }
            std::thread::yield_now();
        }
    }

    /// As [`Call::wait`], for a process that has other work meanwhile: `step` is called once per
    /// turn, and may use the fabric. While it returns true (there is more to do), the wait does not
    /// sleep.
    pub fn wait_stepping(
        &mut self,
        deadline: Duration,
        what: &'static str,
        mut step: impl FnMut() -> bool,
    ) -> Result<Vec<u8>> {
        let (fabric, key, peer) = (self.fabric.clone(), self.key, self.to.peer);
        self.wait_by(deadline, what, |left| {
            let has_more = Cell::new(false);
            let look = || {
                has_more.set(step());
                fate_in(&fabric, key)
            };
            fabric.wait_stepping_within(left, what, &[peer], look, || has_more.get())
        })
    }

    /// Waits by `wait`, which is given the time left, and resends a refused request.
    fn wait_by(
        &mut self,
        deadline: Duration,
        what: &'static str,
        mut wait: impl FnMut(Duration) -> Result<Fate>,
    ) -> Result<Vec<u8>> {
        let (mut pause, mut left) = (PAUSES.0, deadline);
        let began = self.fabric.now();
        // After a refusal, less than the deadline is left; the error says the deadline.
        let of_call = |mut error: Error| {
            if let Error::Timeout { after, .. } = &mut error {
                *after = deadline;
            }
            error
        };
        loop {
            if let Fate::Ended(result) = wait(left).map_err(of_call)? {
                return result;
            }
            left = deadline.saturating_sub(self.fabric.now().saturating_sub(began));
            if left.is_zero() {
                return Err(self.refused(what, deadline));
            }
            let gone = |engine: &mut Engine| engine.gone(self.to.peer);
            let whom = Whom::Peer(self.to.peer);
            let paused = self.fabric.wait_within(pause.min(left), what, whom, gone);
            match paused {
                Ok(error) | Err(error @ Error::Interrupted) => return Err(error),
                Err(_) => {} // The pause is over.
            }
            self.send(left).map_err(of_call)?;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn refused(&self, what: &'static str, after: Duration) -> Error {
        let mut core = match self.fabric.0.lock() {
            Ok(core) => core,
            Err(error) => return error,
        };
        match core.engine.ops.get(self.key).map(|op| &op.work) {
            Some(Work::Refused { is_busy: false }) => core.engine.named(Error::NoHandler {
                peer: self.to.peer.into(),
                handler: self.service.number(),
            }),
            _ => (core.engine).timeout(what, Whom::Peer(self.to.peer), after, None),
        }
    }

    fn send(&self, deadline: Duration) -> Result<()> {
        self.fabric
            .post_to_service(self.service, self.to, deadline, self.key, &self.bytes)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.fabric.0.with(|core| core.engine.ops.forget(self.key));
    }
}

/// As [`fate`], without the engine.
fn fate_in(fabric: &Fabric, key: Key) -> Option<Fate> {
    match fabric.0.lock() {
        Ok(mut core) => fate(&mut core.engine, key),
        Err(error) => Some(Fate::Ended(Err(error))),
    }
}

/// Returns what became of a call's operation, unless it is in flight.
fn fate(engine: &mut Engine, key: Key) -> Option<Fate> {
    let ended = match engine.ops.get(key) {
        None => Err(Error::Cancelled),
        Some(op) if matches!(op.work, Work::Refused { .. }) => return Some(Fate::Refused),
        Some(_) => engine.take(key)?,
    };
    Some(Fate::Ended(ended.map(|ended| match ended {
        Outcome::Bytes(bytes) => bytes,
        other => unreachable!("a request ended as {other:?}"),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Identity};

    /// A server that refuses late leaves only the rest of the time.
    #[test]
    fn one_deadline_is_for_all_that_a_call_waits_for() {
        const LONG: Duration = Duration::from_secs(30);
        let fabric = Fabric::alone(Identity::by_hand("test"), Config::default()).unwrap();
        let to = Life {
            peer: fabric.me(),
            incarnation: fabric.incarnation(),
        };
        let call = fabric.call(ServiceId::COORDINATOR, to, LONG, |_| vec![1]);
        let (mut call, mut lefts) = (call.unwrap(), Vec::new());
        let late = Duration::from_millis(20);
        let ended = call.wait_by(LONG, "a response", |left| {
            lefts.push(left);
            let begin = fabric.now();
            while fabric.now() - begin < late {
                std::hint::spin_loop();
            }
            match lefts.len() {
                1 => Ok(Fate::Refused),
                _ => Ok(Fate::Ended(Ok(Vec::new()))),
            }
        });
        assert_eq!(ended, Ok(Vec::new()));
        assert_eq!(lefts[0], LONG);
        assert!(lefts[1] <= LONG - late, "{lefts:?}");
    }
}
