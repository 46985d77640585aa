//! A solver unit as the analysis sees it: announcements, and the rows of a step where they lie.

use std::collections::VecDeque;

use samite::{Atomic, Fabric, Match, PeerId, Remote, SharedBytes, Width};

use super::field::{Field, Layout, Stamp};
use super::protocol::{self, Announcement, Doing, Hello, RELEASED, Times, solver_name, tag};
use crate::{Change, Error, Part, Problem, Rows};

/// Bytes per message where rows come by messages, and how many are asked for at a time: enough to
/// keep both sides busy, little enough to stay in the second cache.
const PIECE: u64 = 128 * 1024;
const PIECES_ASKED: usize = 4;

/// One solver unit.
#[derive(Debug)]
pub(crate) struct Source<'f> {
    fabric: &'f Fabric,
    peer: PeerId,
    pub(crate) part: Part,
    layout: Layout,
    remote: Remote<'f>,
}

/// All solver units by rank, and what they work on.
#[derive(Debug)]
pub(crate) struct Sources<'f> {
    pub(crate) problem: Problem,
    pub(crate) steps: u64,
    pub(crate) units: Vec<Source<'f>>,
}

impl<'f> Sources<'f> {
    /// Waits for all solver units and attaches their segments.
    pub(crate) fn meet(fabric: &'f Fabric) -> Result<Self, Error> {
        let peers = protocol::solvers(fabric)?;
        let hellos = (peers.iter().enumerate())
            .map(|(rank, &peer)| {
                let wants = Match::from(peer, tag::HELLO);
                let message = fabric
                    .recv_vec(wants)
                    .doing(|| format!("waiting for {} to introduce itself", solver_name(rank)))?;
                protocol::from_json::<Hello>(&message.1)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let problem = hellos[0].problem()?;
        let units = (hellos.iter().zip(peers).enumerate())
            .map(|(rank, (hello, peer))| {
                let part = problem.part(rank, hellos.len())?;
                Source::new(fabric, &problem, part, hello, peer, &hellos[0])
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            problem,
            steps: hellos[0].steps,
            units,
        })
    }

    /// Whether all steps are read where they lie.
    pub(crate) fn in_place(&self) -> bool {
        self.units
            .iter()
            .all(|unit| unit.remote.mapped().is_some())
    }
}

impl<'f> Source<'f> {
    fn new(
        fabric: &'f Fabric,
        problem: &Problem,
        part: Part,
        hello: &Hello,
        peer: PeerId,
        first: &Hello,
    ) -> Result<Self, Error> {
        let layout = Layout::new(problem, part);
        if !hello.agrees_with(first) || hello.segment.bytes != layout.bytes() {
            return Err(Error::Disagreement { unit: part.unit });
        }
        let remote = fabric
            .attach(hello.segment)
            .doing(|| format!("attaching the segment of {}", solver_name(part.unit)))?;
        Ok(Self {
            fabric,
            peer,
            part,
            layout,
            remote,
        })
    }

    fn name(&self) -> String {
        solver_name(self.part.unit)
    }

    /// Waits until the unit has computed `step`; how much it changed.
    pub(crate) fn await_step(&self, step: u64) -> Result<Change, Error> {
        let mut bytes = [0; Announcement::BYTES];
        self.fabric
            .recv(Match::from(self.peer, tag::STEP), &mut bytes)
            .doing(|| format!("waiting for step {step} of {}", self.name()))?;
        let announcement = Announcement::from_bytes(&bytes);
        if announcement.step == step {
            Ok(announcement.change)
        } else {
            Err(Error::Gap {
                unit: self.part.unit,
                expected: step,
                announced: announcement.step,
            })
        }
    }

    /// Gives each row of a step to `look`, from the top down: its number in the whole rectangle, and
    /// its cells, copied once into a row that stays in the first cache. `row` has the field's width.
    pub(crate) fn read(
        &self,
        step: u64,
        row: &mut [f64],
        mut look: impl FnMut(usize, &[f64]),
    ) -> Result<(), Error> {
        let Some(segment) = self.remote.mapped() else {
            return self.read_by_messages(step, row, &mut look);
        };
        let stamp = Stamp::of(segment, self.layout, step);
        let torn = |found| self.torn(step, found);
        stamp.whole_before().map_err(torn)?;
        let field = Field::of(segment, self.layout, step);
        for at in 0..field.rows() {
            field.load(at, row);
            look(self.part.first_row + at, row);
        }
        stamp.whole_after().map_err(torn)
    }

    /// The same without a mapping: the rows come in pieces, several of which are on their way.
    fn read_by_messages(
        &self,
        step: u64,
        row: &mut [f64],
        look: &mut impl FnMut(usize, &[f64]),
    ) -> Result<(), Error> {
        let doing = || format!("getting step {step} from {}", self.name());
        let torn = |found| self.torn(step, found);
        self.stamp_by_messages(step)?.whole_before().map_err(torn)?;
        let (start, row_bytes) = (self.layout.field_of(step), self.layout.row_bytes());
        let rows_per_piece = (PIECE / row_bytes).max(1) as usize;
        let mut firsts = (0..self.layout.rows).step_by(rows_per_piece);
        let mut asked = VecDeque::new();
        loop {
            while asked.len() < PIECES_ASKED
                && let Some(first) = firsts.next()
            {
                let rows = rows_per_piece.min(self.layout.rows - first);
                let offset = start + first as u64 * row_bytes;
                let get = self.remote.get_nb(offset, rows as u64 * row_bytes);
                asked.push_back((first, rows, get.doing(doing)?));
            }
            let Some((first, rows, get)) = asked.pop_front() else {
                break;
            };
            let piece = SharedBytes::adopt(get.wait().doing(doing)?);
            let piece = Field::new(piece, rows, self.layout.cols);
            for at in 0..rows {
                piece.load(at, row);
                look(self.part.first_row + first + at, row);
            }
        }
        self.stamp_by_messages(step)?.whole_after().map_err(torn)
    }

    /// A copy of the stamp as it is now.
    fn stamp_by_messages(&self, step: u64) -> Result<Stamp, Error> {
        let copy = Stamp::none(step);
        for word in Stamp::WORDS {
            let at = self.layout.stamp_of(step) + word;
            let value = self
                .remote
                .atomic(at, Atomic::Load, Width::W64, 0, 0)
                .doing(|| format!("getting the stamp of step {step} from {}", self.name()))?;
            copy.set(word, value);
        }
        Ok(copy)
    }

    fn torn(&self, step: u64, found: Option<u64>) -> Error {
        Error::Torn {
            unit: self.part.unit,
            step,
            found,
        }
    }

    /// The unit may overwrite the step that was read last.
    pub(crate) fn release(&self) -> Result<(), Error> {
        self.fabric
            .signal(self.peer, RELEASED)
            .doing(|| format!("releasing a step of {}", self.name()))
    }

    /// What the unit says after its last step.
    pub(crate) fn times(&self) -> Result<Times, Error> {
        let message = self
            .fabric
            .recv_vec(Match::from(self.peer, tag::TIMES))
            .doing(|| format!("waiting for the times of {}", self.name()))?;
        protocol::from_json(&message.1)
    }

    /// [`protocol::GO`] or [`protocol::NOT_YET`].
    pub(crate) fn say_end(&self, word: &[u8]) -> Result<(), Error> {
        self.fabric
            .send(self.peer, tag::END, word)
            .doing(|| format!("telling {} about the end", self.name()))
    }
}
