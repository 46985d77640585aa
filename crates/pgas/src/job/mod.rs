//! This unit among the units of its job: the peers, what this unit has of their memory, and waiting. `pointers` resolves
//! global pointers.

mod pointers;

use pointers::Attached;
pub(crate) use pointers::bad;

use crate::check::{AccessKind, Checker, Memory};
use crate::ending::{self, Ended};
use crate::implicit::Implicit;
use crate::local::LocalHeap;
use crate::pointer::{Flags, Origin};
use crate::segment::{LeftBehind, Numbers};
use crate::team::{self, TeamId};
use crate::unfinished::Unfinished;
use crate::waited::Waited;
use crate::{Elem, Error, GlobalPtr, Group, Result, Team, Unit};
use parking_lot::Mutex;
use samite_fabric::{Bell, Fabric, Gated, Handle, Layer, PeerId, Segment};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};

/// Global memory of a job; see the crate's text. Any thread may use it.
///
/// Keep it as long as its teams and segments are used: dropping it is *collective*. It completes what this unit
/// has started, and waits until all units drop theirs, so that nobody is at memory of a unit that has left; until
/// then this unit's parts of dropped segments stay, and its progress goes on. A program needs no barrier at its
/// end. It does not wait
/// * for units that are lost: the others wait for those with whom they share segments;
/// * beyond the fabric's deadline: what is accessed later ends with an error that names the unit that left;
/// * when a panic drops it: then the others may find this unit lost.
///
/// A unit that ends while another one calls a collective of the world ends that call, with
/// [`Error::Mismatch`].
#[derive(Debug)]
pub struct Pgas {
    pub(crate) job: Arc<Job>,
    world: Team,
}

/// What teams and segments share.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) me: Unit,
    /// No second one on this fabric meanwhile; tells messages of this life from those of earlier ones.
    pub(crate) layer: Layer,
    /// By unit.
    pub(crate) peers: Vec<PeerId>,
    /// By unit.
    pub(crate) bells: Vec<Bell>,
    pub(crate) heap: Mutex<LocalHeap>,
    pub(crate) numbers: Mutex<Numbers>,
    /// This unit's registered memory, by number.
    registered: Mutex<HashMap<u16, Segment>>,
    /// Segments that pointers lead to.
    attached: Attached,
    pub(crate) implicit: Implicit,
    /// Teams that this unit gave a number.
    pub(crate) teams_named: AtomicU32,
    /// The teams that this unit is a member of.
    pub(crate) teams: Mutex<HashMap<TeamId, Weak<team::Inner>>>,
    pub(crate) collectives: crate::collective::State,
    /// Parts that this unit has dropped.
    pub(crate) left: LeftBehind,
    /// What calls have left in the middle.
    pub(crate) unfinished: Unfinished,
    /// Units that have said that they end.
    pub(crate) ended: Ended,
    /// Where it is switched off (usually) a check costs one predictable branch.
    pub(crate) check: Option<Checker>,
    /// Dropped last.
    pub(crate) fabric: Fabric,
}

impl Pgas {
    /// Begins: agrees with the other units of the job. Collective over the job. It can be ended (dropped by
    /// all) and begun anew any number of times, by all units alike.
    ///
    /// # Errors
    /// [`Error::AlreadyBegun`]: a fabric has one at a time. A unit that does not come within the fabric's
    /// deadline, or is lost.
    pub fn new(fabric: &Fabric) -> Result<Pgas> {
        let layer = fabric.layer("global memory").ok_or(Error::AlreadyBegun)?;
        let peers = fabric.job()?;
        let me = peers.iter().position(|peer| *peer == fabric.me());
        let me = Unit(me.unwrap_or(0) as u32);
        let job = Arc::new(Job {
            fabric: fabric.clone(),
            me,
            collectives: crate::collective::State::new(fabric, layer.life()),
            ended: ending::listen(fabric, layer.life()),
            left: LeftBehind::default(),
            unfinished: Unfinished::default(),
            layer,
            bells: peers.iter().map(|peer| fabric.bell(*peer)).collect(),
            check: Checker::start(fabric, me, &peers),
            peers,
            heap: Mutex::default(),
            numbers: Mutex::default(),
            registered: Mutex::default(),
            attached: Attached::default(),
            implicit: Implicit::default(),
            teams_named: AtomicU32::new(0),
            teams: Mutex::default(),
        });
        let world = Team::world(&job)?;
        Ok(Pgas { job, world })
    }

    /// This unit.
    pub fn me(&self) -> Unit {
        self.job.me
    }

    /// How many units the job has.
    pub fn units(&self) -> u32 {
        self.job.peers.len() as u32
    }

    /// The team of all units; ranks are units.
    pub fn world(&self) -> &Team {
        &self.world
    }

    /// The team with this id, if this unit is a member of it and has a clone of it somewhere. O(1).
    pub fn team(&self, id: TeamId) -> Option<Team> {
        let teams = self.job.teams.lock();
        teams.get(&id).and_then(Weak::upgrade).map(Team)
    }

    /// All units.
    pub fn group(&self) -> Group {
        Group::first(self.units())
    }

    /// The fabric below.
    pub fn fabric(&self) -> &Fabric {
        &self.job.fabric
    }

    /// Which node a unit is on: equal for units that share memory.
    pub fn node_of(&self, unit: Unit) -> Result<u32> {
        let node = self.fabric().node_of(self.job.peer(unit)?);
        // All have joined before there is a job.
        Ok(node.unwrap_or(unit.0))
    }

    /// Allocates `count` elements in this unit's memory, reachable by every unit that gets the pointer.
    /// Local; zeroed; aligned to 64 bytes. The heap grows as needed, within the budget.
    pub fn allocate<T: Elem>(&self, count: u64) -> Result<GlobalPtr<T>> {
        self.job.allocate(count)
    }

    /// Frees memory that this unit allocated by [`Pgas::allocate`]. Local. Others must not use it any
    /// more; debug builds notice when they do.
    pub fn free<T>(&self, pointer: GlobalPtr<T>) -> Result<()> {
        self.job.free(pointer)
    }

    /// Makes this unit's own memory reachable by every unit that gets the pointer. Local; the elements stay
    /// where they are. Elements of other sizes than 4 and 8 bytes: see [`Team::register`].
    pub fn register<T: Elem>(&self, elements: Vec<T>) -> Result<GlobalPtr<T>> {
        let (fabric, numbers) = (&self.job.fabric, self.job.numbers.lock());
        let number = numbers.highest(fabric)?;
        let segment = fabric.register_as(number, crate::segment::whole_words(elements))?;
        drop(numbers);
        let key = segment.key();
        let (number, flags) = (
            key.segment as u16,
            Flags::of(Origin::Registered, key.generation),
        );
        self.job.registered.lock().insert(number, segment);
        Ok(GlobalPtr::new(self.job.me, number, flags, 0))
    }

    /// Ends a registration; the first `count` elements as they are now. Others must not use it any more, and
    /// notice when they do. Not collective, but it waits, for half of the fabric's deadline at most, until the units
    /// that have used it by the pointer let go of it. They do when they call a collective, a flush or
    /// [`Pgas::progress`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for more elements than were registered, [`Error::BadPointer`],
    /// [`samite_fabric::Error::InUse`] by units that do not let go: the registration stays.
    pub fn unregister<T: Elem>(&self, pointer: GlobalPtr<T>, count: u64) -> Result<Vec<T>> {
        let number = pointer.segment();
        let len = match self.job.registered.lock().get(&number) {
            Some(own) if pointer.unit() == self.job.me => own.key().bytes,
            _ => return Err(bad(pointer)),
        };
        let size = size_of::<T>() as u64;
        let bytes = count
            .checked_mul(size)
            .and_then(|bytes| bytes.checked_add(pointer.offset()));
        if bytes.is_none_or(|end| end > len) {
            return Err(Error::OutOfRange {
                unit: self.job.me,
                first: pointer.offset() / size.max(1),
                end: (pointer.offset() / size.max(1)).saturating_add(count),
                len: len / size.max(1),
            });
        }
        let mut elements = crate::zeros::<T>(count)?;
        self.job.forget(self.job.me, number);
        let segment = self.job.registered.lock().remove(&number);
        let segment = segment.ok_or_else(|| bad(pointer))?;
        let shut = segment.into_gated();
        shut.shut();
        let alone = self.job.wait_alone(shut, Gated::own);
        match alone {
            Ok(owned) => {
                let first = pointer.offset() as usize;
                let from: &[u8] = &owned.memory().as_slice()[first..];
                let into = crate::bytes_of_mut(&mut elements);
                into.copy_from_slice(&from[..into.len()]);
                Ok(elements)
            }
            Err(refused) => {
                let (shut, error) = *refused;
                shut.offer_again()?;
                let segment = shut.ungated()?;
                self.job.registered.lock().insert(number, segment);
                Err(error.into())
            }
        }
    }

    /// What the checking mode found so far: the conflicts whose later access was this unit's. Empty where
    /// it is switched off.
    pub fn conflicts(&self) -> Vec<crate::Conflict> {
        self.job
            .check
            .as_ref()
            .map_or_else(Vec::new, Checker::conflicts)
    }

    /// Copies `from` to the memory at `to`. One-sided; complete here and there.
    #[inline]
    #[track_caller]
    pub fn put<T: Elem>(&self, to: GlobalPtr<T>, from: &[T]) -> Result<()> {
        let bytes = crate::bytes_of(from);
        self.job
            .with_remote(to, bytes.len() as u64, |remote| match remote.mapped() {
                Some(mapped) if mapped.try_write(to.offset(), bytes) => Ok(()),
                _ => remote.put(to.offset(), bytes),
            })?;
        self.job.watch(to, from.len(), AccessKind::Put)
    }

    /// Copies the memory at `from` to `into`. One-sided; complete.
    #[inline]
    #[track_caller]
    pub fn get<T: Elem>(&self, from: GlobalPtr<T>, into: &mut [T]) -> Result<()> {
        let bytes = crate::bytes_of_mut(into);
        let len = bytes.len() as u64;
        self.job
            .with_remote(from, len, |remote| match remote.mapped() {
                Some(mapped) if mapped.try_read(from.offset(), bytes) => Ok(()),
                _ => remote.get(from.offset(), bytes),
            })?;
        self.job.watch(from, into.len(), AccessKind::Get)
    }

    /// As [`Pgas::put`], without waiting: `from` is copied before it returns (locally complete); the handle
    /// ends when the bytes are there.
    #[inline]
    #[track_caller]
    pub fn put_nb<T: Elem>(&self, to: GlobalPtr<T>, from: &[T]) -> Result<Handle<u64>> {
        let handle = self.job.start_put(to, from)?;
        self.job.watch(to, from.len(), AccessKind::Put)?;
        Ok(handle)
    }

    /// As [`Pgas::put_nb`]; its end is waited for by [`Pgas::flush`].
    #[inline]
    #[track_caller]
    pub fn put_implicit<T: Elem>(&self, to: GlobalPtr<T>, from: &[T]) -> Result<()> {
        let handle = self.job.start_put(to, from)?;
        self.job.leave_to_flush(to.unit(), handle);
        self.job.watch(to, from.len(), AccessKind::ImplicitPut)
    }

    /// Waits until every implicit operation to a unit is complete there.
    pub fn flush(&self, unit: Unit) -> Result<()> {
        self.job.flush(Some(unit))
    }

    /// Waits until every implicit operation is complete.
    pub fn flush_all(&self) -> Result<()> {
        self.job.flush(None)
    }

    /// Waits until the sources of all implicit operations may be used again. They are copied when an
    /// operation starts, so there is nothing to wait for: it only makes progress.
    pub fn flush_local(&self) {
        self.job.fabric.progress();
        self.job.let_go();
        self.job.unfinished.step(&self.job.fabric);
    }

    /// Makes progress for others: where units share no memory, whoever computes for long calls this now
    /// and then.
    pub fn progress(&self) {
        self.job.fabric.progress();
        self.job.step();
    }
}

impl Job {
    pub(crate) fn peer(&self, unit: Unit) -> Result<PeerId> {
        let peer = self.peers.get(unit.index());
        peer.copied().ok_or(Error::NotAMember(unit))
    }

    pub(crate) fn allocate<T: Elem>(&self, count: u64) -> Result<GlobalPtr<T>> {
        let bytes = crate::bytes_for::<T>(count)?;
        let (mut heap, numbers) = (self.heap.lock(), self.numbers.lock());
        let pointer = heap.allocate((&self.fabric, &numbers), self.me, bytes)?;
        Ok(pointer.cast())
    }

    pub(crate) fn free<T>(&self, pointer: GlobalPtr<T>) -> Result<()> {
        let mine = pointer.unit() == self.me && self.heap.lock().free(pointer.cast());
        mine.then_some(()).ok_or_else(|| bad(pointer))
    }

    /// As the fabric's wait. What this unit has in flight meanwhile goes on, if there is any: perhaps it is what the
    /// others wait for.
    #[inline]
    pub(crate) fn wait_until<V>(
        &self,
        what: &'static str,
        whom: &[PeerId],
        done: impl FnMut() -> Option<V>,
    ) -> samite_fabric::Result<V> {
        if self.has_nothing_to_step() {
            return self.fabric.wait_until(what, whom, done);
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

    /// As the fabric's: waits until `step` answers, which may use the fabric; what this unit has in flight goes on.
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
        self.fabric.wait_stepping(what, whom, step, there)
    }

    /// Moves on what this unit does for others while it waits.
    pub(crate) fn step(&self) {
        self.collectives.step(self);
        self.let_go();
        self.unfinished.step(&self.fabric);
    }

    /// Whether [`Job::step`] would do nothing.
    fn has_nothing_to_step(&self) -> bool {
        self.collectives.is_idle() && self.has_found_none() && self.unfinished.is_empty()
    }

    /// Waits until `take` has something of this unit for it alone: those who use it still let go of it when they make
    /// progress. Half of the deadline: others may be waiting for this unit meanwhile.
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

    /// Whether the use of a segment that stands in the way is one that ends without this unit.
    fn may_end(&self, error: &samite_fabric::Error) -> bool {
        match error {
            samite_fabric::Error::InUse { users, .. } => !users.contains(&self.fabric.me()),
            _ => false,
        }
    }

    #[inline]
    fn start_put<T: Elem>(&self, to: GlobalPtr<T>, from: &[T]) -> Result<Handle<u64>> {
        let bytes = crate::bytes_of(from);
        self.with_remote(to, bytes.len() as u64, |remote| {
            remote.put_nb(to.offset(), bytes)
        })
    }

    /// The checking mode, of an access through a pointer.
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

    /// The checking mode, of an atomic access through a pointer that has happened.
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
        self.implicit.keep(unit, handle);
    }

    /// Completes what was started without a handle, if there is any. Who orders by an atomic needs no fence.
    #[inline]
    pub(crate) fn complete_implicit(&self) -> Result<()> {
        if self.implicit.is_empty() && self.check.is_none() {
            return Ok(());
        }
        self.flush(None)
    }

    /// The checking mode: what a unit that sees a signal finds complete.
    #[cold]
    pub(crate) fn complete_for_signal(&self, unit: Unit) -> Result<()> {
        match &self.check {
            None => Ok(()),
            Some(check) => check.complete(Some(unit)),
        }
    }

    pub(crate) fn flush(&self, of: Option<Unit>) -> Result<()> {
        // ORDERING: SeqCst: what was stored before is visible to everybody before what comes after.
        samite_mem::sync::fence(samite_mem::sync::Ordering::SeqCst);
        self.let_go();
        self.unfinished.step(&self.fabric);
        self.implicit.flush(of)?;
        match &self.check {
            None => Ok(()),
            Some(check) => check.complete(of),
        }
    }
}

/// What a pointer names, for the checking mode, and the element. The pieces of a unit's own heap have no use
/// of a number of their own.
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
