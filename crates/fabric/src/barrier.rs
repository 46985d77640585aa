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
//!    barrier with this list again itself, or sees a new life of that member's number.
//! G5 The loss of a root ends the waits of its members when it happens: by the time they look, the
//!    number of the root may have a new life.
//!
//! # Not guaranteed
//! - A member whose deadline expires while GO is in flight ends with [`Error::Timeout`], the others
//!   do not. If a handler panics in the turn that takes GO, that panic ends the member's call, and
//!   the others have passed.
//! - A root whose deadline expires, or in which a handler panics, while a GO waits for room,
//!   returns. All members have been released, and that GO is sent with its next progress.
//! - NO waits for no room: a member that reads no answers gets none, and its deadline expires.
//! - A list names peers without their incarnations. Between a loss and the moment at which the root
//!   sees the new life of the number, a member that enters the next barrier of the list may still
//!   get NO, and a late COME of the barrier that was lost counts for the next one.
//! - Two lists with one root and one hash are one barrier.

use crate::engine::Engine;
use crate::fabric::{Core, Fabric};
use crate::proto::barrier::{BACK, COME, GO, LISTS_MAX, NO, key};
use crate::transport::Transport;
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
    /// Whether COME was sent or queued.
    has_come: bool,
}

impl Drop for AtBarrier<'_> {
    fn drop(&mut self) {
        let back = key(BACK, self.list, self.attempt);
        self.fabric.0.with(|core| {
            let waits = &mut core.engine.barriers.waits;
            waits.retain(|(_, attempt, _)| *attempt != self.attempt);
            if self.has_come {
                core.engine.post(self.root, kind::SIGNAL, back, &[]);
                core.flush();
            }
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
        let deadline = self.deadline();
        // A member that goes back makes the root wait again, but only for one more deadline in all.
        let (mut left, mut first_return) = (deadline, None);
        let (mut missing, mut changes) = (0, None);
        let mut posted = loop {
            let mut gather = |engine: &mut Engine| {
                while let Some(other) = others.get(missing) {
                    if !engine.has_come(*other, list) {
                        let lost = engine.gone(*other);
                        let has_changed = changes.replace(engine.changes) != Some(engine.changes);
                        let any_lost = || has_changed.then(|| engine.lost_at(others, list))?;
                        return lost.or_else(any_lost).map(Err);
                    }
                    missing += 1;
                }
                Some(Ok(()))
            };
            let whom = Whom::Peer(*first);
            let gathered = self
                .after_announcement(|| self.wait_within(left, "a barrier", whom, &mut gather)?);
            match gathered {
                Err(Error::Timeout { what, .. }) => {
                    let whom = Whom::Peer(*others.get(missing).unwrap_or(first));
                    let after = deadline;
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
                Some(index) => {
                    let now = core.transport.now();
                    left = deadline.saturating_sub(now - *first_return.get_or_insert(now));
                    missing = index;
                }
                None => break core.let_go(others, list),
            }
        };
        if let Some((to, _)) = posted.first() {
            // All have arrived, so the result of this wait is ignored.
            let (what, whom) = ("room for the end of a barrier", Whom::Peer(*to));
            let _ = self.wait_within(left, what, whom, |engine| {
                // The outbox of a lost member is empty.
                posted.retain(|(to, go)| engine.peer(*to).outbox.has_signal(*go));
                posted.is_empty().then_some(())
            });
        }
        Ok(())
    }

    fn come(&self, root: PeerId, list: u64) -> Result<()> {
        let attempt = self.0.lock()?.engine.barriers.next_attempt(root);
        let mut at_barrier = AtBarrier {
            fabric: self,
            root,
            list,
            attempt,
            has_come: false,
        };
        self.signal_any(root, key(COME, list, attempt))?;
        at_barrier.has_come = true;
        self.wait("a barrier", Whom::Peer(root), |engine| {
            engine.barriers.take_answer(attempt)
        })??;
        std::mem::forget(at_barrier);
        Ok(())
    }
}

impl Core {
    /// Releases all members. Returns the GOs that wait for room, by key.
    fn let_go(&mut self, others: &[PeerId], list: u64) -> Vec<(PeerId, u64)> {
        let mut posted = Vec::new();
        for other in others {
            let attempt = self.engine.take_come(*other, list);
            let go = key(GO, list, attempt);
            if !self.signal_now(*other, go) {
                self.engine.post(*other, kind::SIGNAL, go, &[]);
                posted.push((*other, go));
            }
        }
        posted
    }

    /// Handles a lost member: tells the others that have arrived, and those that will (G4).
    #[cold]
    fn break_up(&mut self, others: &[PeerId], list: u64, error: &Error) {
        let lost = match *error {
            Error::PeerLost { peer, incarnation } => (peer, incarnation),
            // Whoever waits for it with this root waits in vain, too.
            Error::PeerCorrupt { peer, .. } => (peer, self.engine.incarnation(peer)),
            _ => return,
        };
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
    use crate::{Error, Match, Result, Whom};
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

    /// Two members come and go back in turn, and are never there together: the root's deadline
    /// expires all the same.
    #[test]
    fn members_that_come_and_go_do_not_hold_the_root() {
        const MS: Duration = Duration::from_millis(1);
        let ended = Scenario::new(1, 3).run(|fabric| -> Result<()> {
            let members = fabric.job()?;
            let me = members.iter().position(|member| *member == fabric.me());
            let pause = |time| {
                let ended = fabric.within(time, || fabric.recv(Match::any(99), &mut []));
                assert!(ended.is_err(), "{ended:?}");
            };
            fabric.barrier(&members)?;
            if me == Some(0) {
                let (begin, deadline) = (fabric.now(), 1000 * MS);
                let ended = fabric.within(deadline, || fabric.barrier(&members));
                let is_over =
                    matches!(ended, Err(Error::Timeout { after, .. }) if after == deadline);
                assert!(is_over, "{ended:?}");
                let after = fabric.now() - begin;
                assert!(after < 2 * deadline, "{after:?}, in virtual time");
                return fabric.barrier(&members);
            }
            let before = if me == Some(1) { 0 } else { 250 };
            for _ in 0..10 {
                pause(before * MS);
                let early = fabric.within(200 * MS, || fabric.barrier(&members));
                assert!(matches!(early, Err(Error::Timeout { .. })), "{early:?}");
                pause((300 - before) * MS);
            }
            fabric.barrier(&members)
        });
        assert_eq!(ended, vec![Ok(()); 3]);
    }
}
