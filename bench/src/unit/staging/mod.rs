//! A writer (rank 0) and a reader (rank 1) that hand on steps through the block store of their
//! domain, as programs of their own would.
//!
//! A step is one array of doubles whose values know their place. A *kind* says who copies: nobody
//! (`view`: the writer has its array in the step, the reader looks at it there), the writer out of
//! an array of its own (`put`), the reader into one (`get`), or both (`copy`). While the clock
//! runs, the array of a writer that does not copy is only marked in its corners, and the reader
//! looks at the marks; the first and the last steps are written and compared whole.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | the commands, and the windows of steps |
//! | `end` | a writer or a reader with its array |
//! | `held` | the memory of all processes |
//! | `files` | steps in files |
//! | `layouts` | figures that follow from a layout alone |
//! | `workflow` | whole workflows, run by the command of a user |

mod end;
mod files;
mod held;
mod layouts;
mod workflow;

use super::Unit;
use crate::control::Command;
use anyhow::{Context, Result, bail, ensure};
use end::{End, Kind, Look, Shape};
use held::Watch;
use samite::Match;
use samite::stage::Stage;
use std::time::{Duration, Instant};

/// Steps of a window, at the end of which both ranks meet.
const STEPS: u64 = 4;
const WRITER: usize = 0;
const DECISION: u64 = 11;
/// What a block store has had no use for in five seconds is given back within this time.
const SETTLES: Duration = Duration::from_secs(6);

/// How often: rounds on the clock, and before.
type Rounds = (u64, u64);

impl Unit {
    /// `None` for commands of other benches.
    pub(super) fn staging(&self, command: &Command) -> Result<Option<f64>> {
        let number = |index| command.number(index);
        let rounds = |index| Ok::<_, anyhow::Error>((number(index)?, number(index + 1)?));
        match (command.name(), self.members.len()) {
            ("step", 2) => {
                let kind = Kind::of(command.word(1))?;
                let shape = Shape::of(number(2)?, false)?;
                self.hand_on(kind, shape, rounds(3)?).map(Some)
            }
            ("slab", 2) => {
                let kind = Kind::of(command.word(1))?;
                let shape = Shape::of(number(2)?, true)?;
                self.hand_on(kind, shape, rounds(3)?).map(Some)
            }
            ("store", 2) => {
                let kind = Kind::of(command.word(1))?;
                let shape = Shape::of(number(2)?, false)?;
                self.store(kind, shape, rounds(3)?).map(Some)
            }
            ("peak", 2) => {
                let kind = Kind::of(command.word(1))?;
                let shape = Shape::of(number(2)?, false)?;
                self.peak(kind, shape, rounds(3)?).map(Some)
            }
            ("file", _) if self.rank != WRITER => Ok(Some(0.0)),
            ("file", _) => {
                let shape = Shape::of(number(2)?, false)?;
                files::run(&self.fabric, command.word(1), shape, rounds(3)?)
            }
            ("index", _) => layouts::index(command).map(Some),
            ("layout", _) => layouts::layout(command),
            ("workflow", _) if self.rank != WRITER => Ok(Some(0.0)),
            ("workflow", _) if command.word(2) == "lammps-msd" && !(self.programs.has_lammps)() => {
                Ok(None)
            }
            ("workflow", _) => workflow::run(command),
            _ => Ok(None),
        }
    }

    /// Seconds of windows of steps.
    fn hand_on(&self, kind: Kind, shape: Shape, (iters, warmup): Rounds) -> Result<f64> {
        let mut end = self.open(kind, shape, 2)?;
        for _ in 0..warmup {
            self.hand_on_window(&mut end, Look::Whole)?;
        }
        let start = Instant::now();
        for _ in 0..iters {
            self.hand_on_window(&mut end, Look::Marks)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        self.verify(&mut end)?;
        end.close()?;
        Ok(seconds)
    }

    /// Seconds in which values are stored, and each one fetched before the next.
    fn store(&self, kind: Kind, shape: Shape, (iters, warmup): Rounds) -> Result<f64> {
        let mut end = self.open(kind, shape, 2)?;
        let mut start = Instant::now();
        for round in 0..warmup + iters {
            if round == warmup {
                start = Instant::now();
            }
            for turn in [WRITER, 1 - WRITER] {
                if self.rank == turn {
                    end.step(Look::Marks)?;
                }
                self.meet()?;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        self.verify(&mut end)?;
        end.close()?;
        Ok(seconds)
    }

    /// The most bytes that all processes of the job have, above what they had before, as the peers
    /// count it, while steps of which one waits at most are handed on.
    fn peak(&self, kind: Kind, shape: Shape, (iters, warmup): Rounds) -> Result<f64> {
        // What earlier commands needed is not part of it.
        std::thread::sleep(SETTLES);
        self.meet()?;
        let watch = (self.rank == WRITER).then(|| Watch::begin(held::held_now()));
        self.meet()?;
        let mut end = self.open(kind, shape, 1)?;
        for _ in 0..warmup + iters {
            self.hand_on_window(&mut end, Look::Whole)?;
        }
        let most = watch.map(Watch::end).transpose()?;
        self.verify(&mut end)?;
        end.close()?;
        Ok(most.unwrap_or(0.0))
    }

    /// A stream of a name of its own, of which `steps` wait at most, and this rank's end of it.
    fn open(&self, kind: Kind, shape: Shape, steps: u64) -> Result<End> {
        let number = self.streams.get();
        self.streams.set(number + 1);
        let stage = Stage::join(&self.fabric)?;
        let name = format!("bench-{number}");
        let end = match self.rank {
            WRITER => End::writer(&stage, &name, kind, shape, steps)?,
            _ => End::reader(&stage, &name, kind, shape)?,
        };
        self.meet()?;
        Ok(end)
    }

    fn hand_on_window(&self, end: &mut End, look: Look) -> Result<()> {
        for _ in 0..STEPS {
            end.step(look)?;
        }
        self.meet()
    }

    /// One more step, of other values, compared whole; both ranks know how it went.
    fn verify(&self, end: &mut End) -> Result<()> {
        end.change();
        let is_whole = end.step(Look::Whole);
        let is_right = self.told(f64::from(u8::from(is_whole.is_ok())))? == 1.0;
        is_whole?;
        ensure!(
            is_right,
            "the values that were read are not those that were written"
        );
        Ok(())
    }

    /// What the reader has to say, at both ranks.
    fn told(&self, value: f64) -> Result<f64> {
        let other = self.members[1 - self.rank];
        if self.rank != WRITER {
            self.fabric.send(other, DECISION, &value.to_le_bytes())?;
            return Ok(value);
        }
        let mut word = [0; 8];
        self.fabric.recv(Match::from(other, DECISION), &mut word)?;
        Ok(f64::from_le_bytes(word))
    }

    fn meet(&self) -> Result<()> {
        self.fabric.barrier(&self.members).context("barrier")
    }
}
