//! Global memory as a program uses it: this unit among those that share it, from the beginning of
//! global memory to its end.

use crate::atomic::{self, AtomicElem, Update};
use crate::check::{AccessKind, Checker};
use crate::collective::Kind;
use crate::ending::Ended;
use crate::job::{Job, Members, Which, bad};
use crate::pointer::{Flags, Origin};
use crate::team::TeamId;
use crate::unfinished::while_unwinding;
use crate::{Elem, Error, GlobalPtr, Group, Result, Team, Unit, local};
use samite_fabric::{Fabric, Handle, Phased, Remote};
use std::sync::Arc;

/// Global memory of some units of a job, its *members*: all units ([`Pgas::new`]), those of a
/// program ([`Pgas::of_program`]), or any others ([`Pgas::of`]). See the crate's text. Any thread
/// may use it.
///
/// A fabric has one at a time. In all of them, units have their numbers of the job ([`Unit`]);
/// ranks of [`Pgas::world`] count the members. Units that are not members need not know of it: they
/// may compute, leave or die, and may have global memory of their own at the same time.
///
/// Keep it as long as its teams and segments are used. Dropping it is *collective*: it completes
/// what this unit has started, and waits until all members drop theirs, so that no unit uses the
/// memory of one that has left. Until then, this unit's parts of dropped segments stay, and it
/// makes progress. So a program needs no barrier at its end. Dropping does not wait
/// * for lost units: the others wait for those with which they share segments;
/// * beyond the fabric's deadline: a later access ends with an error that names the unit that left;
/// * if a panic drops it: the others may then find this unit lost.
///
/// If a unit ends while another one calls a collective of the world, that collective ends with
/// [`Error::Mismatch`].
#[derive(Debug)]
pub struct Pgas {
    pub(crate) job: Arc<Job>,
    world: Team,
    ended: Ended,
}

impl Pgas {
    /// Begins global memory together with all other units of the job. Collective over the job,
    /// which means over all programs of a workflow; for one of them, see [`Pgas::of_program`]. The
    /// units may end it (drop it) and begin it again any number of times, also with other members.
    ///
    /// # Errors
    /// As [`Pgas::of`].
    pub fn new(fabric: &Fabric) -> Result<Pgas> {
        Pgas::begin(fabric, Which::Job)
    }

    /// Begins global memory together with the other units of this unit's program. Collective over
    /// the program. Other programs of the job need not have started.
    ///
    /// # Errors
    /// As [`Pgas::of`].
    pub fn of_program(fabric: &Fabric) -> Result<Pgas> {
        Pgas::begin(fabric, Which::Program)
    }

    /// Begins global memory together with the other units of `group`, of which this unit is one.
    /// Collective over the group: all of its units pass the same one. Other units need not have
    /// started.
    ///
    /// # Errors
    /// [`Error::NotAMember`] if this unit is not in `group`, or a unit of it not in the job;
    /// [`Error::AlreadyBegun`]: a fabric has one `Pgas` at a time; [`Error::NotBegun`] names a unit
    /// that does not join the job within the fabric's deadline, then does not begin within as long
    /// again, or has ended. Once all have begun, they exchange what they need: [`Error::UnitLost`],
    /// or the deadline, if one of them is lost or stops just then. The members may then try again.
    pub fn of(fabric: &Fabric, group: &Group) -> Result<Pgas> {
        Pgas::begin(fabric, Which::Group(group))
    }

    fn begin(fabric: &Fabric, which: Which<'_>) -> Result<Pgas> {
        let members = Members::wait_for(fabric, which)?;
        let ended = Ended::listen(&members);
        let job = Arc::new(Job::begin(members)?);
        let world = Team::world(&job)?;
        Ok(Pgas { job, world, ended })
    }

    /// Returns this unit.
    pub fn me(&self) -> Unit {
        self.job.me
    }

    /// Returns the number of members: of units that share this global memory.
    pub fn units(&self) -> u32 {
        self.job.peers.len() as u32
    }

    /// Returns the team of all members. Its ranks are their positions in [`Pgas::group`]: if all
    /// units of the job are members, the numbers of the units.
    pub fn world(&self) -> &Team {
        &self.world
    }

    /// Returns the team with this id, if this unit is a member of it and keeps a clone of it. O(1).
    pub fn team(&self, id: TeamId) -> Option<Team> {
        self.world.of_this_unit(id)
    }

    /// Returns the members.
    pub fn group(&self) -> Group {
        self.job.group.clone()
    }

    /// Returns the underlying fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.job.fabric
    }

    /// Returns the node of a unit; it is equal for units that share memory.
    pub fn node_of(&self, unit: Unit) -> Result<u32> {
        let node = self.fabric().node_of(self.job.peer(unit)?);
        // All members have joined before the job exists.
        Ok(node.unwrap_or(unit.0))
    }

    /// Allocates `count` elements in this unit's memory, accessible to every unit that gets the
    /// pointer. Local; zeroed; aligned to 64 bytes. The heap grows as needed, within the budget.
    pub fn allocate<T: Elem>(&self, count: u64) -> Result<GlobalPtr<T>> {
        self.job.allocate(count)
    }

    /// Frees memory that this unit allocated by [`Pgas::allocate`]. Local. Other units must not use
    /// it any more; debug builds detect it if they do.
    pub fn free<T>(&self, pointer: GlobalPtr<T>) -> Result<()> {
        self.job.free(pointer)
    }

    /// Makes this unit's own memory accessible to every unit that gets the pointer. Local; the
    /// elements stay where they are. For elements whose size is not 4 or 8 bytes, see
    /// [`Team::register`].
    pub fn register<T: Elem>(&self, elements: Vec<T>) -> Result<GlobalPtr<T>> {
        let number = local::number(&self.job.fabric)?;
        let segment = number.register(crate::segment::whole_words(elements))?;
        let key = segment.key();
        let flags = Flags::of(Origin::Registered, key.generation);
        let pointer = GlobalPtr::new(self.job.me, key.segment as u16, flags, 0);
        self.job.registered.lock().insert(pointer, segment);
        Ok(pointer.cast())
    }

    /// Ends a registration. Returns the first `count` elements as they are now. Other units must
    /// not use it any more, and get an error if they do. It is not collective, but it waits, for at
    /// most half of the fabric's deadline, until the units that have accessed it by the pointer
    /// release it. They do so when they call a collective, a flush or [`Pgas::progress`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if fewer elements were registered, [`Error::BadPointer`],
    /// [`samite_fabric::Error::InUse`] if units do not release it; the registration then stays.
    pub fn unregister<T: Elem>(&self, pointer: GlobalPtr<T>, count: u64) -> Result<Vec<T>> {
        let registered = pointer.at_offset(0).cast();
        let len = match self.job.registered.lock().get(&registered) {
            Some(own) => own.key().bytes,
            None => return Err(bad(pointer)),
        };
        let size = size_of::<T>() as u64;
        let bytes = count
            .checked_mul(size)
            .and_then(|bytes| bytes.checked_add(pointer.offset()));
        if bytes.is_none_or(|end| end > len) {
            return Err(Error::OutOfRange {
                unit: self.job.named(self.job.me),
                first: pointer.offset() / size.max(1),
                end: (pointer.offset() / size.max(1)).saturating_add(count),
                len: len / size.max(1),
            });
        }
        // Allocated first: a failure must leave the registration as it is.
        let mut elements = crate::zeros::<T>(count)?;
        self.job.forget(self.job.me, pointer.segment());
        let segment = self.job.registered.lock().remove(&registered);
        // Sole access is needed to copy the elements out.
        let segment = segment.ok_or_else(|| bad(pointer))?;
        let shut = segment.into_phased();
        shut.shut();
        let alone = self.job.wait_alone(shut, Phased::own);
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
                let segment = shut.into_segment()?;
                self.job.registered.lock().insert(registered, segment);
                Err(error.into())
            }
        }
    }

    /// Returns what the checking mode has found so far: the conflicts whose later access was this
    /// unit's. Empty if it is switched off.
    pub fn conflicts(&self) -> Vec<crate::Conflict> {
        self.job
            .check
            .as_ref()
            .map_or_else(Vec::new, Checker::conflicts)
    }

    /// Copies `from` to the memory at `to`. One-sided; locally and remotely complete when it
    /// returns.
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

    /// Copies the memory at `from` to `into`. One-sided; complete when it returns.
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

    /// Starts a [`Pgas::put`] without waiting. `from` is copied before it returns (locally
    /// complete); the handle ends when the bytes have arrived.
    #[inline]
    #[track_caller]
    pub fn put_nb<T: Elem>(&self, to: GlobalPtr<T>, from: &[T]) -> Result<Handle<u64>> {
        let handle = self.job.start_put(to, from)?;
        self.job.watch(to, from.len(), AccessKind::Put)?;
        Ok(handle)
    }

    /// Starts a put like [`Pgas::put_nb`], but without a handle; [`Pgas::flush`] waits for its end.
    #[inline]
    #[track_caller]
    pub fn put_implicit<T: Elem>(&self, to: GlobalPtr<T>, from: &[T]) -> Result<()> {
        let handle = self.job.start_put(to, from)?;
        self.job.leave_to_flush(to.unit(), handle);
        self.job.watch(to, from.len(), AccessKind::ImplicitPut)
    }

    /// Waits until every implicit operation to a unit that any thread started before is remotely
    /// complete.
    ///
    /// # Errors
    /// The failure of an operation that this thread started. The deadline: operations of this
    /// thread, and of threads that have ended, that have not ended by then are abandoned.
    pub fn flush(&self, unit: Unit) -> Result<()> {
        self.job.flush(Some(unit))
    }

    /// Waits until every implicit operation is complete. Errors: as for [`Pgas::flush`].
    pub fn flush_all(&self) -> Result<()> {
        self.job.flush(None)
    }

    /// Waits until the sources of all implicit operations may be reused. They are copied when an
    /// operation starts, so this only makes progress.
    pub fn flush_local(&self) {
        self.job.fabric.progress();
        self.job.let_go();
        self.job.unfinished.step(&self.job.fabric);
    }

    /// Makes progress for other units. If units share no memory, a unit that computes for a long
    /// time should call this now and then.
    pub fn progress(&self) {
        self.job.fabric.progress();
        self.job.step();
    }
}

impl Pgas {
    #[inline(always)]
    #[track_caller]
    fn watched<T, R>(
        &self,
        at: GlobalPtr<T>,
        kind: AccessKind,
        access: impl FnMut(&Remote) -> Result<R>,
    ) -> Result<R> {
        self.job.watch(at, 1, kind)?;
        let value = self.job.with_remote(at, size_of::<T>() as u64, access)?;
        self.job.seen(at)?;
        Ok(value)
    }

    /// Updates the element at a pointer, like [`crate::Segment::fetch_op`].
    #[inline]
    #[track_caller]
    pub fn fetch_op<T: AtomicElem>(&self, at: GlobalPtr<T>, update: Update, value: T) -> Result<T> {
        self.watched(at, AccessKind::Update, |remote| {
            atomic::fetch_op(self.fabric(), remote, at.offset(), update, value)
        })
    }

    /// Replaces the element at a pointer, like [`crate::Segment::compare_swap`].
    #[inline]
    #[track_caller]
    pub fn compare_swap<T: AtomicElem>(&self, at: GlobalPtr<T>, expected: T, new: T) -> Result<T> {
        self.watched(at, AccessKind::Update, |remote| {
            atomic::compare_swap(self.fabric(), remote, at.offset(), expected, new)
        })
    }

    /// Loads the element at a pointer, like [`crate::Segment::load`].
    #[inline]
    #[track_caller]
    pub fn load<T: AtomicElem>(&self, at: GlobalPtr<T>) -> Result<T> {
        self.watched(at, AccessKind::Load, |remote| {
            atomic::load(remote, at.offset())
        })
    }
}

impl Drop for Pgas {
    /// Waits until the other members also end; see [`Pgas`].
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::debug!("global memory is left by a panic, without waiting for the others");
            while_unwinding(|| self.job.unfinished.finish(&self.job.fabric));
        } else {
            self.end();
        }
        self.job.unfinished.end();
        self.job.left.end();
    }
}

impl Pgas {
    fn end(&self) {
        if let Err(error) = self.job.flush(None) {
            tracing::warn!(%error, "operations that nobody has waited for have failed");
        }
        let Err(error) = self.world().exchange(Kind::End) else {
            return self.job.collectives.end(&self.job);
        };
        tracing::debug!(%error, "not all units end together");
        if let Err(error) = self.ended.leave_one_by_one(&self.job) {
            tracing::warn!(%error, "a unit is left that may still use the memory of this one");
        }
    }
}
