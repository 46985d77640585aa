//! The phases of a segment: who may access it and how, enforced by the compiler.
//!
//! ```text
//!   Shared     all members put, get, update; no references to the memory exist
//!   Local      each member has its own part as `&mut [T]`; no member accesses the others' parts
//!   ReadOnly   all members get; on a node, all have `&[T]` of every part
//! ```
//! A phase is changed by a collective call that consumes the segment, so the compiler ensures that
//! no access of the old phase comes after it. Below that, a process that is attached to a part has
//! a lease on it, and the part turns only when no lease is out (`samite_mem::lease`). If a member
//! is attached in another way, or a program violates the rules, the change ends with an error. It
//! never yields a reference to memory that others write.
//!
//! The order of a change:
//! 1. All agree to begin: what was started in the old phase is complete. Until here the segment is
//!    unchanged.
//! 2. All detach. Each owner withdraws its part, waits until no process uses it
//!    ([`Job::wait_alone`]; units that followed a pointer release it when they make progress),
//!    turns it and offers it again.
//! 3. All agree that all parts have turned, and attach again; otherwise all turn back.
//!
//! A change also orders memory: what was written in one phase is visible in the next, at all
//! members.
//!
//! Registered memory stays `Shared`: others access it through the kernel, which knows no phases.

use super::{Parts, Segment, Unturned};
use crate::job::{Job, Own, OwnPart};
use crate::{Elem, Error, Result};
use samite_fabric::{Owned, Phased, Remote};
use samite_mem::SharedBytes;
use std::marker::PhantomData;

/// A phase. Sealed: [`Shared`], [`Local`], [`ReadOnly`].
pub trait Phase: sealed::Phase {}
impl<P: sealed::Phase> Phase for P {}

pub(super) mod sealed {
    use super::{Failure, Part, Parts};

    pub trait Phase {
        type State: std::fmt::Debug;

        /// The mode in which a part is leased.
        const MODE: super::Mode;

        /// Marks the part as no longer used by any member.
        fn release(_: &Self::State) {}

        /// Returns true if it is registered memory.
        fn is_registered(_: &Self::State) -> bool {
            false
        }

        /// Detaches from all parts. Returns this unit's own; `None` for registered memory.
        fn detach(parts: &Parts, state: Self::State) -> Option<Part>;

        /// Attaches to all parts, which have elements of `size` bytes and are in this phase.
        /// Collective, unless `anyway` is set: then parts that cannot be reached are not a failure.
        fn attach(
            parts: &Parts,
            part: Part,
            size: u64,
            anyway: bool,
        ) -> Result<Self::State, Box<(Option<Part>, Failure)>>;
    }
}

/// The mode in which a part is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Shared,
    Local,
    ReadOnly,
}

/// This unit's part while the phase changes.
#[derive(Debug)]
pub enum Part {
    Phased(Phased),
    Alone(Owned),
}

/// Why the members do not continue.
#[derive(Debug)]
pub enum Failure {
    /// One of them cannot continue. All know it.
    Refused(Error),
    /// The collective by which they agree has failed. Some may continue.
    Unknown(Error),
}

/// All members may put, get and use atomics; no references to the memory exist.
#[derive(Debug)]
pub enum Shared {}
/// Each member alone accesses its own part.
#[derive(Debug)]
pub enum Local {}
/// All members read, none writes.
#[derive(Debug)]
pub enum ReadOnly {}

impl sealed::Phase for Shared {
    type State = Open;
    const MODE: Mode = Mode::Shared;

    fn release(state: &Open) {
        state.own.nobody_uses_it();
    }

    fn is_registered(state: &Open) -> bool {
        state.own.is_registered()
    }

    fn detach(_: &Parts, state: Open) -> Option<Part> {
        let Open {
            bytes,
            remotes,
            windows,
            own,
        } = state;
        drop((bytes, remotes, windows));
        own.take()?.phased().map(Part::Phased)
    }

    fn attach(
        parts: &Parts,
        part: Part,
        size: u64,
        anyway: bool,
    ) -> Result<Open, Box<(Option<Part>, Failure)>> {
        let phased = part.phased()?;
        let opened = Open::attach(parts, Own::Phased(phased), size, anyway);
        opened.map_err(|refused| {
            let (own, failure) = *refused;
            Box::new((own.phased().map(Part::Phased), failure))
        })
    }
}

impl sealed::Phase for Local {
    type State = Owned;
    const MODE: Mode = Mode::Local;

    fn detach(_: &Parts, state: Owned) -> Option<Part> {
        Some(Part::Alone(state))
    }

    fn attach(
        _: &Parts,
        part: Part,
        _: u64,
        _: bool,
    ) -> Result<Owned, Box<(Option<Part>, Failure)>> {
        match part {
            Part::Alone(owned) => Ok(owned),
            Part::Phased(_) => unreachable!("a part that has turned to local is this unit's alone"),
        }
    }
}

impl sealed::Phase for ReadOnly {
    type State = Reading;
    const MODE: Mode = Mode::ReadOnly;

    fn release(state: &Reading) {
        state.own.nobody_uses_it();
    }

    fn detach(_: &Parts, state: Reading) -> Option<Part> {
        drop(state.remotes);
        state.own.take()?.phased().map(Part::Phased)
    }

    fn attach(
        parts: &Parts,
        part: Part,
        _: u64,
        anyway: bool,
    ) -> Result<Reading, Box<(Option<Part>, Failure)>> {
        let phased = part.phased()?;
        match parts.attach(anyway) {
            Ok(remotes) => Ok(Reading {
                remotes,
                own: parts.keep(Own::Phased(phased)),
            }),
            Err(failure) => Err(Box::new((Some(Part::Phased(phased)), failure))),
        }
    }
}

impl Part {
    fn phased(self) -> Result<Phased, Box<(Option<Part>, Failure)>> {
        match self {
            Part::Phased(phased) => Ok(phased),
            Part::Alone(_) => unreachable!("a part that has turned to shared is for all"),
        }
    }

    /// Turns the part once no other process uses it. On failure it is unchanged, and withdrawn.
    fn turn(self, to: Mode, job: &Job) -> Result<Part, Box<(Option<Part>, Error)>> {
        let reading = to == Mode::ReadOnly;
        let turned = match (self, to) {
            (Part::Alone(owned), Mode::Local) => return Ok(Part::Alone(owned)),
            (Part::Alone(owned), _) => {
                let given = owned.give(reading).map(Part::Phased);
                return given.map_err(|error| Box::new((None, error.into())));
            }
            (Part::Phased(phased), Mode::Local) => {
                phased.shut();
                job.wait_alone(phased, Phased::own).map(Part::Alone)
            }
            // It did not turn, or does not need to.
            (Part::Phased(phased), _) if phased.is_reading() == reading => {
                match phased.offer_again() {
                    Ok(()) => Ok(Part::Phased(phased)),
                    Err(error) => Err(Box::new((phased, error))),
                }
            }
            (Part::Phased(phased), _) => {
                phased.shut();
                let turn = |mut phased: Phased| match phased.turn(reading) {
                    Ok(()) => Ok(phased),
                    Err(error) => Err(Box::new((phased, error))),
                };
                job.wait_alone(phased, turn).map(Part::Phased)
            }
        };
        turned.map_err(|refused| {
            let (phased, error) = *refused;
            Box::new((Some(Part::Phased(phased)), error.into()))
        })
    }
}

impl Failure {
    pub(super) fn into_error(self) -> Error {
        match self {
            Failure::Refused(error) | Failure::Unknown(error) => error,
        }
    }
}

/// A member's state of a segment while it is shared.
#[derive(Debug)]
pub struct Open {
    /// This unit's own bytes.
    pub(crate) bytes: SharedBytes,
    /// By rank.
    pub(crate) remotes: Vec<Remote>,
    /// By rank: the elements, if they are mapped here and the checking mode is off. The memory
    /// stays as long as these exist, so an access only has to check its range.
    pub(super) windows: Vec<SharedBytes>,
    /// Dropped last, after this unit itself has detached.
    pub(crate) own: OwnPart,
}

/// A member's state of a segment while it is read only.
#[derive(Debug)]
pub struct Reading {
    /// By rank.
    pub(super) remotes: Vec<Remote>,
    /// Dropped last.
    own: OwnPart,
}

impl Parts {
    /// Wraps a part so that freeing it is deferred when it is dropped.
    fn keep(&self, own: Own) -> OwnPart {
        OwnPart::new(own, &self.team.0.job.left, &self.team.0.peers)
    }

    /// Agrees on whether all members can continue.
    fn agree<T>(&self, mine: Result<T>) -> Result<T, Failure> {
        let fine = [u8::from(mine.is_ok())];
        let mut all = vec![0; self.team.size() as usize];
        let told = self.team.all_gather(&fine[..], &mut all[..]);
        let value = match (mine, told) {
            (Err(error), Ok(())) => return Err(Failure::Refused(error)),
            (Err(error), Err(_)) | (Ok(_), Err(error)) => return Err(Failure::Unknown(error)),
            (Ok(value), Ok(())) => value,
        };
        match all.iter().position(|fine| *fine == 0) {
            None => Ok(value),
            Some(rank) => Err(Failure::Refused(self.team.unit(rank as u32).map_or_else(
                |error| error,
                |unit| Error::NoPhase(self.team.0.job.named(unit)),
            ))),
        }
    }

    /// Attaches to all parts. Collective, unless `anyway` is set: then operations on parts that
    /// cannot be reached return the cause.
    fn attach(&self, anyway: bool) -> Result<Vec<Remote>, Failure> {
        let fabric = self.team.fabric();
        if anyway {
            let attach = |key| {
                let attached = fabric.attach(key);
                attached.unwrap_or_else(|_| fabric.attach_unseen(key))
            };
            return Ok(self.keys.iter().map(|key| attach(*key)).collect());
        }
        let attached: Result<_, samite_fabric::Error> =
            self.keys.iter().map(|key| fabric.attach(*key)).collect();
        self.agree(attached.map_err(Error::from))
    }
}

impl Open {
    /// Attaches to all parts, which must be open; see [`Parts::attach`].
    pub(super) fn attach(
        parts: &Parts,
        own: Own,
        size: u64,
        anyway: bool,
    ) -> Result<Open, Box<(Own, Failure)>> {
        let remotes = match parts.attach(anyway) {
            Ok(remotes) => remotes,
            Err(failure) => return Err(Box::new((own, failure))),
        };
        let bytes = match &own {
            Own::Phased(own) => own.bytes(),
            Own::Registered(own) => Ok(own.bytes().clone()),
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => return Err(Box::new((own, Failure::Unknown(error.into())))),
        };
        // Accesses by a pointer then find the part without attaching again.
        for (remote, unit) in remotes.iter().zip(parts.team.group()) {
            let number = remote.key().segment as u16;
            let job = &parts.team.0.job;
            job.remember(unit, number, remote);
        }
        let window = |(remote, count): (&Remote, &u64)| {
            let mapped = remote.mapped().filter(|_| !parts.checked);
            let elements = mapped.map(|all| all.slice(0, count * size));
            elements.unwrap_or_else(|| bytes.slice(0, 0))
        };
        let windows = remotes.iter().zip(&parts.counts).map(window).collect();
        Ok(Open {
            bytes,
            remotes,
            windows,
            own: parts.keep(own),
        })
    }
}

impl<T: Elem, P: Phase> Segment<T, P> {
    /// Changes the phase of the segment. Collective; what was written or put before is visible at
    /// all members. Units that are not members and have followed a pointer to a part release it
    /// when they make progress; each member waits for that, for half of the fabric's deadline.
    ///
    /// # Errors
    /// [`Error::AlwaysShared`] for registered memory; [`samite_fabric::Error::InUse`] if units do
    /// not release a part, [`Error::NoPhase`] at the other members; a lost member. The segment is
    /// returned in its old phase, with its contents: see [`Unturned`].
    pub fn turn<Q: Phase>(self) -> Result<Segment<T, Q>, Unturned<Self>> {
        if P::is_registered(&self.state) {
            return Err(Unturned::new(Some(self), Error::AlwaysShared));
        }
        let team = self.parts.team.clone();
        let _turn = match team.0.long_turn() {
            Ok(turn) => turn,
            Err(error) => return Err(Unturned::new(Some(self), error)),
        };
        // Puts without a handle belong to the phase that ends.
        let flushed = self.parts.team.0.job.flush(None);
        if let Err(failure) = self.parts.agree(flushed) {
            return Err(Unturned::new(Some(self), failure.into_error()));
        }
        // Detach and turn this unit's part.
        let Segment { parts, state, .. } = self;
        parts.forget_remotes();
        let (part, turned) = match P::detach(&parts, state) {
            Some(part) => match part.turn(Q::MODE, &parts.team.0.job) {
                Ok(part) => (Some(part), Ok(())),
                Err(refused) => (refused.0, Err(refused.1)),
            },
            None => (None, Err(Error::AlwaysShared)),
        };
        // Attach in the new phase if all parts have turned; otherwise turn back.
        let attached = match (parts.agree(turned), part) {
            (Ok(()), Some(part)) => Q::attach(&parts, part, size_of::<T>() as u64, false),
            (Ok(()), None) => unreachable!("a part that has turned is there"),
            (Err(failure), part) => Err(Box::new((part, failure))),
        };
        match attached {
            Ok(state) => Ok(Segment {
                parts,
                state,
                kind: PhantomData,
            }),
            Err(refused) => {
                let (part, failure) = *refused;
                let back = Segment::turn_back(parts, part, &failure);
                Err(Unturned::new(back, failure.into_error()))
            }
        }
    }

    /// Lets all members put and get. Collective; what was written is visible to all. Like
    /// [`Segment::turn`], but the segment is dropped if that fails.
    pub fn into_shared(self) -> Result<Segment<T, Shared>> {
        Ok(self.turn()?)
    }

    /// Gives each member its own part as `&mut [T]`. Collective; like [`Segment::into_shared`].
    pub fn into_local(self) -> Result<Segment<T, Local>> {
        Ok(self.turn()?)
    }

    /// Lets all members read. Collective; like [`Segment::into_shared`].
    pub fn into_read_only(self) -> Result<Segment<T, ReadOnly>> {
        Ok(self.turn()?)
    }

    /// Returns the segment in its old phase after a change that has failed. `None` if others have
    /// continued and use this unit's part, or if the part is lost.
    fn turn_back(parts: Parts, part: Option<Part>, failure: &Failure) -> Option<Self> {
        let turned = part.map(|part| part.turn(P::MODE, &parts.team.0.job));
        if matches!(failure, Failure::Refused(_)) {
            // Wait until all parts are offered again, if possible. A member that has none takes
            // part, too.
            let _ = parts.agree(Ok(()));
        }
        let (part, error) = match turned? {
            Ok(part) => match P::attach(&parts, part, size_of::<T>() as u64, true) {
                Ok(state) => {
                    return Some(Segment {
                        parts,
                        state,
                        kind: PhantomData,
                    });
                }
                Err(refused) => (refused.0, refused.1.into_error()),
            },
            Err(refused) => *refused,
        };
        tracing::warn!(%error, "a part is in another phase than its segment was, and is left to those who use it");
        if let Some(Part::Phased(phased)) = part {
            drop(parts.keep(Own::Phased(phased)));
        }
        None
    }
}
