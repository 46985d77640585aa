//! Changes of a word over messages that its owner does not answer in time: the caller has an error, and what was taken all
//! the same is given back when this unit makes progress ([`crate::unfinished`]).

use super::Map;
use super::slot::State;
use crate::check::AccessKind;
use crate::unfinished::Finish;
use crate::{Elem, Result};
use samite_fabric::{Atomic, Error as Below, Handle, Remote, Width};

impl<'f, K: Elem, V: Elem> Map<'f, K, V> {
    /// Changes a word, if it is still `from`; the word that was found.
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
        let whom = [self.team().peer(rank)?];
        let over = || asked.is_over().then_some(());
        let waited = fabric.wait_stepping("the owner of a slot", &whom, over, || false);
        match waited {
            Err(error) if !asked.is_over() => {
                if let Below::Timeout { .. } = error {
                    let remote = remote.clone();
                    let taking = Some((asked, from.0));
                    job.unfinished.add(Late {
                        remote,
                        at,
                        taking,
                        undo,
                    });
                }
                Err(error.into())
            }
            _ => {
                let found = asked.wait()?;
                self.words.seen(rank, place)?;
                Ok(found)
            }
        }
    }

    /// Adds to a word that this unit has taken.
    #[cold]
    pub(super) fn give_back_far(&self, (rank, place): (u32, u64), change: u64) -> Result<()> {
        let (remote, at) = self.words.word(rank, place, AccessKind::Update)?;
        match remote.atomic_nb(at, Atomic::Add, Width::W64, change, 0) {
            Ok(asked) => asked.wait()?,
            Err(error) => {
                if let Below::Timeout { .. } = error {
                    let (remote, taking, undo) = (remote.clone(), None, change);
                    self.team().0.job.unfinished.add(Late {
                        remote,
                        at,
                        taking,
                        undo,
                    });
                }
                return Err(error.into());
            }
        };
        self.words.seen(rank, place)
    }
}

/// A word that this unit has taken, or perhaps has, and does not want any more.
#[derive(Debug)]
struct Late<'f> {
    remote: Remote<'f>,
    at: u64,
    /// It has it if the answer is this word.
    taking: Option<(Handle<'f, u64>, u64)>,
    /// Added to it, it is given back.
    undo: u64,
}

impl Late<'_> {
    /// Whether it is settled.
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
                // The owner takes it in its turn: nobody waits for that.
                drop(asked);
                Ok(true)
            }
            Err(Below::Timeout { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Finish for Late<'_> {
    fn go_on(&mut self) -> bool {
        self.settle().unwrap_or_else(|error| {
            tracing::debug!(%error, "a slot of a map cannot be given back");
            true
        })
    }
}
