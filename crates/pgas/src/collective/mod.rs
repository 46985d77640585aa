//! Collectives of a team, blocking and non-blocking, with 64-bit counts.
//!
//! # How a call runs
//! ```text
//!   Team::all_reduce(from, into, Sum)      `arguments` are checked, and become
//!     Call                                 what all members must agree on
//!     Shape                                who gives what to whom
//!     Input, Output                        bytes: private, or in symmetric memory (`buffer`)
//!   Run                                    the executor, on one of two links, which all members choose alike:
//!     Flags                                all members map each other: meetings, and copies between them
//!     Messages                             all other teams
//!   Schedule                               its steps, which name memory: own input, output and scratch, and on flags
//!                                          that of the others
//! ```
//! A blocking call runs to its end, a non-blocking one whenever its unit waits. The other members
//! cannot tell the two apart. A blocking call of few bytes on flags is a single meeting that
//! bypasses all of this (`shared::at_once`).
//!
//! # Rules
//! * Every member calls the same collectives of a team in the same order. If a member calls another
//!   one, or with another root, count, type or operator, the call returns [`Error::Mismatch`] at
//!   the members that notice and at all that depend on them; the team remains usable. A member
//!   whose own arguments are inconsistent gets that error, the others [`Error::Refused`].
//! * If a member dies during a call, the call returns [`Error::UnitLost`] at all members that
//!   depend on it.
//! * Where members share memory, a call that has begun and ends at the deadline ends the
//!   collectives of its team: members that enter it, or a later one, get [`Error::Refused`] and
//!   access no memory. Create another team of the members that respond. A member that is stopped
//!   while it moves bytes writes, when it continues, only to parts of the targets of that call. A
//!   call that gives up while it waits for earlier calls is only refused itself, when its turn
//!   comes.
//! * A collective ends at a member when its result is complete and its buffers are free for reuse.
//!   Only a barrier, and a call that needs data from all members, implies that the others have
//!   called it. A call may wait for other members even if its result does not depend on them.
//! * A put that was completed before a barrier (by its handle or a flush) is visible to all members
//!   after it.
//! * The blocking and the non-blocking form of a collective match each other.
//!
//! ```
//! use samite_fabric::{Config, Fabric, Identity};
//! use samite_pgas::{MaxLoc, Located, Op, Pgas, Sum};
//! # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
//! let pgas = Pgas::new(&fabric)?;
//! let world = pgas.world();
//! let rank = u64::from(world.rank());
//! // Slices, or parts of symmetric memory, which the others read and write in place.
//! let vector = world.allocate::<f64>(1000)?;
//! let mut sum = vec![0.0; 1000];
//! world.all_reduce(vector.part(..)?, &mut sum, Sum)?;
//! let mut hottest = [Located::new(0.0, 0)];
//! world.reduce(0, &[Located::new(sum[7], rank)], &mut hottest, MaxLoc)?;
//! // The others need not wait while this unit computes.
//! let all = world.iall_gather(vec![rank])?;
//! let product = world.iall_reduce(vec![rank + 1], Op::new(|a: u64, b: u64| a * b))?;
//! assert_eq!((all.wait()?, product.wait()?), (vec![0], vec![1]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Files
//! `blocking`, `nonblocking` (the calls) · `arguments` (their checks) · `pending` (a call in
//! flight) · `op` (operators) · `buffer` (memory of arguments) · `call` (descriptors, failures) ·
//! `shape` (meaning) · `combining` (loops) · `run` (executor) · `schedule/` · `shared/`, `messages`
//! (links)

mod arguments;
mod blocking;
mod buffer;
mod call;
mod combining;
mod messages;
mod nonblocking;
mod op;
mod pending;
mod run;
mod schedule;
mod shape;
mod shared;

pub use arguments::Counts;
pub use buffer::{Buffers, Source, Target};
pub(crate) use buffer::{Ends, Input, Output};
pub(crate) use call::{Kind, differs};
pub use op::{
    BitAnd, BitOr, BitXor, Located, LogicalAnd, LogicalOr, Max, MaxLoc, Min, MinLoc, Op, Operator,
    Prod, Sum,
};
pub use pending::Pending;
pub(crate) use shared::{Block, Board};

use crate::job::Job;
use messages::Reports;
use parking_lot::Mutex;
use pending::{Flight, Flying, InFlight};
use samite_fabric::{Fabric, PeerId};
use shared::Pool;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(doc)]
use crate::Error;

/// The state that the collectives of a unit share.
#[derive(Debug)]
pub(crate) struct State {
    ends: Reports,
    /// The calls of each team are in call order.
    in_flight: Mutex<Vec<InFlight>>,
    /// The number of calls in flight, which every wait reads.
    count: AtomicUsize,
    pool: Arc<Pool>,
}

impl State {
    pub(crate) fn new(fabric: &Fabric, units: &[PeerId]) -> State {
        State {
            ends: messages::listen(fabric, units.to_vec()),
            in_flight: Mutex::default(),
            count: AtomicUsize::new(0),
            pool: Arc::default(),
        }
    }

    /// Ends the collectives: global memory has ended at all units.
    pub(crate) fn end(&self, job: &Job) {
        messages::end(&job.fabric, &self.ends);
    }

    /// Returns true if nothing is in flight. A call that is being advanced is in flight: waits
    /// inside operators ask this, too.
    pub(crate) fn is_idle(&self) -> bool {
        // ORDERING: Relaxed: a thread that misses a call looks again after its next turn.
        self.count.load(Ordering::Relaxed) == 0
    }

    fn change_in_flight(&self, change: impl FnOnce(&mut Vec<InFlight>)) {
        let mut in_flight = self.in_flight.lock();
        change(&mut in_flight);
        self.count.store(in_flight.len(), Ordering::Relaxed);
    }

    /// Returns true if a call in flight can advance, judging by flags alone. Does not use the
    /// fabric.
    pub(crate) fn is_ready(&self) -> bool {
        self.in_flight.lock().iter().any(|call| call.is_ready())
    }

    /// Starts a call and adds it to those in flight.
    fn fly(&self, job: &Job, mut call: Flying) -> InFlight {
        let has_ended = call.step(job).is_some();
        let call = Flight::new(call);
        if !has_ended {
            self.change_in_flight(|all| all.push(call.clone()));
        }
        call
    }

    /// Advances the calls in flight, without waiting. Skips calls that are being advanced already,
    /// by another thread or around an operator that waits.
    pub(crate) fn step(&self, job: &Job) {
        if self.is_idle() {
            return;
        }
        // Operators run without the lock: they may wait.
        let in_flight = self.in_flight.lock().clone();
        for call in &in_flight {
            let ended = call.advance(job, |call| call.step(job).map(drop));
            if ended.is_some() {
                self.change_in_flight(|all| all.retain(|other| !Arc::ptr_eq(other, call)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Op, Pgas};
    use samite_fabric::Match;
    use samite_testkit::{Failed, MESSAGES_ONLY, Outcome, same, simulate, units};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    const PASSED: u16 = 7;

    /// A wait that starts with nothing in flight advances a call that another thread starts
    /// meanwhile.
    #[test]
    fn a_wait_moves_on_what_another_thread_starts() {
        let name = "collective::tests::a_wait_moves_on_what_another_thread_starts";
        units(3).mask(MESSAGES_ONLY).run(name, |fabric, members| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            if world.rank() > 0 {
                // Unit 0 has received nothing of this barrier when it begins.
                fabric.recv(Match::from(members[0], 1), &mut [])?;
                world.ibarrier()?.wait()?;
                fabric.tell(members[0], PASSED, &[])?;
                return Ok(world.barrier()?);
            }
            let passed = Arc::new(AtomicUsize::new(0));
            let count = passed.clone();
            fabric.on(PASSED, move |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
                None
            });
            let waits = AtomicBool::new(false);
            let have_passed = || {
                waits.store(true, Ordering::Relaxed);
                (passed.load(Ordering::Relaxed) == 2).then_some(())
            };
            std::thread::scope(|scope| -> Outcome {
                let wait = || pgas.job.wait_until("a test", &members[1..], have_passed);
                let waiting = scope.spawn(wait);
                while !waits.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let barrier = world.ibarrier()?;
                for member in &members[1..] {
                    fabric.send(*member, 1, &[])?;
                }
                let waited = waiting.join();
                waited.map_err(|_| Failed::new("a thread panicked"))??;
                Ok(barrier.wait()?)
            })?;
            Ok(world.barrier()?)
        });
    }

    /// An operator of a collective that is being advanced may wait for a signal or a lock.
    #[test]
    fn an_operator_may_wait() {
        simulate(
            "collective::tests::an_operator_may_wait",
            2,
            0..2,
            |fabric, _| {
                let pgas = Arc::new(Pgas::new(fabric)?);
                let waits = pgas.clone();
                let wait = move || waits.job.wait_until("a test", &[], || Some(7));
                let operator = Op::new(move |a: u64, b: u64| a + b + wait().unwrap_or(1000));
                let sum = pgas.world().iall_reduce(vec![1], operator)?;
                same!(sum.wait()?, [9]);
                Ok(pgas.world().barrier()?)
            },
        );
    }
}
