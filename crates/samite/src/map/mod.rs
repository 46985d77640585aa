//! Moved code on staged data and chunks: a filter or a reduction runs where the blocks of a step
//! lie, or at the home of a chunk, and only its result travels.
//!
//! ```text
//!   reader                               a unit on the node of a block
//!   locates parts of 1 MiB
//!   Mobile::map, 16 under way  ------->  the kernel, once for each 32 KiB of the part
//!                              <-------  its replies, at most 64 KiB for a part
//! ```
//! A part that no unit reaches (a spilled one, one in a file, the result of an operator, a short
//! chunk, a node without such a unit) is read, and the kernel runs here.
//!
//! # Cost
//! A part costs a call with about 150 bytes, and a copy of 32 KiB at a time through the cache of
//! that unit. Reading costs the transfer of the whole box.

mod source;

use samite_dsm::{Chunk, Elem};
use samite_fabric::{PeerId, Segment};
use samite_mobile::{Call, Cause, Input, Mobile, Registered};
use samite_stage::{Located, Region, Selection, StepReader};
use source::{Content, Source, Variable};
use std::collections::{HashMap, VecDeque};

/// Bytes of a part, at most.
const PART: u64 = 1 << 20;
/// A part is halved if its results are too long, down to so many bytes.
const PART_MIN: u64 = 1 << 10;
/// Parts under way.
const UNDER_WAY: usize = 16;

/// What can go wrong when code is applied to data.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The step cannot be read.
    #[error(transparent)]
    Stage(Box<samite_stage::Error>),
    /// The chunk cannot be read.
    #[error(transparent)]
    Dsm(#[from] samite_dsm::Error),
    /// The code cannot be called, or has failed.
    #[error(transparent)]
    Mobile(#[from] samite_mobile::Error),
}

samite_mem::error_codes!(MapError, "map", {}, inner: Stage, Dsm, Mobile);

impl From<samite_stage::Error> for MapError {
    fn from(error: samite_stage::Error) -> MapError {
        MapError::Stage(Box::new(error))
    }
}

impl From<samite_fabric::Error> for MapError {
    fn from(error: samite_fabric::Error) -> MapError {
        MapError::Mobile(error.into())
    }
}

/// The result for a part of a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The part. The kernel got its elements in row-major order.
    pub region: Region,
    /// The replies of the kernel, one after another.
    pub bytes: Vec<u8>,
}

/// Code, with an argument, that is applied to boxes of staged variables ([`Map::run`]), or to
/// chunks ([`Map::run_at_home`]).
///
/// An entry is called for pieces of the box, each at most [`CHUNK`](samite_mobile::CHUNK) bytes of
/// consecutive elements, with the payload of [`Mobile::map`]. It replies with what is to reach the
/// reader: the elements that a filter lets through, or the sum of a piece.
///
/// ```
/// # use samite::stage::Stage;
/// use samite::mobile::{Capsule, Function, Mobile};
/// use samite::Map;
/// # let fabric = samite::init()?;
/// # let stage = Stage::join(&fabric)?;
/// # let mut writer = stage.write("field").as_rank("writer", 0, 1).open()?;
/// # let mut step = writer.step()?;
/// # let field = ndarray::Array2::from_shape_fn((4, 6), |(row, column)| (row * 6 + column) as u64);
/// # step.put("u", [4, 6], [0, 0], field.view())?;
/// # step.commit()?;
/// # writer.close()?;
/// # let mut reader = stage.read("field").as_rank("reader", 0, 1).open()?;
/// # let step = reader.next_step()?.expect("one was written");
/// let mobile = Mobile::new(&fabric)?;
/// // Any capsule does; this one names a function of the program. The argument is a bound.
/// mobile.define("above", Function::new(|context, payload| {
///     let (head, elements) = payload.split_at(32); // 16 bytes, the argument padded to 16
///     let bound = u64::from_le_bytes(head[16..24].try_into().expect("8 bytes"));
///     let (elements, _) = elements.as_chunks::<8>();
///     let above = elements.iter().filter(|element| u64::from_le_bytes(**element) > bound);
///     context.reply(&above.copied().collect::<Vec<_>>().concat())
/// }));
/// let above = mobile.register(Capsule::of_function("above", ["above"])?)?;
/// let above = Map::new(&mobile, &above, "above").argument(&20_u64.to_le_bytes()).at(&[0]);
/// let parts = above.run(&step, "u", ..)?;
/// let found: Vec<u8> = parts.into_iter().flat_map(|part| part.bytes).collect();
/// assert_eq!(found.len(), 3 * 8); // 21, 22 and 23
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Map<'m> {
    mobile: &'m Mobile,
    code: &'m Registered,
    entry: String,
    argument: Vec<u8>,
    units: Vec<u32>,
}

/// A part under way.
struct Flight {
    part: Part,
    /// The unit at which it is.
    unit: u32,
    call: Call,
}

/// A part, with its position among the results: halves of a part come in its place.
#[derive(Clone)]
struct Part {
    order: Vec<u32>,
    located: Located,
}

/// One use of a map.
struct Running<'m, S> {
    map: &'m Map<'m>,
    source: S,
    parts: VecDeque<Part>,
    /// Bytes of a part from now on.
    most: u64,
    /// Units that may reach the segments of a peer.
    reach: HashMap<PeerId, Vec<u32>>,
    done: Vec<(Vec<u32>, Mapped)>,
    /// Where parts are read to that no other unit reaches.
    own: Option<Segment>,
}

impl<'m> Map<'m> {
    /// Prepares an entry of registered code, without an argument. Local.
    pub fn new(mobile: &'m Mobile, code: &'m Registered, entry: &str) -> Map<'m> {
        Map {
            mobile,
            code,
            entry: entry.to_owned(),
            argument: Vec::new(),
            units: Vec::new(),
        }
    }

    /// Sets the argument: bytes that each call of the kernel gets, at most
    /// [`ARGUMENT_MAX`](samite_mobile::ARGUMENT_MAX).
    pub fn argument(self, bytes: &[u8]) -> Map<'m> {
        let argument = bytes.to_vec();
        Map { argument, ..self }
    }

    /// Sets the units that may run the code: all have a [`Mobile`] and make progress while this
    /// unit waits. Each block goes to those on its node. Without any, the code runs at this unit.
    pub fn at(self, units: &[u32]) -> Map<'m> {
        let units = units.to_vec();
        Map { units, ..self }
    }

    /// Applies the code to a box of a variable, and returns the results of its parts: in the
    /// row-major order of each block, together the whole box. Parts have at most 1 MiB, and as
    /// little as is necessary for results of at most 64 KiB each, in at most 0.1 s each.
    /// Completion: the result.
    ///
    /// A call that was lost with its unit is repeated at another one: a kernel that changes granted
    /// segments may have run twice.
    ///
    /// # Errors
    /// Those of [`StepReader::get`]; those of [`Mobile::map`]; a failure of the kernel; a result of
    /// one piece that is too long. [`TooLong`](samite_mobile::Error::TooLong) for elements that are
    /// longer than a piece, or have no bytes.
    pub fn run(
        &self,
        step: &StepReader,
        variable: &str,
        asked: impl Selection,
    ) -> Result<Vec<Mapped>, MapError> {
        let whole = &step.variable(variable)?.shape;
        let (region, dtype) = (asked.region(whole)?, step.variable(variable)?.dtype);
        let source = Variable {
            step,
            name: variable,
            element: dtype.bytes(),
        };
        self.run_on(source, &region)
    }

    /// Applies the code to a whole chunk at its home, under a guard: nothing is committed to it
    /// meanwhile. The regions of the results count elements. A chunk of at most 4 KiB comes with
    /// its guard, so the code runs here. Completion: the result.
    ///
    /// # Errors
    /// Those of [`Chunk::read_at_home`]; as [`Map::run`].
    pub fn run_at_home<T: Elem>(&self, chunk: &Chunk<T>) -> Result<Vec<Mapped>, MapError> {
        let guard = chunk.read_at_home()?;
        let whole = Region::whole(&[chunk.len()]).map_err(samite_stage::Error::from)?;
        self.run_on(Content::new(&guard), &whole)
    }

    fn run_on<S: Source>(&self, source: S, region: &Region) -> Result<Vec<Mapped>, MapError> {
        let most = samite_mobile::CHUNK as u64;
        if !(1..=most).contains(&source.element()) {
            let bytes = source.element();
            return Err(samite_mobile::Error::TooLong { bytes, most }.into());
        }
        let located = source.locate(region, PART)?.into_iter();
        let located = located.filter(|located| !located.region.is_empty());
        let part = |(number, located): (usize, Located)| Part {
            order: vec![number as u32],
            located,
        };
        let running = Running {
            map: self,
            source,
            parts: located.enumerate().map(part).collect(),
            most: PART,
            reach: HashMap::new(),
            done: Vec::new(),
            own: None,
        };
        running.run()
    }
}

impl<S: Source> Running<'_, S> {
    fn run(mut self) -> Result<Vec<Mapped>, MapError> {
        let mut flights: VecDeque<Flight> = VecDeque::new();
        loop {
            while flights.len() < UNDER_WAY
                && let Some(part) = self.parts.pop_front()
            {
                if self.bytes(&part)? > self.most && is_divisible(&part) {
                    self.halve(&part)?;
                    continue;
                }
                flights.extend(self.start(part)?);
            }
            let Some(flight) = flights.pop_front() else {
                break;
            };
            self.land(flight)?;
        }
        self.done.sort_by(|(one, _), (two, _)| one.cmp(two));
        Ok(self.done.into_iter().map(|(_, mapped)| mapped).collect())
    }

    fn can_halve(&self, part: &Part) -> Result<bool, MapError> {
        Ok(self.bytes(part)? > PART_MIN && is_divisible(part))
    }

    fn bytes(&self, part: &Part) -> Result<u64, MapError> {
        let bytes = part.located.region.bytes(self.source.element());
        Ok(bytes.map_err(samite_stage::Error::from)?)
    }

    /// Starts a part at a unit on its node; without one, reads it and runs the code here.
    fn start(&mut self, part: Part) -> Result<Option<Flight>, MapError> {
        let map = self.map;
        let Some(place) = part.located.place.clone() else {
            self.run_here(part)?;
            return Ok(None);
        };
        let units = (self.reach.entry(place.key.peer)).or_insert_with(|| map.units.clone());
        if units.is_empty() {
            self.run_here(part)?;
            return Ok(None);
        }
        let unit = units[part.order[0] as usize % units.len()];
        let input = Input {
            key: place.key,
            offset: place.offset,
            run: place.run,
            element: self.source.element() as u32,
            levels: place.levels,
        };
        match map
            .mobile
            .map(unit, map.code, &map.entry, &map.argument, &input)
        {
            Ok(call) => Ok(Some(Flight { part, unit, call })),
            Err(error) if is_lost(&error) => {
                self.forsake(place.key.peer, unit);
                self.parts.push_front(part);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Does not use a unit any more for the segments of a peer.
    fn forsake(&mut self, peer: PeerId, unit: u32) {
        if let Some(units) = self.reach.get_mut(&peer) {
            units.retain(|one| *one != unit);
        }
    }

    /// Takes the result of a part.
    fn land(&mut self, flight: Flight) -> Result<(), MapError> {
        let Flight { part, unit, call } = flight;
        match call.wait() {
            Ok(bytes) => self.finish(part, bytes),
            Err(error) if is_too_much(&error) && self.can_halve(&part)? => {
                self.most = self.most.min(self.bytes(&part)? / 2).max(PART_MIN);
                self.halve(&part)?;
            }
            Err(error) if is_lost(&error) => {
                if let Some(place) = &part.located.place {
                    self.forsake(place.key.peer, unit);
                }
                self.parts.push_front(part);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn finish(&mut self, part: Part, bytes: Vec<u8>) {
        let region = part.located.region;
        self.done.push((part.order, Mapped { region, bytes }));
    }

    /// Puts the halves of a part in its place.
    fn halve(&mut self, part: &Part) -> Result<(), MapError> {
        let most = self.bytes(part)?.div_ceil(2).max(1);
        let halves = self.source.locate(&part.located.region, most)?;
        for (number, located) in halves.into_iter().enumerate().rev() {
            let mut order = part.order.clone();
            order.push(number as u32);
            self.parts.push_front(Part { order, located });
        }
        Ok(())
    }

    /// Reads a part, and runs the code at this unit.
    fn run_here(&mut self, part: Part) -> Result<(), MapError> {
        let (map, bytes) = (self.map, self.bytes(&part)?);
        let mut read = vec![0; bytes as usize];
        self.source.read(&part.located.region, &mut read)?;
        let own = match self.own.take() {
            Some(own) if own.key().bytes >= bytes => own,
            _ => map.mobile.fabric().allocate(bytes.max(PART))?,
        };
        own.bytes().write(0, &read);
        let input = Input::range(own.key(), 0, bytes, self.source.element() as u32);
        self.own = Some(own);
        let me = map.mobile.unit();
        let call = map
            .mobile
            .map(me, map.code, &map.entry, &map.argument, &input)?;
        match call.wait() {
            Ok(bytes) => self.finish(part, bytes),
            Err(error) if is_too_much(&error) && self.can_halve(&part)? => self.halve(&part)?,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn cause(error: &samite_mobile::Error) -> Option<Cause> {
    match error {
        samite_mobile::Error::Failed(failure) => Some(failure.cause),
        _ => None,
    }
}

/// The replies together are too long, or the kernel took too long for all pieces. Or it did what it
/// may not: then it fails again.
fn is_too_much(error: &samite_mobile::Error) -> bool {
    matches!(cause(error), Some(Cause::Forbidden | Cause::Time))
}

/// A single element is not halved.
fn is_divisible(part: &Part) -> bool {
    part.located.region.volume() > Some(1)
}

/// The unit does not reach the part, or is not there any more.
fn is_lost(error: &samite_mobile::Error) -> bool {
    matches!(cause(error), Some(Cause::Input | Cause::Lost))
        || matches!(
            error,
            samite_mobile::Error::Fabric(samite_fabric::Error::PeerLost { .. })
        )
}
