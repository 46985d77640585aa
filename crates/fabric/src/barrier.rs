//! The barrier of a list of peers: one message to its first member, the root, and one back. On one
//! node a tree would only add latency. Each member brings a value, and takes the greatest of all
//! with it: so members agree on a number ([`crate::Layer`]) before they share anything else.
//!
//! ```text
//!   member -> root   COME attempt, value     it has arrived
//!                    BACK attempt            it left again: its deadline expired, or a handler
//!                                            panicked
//!   root -> member   GO   attempt, maximum   all members have arrived
//!                    NO   attempt, peer      this incarnation of this peer is lost: no member will
//!                                            pass
//!                    MISSING attempt, peer   this member has not arrived yet
//! ```
//! They are sent as signals, whose keys hold the kind, a hash of the list and its purpose, and the
//! attempt, which a member counts. Values and peers are in the frame's inline bytes. The purpose of
//! a layer is its name: a member that gave up beginning it, and is at a barrier of the program with
//! the same list, is not taken for one that begins it.
//!
//! A member does not know which others have arrived. So the root reports to those that have arrived
//! one that has not, after half of its deadline, half of the rest, and so on. MISSING ends no wait:
//! a member whose deadline expires names that peer.
//!
//! # Invariants
//! G1 The root releases all members at once, while it knows that all of them have arrived and not
//!    gone back. What it knew when it gave up itself stays valid, except of members that are lost
//!    when it enters the barrier again.
//! G2 GO and NO answer one attempt. An answer that arrives after its member went back is dropped.
//! G3 Only the root decides that a loss ends a barrier: a loss that a member sees may be that of
//!    one that was released and has left. So NO never overtakes a GO of the same barrier.
//! G4 A root that has found a member lost answers those that arrive later, until it enters a
//!    barrier with this list again itself, or sees a new life of that member's number.
//! G5 The loss of a root ends the waits of its members when it happens: by the time they look, the
//!    number of the root may have a new life.
//! G6 If the incarnations of the members are known ([`List::lives`]), only these count as members.
//!    A root that still waits for one ends the barrier with NO once any of them is lost, even one
//!    that had come: another member, which knew of the loss, may not come for that reason.
//! G7 All members that pass have the same value: the root takes each COME, with its value, when it
//!    releases all. The value of an attempt that went back does not count.
//!
//! # Not guaranteed
//! - A member whose deadline expires while GO is in flight ends with [`Error::Timeout`], the others
//!   do not. If a handler panics in the turn that takes GO, that panic ends the member's call, and
//!   the others have passed.
//! - A root whose deadline expires, or in which a handler panics, while a GO waits for room,
//!   returns. All members have been released, and that GO is sent with its next progress.
//! - NO and MISSING wait for no room: a member that reads no answers gets none, and its deadline
//!   expires.
//! - A member whose deadline is shorter than half of the root's gets no MISSING, and names the
//!   root. The member that MISSING names may have arrived since, while another one is missing: the
//!   root reports again in the rest of its deadline, but never in the last sixteenth.
//! - A root that dies while a GO waits for room has released some members; the others get
//!   [`Error::PeerLost`].
//! - The frames name a list without the incarnations of its members. Between a loss and the moment
//!   at which the root sees the new life of the number, a member that enters the next barrier of
//!   the list may still get NO, and a late COME of the barrier that was lost counts for the next
//!   one.
//! - Two lists with one root and one hash are one barrier.

use crate::engine::Engine;
use crate::fabric::{Core, Fabric};
use crate::proto::barrier::{Arrival, BACK, COME, GO, LIST_BITS, LISTS_MAX, NO, key};
use crate::transport::Transport;
use crate::wire::{Words, kind};
use crate::{Error, PeerId, Result, Whom};

/// The root reports no missing member in the last part of its deadline, one of so many.
const LAST_PART: u32 = 16;

/// Who meets at a barrier, and what for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<'a> {
    /// Those that have come for another purpose are not taken for members.
    pub(crate) purpose: &'a str,
    pub(crate) members: &'a [PeerId],
    /// The incarnations of the members, by position; empty: whoever has their numbers is a member.
    pub(crate) lives: &'a [u32],
}

impl List<'_> {
    /// Returns bits that identify the members and their purpose. Not their incarnations: two
    /// members may differ in those of a third one, which has just been lost.
    fn hash(&self) -> u64 {
        let fnv = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x100_0000_01b3);
        let purpose = self.purpose.bytes();
        let purpose = purpose.fold(0xcbf2_9ce4_8422_2325, |hash, byte| fnv(hash, byte.into()));
        let peers = self.members.iter();
        let list = peers.fold(purpose, |hash, peer| fnv(hash, peer.0.into()));
        list >> (64 - LIST_BITS)
    }
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
            core.engine.barriers.leave(self.attempt);
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
    /// [`Error::PeerLost`], at every member; [`Error::Timeout`], which names a member that has not
    /// arrived, or the root (the first member) if the root has not reported one.
    pub fn barrier(&self, members: &[PeerId]) -> Result<()> {
        self.agree_on_max(members, 0).map(drop)
    }

    /// Agrees with `members` on the greatest of the values that they pass: a barrier, at which
    /// [`Fabric::barrier`] passes 0. Collective and errors as there.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let peer = fabric.me();
    /// let units = fabric.job()?;
    /// let longest = fabric.agree_on_max(&units, 17)?; // what each of them has to do
    /// assert_eq!(longest, 17);
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    pub fn agree_on_max(&self, members: &[PeerId], value: u64) -> Result<u64> {
        let (purpose, lives) = ("", [].as_slice());
        self.agree_in(
            &List {
                purpose,
                members,
                lives,
            },
            value,
        )
    }

    /// As [`Fabric::agree_on_max`], among the members of a list.
    pub(crate) fn agree_in(&self, list: &List<'_>, value: u64) -> Result<u64> {
        let Some((root, others)) = list.members.split_first() else {
            return Ok(value);
        };
        if let Some(life) = list.lives.first()
            && let Some(lost) = self.lost_life(*root, *life)
        {
            return Err(lost); // Its number may be that of this process by now.
        }
        debug_assert!(list.lives.is_empty() || list.lives.len() == list.members.len());
        let (key, lives) = (list.hash(), list.lives.get(1..).unwrap_or(&[]));
        match *root == self.me() {
            true => self.gather(others, lives, key, value),
            false => self.come(*root, key, value),
        }
    }

    fn gather(&self, others: &[PeerId], lives: &[u32], list: u64, value: u64) -> Result<u64> {
        let Some(first) = others.first() else {
            return Ok(value);
        };
        self.0.lock()?.engine.enter_as_root(others, lives, list);
        let deadline = self.deadline();
        // A member that goes back makes the root wait again, but only for one more deadline in all.
        let (mut left, mut first_return) = (deadline, None);
        let (mut next, mut changes) = (0, None);
        let (max, mut posted) = loop {
            let mut gather = |engine: &mut Engine| {
                while let Some(other) = others.get(next) {
                    let life = lives.get(next);
                    if !engine.is_there(*other, life, list) {
                        let lost = engine.lost_member(*other, life);
                        let has_changed = changes.replace(engine.changes) != Some(engine.changes);
                        let any_lost =
                            || has_changed.then(|| engine.lost_at(others, lives, list))?;
                        return lost.or_else(any_lost).map(Err);
                    }
                    next += 1;
                }
                Some(Ok(()))
            };
            let whom = Whom::Peer(*first);
            let half = left / 2;
            // A slice of 0 would never come to an end of what is left.
            let slice = match half > deadline / (2 * LAST_PART) {
                true => half,
                false => left,
            };
            let gathered = self
                .after_announcement(|| self.wait_within(slice, "a barrier", whom, &mut gather)?);
            match gathered {
                Err(Error::Timeout { what, .. }) => {
                    let missing = *others.get(next).unwrap_or(first);
                    if slice < left {
                        left -= slice;
                        self.0.with(|core| {
                            core.engine.report_missing(others, list, missing);
                            core.flush();
                        });
                        continue;
                    }
                    return Err(self.named(Error::timeout(what, Whom::Peer(missing), deadline)));
                }
                Err(error) => {
                    self.0.with(|core| core.break_up(others, list, &error));
                    return Err(error);
                }
                Ok(()) => {}
            }
            let core = &mut *self.0.lock()?;
            let mut awaited = others.iter().enumerate();
            match awaited.position(|(at, one)| !core.engine.is_there(*one, lives.get(at), list)) {
                // It went back while the others arrived (G1).
                Some(index) => {
                    let now = core.transport.now();
                    left = deadline.saturating_sub(now - *first_return.get_or_insert(now));
                    next = index;
                }
                None => break core.let_go(others, list, value),
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
        Ok(max)
    }

    fn come(&self, root: PeerId, list: u64, value: u64) -> Result<u64> {
        let attempt = self.0.lock()?.engine.barriers.next_attempt(root);
        let mut at_barrier = AtBarrier {
            fabric: self,
            root,
            list,
            attempt,
            has_come: false,
        };
        let value = Words([value]).bytes();
        self.signal_any(root, key(COME, list, attempt), &value)?;
        at_barrier.has_come = true;
        let answered = self.wait("a barrier", Whom::Peer(root), |engine| {
            engine.barriers.take_answer(attempt)
        });
        let answered = answered.map_err(|error| match error {
            Error::Timeout {
                what, whom, after, ..
            } => {
                let awaited = |core: &mut Core| core.engine.barriers.awaited(root, attempt);
                let whom = self.0.with(awaited).unwrap_or(whom.id);
                self.named(Error::timeout(what, whom, after))
            }
            error => error,
        });
        let max = answered??;
        std::mem::forget(at_barrier);
        Ok(max)
    }
}

impl Core {
    /// Releases all members, which have arrived. Returns the greatest value, and the GOs that wait
    /// for room, by key.
    fn let_go(&mut self, others: &[PeerId], list: u64, own: u64) -> (u64, Vec<(PeerId, u64)>) {
        let value_of =
            |other: &PeerId| Some(self.engine.peers.get(*other)?.arrivals.get(&list)?.value);
        let max = others.iter().filter_map(value_of).fold(own, u64::max);
        let value = Words([max]).bytes();
        let mut posted = Vec::new();
        for other in others {
            let Some(Arrival { attempt, .. }) = self.engine.take_come(*other, list) else {
                continue;
            };
            let go = key(GO, list, attempt);
            if !self.signal_now(*other, go, &value) {
                self.engine.post(*other, kind::SIGNAL, go, &value);
                posted.push((*other, go));
            }
        }
        (max, posted)
    }

    /// Handles a lost member: tells the others that have arrived, and those that will (G4).
    #[cold]
    fn break_up(&mut self, others: &[PeerId], list: u64, error: &Error) {
        let lost = match error {
            Error::PeerLost { peer, incarnation } => (peer.id, *incarnation),
            // Whoever waits for it with this root waits in vain, too.
            Error::PeerCorrupt { peer, .. } => (peer.id, self.engine.incarnation(peer.id)),
            // The others would wait for a process that never was there.
            Error::NoSuchPeer(peer) => (*peer, 0),
            _ => return,
        };
        for other in others {
            if let Some(Arrival { attempt, .. }) = self.engine.take_come(*other, list) {
                self.engine.say_no(*other, key(NO, list, attempt), lost);
            }
        }
        // A barrier with the new life of its number can succeed (G4).
        let has_new_life = self.engine.incarnation(lost.0) > lost.1;
        let broken = &mut self.engine.barriers.broken;
        if !has_new_life && broken.len() < LISTS_MAX {
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

    /// Members that have waited in vain name the one that was missing, although only the root knows
    /// it.
    #[test]
    fn those_that_wait_hear_who_is_missing() {
        let ended = Scenario::new(1, 4).run(|fabric| -> Result<()> {
            let members = fabric.job()?;
            let (late, others) = members.split_last().expect("there are four");
            if fabric.me() == *late {
                for other in others {
                    fabric.await_signal(*other, 1)?;
                }
                return fabric.barrier(&members);
            }
            if fabric.me() == members[0] {
                for nanos in [0, 1, 7, 15, 16, 31, 32] {
                    let soon = Duration::from_nanos(nanos);
                    let early = fabric.within(soon, || fabric.barrier(&members));
                    assert!(matches!(early, Err(Error::Timeout { .. })), "{early:?}");
                }
            }
            let early = fabric.within(Duration::from_secs(1), || fabric.barrier(&members));
            let whom = Whom::Peer(*late);
            let is_late = matches!(&early, Err(Error::Timeout { whom: one, .. }) if *one == whom);
            assert!(is_late, "{early:?}");
            fabric.signal(*late, 1)?;
            fabric.barrier(&members)
        });
        assert_eq!(ended, vec![Ok(()); 4]);
    }

    /// All members get the greatest value of those with which they are there; not that of a member
    /// that went back and came again with a smaller one.
    #[test]
    fn all_agree_on_the_greatest_value() {
        for seed in 0..8 {
            let ended = Scenario::new(seed, 4).run(|fabric| -> Result<()> {
                let members = fabric.job()?;
                let me = members.iter().position(|member| *member == fabric.me());
                let me = me.expect("it is a member") as u64;
                for round in 0..20 {
                    let value = |member: u64| (member * 7 + round * 5) % 11;
                    if me == 1 && round % 3 == 0 {
                        let soon = Duration::from_micros(1 << round);
                        let early = || fabric.agree_on_max(&members, 1000);
                        let early = fabric.within(soon, early);
                        assert!(matches!(early, Err(Error::Timeout { .. })), "{early:?}");
                        for member in &members {
                            fabric.signal(*member, round)?;
                        }
                    }
                    if round % 3 == 0 {
                        fabric.await_signal(members[1], round)?;
                    }
                    let max = fabric.agree_on_max(&members, value(me))?;
                    assert_eq!(Some(max), (0..4).map(value).max());
                }
                Ok(())
            });
            let ended: Result<Vec<()>> = ended.into_iter().collect();
            assert!(ended.is_ok(), "{ended:?}");
        }
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
