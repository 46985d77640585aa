//! The base of a unit's global memory: the peers, the parts of their memory that this unit has
//! attached, and waiting. `pointers` resolves global pointers, `named` names units. It knows
//! neither teams nor their segments.

mod deferred;
mod members;
mod named;
mod own;
mod pointers;

use deferred::DeferredFrees;
pub(crate) use deferred::OwnPart;
pub(crate) use members::{Members, Which};
pub(crate) use own::Own;
use pointers::Attached;
pub(crate) use pointers::bad;

use crate::check::{AccessKind, Checker, Memory};
use crate::implicit::Implicit;
use crate::local::LocalHeap;
use crate::pointer::Origin;
use crate::unfinished::Unfinished;
use crate::waited::Waited;
use crate::{Elem, GlobalPtr, Group, Result, Unit};
use parking_lot::Mutex;
use samite_fabric::{Awaited, Bell, Fabric, Handle, Layer, PeerId, Segment};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

/// The state that teams and segments share.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) me: Unit,
    /// Distinguishes messages of this `Pgas` from those of earlier ones.
    pub(crate) life: u64,
    /// The units that share this global memory.
    pub(crate) group: Group,
    /// By position in the group.
    pub(crate) peers: Vec<PeerId>,
    /// Which life of a peer is the unit: peer numbers are reused.
    lives: HashMap<PeerId, u32>,
    /// By position in the group.
    bells: Vec<Bell>,
    pub(crate) heap: Mutex<LocalHeap>,
    /// This unit's registered memory, by the pointer that was returned for it.
    pub(crate) registered: Mutex<HashMap<GlobalPtr<u8>, Segment>>,
    /// Segments that global pointers refer to.
    attached: Attached,
    pub(crate) implicit: Implicit,
    pub(crate) collectives: crate::collective::State,
    /// Parts that this unit has dropped.
    pub(crate) left: Arc<DeferredFrees>,
    /// What calls left incomplete.
    pub(crate) unfinished: Unfinished,
    /// If checking is off (the usual case), a check costs one predictable branch.
    pub(crate) check: Option<Checker>,
    /// Prevents a second `Pgas` on this fabric until the fields above have been dropped.
    _layer: Layer,
    /// Dropped last.
    pub(crate) fabric: Fabric,
}

impl Job {
    /// Begins together with the other members. Collective over them.
    ///
    /// # Errors
    /// As [`Members::agree`].
    pub(crate) fn begin(members: Members) -> Result<Job> {
        // Whatever the others send once they have agreed is kept from here on.
        let collectives = crate::collective::State::new(&members.fabric, &members.peers);
        let check = Checker::start(&members);
        let life = members.agree()?;
        let Members {
            fabric,
            layer,
            me,
            group,
            peers,
            incarnations,
            ..
        } = members;
        // All are alive, so no two of them have one number.
        let lives = peers.iter().copied().zip(incarnations).collect();
        Ok(Job {
            me,
            _layer: layer,
            life,
            group,
            bells: peers.iter().map(|peer| fabric.bell(*peer)).collect(),
            peers,
            lives,
            heap: Mutex::default(),
            registered: Mutex::default(),
            attached: Attached::default(),
            implicit: Implicit::default(),
            collectives,
            left: Arc::default(),
            unfinished: Unfinished::default(),
            check: check.map(|check| check.in_life(life)),
            fabric,
        })
    }

    pub(crate) fn peer(&self, unit: Unit) -> Result<PeerId> {
        let at = self.group.position(unit);
        at.map(|at| self.peers[at as usize])
            .ok_or_else(|| self.not_a_member(unit))
    }

    /// Returns the peers of those units of a group that are members.
    pub(crate) fn peers_of(&self, group: &Group) -> Vec<PeerId> {
        let peer = |unit| self.peer(unit).ok();
        group.into_iter().filter_map(peer).collect()
    }

    /// Wakes a unit that waits for a word of memory.
    pub(crate) fn nudge(&self, unit: Unit) {
        if let Some(at) = self.group.position(unit) {
            self.bells[at as usize].nudge();
        }
    }

    /// Returns why the peer that is, or was, a unit is lost, if it is.
    pub(crate) fn lost(&self, peer: PeerId) -> Option<samite_fabric::Error> {
        match self.lives.get(&peer) {
            Some(life) => self.fabric.lost_life(peer, *life),
            None => self.fabric.lost(peer),
        }
    }

    pub(crate) fn allocate<T: Elem>(&self, count: u64) -> Result<GlobalPtr<T>> {
        let bytes = crate::bytes_for::<T>(count)?;
        let pointer = self.heap.lock().allocate(&self.fabric, self.me, bytes)?;
        Ok(pointer.cast())
    }

    pub(crate) fn free<T>(&self, pointer: GlobalPtr<T>) -> Result<()> {
        let was_one = self.heap.lock().free(pointer.cast());
        was_one.then_some(()).ok_or_else(|| bad(pointer))
    }

    /// As the fabric's wait, for the units `whom`, but advances what this unit has in flight,
    /// because the others may be waiting for it. If another thread starts something during the
    /// wait, the deadline starts again.
    #[inline]
    pub(crate) fn wait_until<V>(
        &self,
        what: &'static str,
        whom: &[PeerId],
        mut done: impl FnMut() -> Option<V>,
    ) -> samite_fabric::Result<V> {
        if self.has_nothing_to_step() {
            let done = || match done() {
                None if self.has_nothing_to_step() => None,
                value => Some(value),
            };
            let life_of = |peer| self.lives.get(&peer).copied();
            let whom = Awaited::lives(whom, &life_of);
            if let Some(value) = self.fabric.wait_until(what, whom, done)? {
                return Ok(value);
            }
        }
        let done = RefCell::new((done, None));
        let look = || {
            let (done, value) = &mut *done.borrow_mut();
            *value = value.take().or_else(&mut *done);
            value.is_some()
        };
        let take = || look().then(|| done.borrow_mut().1.take()).flatten();
        self.wait_stepping(what, whom, take, look)
    }

    /// As the fabric's: waits until `step`, which may use the fabric, returns a value, and advances
    /// what this unit has in flight.
    pub(crate) fn wait_stepping<V>(
        &self,
        what: &'static str,
        whom: &[PeerId],
        mut step: impl FnMut() -> Option<V>,
        mut there: impl FnMut() -> bool,
    ) -> samite_fabric::Result<V> {
        let step = || {
            self.step();
            step()
        };
        let there = || there() || self.collectives.is_ready();
        let life_of = |peer| self.lives.get(&peer).copied();
        let whom = Awaited::lives(whom, &life_of);
        self.fabric.wait_stepping(what, whom, step, there)
    }

    /// Advances what this unit does for others while it waits.
    pub(crate) fn step(&self) {
        self.collectives.step(self);
        self.let_go();
        self.unfinished.step(&self.fabric);
    }

    /// Returns true if [`Job::step`] would do nothing.
    fn has_nothing_to_step(&self) -> bool {
        self.collectives.is_idle() && self.has_found_none() && self.unfinished.is_empty()
    }

    /// Waits until `take` gets exclusive access to something of this unit: its other users release
    /// it when they make progress. Waits for half of the deadline at most, because others may be
    /// waiting for this unit.
    pub(crate) fn wait_alone<V, R>(
        &self,
        value: V,
        mut take: impl FnMut(V) -> Result<R, Box<(V, samite_fabric::Error)>>,
    ) -> Result<R, Box<(V, samite_fabric::Error)>> {
        let mut waited = Waited::default();
        let deadline = self.fabric.deadline();
        let mut kept = Some(value);
        let mut failed = None;
        let step = || match take(kept.take()?) {
            Ok(value) => Some(Ok(value)),
            Err(refused) => {
                let (value, error) = *refused;
                if self.may_end(&error) && waited.look(deadline) < deadline / 2 {
                    (kept, failed) = (Some(value), Some(error));
                    return None;
                }
                Some(Err(Box::new((value, error))))
            }
        };
        let waited = self.wait_stepping("the users of a segment", &[], step, || false);
        waited.unwrap_or_else(|late| match kept {
            Some(value) => Err(Box::new((value, failed.unwrap_or(late)))),
            None => unreachable!("it is kept while it is waited for"),
        })
    }

    /// Returns true if the segment is in use by others only, so that the use can end without this
    /// unit.
    fn may_end(&self, error: &samite_fabric::Error) -> bool {
        match error {
            samite_fabric::Error::InUse { users, .. } => {
                users.iter().all(|user| *user != self.fabric.me())
            }
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn start_put<T: Elem>(&self, to: GlobalPtr<T>, from: &[T]) -> Result<Handle<u64>> {
        let bytes = crate::bytes_of(from);
        self.with_remote(to, bytes.len() as u64, |remote| {
            remote.put_nb(to.offset(), bytes)
        })
    }

    /// Reports an access through a pointer to the checking mode.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn watch<T>(&self, at: GlobalPtr<T>, count: usize, kind: AccessKind) -> Result<()> {
        match &self.check {
            None => Ok(()),
            Some(check) => {
                let (memory, first) = watched(at);
                let elements = std::iter::once(first..first.saturating_add(count as u64));
                check.access(memory, elements, kind, Location::caller())
            }
        }
    }

    /// Reports a completed atomic access through a pointer to the checking mode.
    #[inline(always)]
    pub(crate) fn seen<T>(&self, at: GlobalPtr<T>) -> Result<()> {
        match &self.check {
            None => Ok(()),
            Some(check) => {
                let (memory, element) = watched(at);
                check.seen(memory, element)
            }
        }
    }

    pub(crate) fn leave_to_flush(&self, unit: Unit, handle: Handle<u64>) {
        if !handle.is_complete() {
            // It was started with the unit's memory, so the unit is a member.
            if let Ok(peer) = self.peer(unit) {
                self.implicit.track(peer, handle);
            }
        }
    }

    /// Completes operations without a handle, to one unit or to all, if there are any. Ordering by
    /// an atomic needs no fence.
    #[inline]
    pub(crate) fn complete_implicit(&self, to: Option<Unit>) -> Result<()> {
        if self.implicit.is_empty() && self.check.is_none() {
            return Ok(());
        }
        self.flush(to)
    }

    /// Tells the checking mode which puts are complete for a unit that sees a signal.
    #[cold]
    pub(crate) fn complete_for_signal(&self, unit: Unit) -> Result<()> {
        match &self.check {
            None => Ok(()),
            Some(check) => check.complete(Some(unit)),
        }
    }

    pub(crate) fn flush(&self, to: Option<Unit>) -> Result<()> {
        // ORDERING: SeqCst: earlier stores are visible to all units before later accesses.
        samite_mem::sync::fence(samite_mem::sync::Ordering::SeqCst);
        self.let_go();
        self.unfinished.step(&self.fabric);
        // A unit that does not exist has no pending operations.
        if let Ok(peer) = to.map(|unit| self.peer(unit)).transpose() {
            self.implicit.flush(&self.fabric, peer)?;
        }
        match &self.check {
            None => Ok(()),
            Some(check) => check.complete(to),
        }
    }
}

/// Returns the memory and the element that a pointer names, for the checking mode. Pieces of a
/// unit's own heap have no generation of their own.
#[cold]
fn watched<T>(at: GlobalPtr<T>) -> (Memory, u64) {
    let generation = match at.flags().origin() {
        Origin::Local => 0,
        _ => at.flags().generation(),
    };
    let element_bytes = size_of::<T>() as u64;
    let memory = Memory {
        owner: at.unit(),
        segment: at.segment(),
        generation,
        element_bytes,
    };
    (memory, at.offset() / element_bytes.max(1))
}
