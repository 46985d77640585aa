//! A solver unit as the analysis sees it: announcements, and the rows of a step where they lie.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use samite::{Atomic, Fabric, Match, PeerId, Remote, SharedBytes, Width};

use super::field::{Field, Layout, is_of};
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
    fabric: &'f Fabric,
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
            fabric,
            problem,
            steps: hellos[0].steps,
            units,
        })
    }

    /// Adds to an error which units are gone: the one that was waited for may have ended only because
    /// another one had.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let Error::Fabric { doing, source } = error else {
            return error;
        };
        let here: Vec<_> = self.fabric.peers().iter().map(|info| info.peer).collect();
        let gone = self.units.iter().filter(|unit| !here.contains(&unit.peer));
        let gone: Vec<_> = gone.map(Source::name).collect();
        let doing = match gone.is_empty() {
            true => doing,
            false => format!("{doing} (gone: {})", gone.join(", ")),
        };
        Error::Fabric { doing, source }
    }

    /// Whether all steps are read where they lie.
    pub(crate) fn in_place(&self) -> bool {
        self.units.iter().all(|unit| unit.remote.mapped().is_some())
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
    /// its cells. `row` has the field's width; a row is copied there and stays in the first cache.
    pub(crate) fn read(
        &self,
        step: u64,
        row: &mut [f64],
        mut look: impl FnMut(usize, &[f64]),
    ) -> Result<(), Error> {
        self.check(step, self.layout.ended(step))?;
        match self.remote.mapped() {
            Some(segment) => {
                let field = Field::of(segment, self.layout, step);
                self.look_at(0, &field, row, &mut look);
            }
            None => self.read_by_messages(step, row, &mut look)?,
        }
        // ORDERING: Acquire, pairs with the Release fence in `Stamp::begin`.
        fence(Ordering::Acquire);
        self.check(step, self.layout.begun(step))
    }

    /// Without a mapping: the rows come in pieces, several of which are on their way.
    fn read_by_messages(
        &self,
        step: u64,
        row: &mut [f64],
        look: &mut impl FnMut(usize, &[f64]),
    ) -> Result<(), Error> {
        let doing = || format!("getting step {step} from {}", self.name());
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
                return Ok(());
            };
            let piece = SharedBytes::adopt(get.wait().doing(doing)?);
            let piece = Field::new(piece, rows, self.layout.cols);
            self.look_at(first, &piece, row, look);
        }
    }

    /// All rows of `field`, of which the first is row `first` of the unit.
    fn look_at(
        &self,
        first: usize,
        field: &Field,
        row: &mut [f64],
        look: &mut impl FnMut(usize, &[f64]),
    ) {
        for at in 0..field.rows() {
            field.load(at, row);
            look(self.part.first_row + first + at, row);
        }
    }

    /// Whether a word of the stamp is that of `step`.
    fn check(&self, step: u64, word: u64) -> Result<(), Error> {
        // The load is an Acquire where the segment is mapped; an answer by message comes after the
        // cells that were asked for before it.
        let word = self
            .remote
            .atomic(word, Atomic::Load, Width::W64, 0, 0)
            .doing(|| format!("getting the stamp of step {step} from {}", self.name()))?;
        is_of(step, word).map_err(|found| Error::Torn {
            unit: self.part.unit,
            step,
            found,
        })
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

#[cfg(test)]
mod tests {
    use samite::{FabricConfig, Identity, Mask, Segment, SegmentKey};
    use samite_testkit::{Failed, Outcome, check, full_name, matches_or_fail, same, units};

    use super::*;
    use crate::job::field::Stamp;

    /// A unit that is its own analysis.
    fn alone() -> Fabric {
        Fabric::alone(Identity::by_hand("laplace"), FabricConfig::default()).unwrap()
    }

    fn hello(segment: SegmentKey) -> Hello {
        Hello {
            rows: 4,
            cols: 6,
            steps: 9,
            segment,
        }
    }

    fn unit<'f>(fabric: &'f Fabric, problem: &Problem) -> (Source<'f>, Segment<'f>) {
        let part = problem.part(0, 1).unwrap();
        let segment = fabric.allocate(Layout::new(problem, part).bytes()).unwrap();
        let hello = hello(segment.key());
        let source = Source::new(fabric, problem, part, &hello, fabric.me(), &hello).unwrap();
        (source, segment)
    }

    fn publish(source: &Source<'_>, segment: &Segment<'_>, step: u64) {
        let stamp = Stamp::of(segment.bytes(), source.layout, step);
        stamp.begin();
        let field = Field::of(segment.bytes(), source.layout, step);
        (0..field.rows()).for_each(|row| field.store(row, &[step as f64; 6]));
        stamp.end();
    }

    /// To the unit that publishes: the next step. Back: done.
    const PUBLISH: u64 = 1;

    /// One unit publishes steps when the other one, which reads, asks for it.
    fn torn(name: &str, mask: Mask) {
        let name = full_name(module_path!(), name);
        units(2).mask(mask).run(&name, |fabric, members| {
            let problem = Problem::new(4, 6).map_err(Failed::new)?;
            let (owner, reader) = (members[0], members[1]);
            match fabric.me() == owner {
                true => publish_when_asked(fabric, &problem, reader),
                false => read_torn(fabric, &problem, owner, mask),
            }
        });
    }

    fn publish_when_asked(fabric: &Fabric, problem: &Problem, reader: PeerId) -> Outcome {
        let (source, segment) = unit(fabric, problem);
        fabric.send(reader, tag::HELLO, &segment.key().to_bytes())?;
        for step in 0..3 {
            fabric.recv(Match::from(reader, PUBLISH), &mut [])?;
            publish(&source, &segment, step);
            fabric.send(reader, PUBLISH, &[])?;
        }
        Ok(fabric
            .recv(Match::from(reader, tag::END), &mut [])
            .map(drop)?)
    }

    fn read_torn(fabric: &Fabric, problem: &Problem, owner: PeerId, mask: Mask) -> Outcome {
        let mut key = [0; 24];
        fabric.recv(Match::from(owner, tag::HELLO), &mut key)?;
        let part = problem.part(0, 1).map_err(Failed::new)?;
        let hello = hello(SegmentKey::from_bytes(&key));
        let source = Source::new(fabric, problem, part, &hello, owner, &hello);
        let source = source.map_err(Failed::new)?;
        check!(source.remote.mapped().is_some() != mask.map);
        let publish = || -> Outcome {
            fabric.send(owner, PUBLISH, &[])?;
            Ok(fabric
                .recv(Match::from(owner, PUBLISH), &mut [])
                .map(drop)?)
        };

        let mut row = [0.0; 6];
        let early = source.read(0, &mut row, |_, _| {});
        matches_or_fail!(early, Err(Error::Torn { found: None, .. }));
        publish()?;
        publish()?;
        let mut rows = Vec::new();
        let whole = source.read(1, &mut row, |at, cells| rows.push((at, cells[5])));
        check!(whole.is_ok());
        same!(rows, [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)]);

        let mut published = Ok(());
        let torn = source.read(0, &mut row, |at, _| {
            if at == 1 {
                published = publish();
            }
        });
        published?;
        matches_or_fail!(
            torn,
            Err(Error::Torn {
                unit: 0,
                step: 0,
                found: Some(2)
            })
        );
        check!(torn.is_err_and(|error| error.to_string().contains("held step 2")));
        Ok(fabric.send(owner, tag::END, &[])?)
    }

    #[test]
    fn a_step_that_is_overwritten_while_it_is_read_is_torn() {
        let name = "a_step_that_is_overwritten_while_it_is_read_is_torn";
        torn(name, Mask::default());
    }

    #[test]
    fn a_step_that_is_overwritten_while_it_comes_by_messages_is_torn() {
        let name = "a_step_that_is_overwritten_while_it_comes_by_messages_is_torn";
        torn(name, Mask::MESSAGES_ONLY);
    }

    #[test]
    fn a_step_that_was_not_announced_is_missed() {
        let (fabric, problem) = (alone(), Problem::new(4, 6).unwrap());
        let (source, _segment) = unit(&fabric, &problem);
        for step in [0, 2] {
            let change = Change::default();
            let announcement = Announcement { step, change };
            fabric
                .send(fabric.me(), tag::STEP, &announcement.to_bytes())
                .unwrap();
        }
        source.await_step(0).unwrap();
        let gap = source.await_step(1);
        assert!(matches!(
            gap,
            Err(Error::Gap {
                expected: 1,
                announced: 2,
                ..
            })
        ));
    }

    #[test]
    fn a_segment_of_another_size_is_refused() {
        let (fabric, problem) = (alone(), Problem::new(4, 6).unwrap());
        let segment = fabric.allocate(64).unwrap();
        let hello = hello(segment.key());
        let part = problem.part(0, 1).unwrap();
        let refused = Source::new(&fabric, &problem, part, &hello, fabric.me(), &hello);
        assert!(matches!(refused, Err(Error::Disagreement { unit: 0 })));
    }
}
