//! A writer (rank 0) and a reader (rank 1) that exchange steps through the block store of their
//! domain, as separate programs would.
//!
//! A step is one array of doubles whose values depend on their position. A *kind* says which side
//! copies: none (`view`: the writer has its array in the step, and the reader reads it there), the
//! writer from an array of its own (`put`), the reader into one (`get`), or both (`copy`). While
//! the clock runs, the array of a writer that does not copy is only marked in its corners, and the
//! reader checks the marks; the first and the last steps are written and compared completely.
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
pub(super) mod workflow;

use super::Unit;
use crate::control::Command;
use anyhow::{Context, Result, bail, ensure};
use end::{End, Kind, Look, Shape};
use held::Watch;
use samite::Match;
use samite::stage::Stage;
use std::time::{Duration, Instant};

/// Steps of a window, at the end of which the two ranks synchronise.
const STEPS: u64 = 4;
const WRITER: usize = 0;
const DECISION: u64 = 11;
/// A block store frees memory that was unused for five seconds within this time.
const SETTLES: Duration = Duration::from_secs(6);

/// Numbers of rounds: measured, and before that.
type Rounds = (u64, u64);

impl Unit {
    /// Returns `None` for commands of other benches.
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

    /// Returns the seconds of windows of steps.
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

    /// Returns the seconds in which values are stored, and each one is fetched before the next.
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

    /// Returns the maximum bytes of all processes of the job, minus what they had before, counted
    /// as for the peers, while steps are exchanged of which at most one waits.
    fn peak(&self, kind: Kind, shape: Shape, (iters, warmup): Rounds) -> Result<f64> {
        // Excludes memory of earlier commands.
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

    /// Opens this rank's end of a stream with a new name, in which at most `steps` wait.
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

    /// Exchanges one more step, with other values, and compares it completely; both ranks get the
    /// result.
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

    /// Returns the reader's value at both ranks.
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
