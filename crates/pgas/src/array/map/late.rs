//! Changes of a word by messages that its owner does not answer in time, or that a panic of a
//! handler interrupts. The caller does not get the slot; if it was taken nevertheless, it is given
//! back later ([`crate::unfinished`]).

use super::Map;
use super::slot::State;
use crate::check::AccessKind;
use crate::unfinished::{Finish, Unfinished};
use crate::{Elem, Result};
use samite_fabric::{Atomic, Error as Below, Handle, Remote, Width};

impl<K: Elem, V: Elem> Map<K, V> {
    /// Changes a word if it is still `from`. Returns the word that was found.
    #[cold]
    pub(super) fn take_far(
        &self,
        (rank, place): (u32, u64),
        from: State,
        to: State,
        undo: u64,
    ) -> Result<u64> {
        let (job, fabric) = (&self.team().0.job, self.team().fabric());
        job.unfinished.step(fabric);
        let (remote, at) = self.words.word(rank, place, AccessKind::Update)?;
        let op = Atomic::CompareExchange;
        let asked = remote.atomic_nb(at, op, Width::W64, from.0, to.0)?;
        let taking = Some((asked, from.0));
        // Unless `forget` is called, dropping this leaves the exchange to be undone later.
        let mut unwanted = Unwanted::new(&job.unfinished, (remote, at), taking, undo);
        let whom = [self.team().peer(rank)?];
        let over = || {
            job.unfinished.step(fabric);
            unwanted.is_answered().then_some(())
        };
        let waited = fabric.wait_stepping("the owner of a slot", &whom, over, || false);
        if let Err(error) = waited
            && !unwanted.is_answered()
        {
            // Only after a timeout may the answer still come.
            if !matches!(error, Below::Timeout { .. }) {
                unwanted.forget();
            }
            return Err(error.into());
        }
        let found = match unwanted.answer() {
            Ok(found) if found == from.0 => found,
            other => {
                unwanted.forget();
                let found = other?;
                self.words.seen(rank, place)?;
                return Ok(found);
            }
        };
        self.words.seen(rank, place)?;
        unwanted.forget();
        Ok(found)
    }

    /// Adds to a word that this unit has taken. An error of the checking mode is returned only
    /// after that.
    #[cold]
    pub(super) fn give_back_far(&self, (rank, place): (u32, u64), change: u64) -> Result<()> {
        let job = &self.team().0.job;
        let at = self.words.unwatched_word(rank, place)?;
        let unwanted = Unwanted::new(&job.unfinished, at, None, change);
        let watched = self.words.word(rank, place, AccessKind::Update);
        let (remote, at) = at;
        match remote.atomic_nb(at, Atomic::Add, Width::W64, change, 0) {
            Ok(asked) => {
                unwanted.forget();
                asked.wait()?;
            }
            Err(error) => {
                if !matches!(error, Below::Timeout { .. }) {
                    unwanted.forget();
                }
                return Err(error.into());
            }
        }
        watched?;
        self.words.seen(rank, place)
    }
}

/// A word that this unit gives back later, unless `forget` is called.
struct Unwanted<'u> {
    unfinished: &'u Unfinished,
    late: Option<Late>,
}

impl<'u> Unwanted<'u> {
    fn new(
        unfinished: &'u Unfinished,
        (remote, at): (&Remote, u64),
        taking: Option<(Handle<u64>, u64)>,
        undo: u64,
    ) -> Unwanted<'u> {
        let late = Some(Late {
            remote: remote.clone(),
            at,
            taking,
            undo,
        });
        Unwanted { unfinished, late }
    }

    /// Returns true if it is known whether the word was taken.
    fn is_answered(&self) -> bool {
        let taking = self.late.as_ref().and_then(|late| late.taking.as_ref());
        taking.is_none_or(|(asked, _)| asked.is_over())
    }

    /// Returns the word that was found.
    fn answer(&mut self) -> Result<u64> {
        let taking = self.late.as_mut().and_then(|late| late.taking.take());
        match taking {
            Some((asked, _)) => Ok(asked.wait()?),
            None => unreachable!("it is asked for once"),
        }
    }

    fn forget(mut self) {
        self.late = None;
    }
}

impl Drop for Unwanted<'_> {
    fn drop(&mut self) {
        if let Some(late) = self.late.take() {
            self.unfinished.add(late);
        }
    }
}

/// A word that this unit has taken, or may have taken, and no longer wants.
#[derive(Debug)]
struct Late {
    remote: Remote,
    at: u64,
    /// The pending exchange, and the answer that means that the word was taken.
    taking: Option<(Handle<u64>, u64)>,
    /// Added to the word to give it back.
    undo: u64,
}

impl Late {
    /// Returns true if nothing is left to do.
    fn settle(&mut self) -> Result<bool, Below> {
        if let Some((asked, from)) = self.taking.take() {
            if !asked.is_over() {
                self.taking = Some((asked, from));
                return Ok(false);
            }
            if asked.wait()? != from {
                return Ok(true);
            }
        }
        let add = Atomic::Add;
        match self
            .remote
            .atomic_nb(self.at, add, Width::W64, self.undo, 0)
        {
            Ok(asked) => {
                // The owner applies it when it makes progress; no caller waits for that.
                drop(asked);
                Ok(true)
            }
            Err(Below::Timeout { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Finish for Late {
    fn go_on(&mut self) -> bool {
        self.settle().unwrap_or_else(|error| {
            tracing::debug!(%error, "a slot of a map cannot be given back");
            true
        })
    }
}
