//! The barrier of a list of peers: one message to its first member, the root, and one back. On one
//! node a tree would only add latency.
//!
//! ```text
//!   member -> root   COME attempt    it has arrived
//!                    BACK attempt    it left again: its deadline expired, or a handler panicked
//!   root -> member   GO   attempt    all members have arrived
//!                    NO   attempt    this incarnation of this peer is lost: no member will pass
//! ```
//! They are sent as signals, whose keys hold the kind, a hash of the list, and the attempt, which a
//! member counts. The peer of NO is in the frame's inline bytes.
//!
//! # Invariants
//! G1 The root releases all members at once, while it knows that all of them have arrived and not
//!    gone back. What it knew when it gave up itself stays valid.
//! G2 GO and NO answer one attempt. An answer that arrives after its member went back is dropped.
//! G3 Only the root decides that a loss ends a barrier: a loss that a member sees may be that of
//!    one that was released and has left. So NO never overtakes a GO of the same barrier.
//! G4 A root that has found a member lost answers those that arrive later, until it enters a
//!    barrier with this list again itself.
//!
//! Not guaranteed: a member whose deadline expires while GO is in flight ends with
//! [`Error::Timeout`], the others do not. Two lists with one root and one hash are one barrier. A
//! root whose deadline expires while a GO waits for room returns, and that GO is sent with its next
//! progress.

use crate::engine::Engine;
use crate::fabric::{Core, Fabric};
use crate::proto::barrier::{BACK, COME, GO, LISTS_MAX, NO, key};
use crate::wire::kind;
use crate::{Error, PeerId, Result, Whom};

/// Returns 29 bits that identify the list.
fn hash(members: &[PeerId]) -> u64 {
    let fnv = |hash: u64, peer: &PeerId| (hash ^ peer.0 as u64).wrapping_mul(0x100_0000_01b3);
    members.iter().fold(0xcbf2_9ce4_8422_2325, fnv) >> 35
}

/// A member at a barrier. However the wait ends, except by GO, the root is told that the member has
/// left it.
struct AtBarrier<'a> {
    fabric: &'a Fabric,
    root: PeerId,
    list: u64,
    attempt: u64,
}

impl Drop for AtBarrier<'_> {
    fn drop(&mut self) {
        let back = key(BACK, self.list, self.attempt);
        self.fabric.0.with(|core| {
            let waits = &mut core.engine.barriers.waits;
            waits.retain(|(_, attempt, _)| *attempt != self.attempt);
            core.engine.post(self.root, kind::SIGNAL, back, &[]);
            core.flush();
        });
    }
}

impl Fabric {
    /// Waits until all `members` are at this barrier. Collective: every member with the same list,
    /// in one thread at a time: if two threads use one list, neither may get through. A member
    /// whose deadline expires has left the barrier, and may enter it again.
    ///
    /// # Errors
    /// [`Error::PeerLost`], at every member; [`Error::Timeout`], which at the first member names
    /// the first one that has not arrived, at the others the first member.
    pub fn barrier(&self, members: &[PeerId]) -> Result<()> {
        let Some((root, others)) = members.split_first() else {
            return Ok(());
        };
        let list = hash(members);
        match *root == self.me() {
            true => self.gather(others, list),
            false => self.come(*root, list),
        }
    }

    fn gather(&self, others: &[PeerId], list: u64) -> Result<()> {
        let Some(first) = others.first() else {
            return Ok(());
        };
        let without = |broken: &mut Vec<_>| broken.retain(|(one, _)| *one != list);
        without(&mut self.0.lock()?.engine.barriers.broken); // G4
        let mut missing = 0;
        let is_posted = loop {
            let mut gather = |engine: &mut Engine| {
                while let Some(other) = others.get(missing) {
                    if !engine.has_come(*other, list) {
                        return engine.gone(*other).map(Err);
                    }
                    missing += 1;
                }
                Some(Ok(()))
            };
            let gathered = self
                .after_announcement(|| self.wait("a barrier", Whom::Peer(*first), &mut gather)?);
            match gathered {
                Err(Error::Timeout { what, after, .. }) => {
                    let whom = Whom::Peer(*others.get(missing).unwrap_or(first));
                    return Err(Error::Timeout { what, whom, after });
                }
                Err(error) => {
                    self.0.with(|core| core.break_up(others, list, &error));
                    return Err(error);
                }
                Ok(()) => {}
            }
            let core = &mut *self.0.lock()?;
            match others
                .iter()
                .position(|one| !core.engine.has_come(*one, list))
            {
                // It went back while the others arrived (G1).
                Some(index) => missing = index,
                None => break core.let_go(others, list),
            }
        };
        if is_posted {
            let has_left = |engine: &mut Engine, to: PeerId| {
                engine.gone(to).is_some() || engine.peer(to).outbox.is_empty()
            };
            // All have arrived, so the result of this wait is ignored.
            let whom = Whom::Peer(*first);
            let _ = self.wait("room for the end of a barrier", whom, |engine| {
                let have_left = others.iter().all(|other| has_left(engine, *other));
                have_left.then_some(())
            });
        }
        Ok(())
    }

    fn come(&self, root: PeerId, list: u64) -> Result<()> {
        let attempt = self.0.lock()?.engine.barriers.next_attempt(root);
        let at_barrier = AtBarrier {
            fabric: self,
            root,
            list,
            attempt,
        };
        self.signal_any(root, key(COME, list, attempt))?;
        self.wait("a barrier", Whom::Peer(root), |engine| {
            let answer = engine.barriers.take_answer(attempt);
            answer.or_else(|| engine.gone(root).map(Err))
        })??;
        std::mem::forget(at_barrier);
        Ok(())
    }
}

impl Core {
    /// Releases all members. Returns whether a GO waits for room.
    fn let_go(&mut self, others: &[PeerId], list: u64) -> bool {
        let mut is_posted = false;
        for other in others {
            let attempt = self.engine.take_come(*other, list);
            let go = key(GO, list, attempt);
            if !self.signal_now(*other, go) {
                self.engine.post(*other, kind::SIGNAL, go, &[]);
                is_posted = true;
            }
        }
        is_posted
    }

    /// Handles a lost member: tells the others that have arrived, and those that will (G4).
    #[cold]
    fn break_up(&mut self, others: &[PeerId], list: u64, error: &Error) {
        let &Error::PeerLost { peer, incarnation } = error else {
            return;
        };
        let lost = (peer, incarnation);
        for other in others {
            match self.engine.take_come(*other, list) {
                0 => {}
                attempt => self.engine.say_no(*other, key(NO, list, attempt), lost),
            }
        }
        let broken = &mut self.engine.barriers.broken;
        if broken.len() < LISTS_MAX {
            broken.push((list, lost));
        }
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use crate::transport::sim::Scenario;
    use crate::{Error, Result, Whom};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    /// A handler's panic takes a member back from its barrier: nobody passes without it, and it
    /// passes with all others when it enters again.
    #[test]
    fn a_panic_takes_a_member_back() {
        let ended = Scenario::new(1, 3).run(|fabric| -> Result<()> {
            let members = fabric.job()?;
            let (root, panics, third) = (members[0], members[1], members[2]);
            if fabric.me() == panics {
                fabric.on(1, |_, _| panic!("a handler"));
            }
            fabric.barrier(&members)?;
            if fabric.me() == third {
                fabric.await_signal(panics, 3)?; // It has passed the first barrier.
                fabric.tell(panics, 1, b"")?;
                fabric.barrier(&members)?;
            } else if fabric.me() == panics {
                fabric.signal(third, 3)?;
                let ended = catch_unwind(AssertUnwindSafe(|| fabric.barrier(&members)));
                assert!(ended.is_err(), "{ended:?}");
                fabric.signal(root, 1)?;
                fabric.await_signal(root, 2)?;
                fabric.barrier(&members)?;
            } else {
                fabric.await_signal(panics, 1)?;
                let early = fabric.within(Duration::from_secs(1), || fabric.barrier(&members));
                let whom = Whom::Peer(panics);
                let is_late =
                    matches!(&early, Err(Error::Timeout { whom: one, .. }) if *one == whom);
                assert!(is_late, "{early:?}");
                fabric.signal(panics, 2)?;
                fabric.barrier(&members)?;
            }
            fabric.barrier(&members)
        });
        assert_eq!(ended, vec![Ok(()); 3]);
    }
}
