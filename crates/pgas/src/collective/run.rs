//! From a call with checked arguments to the engine that runs it.

use super::call::{Call, Failure, Kind};
use super::combining::{Combiner, Typed};
use super::machine::Machine;
use super::op::Operator;
use super::schedule::{self, Schedule};
use super::shape::{Combine, Moves};
use super::shared::{self, Board};
use super::{Input, Output};
use crate::team::Inner;
use crate::{Elem, Error, Result};
use samite_mem::SharedBytes;
use std::sync::atomic::Ordering;

impl Inner {
    pub(super) fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    /// The next call of this team. The caller has the turn.
    pub(super) fn next_call(&self, kind: Kind) -> Call {
        self.job.let_go();
        // ORDERING: Relaxed: only whoever has the turn changes it, and the lock of the turn orders that.
        let number = self.calls.load(Ordering::Relaxed) + 1;
        self.calls.store(number, Ordering::Relaxed);
        Call::new(kind, number)
    }

    /// What blocking calls run on, if the members share memory. All members answer alike.
    #[inline]
    pub(super) fn board(&self) -> Result<Option<&Board>> {
        if self.board.get().is_none() {
            let made = Board::make(self)?;
            // Nobody else makes it meanwhile: this thread has the turn.
            let _ = self.board.set(made);
        }
        Ok(self.board.get().and_then(Option::as_ref))
    }

    /// Runs a blocking collective, which the checking mode follows.
    #[inline(always)]
    pub(super) fn watched(&self, call: Call, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(check) = &self.job.check else {
            return run();
        };
        check.begin(self, call.number, |_| true)?;
        run()?;
        check.end_all(self, call.number, |from| call.connects(from, self.rank))
    }

    /// The blocking form of a collective that moves bytes.
    #[inline]
    pub(super) fn moves(
        &self,
        call: Call,
        moves: &Moves,
        input: &Input<'_>,
        output: Output<'_>,
    ) -> Result<()> {
        self.watched(call, || self.run_moves(call, moves, input, output))
    }

    #[inline(always)]
    fn run_moves(
        &self,
        call: Call,
        moves: &Moves,
        input: &Input<'_>,
        mut output: Output<'_>,
    ) -> Result<()> {
        if let Some(board) = self.board()? {
            let done = shared::moves((self, board), call, moves, input, output);
            return done.map_err(|failure| failure.error(self, call.kind.name()));
        }
        if self.size() == 1 {
            let (take, (from, _)) = (moves.takes(0, 0), moves.gives(0, 0));
            output.copy_input(take.at, input, from, take.len);
            return Ok(());
        }
        self.moves_by_messages(call, moves, input, output)
    }

    pub(super) fn moves_by_messages(
        &self,
        call: Call,
        moves: &Moves,
        input: &Input<'_>,
        mut output: Output<'_>,
    ) -> Result<()> {
        let schedule = schedule::moves(moves, self.rank, self.size());
        let memory = self.memory(moves, input, &output);
        let machine = self.run(Machine::start(self, call, schedule, memory), call, None)?;
        if !matches!(moves, Moves::Broadcast { root, .. } if *root == self.rank) {
            output.take_back(machine.output());
        }
        Ok(())
    }

    /// The memory of a schedule; what the root of a broadcast gives is where the others get it.
    pub(super) fn memory(
        &self,
        moves: &Moves,
        input: &Input<'_>,
        output: &Output<'_>,
    ) -> (SharedBytes, SharedBytes) {
        match moves {
            Moves::Broadcast { root, .. } if *root == self.rank => {
                (Input::NOTHING.memory(), input.memory())
            }
            _ => (input.memory(), output.memory()),
        }
    }

    /// The blocking form of a collective that combines `bytes` of elements.
    #[inline]
    pub(super) fn combines<T: Elem, O: Operator<T>>(
        &self,
        call: Call,
        what: (Combine, u64),
        operator: O,
        input: &Input<'_>,
        output: Output<'_>,
    ) -> Result<()> {
        self.watched(call, || {
            self.run_combines(call, what, operator, input, output)
        })
    }

    #[inline(always)]
    fn run_combines<T: Elem, O: Operator<T>>(
        &self,
        call: Call,
        (combine, bytes): (Combine, u64),
        operator: O,
        input: &Input<'_>,
        mut output: Output<'_>,
    ) -> Result<()> {
        let typed = Typed::new(operator);
        if let Some(board) = self.board()? {
            let place = (self, board);
            let done = shared::combines(place, call, (combine, bytes), &typed, input, output);
            return done.map_err(|failure| failure.error(self, call.kind.name()));
        }
        if self.size() == 1 {
            if combine.gives_to(0) {
                output.copy_input(0, input, 0, bytes);
            }
            return Ok(());
        }
        let schedule = self.schedule_of(combine, bytes, &typed);
        let memory = (input.memory(), output.memory());
        let machine = Machine::start(self, call, schedule, memory);
        let machine = self.run(machine, call, Some(&typed))?;
        if combine.gives_to(self.rank) {
            output.take_back(machine.output());
        }
        Ok(())
    }

    pub(super) fn schedule_of<T: Elem, O: Operator<T>>(
        &self,
        combine: Combine,
        bytes: u64,
        typed: &Typed<T, O>,
    ) -> Schedule {
        let place = (self.rank, self.size());
        let element = size_of::<T>() as u64;
        schedule::combines(combine, place, (bytes, element), typed.0.commutes())
    }

    /// Runs a machine to its end.
    fn run(
        &self,
        mut machine: Machine,
        call: Call,
        combiner: Option<&dyn Combiner>,
    ) -> Result<Machine> {
        let what = call.kind.name();
        let step = || {
            self.job.step();
            machine.step(combiner).cloned()
        };
        let fabric = &self.job.fabric;
        let ended = match fabric.wait_stepping(what, &[], step, || false) {
            Ok(ended) => ended,
            Err(error) => Err(machine.time_out(error)),
        };
        match ended {
            Ok(()) => Ok(machine),
            Err(failure) => Err(failure.error(self, what)),
        }
    }

    /// Ends the next call of the team, whichever it is at the others: this member's arguments keep it from
    /// calling it. The error, for its caller.
    #[cold]
    pub(crate) fn refuse_next(&self, error: Error) -> Error {
        let _turn = match self.turn() {
            Ok(turn) => turn,
            Err(error) => return error,
        };
        self.refuse(self.next_call(Kind::Refused), error)
    }

    /// Ends a call whose arguments do not fit together at all members; the error, for its caller.
    #[cold]
    pub(super) fn refuse(&self, call: Call, error: Error) -> Error {
        let failure = match self.board() {
            Ok(Some(board)) => board.refuse(self, &call, Failure::Own(error)),
            Ok(None) => return self.refuse_pending(call, error),
            Err(error) => Failure::Own(error),
        };
        failure.error(self, call.kind.name())
    }

    /// The same of a call over messages.
    #[cold]
    pub(super) fn refuse_pending(&self, call: Call, error: Error) -> Error {
        if self.size() > 1 {
            Machine::refuse(self, call, Failure::Own(error.clone()));
        }
        error
    }
}
